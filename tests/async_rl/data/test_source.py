"""Rows come from JSONL, parquet and tasks, and what is wrong with a source is said with its place."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from async_rl.config.data import DataConfig
from async_rl.data.row import Row
from async_rl.data.source import load_rows, load_task
from async_rl.data.tasks.addition import Addition
from async_rl.errors import DataError

ADDITION = "async_rl.data.tasks.addition:Addition"


def write_jsonl(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def train_rows(path: str, **options: object) -> list[Row]:
    return list(load_rows(DataConfig(train=path, **options), is_held_out=False, seed=0))  # type: ignore[arg-type]


def test_jsonl_rows_have_prompt_answer_and_every_other_column_as_metadata(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "rows.jsonl",
        {"prompt": "1+1=", "answer": "2", "level": 3, "hard": False, "source": None},
        {"prompt": "2+2=", "answer": 4, "tags": ["a", "b"]},
    )
    assert train_rows(path) == [
        Row(prompt="1+1=", answer="2", metadata={"level": 3, "hard": False, "source": None}),
        Row(prompt="2+2=", answer="4", metadata={"tags": '["a", "b"]'}),
    ]


def test_parquet_gives_the_same_rows_as_jsonl(tmp_path: Path) -> None:
    records = [
        {"question": [{"role": "user", "content": "1+1?"}], "gold": "2", "kind": "sum", "level": 1},
        {"question": [{"role": "user", "content": "3·3?"}], "gold": "9", "kind": "product", "level": 2},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "rows.parquet")
    columns = {"prompt_column": "question", "answer_column": "gold", "task_column": "kind"}
    rows = train_rows(str(tmp_path / "rows.parquet"), **columns)
    assert rows == train_rows(write_jsonl(tmp_path / "rows.jsonl", *records), **columns)
    assert rows[1] == Row(
        prompt=[{"role": "user", "content": "3·3?"}],
        answer="9",
        task="product",
        metadata={"kind": "product", "level": 2},
    )


def test_a_limit_takes_the_first_rows_and_zero_takes_all(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", *({"prompt": str(i), "answer": ""} for i in range(5)))
    assert [row.prompt for row in train_rows(path, num_train=2)] == ["0", "1"]
    assert len(train_rows(path, num_train=0)) == 5


def test_held_out_rows_come_from_their_own_file_and_are_none_without_one(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", {"prompt": "a", "answer": "b"})
    assert load_rows(DataConfig(train="absent.jsonl", evaluate=path), is_held_out=True, seed=0)[0].prompt == "a"
    assert load_rows(DataConfig(train=path), is_held_out=True, seed=0) == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.jsonl", b'{"prompt": "a", "answer": "b"}\n\n{"prompt": \n', "line 3 is not JSON"),
        ("rows.jsonl", b'{"prompt": "\xff", "answer": "b"}\n', "line 1 is not JSON: 'utf-8' codec"),
        ("rows.jsonl", b"[1, 2]\n", "line 1 is list, not an object"),
        ("rows.jsonl", b'{"prompt": "a", "solution": "b"}\n', "row 1 has no column 'answer', only prompt, solution"),
        ("rows.jsonl", b'{"prompt": "a", "answer": null}\n', "row 1: 'answer' is null"),
        ("rows.jsonl", b'{"prompt": 7, "answer": "b"}\n', "row 1, column 'prompt' is no prompt: Expected `array`"),
        ("rows.jsonl", b'{"prompt": [], "answer": "b"}\n', "row 1, column 'prompt' is a list without messages"),
        ("rows.jsonl", b'{"prompt": [{"role": "user"}], "answer": ""}\n', "missing required field `content`"),
        ("rows.jsonl", b"\n", "has no rows"),
        ("rows.parquet", b"no parquet", "is not parquet"),
        ("rows.csv", b"prompt,answer\n", "is neither .jsonl nor .parquet"),
    ],
)
def test_a_malformed_file_is_named_with_the_place_in_it(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as raised:
        train_rows(str(path))
    assert str(path) in raised.value.problem
    assert raised.value.place.startswith("data.train")


def test_a_missing_file_is_named_with_its_option() -> None:
    with pytest.raises(DataError, match=r"there is no file absent\.jsonl") as raised:
        load_rows(DataConfig(train="x", evaluate="absent.jsonl"), is_held_out=True, seed=0)
    assert raised.value.place == "data.evaluate"


def test_a_task_makes_the_rows_it_is_asked_for() -> None:
    config = DataConfig(task=ADDITION, num_train=3, num_evaluate=2)
    assert len(load_rows(config, is_held_out=False, seed=0)) == 3
    assert len(load_rows(config, is_held_out=True, seed=0)) == 2


def test_a_task_with_too_few_rows_says_how_many_it_has() -> None:
    with pytest.raises(DataError, match="has 9000 training rows, not 9001") as raised:
        load_rows(DataConfig(task=ADDITION, num_train=9001), is_held_out=False, seed=0)
    assert raised.value.remedy.startswith("set data.num_train=9000")


def test_a_file_may_hold_a_class_or_a_ready_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from async_rl.data.tasks.addition import Addition\nsmall = Addition(digits=1)\n")
    assert load_task(f"{path}:small") == Addition(digits=1)
    assert load_task(f"{path}:Addition") == Addition()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("Addition", "names no task"),
        ("absent_module:Task", "absent_module does not import: ModuleNotFoundError"),
        ("absent.py:Task", r"there is no file absent\.py"),
        ("async_rl.data.tasks.addition:Absent", "has no 'Absent'"),
        ("async_rl.protocol:Prompt", "cannot be made: TypeError"),
        ("async_rl.protocol:SCHEMA_VERSION", "is no task"),
    ],
)
def test_what_is_no_task_is_named_with_a_remedy(spec: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as raised:
        load_task(spec)
    assert raised.value.place == "data.task"
    assert raised.value.remedy
