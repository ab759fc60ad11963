"""The norm of Megatron's local layers, which may stand between ranks that share a sequence.

Owns what Megatron's own wrapper of torch's norm refuses: the mark by which the gradient of a weight, of which each of
these ranks has a part, is summed over them.
"""

import torch
from megatron.core.transformer import TransformerConfig


class RmsNorm(torch.nn.RMSNorm):
    """Root Mean Square Layer Normalization (arXiv:1910.07467), as Megatron builds it from a layer spec."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
