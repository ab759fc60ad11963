"""The memory that a dry run works out, against what a real model, its gradients, its optimizer and autograd hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core.optimizer import ChainedOptimizer

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.sizing.model_json import read_sizes
from async_rl.sizing.training import HeldModel, Training, stage_account
from learner.megatron.head import Head
from learner.megatron.network import Network
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

BATCH = PackedSequences.pack([np.arange(n) % 60 for n in (60, 100, 40)])
LARGER = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4}


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes on a rank."""

    weights: int
    gradients: int
    optimizer: int
    activations: int


def measure(place: Place, folder: Path, parallel: ParallelConfig, dtype: Dtype, recompute: Recompute) -> Held:
    """What a rank really holds."""
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        model = ModelConfig(path=str(folder), dtype=dtype)
        network = Network(ground, model, Head.VOCABULARY, OptimizerConfig(), num_steps=5, recompute=recompute)
        assert network._replicas is not None and network._optimizer is not None
        parameters = [p for chunk in network.chunks for p in chunk.parameters()]
        buffers = [
            buffer
            for replica in network._replicas.chunks
            for buffer in [*replica.buffers, *replica.expert_parallel_buffers]
        ]
        return Held(
            weights=sum(p.nbytes for p in parameters),
            gradients=sum(buffer.grad_data.nbytes for buffer in buffers),
            optimizer=optimizer_bytes(network, parameters),
            activations=kept_bytes(network, parameters),
        )


def optimizer_bytes(network: Network, parameters: Sequence[torch.Tensor]) -> int:
    """Of the moments, and of those main weights that are no views of the model's."""
    assert network._optimizer is not None
    optimizer = network._optimizer.optimizer
    places = {p.untyped_storage().data_ptr() for p in parameters}
    parts = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
    total = 0
    for part in parts:
        for main in (p for group in part.optimizer.param_groups for p in group["params"]):
            total += 0 if main.untyped_storage().data_ptr() in places else main.nbytes
            total += sum(s.nbytes for s in part.optimizer.state[main].values() if isinstance(s, torch.Tensor))
    return total


def kept_bytes(network: Network, parameters: Sequence[torch.Tensor]) -> int:
    """Of all that autograd keeps of a forward pass, but the weights."""
    places = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, torch.UntypedStorage] = {}
    until_loss: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in places:
            kept[storage.data_ptr()] = storage
        return tensor

    def loss(hidden: torch.Tensor, _: int) -> torch.Tensor:
        # What is kept from here on has been computed again.
        until_loss.append(sum(storage.nbytes() for storage in kept.values()))
        return hidden.float().sum()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.step([BATCH], loss)
    # The first stage of a pipeline sees no loss.
    return until_loss[0] if until_loss else sum(storage.nbytes() for storage in kept.values())


def expected(folder: Path, parallel: ParallelConfig, dtype: Dtype, recompute: Recompute, stage: int) -> Held:
    """What a dry run says of the same rank."""
    training = Training(
        sizes=read_sizes(folder),
        models=(HeldModel(name="policy"),),
        parallel=parallel,
        num_shards=max(parallel.dp, 1),
        recompute=recompute,
        dtype=dtype,
        tokens=BATCH.num_tokens,
        micro_batches=1,
        on_gpus=False,
    )
    parts = {part.name: part.num_bytes for part in stage_account(training, stage).parts}
    return Held(**{name: parts[name] for name in Held.__dataclass_fields__})


def agree(held: Held, said: Held) -> None:
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(said, name) == pytest.approx(getattr(held, name), rel=0.01), name
    assert said.activations == pytest.approx(held.activations, rel=0.06)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("dtype", Dtype)
def test_one_rank(make_reference: MakeReference, tmp_path: Path, architecture: str, dtype: Dtype) -> None:
    make_reference(architecture, **LARGER)
    folder = tmp_path / "model"
    (held,) = run_ranks(1, measure, folder, ParallelConfig(), dtype, Recompute.none)
    agree(held, expected(folder, ParallelConfig(), dtype, Recompute.none, 0))


@pytest.mark.parametrize("recompute", [Recompute.selective, Recompute.full])
def test_recomputing(make_reference: MakeReference, tmp_path: Path, recompute: Recompute) -> None:
    make_reference(**LARGER)
    folder = tmp_path / "model"
    (held,) = run_ranks(1, measure, folder, ParallelConfig(), Dtype.float32, recompute)
    agree(held, expected(folder, ParallelConfig(), Dtype.float32, recompute, 0))


@pytest.mark.parametrize(
    ("architecture", "parallel"),
    [
        ("Qwen3ForCausalLM", ParallelConfig(tp=2, sequence_parallel=True)),
        ("Qwen3ForCausalLM", ParallelConfig(pp=2)),
        ("Qwen3ForCausalLM", ParallelConfig(dp=2)),
        ("Qwen3MoeForCausalLM", ParallelConfig(ep=2, dp=2)),
    ],
    ids=["tp2", "pp2", "dp2", "ep2"],
)
def test_two_ranks(make_reference: MakeReference, tmp_path: Path, architecture: str, parallel: ParallelConfig) -> None:
    make_reference(architecture, **LARGER)
    folder = tmp_path / "model"
    both = run_ranks(2, measure, folder, parallel, Dtype.float32, Recompute.none)
    if parallel.ep > 1:
        # One rank's experts are asked for more often than the other's.
        mean = sum(held.activations for held in both) // 2
        both = [replace(held, activations=mean) for held in both]
    for rank, held in enumerate(both):
        agree(held, expected(folder, parallel, Dtype.float32, Recompute.none, rank if parallel.pp > 1 else 0))
