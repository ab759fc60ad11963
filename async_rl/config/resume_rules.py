"""What must not change between a run and its resumption.

Owns the rule that ids decide prompts: with other rows, another order or another model, the groups of a checkpoint would
no longer be those of its prompts. Must not look at the machine or at any file.
"""

from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.option import walk
from async_rl.config.part_rules import refuse
from async_rl.config.schema import RunConfig

FIXED = ("seed", "model.", "data.", "generation.group_size")
"""Options, and sections, that decide what a group is."""


def check_resumable(earlier: RunConfig, config: RunConfig) -> None:
    """Raises a `ConfigError` for the first option that a resumption must leave as it was."""
    before = {entry.path: entry.value for entry in walk(earlier)}
    for entry in walk(config):
        is_fixed = any(entry.path == name or (name[-1] == "." and entry.path.startswith(name)) for name in FIXED)
        refuse(
            is_fixed and entry.value != before[entry.path],
            f"{entry.path}={entry.value} was {before[entry.path]} when the run began: its prompts would be others",
            place=f"{entry.path}, --resume auto",
            remedy=f"give {entry.path}={before[entry.path]}, or begin a new run (without --resume, or name=…)",
        )
    estimator, old = config.advantage.estimator, earlier.advantage.estimator
    refuse(
        estimator in VALUE_ESTIMATORS and old not in VALUE_ESTIMATORS,
        f"advantage.estimator={estimator} needs a critic, and the run began with {old}, which trained none",
        place="advantage.estimator, --resume auto",
        remedy=f"give advantage.estimator={old}, or begin a new run (without --resume, or name=…)",
    )
