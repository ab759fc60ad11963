"""Floating-point operations of a model: what its forward and backward passes take at least.

Owns the count by matrix products, a multiplication and an addition being two operations. What a layout adds
(activations computed again, padding, idle pipelines) is no work of the model's: MFU, the share of a device's peak that
training comes to, is lower for it (PaLM, arXiv:2204.02311, appendix B). Pure.
"""

from dataclasses import dataclass
from typing import Self

from async_rl.config.model_sizes import ModelSizes


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """Operations of one forward pass."""

    per_token: int
    """All layers' matrices; of experts those that a token is sent to."""
    per_scored_token: int
    """The output layer, which only tokens need whose successor is scored."""
    per_pair: int
    """Attention in all layers, for each pair of a token and one that it attends to."""

    @classmethod
    def of(cls, sizes: ModelSizes) -> Self:
        """Of a decoder with a vocabulary."""
        hidden = sizes.hidden_size
        attention = 2 * hidden * (2 * sizes.query_size + 2 * sizes.kv_size)
        feed_forward = 6 * hidden * sizes.intermediate_size
        if sizes.num_experts:
            feed_forward = sizes.top_k * feed_forward + 2 * hidden * sizes.num_experts
        return cls(
            per_token=sizes.num_layers * (attention + feed_forward),
            per_scored_token=2 * hidden * sizes.vocab_size,
            per_pair=sizes.num_layers * 4 * sizes.query_size,
        )

    def forward(self, *, tokens: int, scored_tokens: int, pairs: int) -> int:
        """Of a forward pass over some tokens.

        Args:
            tokens: that are computed; a prompt that is shared counts once.
            scored_tokens: of them that have a log-probability.
            pairs: sum of `causal_pairs`.
        """
        return self.per_token * tokens + self.per_scored_token * scored_tokens + self.per_pair * pairs

    def training(self, *, tokens: int, scored_tokens: int, pairs: int) -> int:
        """Of a forward and a backward pass, in which each product has two: for its input and for its weights."""
        return 3 * self.forward(tokens=tokens, scored_tokens=scored_tokens, pairs=pairs)


def causal_pairs(length: int, prefix: int = 0) -> int:
    """Pairs of a token and one that it attends to: itself, those before it, and all of a prefix."""
    return length * (length + 1) // 2 + length * prefix
