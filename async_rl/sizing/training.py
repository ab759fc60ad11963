"""The memory of a rank that trains: weights, gradients, optimizer, activations, on the worst pipeline stage.

Owns the sum. A rank holds its gradients whole in float32, and of the optimizer's state (two moments, and float32
weights where the model has fewer bits) one part among its data parallel ranks: ZeRO's first stage (arXiv:1910.02054).
Pure.

Legend: T tokens of a micro-batch, H hidden size.
"""

from dataclasses import dataclass

from async_rl.config.model import Dtype
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.sizing.account import GIB, Account, Part
from async_rl.sizing.activations import Activations, layers_in_flight
from async_rl.sizing.parameters import Parameters, adapter_parameters, stage_parameters

DTYPE_BYTES = {Dtype.float32: 4, Dtype.bfloat16: 2}
_LOGIT_BYTES = 3 * 4 * 2**25
"""Of the head: a tile of the logits, their softmax and their gradient, in float32."""


@dataclass(frozen=True, kw_only=True)
class HeldModel:
    """One of the models on a rank."""

    name: str
    is_trained: bool = True
    """With gradients and an optimizer; a frozen one has neither."""
    has_vocabulary: bool = True
    """A logit for each token above its last norm, else one number."""
    lora_rank: int = 0
    """Of adapters that train in the place of its weights; 0: there are none."""
    is_offloaded: bool = False
    """On the device in its uses alone."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """What a model holds on a rank besides activations, in bytes."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Training:
    """All that decides how much a rank needs."""

    sizes: ModelSizes
    models: tuple[HeldModel, ...]
    """On each rank, of the same sizes."""
    parallel: ParallelConfig
    num_shards: int
    """Data parallel size."""
    recompute: Recompute
    dtype: Dtype
    tokens: int
    """T, at most."""
    micro_batches: int
    """Of an optimizer step on a rank, at most."""
    on_gpus: bool
    keeps_reference_states: bool = False
    """For the exact KL a step keeps the reference's hidden states of all its tokens."""

    @property
    def width(self) -> int:
        """Bytes of a weight."""
        return DTYPE_BYTES[self.dtype]

    @property
    def activations(self) -> Activations:
        """Of the layers on a rank."""
        return Activations(
            sizes=self.sizes,
            parallel=self.parallel,
            recompute=self.recompute,
            width=self.width,
            on_gpus=self.on_gpus,
        )


def runtime_bytes(on_gpus: bool) -> int:
    """CUDA's context, workspaces of the libraries and NCCL's buffers, or on a CPU Python and the libraries.

    What is usual, not worked out.
    """
    return 2 * GIB if on_gpus else GIB


def training_account(training: Training) -> Account:
    """The rank that needs the most; all ranks of a pipeline stage need the same."""
    stages = [stage_account(training, stage) for stage in range(training.parallel.pp)]
    return max(stages, key=lambda account: account.total)


def stage_account(training: Training, stage: int) -> Account:
    """A rank of a pipeline stage, counted from 0."""
    states = _states_at_once(training, stage)
    pp = training.parallel.pp
    return Account(
        owner="learner rank" if pp == 1 else f"learner rank, stage {stage + 1} of {pp}",
        parts=(
            Part(name="weights", num_bytes=sum(state.weights for state in states)),
            Part(name="gradients", num_bytes=sum(state.gradients for state in states)),
            Part(name="optimizer", num_bytes=sum(state.optimizer for state in states)),
            Part(name="activations", num_bytes=_kept_bytes(training, stage)),
            Part(name="working memory", num_bytes=_working_bytes(training, is_last=stage == pp - 1)),
            Part(name="runtime", num_bytes=runtime_bytes(training.on_gpus)),
        ),
    )


def _states_at_once(training: Training, stage: int) -> list[_State]:
    """Of the models that stay, and of the largest of those that come one at a time."""
    staying = [_state(training, model, stage) for model in training.models if not model.is_offloaded]
    coming = [_state(training, model, stage) for model in training.models if model.is_offloaded]
    return staying + sorted(coming, key=lambda state: state.total)[-1:]


def _state(training: Training, model: HeldModel, stage: int) -> _State:
    held = stage_parameters(training.sizes, training.parallel, stage, has_vocabulary=model.has_vocabulary)
    adapters = adapter_parameters(training.sizes, training.parallel, model.lora_rank)
    trained = adapters if model.lora_rank else held
    return _State(
        weights=(held + adapters).total * training.width,
        gradients=trained.total * 4 if model.is_trained else 0,
        optimizer=_optimizer_bytes(training, trained) if model.is_trained else 0,
    )


def _optimizer_bytes(training: Training, held: Parameters) -> int:
    """Two moments and, under fewer bits than float32, the weights themselves; each part of it on one rank."""
    parallel = training.parallel
    bytes_each = 8 if training.dtype is Dtype.float32 else 12
    shards = parallel.cp * training.num_shards
    expert_shards = max(parallel.tp * shards // (parallel.ep * parallel.etp), 1)
    return bytes_each * (held.dense // shards + held.experts // expert_shards)


def _kept_bytes(training: Training, stage: int) -> int:
    layers = layers_in_flight(training.sizes, training.parallel, stage, training.micro_batches)
    kept = layers * training.activations.kept * _local_tokens(training)
    return kept + (_kept_at_the_end(training) if stage == training.parallel.pp - 1 else 0)


def _kept_at_the_end(training: Training) -> int:
    """By the norm behind all layers, and of the reference."""
    tokens = _local_tokens(training)
    states = training.width * training.sizes.hidden_size * training.micro_batches
    return tokens * (training.activations.last_norm + (states if training.keeps_reference_states else 0))


def _working_bytes(training: Training, *, is_last: bool) -> int:
    """The larger of what a layer's backward pass and what the head need besides; they follow each other."""
    tokens = _local_tokens(training)
    layer = tokens * training.activations.working
    # Hidden states behind the last norm, those that are scored, and the gradient of either.
    head = tokens * training.width * 4 * training.sizes.hidden_size + _LOGIT_BYTES
    return max(layer, head) if is_last else layer


def _local_tokens(training: Training) -> int:
    """Context parallel ranks share each sequence."""
    return -(-training.tokens // training.parallel.cp)
