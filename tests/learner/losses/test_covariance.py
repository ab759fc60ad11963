"""The choice by covariance: a naive reference, and a choice that a seed repeats and no split of the batch changes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.config.objective import LossConfig, Surrogate
from learner.losses.covariance import select_clip_cov, select_kl_cov
from tests.learner.losses.draws import batches, columns
from tests.learner.losses.naive import Token


def naive_covariance(rows: list[list[Token]]) -> dict[tuple[int, int], float]:
    """By place, of the tokens that train."""
    kept = {(i, j): t for i, row in enumerate(rows) for j, t in enumerate(row) if t.kept}
    mean_a = sum(t.advantage for t in kept.values()) / max(len(kept), 1)
    mean_logp = sum(t.logprob for t in kept.values()) / max(len(kept), 1)
    return {place: (t.advantage - mean_a) * (t.logprob - mean_logp) for place, t in kept.items()}


def chosen(rows: list[list[Token]], config: LossConfig, seed: int = 0) -> set[tuple[int, int]]:
    batch = columns(rows, LossConfig())
    select = select_clip_cov if config.surrogate is Surrogate.clip_cov else select_kl_cov
    said = batch.tokens
    log_ratios = batch.logprobs.detach() - said.proximal_logprobs
    generator = torch.Generator().manual_seed(seed)
    selected = select(batch.logprobs, said.advantages, said.mask, log_ratios, config, generator)
    assert selected.dtype == torch.bool and selected.shape == said.mask.shape
    return {(int(i), int(j)) for i, j in selected.nonzero()}


@given(batches(), st.sampled_from([2e-4, 0.3, 1.0]))
def test_kl_cov_chooses_the_largest_covariances(rows: list[list[Token]], share: float) -> None:
    covariance = naive_covariance(rows)
    got = chosen(rows, LossConfig(surrogate=Surrogate.kl_cov, cov_share=share))
    count = max(1, int(share * len(covariance))) if covariance else 0
    assert len(got) == count
    if covariance:
        smallest = sorted(covariance.values(), reverse=True)[count - 1]
        assert all(covariance[place] >= smallest - 1e-6 * max(1.0, abs(smallest)) for place in got)


@given(batches(), st.sampled_from([2e-4, 0.3, 1.0]), st.integers(0, 3))
def test_clip_cov_chooses_among_the_large_covariances_that_ppo_does_not_clip(
    rows: list[list[Token]], share: float, seed: int
) -> None:
    config = LossConfig(surrogate=Surrogate.clip_cov, cov_share=share, clip_cov_low=0.5, clip_cov_high=3.0)
    covariance = naive_covariance(rows)

    def is_clipped(t: Token) -> bool:
        return (t.advantage > 0 and t.r > 1 + config.clip_high) or (t.advantage < 0 and t.r < 1 - config.clip_low)

    candidates = {
        place for place, c in covariance.items() if 0.5 < c < 3.0 and not is_clipped(rows[place[0]][place[1]])
    }
    got = chosen(rows, config, seed)
    assert got <= candidates
    assert len(got) == min(len(candidates), max(1, int(share * len(covariance))))


def rows_of(num: int) -> list[list[Token]]:
    """Half of them with a covariance of about 1."""
    return [
        [
            Token(logprob=-1.0 + s, proximal=-1.0 + s, reference=0.0, entropy=0.0, advantage=s, weight=1.0, kept=True)
            for s in (1.0, -1.0)
        ]
        for _ in range(num)
    ]


def test_a_seed_repeats_the_choice_and_another_makes_another() -> None:
    config = LossConfig(surrogate=Surrogate.clip_cov, cov_share=0.25, clip_cov_low=0.5)
    assert chosen(rows_of(20), config, seed=1) == chosen(rows_of(20), config, seed=1)
    assert chosen(rows_of(20), config, seed=1) != chosen(rows_of(20), config, seed=2)


def test_every_candidate_is_equally_likely() -> None:
    config = LossConfig(surrogate=Surrogate.clip_cov, cov_share=0.5, clip_cov_low=0.5)
    counts = dict.fromkeys(((i, j) for i in range(2) for j in range(2)), 0)
    for seed in range(400):
        for place in chosen(rows_of(2), config, seed):
            counts[place] += 1
    # 2 of 4 are chosen each time: 200 of 400, with a standard deviation of 10.
    assert all(abs(count - 200) < 50 for count in counts.values())


@pytest.mark.parametrize("surrogate", [Surrogate.clip_cov, Surrogate.kl_cov])
def test_a_share_of_0_chooses_nothing(surrogate: Surrogate) -> None:
    assert chosen(rows_of(3), LossConfig(surrogate=surrogate, cov_share=0.0, clip_cov_low=-math.inf)) == set()
