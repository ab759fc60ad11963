"""Criteria as they are written: what the words mean, and what is told of those that mean nothing."""

import pytest

from async_rl.config.criterion import CriterionConfig, CriterionLevel, Statistic, parse_criterion
from async_rl.errors import ConfigError


def test_a_bound_of_a_ratio_is_two_numbers_or_one_for_both_sides() -> None:
    both = parse_criterion("token_k1:0.5_1.2")
    assert both == CriterionConfig(level=CriterionLevel.token, statistic=Statistic.k1, low=0.5, high=1.2)
    assert parse_criterion("seq_mean_k1:2") == CriterionConfig(
        level=CriterionLevel.seq_mean, statistic=Statistic.k1, low=0.5, high=2.0
    )


def test_a_bound_of_a_distance_is_one_number() -> None:
    assert parse_criterion("seq_max_k3:1e-2") == CriterionConfig(
        level=CriterionLevel.seq_max, statistic=Statistic.k3, low=0.0, high=0.01
    )


@pytest.mark.parametrize("text", ["", "k3:1", "token:1", "token_k3", "token_k4:1", "geometric_k1:2", "seq_k1:2"])
def test_what_names_no_criterion_is_told_what_would(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_criterion(text)
    assert caught.value.remedy == (
        "write LEVEL_STATISTIC:BOUND with a level of token, seq_sum, seq_mean, seq_max and a statistic of k1, k2, k3"
    )


@pytest.mark.parametrize("text", ["token_k1:", "token_k1:0.5", "token_k1:1.1_2", "token_k1:0_2", "token_k1:nan",
                                  "token_k1:0.5_inf", "token_k1:0.5_1_2", "seq_sum_k2:-1", "seq_sum_k2:0.5_2",
                                  "seq_sum_k2:nan", "seq_sum_k2:inf"])  # fmt: skip
def test_a_bound_that_bounds_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="bound"):
        parse_criterion(text)
