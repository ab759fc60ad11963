"""Rules of the parts that every config tree has: names, data, the optimizer.

Owns what `rules` and `sft_rules` share, and how a contradiction is refused.
Must not look at the machine or at any file.
"""

from async_rl.config.data import DataConfig
from async_rl.config.learner import OptimizerConfig, Schedule
from async_rl.errors import ConfigError

LATEST = "latest"
"""The link in `runs_dir` to the newest run: no run can have its name."""


def refuse(when: bool, problem: str, *, place: str, remedy: str) -> None:
    if when:
        raise ConfigError(problem, place=place, remedy=remedy)


def check_name(name: str, runs_dir: str) -> None:
    refuse(
        not name or name in (".", "..") or any(c in "/\\" or not c.isprintable() for c in name),
        f"name={name!r} cannot be the name of a folder",
        place="name",
        remedy="give a name of letters, digits, dots, dashes and underscores",
    )
    refuse(
        name == LATEST,
        f"name={LATEST} is the link to the newest run",
        place="name",
        remedy="give the run another name",
    )
    refuse(not runs_dir, "runs_dir is empty", place="runs_dir", remedy="name a folder, for example runs_dir=runs")


def check_data(data: DataConfig) -> None:
    refuse(
        not data.task and not data.train,
        "there are no prompts: data.task and data.train are both empty",
        place="data.task, data.train",
        remedy="name a task, `data.task=module:Class`, or a file, `data.train=rows.jsonl`",
    )
    for option, value in (("train", data.train), ("evaluate", data.evaluate)):
        refuse(
            bool(data.task and value),
            f"data.task={data.task} and data.{option}={value} are both given",
            place=f"data.task, data.{option}",
            remedy="keep one of them: a task makes its own training and held-out rows",
        )
    if data.task:
        check_reference(data.task, option="data.task", kind="Class")
        refuse(
            data.num_train == 0,
            f"data.num_train=0, and the task {data.task} makes as many rows as it is told",
            place="data.num_train",
            remedy="give a number ≥ 1; 0 means all the rows of a file",
        )
        return
    refuse(not data.prompt_column, "data.prompt_column is empty", place="data.prompt_column", remedy="name a column")
    refuse(
        data.prompt_column == data.answer_column,
        f"data.prompt_column and data.answer_column are both {data.prompt_column!r}",
        place="data.prompt_column, data.answer_column",
        remedy="name the column that holds the answer",
    )


def check_reference(value: str, *, option: str, kind: str) -> None:
    """Python objects are named `module:NAME` or `file.py:NAME`."""
    module, _, name = value.rpartition(":")
    refuse(
        not module or not name.isidentifier(),
        f"{option}={value!r} does not name an object in a module",
        place=option,
        remedy=f"write `module:{kind}` or `path/to/file.py:{kind}`",
    )


def check_optimizer(optimizer: OptimizerConfig, place: str, num_steps: int) -> None:
    refuse(
        optimizer.min_lr > optimizer.lr,
        f"{place}.min_lr={optimizer.min_lr:g} is above {place}.lr={optimizer.lr:g}",
        place=f"{place}.min_lr, {place}.lr",
        remedy=f"set {place}.min_lr={optimizer.lr:g} or less",
    )
    _check_schedule(optimizer, place, num_steps)
    for name, beta in (("beta1", optimizer.beta1), ("beta2", optimizer.beta2)):
        refuse(
            beta == 1,
            f"{place}.{name}=1 never forgets, and never learns",
            place=f"{place}.{name}",
            remedy="give a number below 1",
        )


def _check_schedule(optimizer: OptimizerConfig, place: str, num_steps: int) -> None:
    refuse(
        optimizer.warmup_steps > 0 and optimizer.warmup_share > 0,
        f"{place}.warmup_steps={optimizer.warmup_steps} and {place}.warmup_share={optimizer.warmup_share:g} both say "
        "how long the warm-up is",
        place=f"{place}.warmup_steps, {place}.warmup_share",
        remedy="keep one of them",
    )
    option = "warmup_share" if optimizer.warmup_share else "warmup_steps"
    warmup, decay = optimizer.warmup(num_steps), optimizer.decay(num_steps)
    refuse(
        warmup >= num_steps,
        f"a warm-up of {warmup} and only {num_steps} steps: the learning rate never gets there",
        place=f"{place}.{option}, steps",
        remedy=f"set {place}.warmup_steps={num_steps - 1} or less",
    )
    refuse(
        optimizer.schedule is Schedule.wsd and warmup + decay > num_steps,
        f"{place}.schedule=wsd falls in {decay} of {num_steps} steps, and {warmup} of them are the warm-up",
        place=f"{place}.decay_share, {place}.{option}",
        remedy=f"lower {place}.decay_share or the warm-up",
    )
