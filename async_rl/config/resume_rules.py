"""What must not change between a run and its resumption.

Owns the rule that ids decide prompts: with other rows, another order or another model, the groups of a checkpoint would
no longer be those of its prompts. Must not look at the machine or at any file.
"""

from collections.abc import Sequence

from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.option import walk
from async_rl.config.part_rules import refuse
from async_rl.config.schema import RunConfig, SftConfig

FIXED = ("seed", "model.path", "model.dtype", "data.", "generation.group_size")
"""Options, and sections, that decide what a group is. How models are spread over ranks is free: checkpoints load on any
layout."""
SFT_FIXED = ("seed", "model.path", "model.dtype", "new_model.", "data.", "batch_size")
"""Those that decide which rows a step of a fine-tuning has, and of which model."""


def check_resumable(earlier: RunConfig, config: RunConfig) -> None:
    """Raises a `ConfigError` for the first option that a resumption must leave as it was."""
    _check_fixed(earlier, config, FIXED, "its prompts would be others")
    _check_groups(earlier, config)
    estimator, old = config.advantage.estimator, earlier.advantage.estimator
    refuse(
        estimator in VALUE_ESTIMATORS and old not in VALUE_ESTIMATORS,
        f"advantage.estimator={estimator} needs a critic, and the run began with {old}, which trained none",
        place="advantage.estimator, --resume auto",
        remedy=f"give advantage.estimator={old}, or begin a new run (without --resume, or name=…)",
    )


def check_sft_resumable(earlier: SftConfig, config: SftConfig) -> None:
    """The same of a fine-tuning."""
    _check_fixed(earlier, config, SFT_FIXED, "its steps would have other rows")


def _check_fixed(earlier: RunConfig | SftConfig, config: RunConfig | SftConfig, fixed: Sequence[str], why: str) -> None:
    before = {entry.path: entry.value for entry in walk(earlier)}
    for entry in walk(config):
        is_fixed = any(entry.path == name or (name[-1] == "." and entry.path.startswith(name)) for name in fixed)
        refuse(
            is_fixed and entry.value != before[entry.path],
            f"{entry.path}={entry.value} was {before[entry.path]} when the run began: {why}",
            place=f"{entry.path}, --resume auto",
            remedy=f"give {entry.path}={before[entry.path]}, or begin a new run (without --resume, or name=…)",
        )


def _check_groups(earlier: RunConfig, config: RunConfig) -> None:
    """Groups of the journal were rewarded as the run began, and train in the resumed one."""
    refuse(
        config.advantage.takes_greedy_baseline and not earlier.advantage.takes_greedy_baseline,
        f"advantage.estimator={config.advantage.estimator} needs a greedy answer with each group, and those that wait "
        f"to be trained have none: the run began with {earlier.advantage.estimator}",
        place="advantage.estimator, --resume auto",
        remedy=f"give advantage.estimator={earlier.advantage.estimator}, or begin a new run",
    )
    names, old = config.advantage.reward_components, earlier.advantage.reward_components
    refuse(
        names != old,
        f"advantage.reward_components={names} was {old} when the run began: the groups that wait have those rewards",
        place="advantage.reward_components, --resume auto",
        remedy=f"give advantage.reward_components={old}, or begin a new run",
    )
