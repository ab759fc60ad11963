"""What the worker of vLLM can do beyond vLLM: stage a published version and load it in place.

vLLM imports this module in the engine's own process, before it builds the model, and mixes `WeightLoader` into its
worker; the engine calls the methods by name. Only bytes, strings and numbers survive that way.
"""

import multiprocessing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import torch
import vllm._custom_ops
from vllm.config import VllmConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from async_rl.protocol import WeightManifest
from async_rl.weights.transports import AnyWeightSubscriber
from generators.lifeline import end_with
from generators.weight_stage import WeightStage


class LoadableModel(Protocol):
    """What vLLM's models have."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Copies tensors, by their Hugging Face names, into the parameters; returns the parameters' own names."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Every parameter once, shared ones by their first name."""
        ...

    def modules(self) -> Iterator[torch.nn.Module]:
        """Every part of it."""
        ...


class VllmWorker(Protocol):
    """The worker as the extension sees it."""

    weight_stage: WeightStage
    vllm_config: VllmConfig

    def get_model(self) -> LoadableModel:
        """The model that this worker runs."""
        ...


class WeightLoader:
    """Methods of the worker; see `VllmEngine.update_weights` for the order of the calls."""

    # A worker never calls the constructors of its extensions, and a process has one worker.
    weight_stage = WeightStage(AnyWeightSubscriber())

    def begin_staging(self: VllmWorker, manifest: bytes) -> None:
        """Starts to read and verify a version, beside generation."""
        base = Path(self.vllm_config.model_config.model)
        self.weight_stage.begin(msgspec.msgpack.decode(manifest, type=WeightManifest), base)

    def poll_staging(self) -> tuple[bool, str]:
        """See `WeightStage.poll`."""
        return self.weight_stage.poll()

    def load_staged(self: VllmWorker) -> None:
        """Overwrites the model's parameters. The engine must stand still, and must not go on if this raises."""
        model = self.get_model()
        staged = self.weight_stage.take()
        loaded = model.load_weights(staged.tensors)
        missing = {name for name, _ in model.named_parameters()} - loaded
        if missing and not staged.is_adapter:
            raise ValueError(f"the published version has no {', '.join(sorted(missing))}")
        _pack_experts(model)


def _pack_experts(model: LoadableModel) -> None:
    """Gives experts on CPUs back the layout that their kernel reads: the load has left the plain one in its place."""
    for module in model.modules():
        if isinstance(module, RoutedExperts):
            kernel = module.quant_method.moe_kernel.fused_experts
            if isinstance(kernel, CPUUnquantizedExperts):
                kernel.process_weights_after_loading(module)


def _prepare_engine_process() -> None:
    # oneDNN packs weights into a layout of its own, which loading in place would miss.
    vllm._custom_ops._supports_onednn = False
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None, "this module belongs into the process of an engine"
    # vLLM's engine outlives a client that was killed, and keeps its core and its memory.
    end_with(parent.pid)


_prepare_engine_process()
