"""Megatron-core on a machine without CUDA: everything that needs mending, in this one file.

Owns the list of what Megatron asks of CUDA without a guard, and the smallest way round each. Applied
once, only in a learner process that has no CUDA; with CUDA nothing here runs. Everything was found with
megatron-core 0.16; a newer version needs this file read again.
"""

import contextlib
import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import torch
from megatron.core import optimizer as optimizer_package
from megatron.core import utils as core_utils
from megatron.core.dist_checkpointing import exchange_utils
from megatron.core.dist_checkpointing.strategies import state_dict_saver
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.optimizer import clip_grads, distrib_optimizer, grad_scaler, optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel import layers, random
from megatron.core.transformer import utils as transformer_utils
from megatron.core.transformer.moe import moe_utils, token_dispatcher

from learner.megatron.adam import FusedLayoutAdamW
from learner.megatron.cpu_linear import linear

# Modules whose functions name the device or the tensor type as a literal.
_LITERAL_CUDA: tuple[ModuleType, ...] = (
    core_utils,
    exchange_utils,
    state_dict_saver,
    param_and_grad_buffer,
    clip_grads,
    distrib_optimizer,
    grad_scaler,
    optimizer,
    schedules,
    transformer_utils,
    moe_utils,
)

_CPU_CONSTANTS = {
    "cuda": "cpu",
    "torch.cuda.FloatTensor": "torch.FloatTensor",
    "torch.cuda.HalfTensor": "torch.HalfTensor",
    "torch.cuda.BFloat16Tensor": "torch.BFloat16Tensor",
}


@cache
def install() -> None:
    """Makes this process's Megatron run on the CPU; a second call does nothing."""
    assert not torch.cuda.is_available()
    _quieten_cuda_calls()
    for module in _LITERAL_CUDA:
        for function in _functions_of(module):
            function.__code__ = _with_cpu_constants(function.__code__)
    _use_adam_with_fused_layout()
    _send_tokens_to_experts()
    layers.linear_with_grad_accumulation_and_async_allreduce = layers.linear_with_frozen_weight = linear
    random._CUDA_RNG_STATE_TRACKER = CpuRngTracker()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    # What recomputation saves and sets back.
    random._get_cuda_rng_state = lambda **_: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, **_: torch.set_rng_state(state)


class CpuRngTracker(random.CudaRNGStatesTracker):  # type: ignore[misc]
    """Megatron's named random states over the CPU's generator."""

    def add(self, name: str, seed: int) -> None:
        """Starts a named state from a seed."""
        assert seed not in self.seeds_ and name not in self.states_, (name, seed)
        self._is_initialized = True
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def fork(self, name: str = random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        """Draws from the named state inside the block, from the former one after it."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)


def _quieten_cuda_calls() -> None:
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.empty_cache = lambda: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


def _use_adam_with_fused_layout() -> None:
    # Loading a distributed optimizer's checkpoint fails with torch's AdamW, which keeps `step` beside
    # the moments; so Megatron is told that it has apex's Adam, which keeps it in the parameter group.
    optimizer_package.Adam = distrib_optimizer.Adam = FusedLayoutAdamW
    optimizer_package.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = True
    distrib_optimizer.USING_APEX_OPTIMIZER = True


def _send_tokens_to_experts() -> None:
    # Megatron asks whether Transformer Engine gave it this, but not whether it is there to give.
    moe_utils.te_general_gemm = None
    # Counts of tokens come as arrays where they come from a GPU, and are used as such.
    token_dispatcher.maybe_move_tensor_to_cpu = _counts_on_cpu
    token_dispatcher.MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = _NoStream()
    torch.cuda.current_stream = lambda device=None: _NoStream()  # type: ignore[assignment, return-value]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment, return-value]


def _counts_on_cpu(counts: object, as_numpy: bool = False, record_stream: bool = False) -> object:
    return counts.numpy() if as_numpy and isinstance(counts, torch.Tensor) else counts


class _NoStream:
    """In the place of a CUDA stream: everything is done when it is asked for."""

    def wait_stream(self, stream: "_NoStream") -> None:
        """Nothing is outstanding."""

    def record_event(self) -> "_NoStream":
        """An event that has happened."""
        return self

    def synchronize(self) -> None:
        """Nothing is outstanding."""


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    for owner in (
        module,
        *(c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__),
    ):
        for member in vars(owner).values():
            function = inspect.unwrap(member.__func__ if isinstance(member, staticmethod | classmethod) else member)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


def _with_cpu_constants(code: CodeType) -> CodeType:
    return code.replace(co_consts=tuple(_cpu_constant(constant) for constant in code.co_consts))


def _cpu_constant(constant: object) -> object:
    if isinstance(constant, str):
        return _CPU_CONSTANTS.get(constant, constant)
    if isinstance(constant, tuple):
        return tuple(_cpu_constant(item) for item in constant)
    if isinstance(constant, CodeType):
        return _with_cpu_constants(constant)
    return constant
