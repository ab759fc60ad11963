"""What stands above the last norm of a model, and the hidden states below it.

Owns the critic's head and the logits of a frozen model that are made chunk by chunk. Knows nothing of what
stands below.

Legend: T tokens of a micro-batch, C tokens of a chunk, V vocabulary, H hidden size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint


class Head(Enum):
    """Of a policy, or of a critic."""

    VOCABULARY = auto()
    """A logit for each word."""
    VALUE = auto()
    """One number."""


class ValueHead(torch.nn.Module):
    """In the place of Megatron's output layer: one number a token, float32 over a body of any format, 0 at first."""

    def __init__(self, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        # In the body's format: Megatron's checkpoints mix up the optimizer states of a group with two formats.
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden_size, dtype=dtype, device=device))

    def forward(
        self, hidden: torch.Tensor, *, weight: torch.Tensor | None, runtime_gather_output: bool | None
    ) -> tuple[torch.Tensor, None]:
        """[T, 1, H] → [T, 1, 1] float32, and no bias."""
        assert weight is None and not runtime_gather_output
        return torch.nn.functional.linear(hidden.float(), self.weight.float()), None

    def sharded_state_dict(
        self, *, prefix: str, sharded_offsets: tuple[()], metadata: dict[str, object]
    ) -> ShardedStateDict:
        """Its own name in checkpoints: an output layer's rows would load as if they were a head."""
        state = make_sharded_tensors_for_checkpoint(self.state_dict(keep_vars=True), prefix)
        replace_prefix_for_sharding(state, prefix, "value_head.")
        return state


@contextmanager
def taken_off(model: GPTModel) -> Iterator[None]:
    """Inside the block the model's forward gives hidden states [T, 1, H], as on an earlier pipeline stage."""
    model.post_process = False
    try:
        yield
    finally:
        model.post_process = True


@dataclass(frozen=True, kw_only=True)
class HiddenLogits:
    """`LazyLogits` over the hidden states of a forward pass."""

    model: GPTModel
    hidden: torch.Tensor
    """[T, 1, H], behind the last norm."""

    @torch.no_grad()
    def chunk(self, rows: slice) -> torch.Tensor:
        """Logits [C, V] float32 of some rows."""
        is_shared = self.model.share_embeddings_and_output_weights
        weight = self.model.shared_embedding_or_output_weight() if is_shared else None
        logits: torch.Tensor = self.model.output_layer(self.hidden[rows], weight=weight)[0]
        return logits[:, 0].float()
