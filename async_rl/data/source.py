"""Where rows come from: JSONL, parquet, or a procedural task.

Owns reading and the words for what is wrong with a file. Knows no tokenizer.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet

from async_rl.config.schema import DataConfig
from async_rl.data.row import Row, Task
from async_rl.errors import DataError
from async_rl.protocol import Scalar


def load_rows(config: DataConfig, *, is_held_out: bool, seed: int) -> Sequence[Row]:
    """The rows of one split, at most as many as the config says.

    Raises:
        DataError: a file or task is missing, malformed, or has no rows.
    """
    limit = config.num_evaluate if is_held_out else config.num_train
    if config.task:
        return load_task(config.task).rows(is_held_out=is_held_out, count=limit, seed=seed)
    option, name = ("data.evaluate", config.evaluate) if is_held_out else ("data.train", config.train)
    if is_held_out and not name:
        return []
    rows = read_file(Path(name), config, option)
    return rows[:limit] if limit else rows


def load_task(spec: str) -> Task:
    """The task that `module:Class` or `file.py:Class` names.

    Raises:
        DataError: it cannot be imported or made.
    """
    module_name, _, class_name = spec.rpartition(":")
    remedy = "name a class as `module:Class` or `file.py:Class`, as in async_rl.data.tasks.addition:Addition"
    if not module_name:
        raise DataError(f"data.task={spec!r} names no class", place="data.task", remedy=remedy)
    try:
        module = (
            _import_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        )
        task: Task = vars(module)[class_name]()
    except (ImportError, OSError, SyntaxError) as error:
        raise DataError(f"cannot import {module_name}: {error}", place="data.task", remedy=remedy) from error
    except KeyError as error:
        raise DataError(f"{module_name} has no {class_name}", place="data.task", remedy=remedy) from error
    except TypeError as error:
        raise DataError(f"{class_name} cannot be made: {error}", place="data.task", remedy=remedy) from error
    return task


def _import_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def read_file(path: Path, config: DataConfig, option: str) -> list[Row]:
    """All rows of a JSONL or parquet file.

    Raises:
        DataError: the file is missing, malformed, lacks a column, or has no rows.
    """
    if not path.is_file():
        raise DataError(f"no file {path}", place=option, remedy="give a JSONL or parquet file that exists")
    if path.suffix == ".parquet":
        records = _read_parquet(path, option)
    elif path.suffix in (".jsonl", ".json"):
        records = _read_jsonl(path, option)
    else:
        raise DataError(f"{path} is neither .jsonl nor .parquet", place=option, remedy="convert it to one of them")
    rows = [_to_row(record, config, f"{path}, row {number}", option) for number, record in enumerate(records, 1)]
    if not rows:
        raise DataError(f"{path} has no rows", place=option, remedy="give a file with at least one row")
    return rows


def _read_jsonl(path: Path, option: str) -> Iterator[dict[str, object]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}, line {number} is not JSON: {error.msg}", place=option, remedy="mend the line"
                ) from error
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
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not parquet: {error}", place=option, remedy="give a parquet file") from error
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _to_row(record: dict[str, object], config: DataConfig, place: str, option: str) -> Row:
    columns = {"prompt_column": config.prompt_column, "answer_column": config.answer_column}
    for name, column in columns.items():
        if column not in record:
            raise DataError(
                f"{place} has no column {column!r}, only {', '.join(record)}",
                place=f"{option}, data.{name}",
                remedy=f"name the column with data.{name}=…",
            )
    prompt = record[config.prompt_column]
    if not isinstance(prompt, str | list):
        raise DataError(
            f"{place}: {config.prompt_column!r} is {type(prompt).__name__}",
            place=option,
            remedy="a prompt is text, or a list of {role, content} messages",
        )
    rest = {k: v for k, v in record.items() if k not in (config.prompt_column, config.answer_column)}
    metadata: dict[str, Scalar] = {k: v for k, v in rest.items() if isinstance(v, str | int | float | bool | None)}
    return Row(
        prompt=prompt,
        answer=str(record[config.answer_column]),
        task=str(record.get(config.task_column, "")) if config.task_column else "",
        metadata=metadata,
    )
