"""A resumed run has the prompts it began with."""

from dataclasses import replace

import pytest

from async_rl.config.resume_rules import check_resumable
from async_rl.config.schema import DataConfig, GenerationConfig, ModelConfig, RunConfig, StalenessConfig
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
