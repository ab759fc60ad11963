"""Where rows come from: JSONL, parquet, or a procedural task.

Owns reading and the words for what is wrong with a file. Knows no tokenizer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet

from async_rl.config.data import DataConfig
from async_rl.data.row import ChatMessage, Row, Task
from async_rl.errors import DataError
from async_rl.named_object import load_object
from async_rl.protocol import Scalar

_TASK = "data.task"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of a file."""

    values: Mapping[str, object]
    place: str
    """`rows.jsonl, row 3`"""
    option: str
    """Which names the file."""

    def column(self, name: str, option: str) -> object:
        """A value that has to be there; a `DataError` where it is not, naming the option `data.…` of its name."""
        if name not in self.values:
            raise DataError(
                f"{self.place} has no column {name!r}, only {', '.join(self.values)}",
                place=f"{self.option}, data.{option}",
                remedy=f"name the column with data.{option}=…",
            )
        value = self.values[name]
        if value is None:
            raise DataError(
                f"{self.place}: {name!r} is null", place=self.option, remedy="give it a value, or leave the row out"
            )
        return value


def load_rows(config: DataConfig, *, is_held_out: bool, seed: int) -> Sequence[Row]:
    """The rows of one split, at most as many as the config says.

    Raises:
        DataError: a file or task is missing, malformed, or has no rows.
    """
    if config.task:
        return _make_rows(config, is_held_out=is_held_out, seed=seed)
    records = load_records(config, is_held_out=is_held_out)
    return [to_row(record, config) for record in taken(records, config, is_held_out=is_held_out)]


def load_task(spec: str) -> Task:
    """The task that `module:NAME` or `file.py:NAME` names: a class that is made without arguments, or a ready task.

    Raises:
        DataError: it cannot be imported or made, or is no task.
    """
    remedy = "name a task, as in async_rl.data.tasks.addition:Addition"
    found = load_object(spec, kind="task", place=_TASK, remedy=remedy, error=DataError)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as cause:  # the user's class may raise anything while it is made
            raise DataError(
                f"{spec} cannot be made: {type(cause).__name__}: {cause}",
                place=_TASK,
                remedy="give a class that is made without arguments, or a ready task: `mine = Addition(digits=3)`",
            ) from cause
    if not isinstance(found, Task):
        raise DataError(
            f"{spec} is no task: it needs `alphabet` and `rows(*, is_held_out, count, seed)`",
            place=_TASK,
            remedy=remedy,
        )
    return found


def _make_rows(config: DataConfig, *, is_held_out: bool, seed: int) -> Sequence[Row]:
    option, count = ("data.num_evaluate", config.num_evaluate) if is_held_out else ("data.num_train", config.num_train)
    rows = load_task(config.task).rows(is_held_out=is_held_out, count=count, seed=seed)
    if len(rows) != count:
        raise DataError(
            f"{config.task} has {len(rows)} {'held-out' if is_held_out else 'training'} rows, not {count}",
            place=f"{_TASK}, {option}",
            remedy=f"set {option}={len(rows)}, or a task with more rows",
        )
    return rows


def load_records(config: DataConfig, *, is_held_out: bool) -> list[Record]:
    """The rows of one split's JSONL or parquet file as they stand in it; none where no file is named.

    Raises:
        DataError: the file is missing, malformed, or has no rows.
    """
    option, name = ("data.evaluate", config.evaluate) if is_held_out else ("data.train", config.train)
    if is_held_out and not name:
        return []
    return _read_file(Path(name), option)


def taken(records: list[Record], config: DataConfig, *, is_held_out: bool) -> list[Record]:
    """Of a file's rows the first, as many as the config says."""
    limit = config.num_evaluate if is_held_out else config.num_train
    return records[:limit] if limit else records


def _read_file(path: Path, option: str) -> list[Record]:
    if not path.is_file():
        raise DataError(
            f"there is no file {path}",
            place=option,
            remedy=f"give a JSONL or parquet file that exists, from {Path.cwd()}",
        )
    if path.suffix == ".parquet":
        rows = _read_parquet(path, option)
    elif path.suffix in (".jsonl", ".json"):
        rows = _read_jsonl(path, option)
    else:
        raise DataError(f"{path} is neither .jsonl nor .parquet", place=option, remedy="convert it to one of them")
    records = [
        Record(values=values, place=f"{path}, row {number}", option=option) for number, values in enumerate(rows, 1)
    ]
    if not records:
        raise DataError(f"{path} has no rows", place=option, remedy="give a file with at least one row")
    return records


def _read_jsonl(path: Path, option: str) -> Iterator[dict[str, object]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as cause:  # JSON's own errors and those of UTF-8
                raise DataError(
                    f"{path}, line {number} is not JSON: {cause}", place=option, remedy="mend the line"
                ) from cause
            if not isinstance(record, dict):
                raise DataError(
                    f"{path}, line {number} is {type(record).__name__}, not an object",
                    place=option,
                    remedy="write one JSON object a line",
                )
            yield record


def _read_parquet(path: Path, option: str) -> Iterator[dict[str, object]]:
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as cause:
        raise DataError(f"{path} is not parquet: {cause}", place=option, remedy="give a parquet file") from cause
    for batch in table.to_batches():
        yield from batch.to_pylist()


def to_row(record: Record, config: DataConfig) -> Row:
    """A record as a prompt with what is known of its answer.

    Raises:
        DataError: a column is missing, null, or no prompt.
    """
    prompt = record.column(config.prompt_column, "prompt_column")
    answer = record.column(config.answer_column, "answer_column")
    task = record.column(config.task_column, "task_column") if config.task_column else ""
    rest = {k: v for k, v in record.values.items() if k not in (config.prompt_column, config.answer_column)}
    return Row(
        prompt=_to_prompt(prompt, f"{record.place}, column {config.prompt_column!r}", record.option),
        answer=answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str),
        task=str(task),
        metadata={name: _to_scalar(value) for name, value in rest.items()},
    )


def _to_prompt(value: object, place: str, option: str) -> str | list[ChatMessage]:
    if isinstance(value, str):
        return value
    try:
        messages = msgspec.convert(value, list[ChatMessage])
    except msgspec.ValidationError as cause:
        raise DataError(
            f"{place} is no prompt: {cause}",
            place=option,
            remedy="a prompt is text, or a list of {role, content} messages",
        ) from cause
    if not messages:
        raise DataError(f"{place} is a list without messages", place=option, remedy="give at least one message")
    return messages


def _to_scalar(value: object) -> Scalar:
    """Lists and objects travel as JSON text."""
    if isinstance(value, str | int | float | bool | None):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
