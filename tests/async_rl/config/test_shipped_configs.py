"""The configs that come along: each is whole, fits, and takes every file of every group."""

from pathlib import Path

import pytest

from async_rl.config.compose import load_run_config
from async_rl.config.ranks import num_ranks
from async_rl.config.schema import RunConfig
from async_rl.config.shipped import shipped_folder
from async_rl.sizing.fit import check_fit
from async_rl.sizing.run import accounts
from tests.async_rl.sizing.shapes import LLAMA3_70B, QWEN3_8B, QWEN3_30B_A3B

# tests/async_rl/config/test_presets.py looks at those of the correction.
GROUPS = ("model", "learner", "generation", "correction", "staleness", "cluster")
FILES = [
    (group, path.stem)
    for group in GROUPS
    if group != "correction"
    for path in sorted((shipped_folder() / group).glob("*.yaml"))
]


def load(name: str, *overrides: str) -> RunConfig:
    return load_run_config(shipped_folder() / f"{name}.yaml", overrides)


@pytest.mark.parametrize(
    ("name", "sizes", "ranks"),
    [("8b", QWEN3_8B, 4), ("30b-a3b", QWEN3_30B_A3B, 16), ("70b", LLAMA3_70B, 32)],
)
def test_a_config_of_a_large_model_has_its_sizes_and_fits_with_room(name: str, sizes: object, ranks: int) -> None:
    config = load(name)
    assert config.model.sizes == sizes
    assert num_ranks(config) == ranks
    check_fit(config, config.model.sizes)
    for account in accounts(config, config.model.sizes):
        assert 40 < account.gib < 70, account


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda part: part)
def test_every_file_of_a_group_says_when_to_take_it_and_can_be_chosen(group: str, name: str) -> None:
    text = (shipped_folder() / group / f"{name}.yaml").read_text(encoding="utf-8")
    first = next(line for line in text.splitlines() if not line.startswith("# @package"))
    assert first.startswith("# ")
    others = {
        "learner": [
            "cluster=8x8xh100",
            "generation.num_generators=8",
            "generation.tp=4",
            "model=qwen3-30b-a3b" if "ep" in name else "model=qwen3-8b",
        ],
        "cluster": ["learner=tp2", *([] if "8" in name else ["generation=short_answers", "generation.tp=1"])],
    }
    if name == "cpu":
        others["cluster"] += ["learner.parallel.tp=1", "learner.parallel.sequence_parallel=false"]
    config = load("8b", f"{group}={name}", *others.get(group, []))
    assert isinstance(config, RunConfig)


def test_what_the_groups_set_can_be_set_alone() -> None:
    strict = load("8b", "staleness=strict")
    assert strict == load("8b", "staleness.max=0", "staleness.depth=0")
    assert load("8b", "model=llama3-70b", "cluster=8x8xh100").model.sizes == LLAMA3_70B


def test_nothing_is_shipped_that_no_group_holds() -> None:
    folders = {path.name for path in Path(shipped_folder()).iterdir() if path.is_dir()}
    assert folders == set(GROUPS)
