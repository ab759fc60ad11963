"""A resumed run has the prompts it began with."""

from dataclasses import replace

import pytest

from async_rl.config.data import DataConfig, LearnTurns, SftDataConfig
from async_rl.config.generation import GenerationConfig
from async_rl.config.model import ModelConfig
from async_rl.config.objective import AdvantageConfig, Estimator
from async_rl.config.parallel import ParallelConfig
from async_rl.config.resume_rules import check_resumable, check_sft_resumable
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.config.staleness import StalenessConfig
from async_rl.errors import ConfigError

RUN = RunConfig()


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        (replace(RUN, seed=1), "seed"),
        (replace(RUN, data=DataConfig(shuffle=False)), "data.shuffle"),
        (replace(RUN, model=ModelConfig(path="another")), "model.path"),
        (replace(RUN, generation=GenerationConfig(group_size=4)), "generation.group_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_decides_the_prompts_must_stay(changed: RunConfig, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_resumable(RUN, changed)
    assert caught.value.place == f"{place}, --resume auto"
    assert f"give {place}=" in caught.value.remedy


def test_everything_else_may_change() -> None:
    changed = replace(RUN, steps=500, staleness=StalenessConfig(max=8), generation=GenerationConfig(num_generators=2))
    check_resumable(RUN, changed)


def test_a_critic_cannot_be_resumed_that_never_was() -> None:
    with_critic = replace(RUN, advantage=AdvantageConfig(estimator=Estimator.gae))
    with pytest.raises(ConfigError, match="gae needs a critic, and the run began with grpo"):
        check_resumable(RUN, with_critic)
    check_resumable(with_critic, RUN)
    check_resumable(with_critic, replace(RUN, advantage=AdvantageConfig(estimator=Estimator.vtrace)))


def test_groups_that_wait_have_the_rewards_that_the_run_began_with() -> None:
    greedy = replace(RUN, advantage=AdvantageConfig(estimator=Estimator.remax))
    with pytest.raises(ConfigError, match="remax needs a greedy answer with each group"):
        check_resumable(RUN, greedy)
    check_resumable(greedy, RUN)
    named = replace(RUN, advantage=AdvantageConfig(reward_components=["a"]))
    with pytest.raises(ConfigError, match="was \\[\\] when the run began"):
        check_resumable(RUN, named)


def test_a_fine_tuning_goes_on_with_its_rows_in_any_layout() -> None:
    began = SftConfig()
    check_sft_resumable(began, replace(began, steps=900, parallel=ParallelConfig(tp=2), micro_batch_tokens=512))
    for changed, place in (
        (replace(began, batch_size=8), "batch_size"),
        (replace(began, data=SftDataConfig(learn_turns=LearnTurns.last)), "data.learn_turns"),
    ):
        with pytest.raises(ConfigError, match="its steps would have other rows") as caught:
            check_sft_resumable(began, changed)
        assert caught.value.place == f"{place}, --resume auto"
