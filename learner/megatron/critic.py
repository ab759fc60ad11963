"""`ValueBackend` on Megatron-core: a network with one number a token above it.

Owns what is made of that number. Knows nothing of rewards, returns or losses.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import Recompute
from learner.backend import StepResult, ValueLoss
from learner.megatron.head import Head, scored_rows, value_head
from learner.megatron.network import Network
from learner.megatron.runtime import Ground
from learner.megatron.snapshot import MegatronSnapshot
from learner.packing import PackedSequences


class MegatronCritic:
    """A language model's body, trained to say what is still to come; its values are 0 before the first step."""

    def __init__(
        self,
        ground: Ground,
        model: ModelConfig,
        optimizer: OptimizerConfig,
        *,
        num_steps: int,
        recompute: Recompute = Recompute.none,
        offload: bool = False,
    ) -> None:
        """Loads the body from a Hugging Face folder of a language model; see `MegatronBackend`.

        With `offload` it lies in the host's memory between uses.
        """
        self._network = Network(
            ground, model, Head.VALUE, optimizer, num_steps=num_steps, recompute=recompute, offload=offload
        )

    def values(self, micro_batches: Sequence[PackedSequences]) -> list[Tensor]:
        """See `ValueBackend`."""
        return self._network.evaluate(
            micro_batches, lambda hidden, index: self._values(hidden, micro_batches[index]).cpu()
        )

    def step(self, micro_batches: Sequence[PackedSequences], loss: ValueLoss) -> StepResult:
        """See `ValueBackend`; the values that `loss` sees lie on the model's device."""

        def loss_of(hidden: Tensor, index: int) -> Tensor:
            return loss(self._values(hidden, micro_batches[index]), index)

        return self._network.step(micro_batches, loss_of)

    def snapshot(self) -> MegatronSnapshot:
        """See `Trainable`."""
        return self._network.snapshot()

    def load(self, folder: Path) -> None:
        """Takes back what a snapshot wrote; a `ModelError` where the folder is none, or of another model."""
        self._network.load(folder)

    def close(self) -> None:
        """Gives up the model; the ground stays."""
        self._network.close()

    def _values(self, hidden: Tensor, sequences: PackedSequences) -> Tensor:
        top = self._network.top
        rows = scored_rows(hidden, sequences, Head.VALUE, is_split=top.config.sequence_parallel)
        values: Tensor = value_head(top)(rows)
        return values
