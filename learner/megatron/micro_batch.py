"""A micro-batch as the model takes it.

Owns what is made of packed sequences once, for all layers and pieces of the model. Knows nothing of what is scored.

Legend: T tokens of a micro-batch, with what fills them up to a number that the ranks of a sequence can share.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from learner.megatron.context import own_tokens
from learner.megatron.layout import Layout
from learner.packing import PackedSequences, Segment


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """On the model's device."""

    index: int | None
    """In the list that was asked for; None: nobody asked, the pipeline needed one more."""
    token_ids: Tensor
    """[1, t] int64: of the T those that are this rank's, with context parallelism."""
    layout: Layout
    """Of all T."""

    @classmethod
    def of(cls, sequences: PackedSequences, index: int | None, *, multiple: int, device: torch.device) -> Self:
        """The sequences, with T a multiple of that many tokens."""
        sequences = fill_up(sequences, multiple)
        return cls(
            index=index, token_ids=own_tokens(sequences.token_ids).to(device)[None], layout=Layout.of(sequences, device)
        )

    def hidden(self, model: torch.nn.Module) -> Tensor:
        """What the model makes of it: hidden states [t, 1, H], this rank's rows of them with sequence parallelism."""
        found: Tensor = model(
            input_ids=self.token_ids,
            # Attention rotates by the layout's positions, and nothing else asks for them.
            position_ids=None,
            attention_mask=None,
            packed_seq_params=self.layout,
        )
        return found


def fill_up(sequences: PackedSequences, multiple: int) -> PackedSequences:
    """The same with a segment of tokens behind it that nobody attends to or scores, for T to be a multiple."""
    missing = -sequences.num_tokens % multiple
    if not missing:
        return sequences
    filling = torch.arange(missing)
    return replace(
        sequences,
        token_ids=torch.cat([sequences.token_ids, torch.zeros_like(filling)]),
        position_ids=torch.cat([sequences.position_ids, filling]),
        segments=(*sequences.segments, Segment(sequences.num_tokens, missing)),
    )
