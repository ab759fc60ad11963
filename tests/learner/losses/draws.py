"""Batches for the tests of losses: ordinary and extreme numbers, any mask, and rubbish under it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.objective import Aggregation, KLConfig, KLEstimator, LossConfig, Surrogate
from learner.losses.aggregation import AGGREGATIONS, BatchTotals
from learner.losses.policy_loss import PolicyTokens
from learner.losses.table import SURROGATES
from tests.learner.losses.naive import Row, Token

log_ratios = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 5.0, -5.0, 25.0, -25.0, 1e4, -1e4]))
advantages = st.floats(-3, 3).map(lambda a: round(a, 6))
"""Their sign decides, and is the same in float32."""
poisons = st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def tokens(draw: st.DrawFn) -> Token:
    """One whose policies are all probabilities: their logarithms are at most 0."""
    base = draw(st.floats(-5, -1e-3))
    d, e = draw(log_ratios), draw(log_ratios)
    logprob = base + min(d, 0.0) + min(e, 0.0)
    return Token(
        logprob=logprob,
        proximal=logprob - d,
        reference=logprob - e,
        entropy=draw(st.floats(0, 10)),
        advantage=draw(advantages),
        weight=draw(st.floats(0, 5)),
        kept=draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn, min_rows: int = 1) -> list[list[Token]]:
    """[N][T]"""
    width = draw(st.integers(1, 5))
    return draw(st.lists(st.lists(tokens(), min_size=width, max_size=width), min_size=min_rows, max_size=4))


loss_configs = st.builds(
    LossConfig,
    surrogate=st.sampled_from(list(Surrogate)),
    aggregation=st.sampled_from([a for a in Aggregation if a is not Aggregation.auto]),
    clip_low=st.floats(0, 1),
    clip_high=st.floats(0, 1),
    clip_dual=st.sampled_from([0.0, 1.5, 3.0]),
    ratio_cap=st.floats(1, 30),
    cov_share=st.sampled_from([0.0, 2e-4, 0.3, 1.0]),
    clip_cov_low=st.just(-1.0),
    entropy_coef=st.sampled_from([0.0, 0.01]),
)
kl_configs = st.builds(
    KLConfig,
    estimator=st.sampled_from([e for e in KLEstimator if e is not KLEstimator.full]),
    straight_through=st.booleans(),
)


class Columns(NamedTuple):
    """A batch as the loss takes it, [N, T] float64; gradients for the first two."""

    logprobs: Tensor
    entropy: Tensor
    tokens: PolicyTokens


def columns(rows: Sequence[Row], config: LossConfig, poison: float = math.nan) -> Columns:
    """Tensors of the rows, with `poison` wherever the mask is off."""
    mask = torch.tensor([[t.kept for t in row] for row in rows])

    def column(field: str) -> Tensor:
        values = [[getattr(t, field) if t.kept else poison for t in row] for row in rows]
        return torch.tensor(values, dtype=torch.float64)

    logprobs, proximal, advantages = column("logprob"), column("proximal"), column("advantage")
    kind, selected = SURROGATES[config.surrogate], None
    if kind.select is not None:
        generator = torch.Generator().manual_seed(0)
        selected = kind.select(logprobs, advantages, mask, logprobs - proximal, config, generator)
    aggregation = kind.aggregation if config.aggregation is Aggregation.auto else config.aggregation
    said = PolicyTokens(
        mask=mask,
        row_scales=AGGREGATIONS[aggregation](mask, BatchTotals.of(mask, 7.0)),
        advantages=advantages,
        weights=column("weight"),
        proximal_logprobs=proximal,
        reference_logprobs=column("reference"),
        selected=selected,
    )
    return Columns(logprobs.requires_grad_(), column("entropy").requires_grad_(), said)


def with_chosen(rows: Sequence[Row], selected: Tensor | None) -> list[Row]:
    """The rows, each token knowing whether the surrogate chose it."""
    if selected is None:
        return list(rows)
    return [
        [replace(t, chosen=bool(chosen)) for t, chosen in zip(row, flags, strict=True)]
        for row, flags in zip(rows, selected, strict=True)
    ]


def pick(said: PolicyTokens, rows: Tensor) -> PolicyTokens:
    """Some rows of a mini-batch; scales and choices are of the whole."""
    assert said.weights is not None and said.reference_logprobs is not None
    return PolicyTokens(
        mask=said.mask[rows],
        row_scales=said.row_scales[rows],
        advantages=said.advantages[rows],
        weights=said.weights[rows],
        proximal_logprobs=said.proximal_logprobs[rows],
        reference_logprobs=said.reference_logprobs[rows],
        selected=None if said.selected is None else said.selected[rows],
    )
