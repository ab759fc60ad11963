"""Probability ratios of one policy over another, from log-probabilities.

Owns the one clamp before the one `exp`, and who shares a ratio with whom. Everything stays in log space
until `ratio`.

Legend: N sequences, T tokens; log-probabilities are natural logs (nats) of the token that was sampled.
Tensors are [N, T] where nothing else is said, but only the functions of `LEVELS` ask for rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from correction.masked import count, masked_sum, zero_outside

LOG_RATIO_BOUND = 20.0
"""e^20 ≈ 5·10^8: far beyond any ratio that means something, far below what overflows float32 when squared."""


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision raised to float32: near 1, bfloat16 steps by 0.8 %. float64 stays."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def log_difference(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """Computes log(p/q) per token as it is; exactly 0 outside of the mask.

    Args:
        numerator: log p.
        denominator: log q.
        mask: bool.

    Returns:
        float32 or wider.
    """
    assert numerator.shape == denominator.shape == mask.shape, (numerator.shape, denominator.shape, mask.shape)
    # A difference may be selected after: its gradient does not look at the values.
    return zero_outside(at_least_float32(numerator) - at_least_float32(denominator), mask)


def clamp_log(log_ratios: Tensor) -> Tensor:
    """Log-ratios within ±`LOG_RATIO_BOUND`: what `ratio` and `excess` may see."""
    return log_ratios.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """Computes log(p/q) per token, clamped to ±`LOG_RATIO_BOUND`; exactly 0 outside of the mask.

    The gradient is 0 where the clamp binds and outside of the mask, whatever stands there.
    Arguments as in `log_difference`.
    """
    return clamp_log(log_difference(numerator, denominator, mask))


def ratio(log_ratios: Tensor) -> Tensor:
    """p/q of clamped log-ratios, finite by construction."""
    return log_ratios.exp()


def excess(log_ratios: Tensor) -> Tensor:
    """e^x − 1 − x of clamped log-ratios: never negative, 0 for equal policies, exact near 0.

    With x = log q/p and samples of p, its mean is KL(p‖q): the estimator k3 of Schulman, Approximating KL
    Divergence, http://joschu.net/blog/kl-approx.html.
    """
    return (log_ratios.expm1() - log_ratios).clamp(min=0)


def token_level(log_differences: Tensor, mask: Tensor) -> Tensor:
    """Each token's own ratio: low variance, blind to what came before it."""
    assert log_differences.shape == mask.shape, (log_differences.shape, mask.shape)
    return clamp_log(log_differences)


def segment_level(log_differences: Tensor, mask: Tensor) -> Tensor:
    """The product over a turn: a run of the mask between two holes."""
    turns = number_segments(mask).flatten()
    per_turn = torch.zeros(turns.numel() + 1, dtype=torch.float64, device=turns.device)
    per_turn = per_turn.index_add(0, turns, log_differences.flatten().double())
    shared = clamp_log(per_turn)[turns].to(log_differences.dtype).view_as(log_differences)
    return zero_outside(shared, mask)


def sequence_level(log_differences: Tensor, mask: Tensor) -> Tensor:
    """The product over the sequence: unbiased before any bound, and of a variance that grows with its length."""
    shared = clamp_log(masked_sum(log_differences, mask, -1))
    return zero_outside(shared.unsqueeze(-1).expand_as(log_differences), mask)


def geometric_level(log_differences: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean over the sequence: its product without the growth with its length.

    Group Sequence Policy Optimization, https://arxiv.org/abs/2507.18071.
    """
    shared = clamp_log(masked_sum(log_differences, mask, -1) / count(mask, -1).clamp(min=1))
    return zero_outside(shared.unsqueeze(-1).expand_as(log_differences), mask)


def starts_segment(mask: Tensor) -> Tensor:
    """Where a run of the mask [N, T] begins, [N, T] bool."""
    before = torch.zeros_like(mask)
    before[:, 1:] = mask[:, :-1]
    return mask & ~before


def number_segments(mask: Tensor) -> Tensor:
    """The number of each token's run within the batch, from 1, [N, T] int64; outside of the mask that of some run."""
    return starts_segment(mask).flatten().cumsum(0).view_as(mask)


LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": token_level,
    "segment": segment_level,
    "sequence": sequence_level,
    "geometric": geometric_level,
}
"""Whose ratio a token has: (log p/q [N, T] as it is, 0 outside of the mask; mask [N, T] bool) → log-ratios [N, T],
clamped, 0 outside of the mask."""

ROW_LEVELS = frozenset({"sequence", "geometric"})
"""Levels at which a sequence has one ratio."""
