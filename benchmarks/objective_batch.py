"""A batch as a learner sees it: responses of mixed lengths to prompts with eight samples each, padded on the right.

Owns how realistic the numbers are: policies that drifted apart by another amount in each row, a reward at the end.

Legend: N sequences, T tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP_SIZE = 8
TURN, OBSERVATION = 384, 128
"""With holes: tokens that the policy writes in a turn, and those with which its environment answers."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Everything float32 [N, T] unless it says otherwise; outside of the mask there is 0."""

    mask: Tensor
    """bool"""
    rollout_logprobs: Tensor
    proximal_logprobs: Tensor
    logprobs: Tensor
    """Log-probabilities of μ, of π_prox, and of π."""
    values: Tensor
    rewards: Tensor
    groups: Tensor
    """[N] int64"""
    advantages: Tensor
    weights: Tensor
    peer_mask: Tensor
    """As verl's trainer gives it to advantages and the correction, int64; or float32."""
    peer_loss_mask: Tensor
    """As it gives it to losses, bool; or float32."""

    @classmethod
    def make(
        cls, num_rows: int, width: int, *, has_holes: bool, has_float_masks: bool = False, seed: int = 0
    ) -> "Batch":
        """The same for the same arguments."""
        random = torch.Generator().manual_seed(seed)
        lengths = torch.randint(max(1, width // 8), width + 1, (num_rows, 1), generator=random)
        places = torch.arange(width)
        mask = places < lengths
        if has_holes:
            phase = torch.randint(0, TURN, (num_rows, 1), generator=random)
            mask &= (places + phase) % (TURN + OBSERVATION) < TURN

        def noise() -> Tensor:
            return torch.randn(num_rows, width, generator=random)

        drift = 0.01 * 20 ** torch.rand(num_rows, 1, generator=random)
        mu = -torch.rand(num_rows, width, generator=random) * 3 - 0.5
        proximal = mu + drift * noise()
        last = torch.where(mask, places, -1).amax(1)
        rewards = torch.zeros(num_rows, width)
        rewards[torch.arange(num_rows), last] = torch.randint(0, 2, (num_rows,), generator=random).float()
        tokens = {
            "rollout_logprobs": mu,
            "proximal_logprobs": proximal,
            "logprobs": proximal + 0.15 * noise(),
            "values": 0.5 + 0.1 * noise(),
            "rewards": rewards,
            "advantages": torch.randn(num_rows, 1, generator=random).expand(num_rows, width),
            "weights": (proximal - mu).exp().clamp(max=2),
        }
        zeroed = {name: torch.where(mask, value, 0.0) for name, value in tokens.items()}
        return cls(
            mask=mask,
            groups=torch.arange(num_rows) // GROUP_SIZE,
            peer_mask=mask.float() if has_float_masks else mask.long(),
            peer_loss_mask=mask.float() if has_float_masks else mask,
            **zeroed,
        )
