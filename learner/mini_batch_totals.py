"""What is known only of a whole mini-batch: how much each row counts, and which tokens a surrogate chose.

Owns the two, so that no split into micro-batches changes a loss. Pure.

Legend: N trajectories of the batch, T response positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from async_rl.config.objective import Aggregation
from async_rl.config.schema import RunConfig
from correction.ratios import log_ratio
from learner.losses.aggregation import AGGREGATIONS, BatchTotals
from learner.losses.table import SURROGATES


def row_scales(mask: Tensor, indices: Sequence[int], aggregation: str, length_norm: float) -> Tensor:
    """Row scales [N] float64 of a mini-batch: 0 for the sequences outside of it.

    Args:
        mask: [N, T] bool, of the batch.
        indices: sequences of the mini-batch.
        aggregation: key of `AGGREGATIONS`.
        length_norm: > 0; read by `seq_mean_token_sum_norm`.
    """
    own = mask[list(indices)]
    scales = torch.zeros(len(mask), dtype=torch.float64)
    scales[list(indices)] = AGGREGATIONS[aggregation](own, BatchTotals.of(own, length_norm))
    return scales


def policy_scales(mask: Tensor, indices: Sequence[int], config: RunConfig) -> Tensor:
    """The same, of the aggregation that the config chooses for the policy's loss."""
    chosen = config.loss.aggregation
    name = SURROGATES[config.loss.surrogate].aggregation if chosen is Aggregation.auto else chosen.value
    return row_scales(mask, indices, name, config.loss.length_norm or float(config.generation.max_new_tokens))


def select_tokens(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    indices: Sequence[int],
    config: RunConfig,
    *,
    seed: int,
) -> Tensor:
    """[N, T] bool: what the surrogate's `select` chooses of a mini-batch.

    Args:
        logprobs: [N, T] of the policy at this step.
        proximal_logprobs: [N, T].
        advantages: [N, T].
        mask: [N, T] bool.
        indices: sequences of the mini-batch.
        config: names the surrogate.
        seed: of this choice alone.
    """
    select, own = SURROGATES[config.loss.surrogate].select, list(indices)
    assert select is not None, config.loss.surrogate
    log_ratios = log_ratio(logprobs[own], proximal_logprobs[own], mask[own])
    generator = torch.Generator().manual_seed(seed)
    selected = torch.zeros_like(mask)
    selected[own] = select(logprobs[own], advantages[own], mask[own], log_ratios, config.loss, generator)
    return selected
