"""Every kind of result is read as a reward, and nothing else is."""

from collections.abc import Mapping

import numpy as np
import pytest

from async_rl.config.objective import AdvantageConfig
from async_rl.errors import RewardError
from async_rl.reward import Reward
from generators.reward_reader import RewardReader

NAMED = RewardReader(components=("correct", "format"), weights=(1.0, 0.25))


@pytest.mark.parametrize(
    ("value", "total"), [(1, 1.0), (True, 1.0), (0.25, 0.25), (np.float32(0.5), 0.5), (3e38, 3e38)]
)
def test_a_number_is_a_total(value: object, total: float) -> None:
    assert RewardReader().read(value, num_tokens=2) == Reward(total=total)


@pytest.mark.parametrize(
    "value", [[0.5, -1, True], (0.5, -1.0, 1.0), np.array([0.5, -1, 1]), np.array([0.5, -1, 1], np.float32)]
)
def test_a_sequence_has_a_number_for_each_token_and_its_sum_is_the_total(value: object) -> None:
    assert RewardReader().read(value, num_tokens=3) == Reward(total=0.5, per_token=[0.5, -1.0, 1.0])


def test_a_response_without_tokens_earns_nothing_by_token() -> None:
    assert RewardReader().read([], num_tokens=0) == Reward(total=0.0, per_token=[])


def test_named_rewards_come_in_the_configs_order_and_their_weighted_sum_is_the_total() -> None:
    reward = NAMED.read({"format": 2, "correct": np.float64(1)}, num_tokens=3)
    assert reward.total == 1.5
    assert list(reward.components.items()) == [("correct", 1.0), ("format", 2.0)]


def test_without_weights_each_named_reward_counts_alike() -> None:
    reader = RewardReader.of(AdvantageConfig(reward_components=["a", "b"]))
    assert reader.read({"a": 1.0, "b": 2.0}, num_tokens=1).total == 3.0


def test_where_the_config_has_no_names_any_will_do_and_only_the_sum_stays() -> None:
    assert RewardReader().read({"a": 1.0, "b": 0.5}, num_tokens=1) == Reward(total=1.5)


def test_a_reward_says_everything_at_once() -> None:
    said = Reward(total=9.0, components={"format": 0.0, "correct": 1.0}, per_token=np.array([0.0, 0.5]))  # type: ignore[arg-type]  # arrays will do
    assert NAMED.read(said, num_tokens=2) == Reward(
        total=9.0, components={"correct": 1.0, "format": 0.0}, per_token=[0.0, 0.5]
    )


@pytest.mark.parametrize(
    "value",
    [{"correct": 1.0}, {"correct": 1.0, "format": 0.0, "style": 0.0}, 1.0, [1.0], Reward(total=1.0), {}],
    ids=str,
)
def test_other_names_than_the_configs_are_refused(value: object) -> None:
    with pytest.raises(RewardError, match=r"by the names \[.*\], not \['correct', 'format'\]") as raised:
        NAMED.read(value, num_tokens=1)
    assert "advantage.reward_components" in raised.value.place
    assert "exactly these names" in raised.value.remedy


@pytest.mark.parametrize("per_token", [[], [1.0, 2.0], [1.0] * 4, np.ones(2)], ids=str)
def test_another_number_of_rewards_than_of_tokens_is_refused(per_token: list[float]) -> None:
    for value in (per_token, Reward(total=1.0, per_token=per_token)):
        with pytest.raises(RewardError, match=f"{len(per_token)} rewards for a response of 3 tokens") as raised:
            RewardReader().read(value, num_tokens=3)
        assert "`tokens`" in raised.value.remedy


@pytest.mark.parametrize("number", [None, "1.0", 1j, np.bool_(True), [1.0], np.ones((1, 1))], ids=str)
def test_what_is_no_number_is_refused_wherever_it_stands(number: object) -> None:
    placed: list[object] = [number, [number], {"a": number}, Reward(total=number)]  # type: ignore[arg-type]  # as users do
    if not isinstance(number, list | np.ndarray):
        with pytest.raises(RewardError, match="is not a number"):
            RewardReader().read(placed[0], num_tokens=1)
    for value in placed[1:]:
        with pytest.raises(RewardError, match="is not a number"):
            RewardReader().read(value, num_tokens=1)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e39, np.float32("nan")], ids=str)
def test_what_is_not_finite_for_the_learner_is_refused_wherever_it_stands(number: float) -> None:
    wholes: list[object] = [number, [number], np.array([number]), {"a": number}]
    parts: list[Mapping[str, object]] = [{"total": number}, {"total": 1.0, "per_token": [number]}]
    for value in [*wholes, *(Reward(**part) for part in parts)]:  # type: ignore[arg-type]  # as users do
        with pytest.raises(RewardError, match="the reward function returned"):
            RewardReader().read(value, num_tokens=1)
    with pytest.raises(RewardError, match="the reward function returned"):
        NAMED.read(Reward(total=1.0, components={"correct": 1.0, "format": number}), num_tokens=1)


def test_finite_parts_with_an_infinite_total_are_refused() -> None:
    with pytest.raises(RewardError, match=r"returned as sum 6e\+38"):
        RewardReader().read([3e38, 3e38], num_tokens=2)
    with pytest.raises(RewardError, match=r"returned as total 6e\+38"):
        RewardReader().read({"a": 3e38, "b": 3e38}, num_tokens=2)
