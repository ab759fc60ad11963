"""A file is of conversations or of pairs, as its first row is."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from async_rl.config.data import SftDataConfig
from async_rl.data.chat import Chat
from async_rl.data.row import Row
from async_rl.data.sft_source import load_sft_rows
from async_rl.errors import DataError

MESSAGES = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]


def load(path: Path, *records: object, **options: object) -> list[Row | Chat]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = SftDataConfig(train=str(path), **options)  # type: ignore[arg-type]
    return list(load_sft_rows(config, is_held_out=False, seed=0).rows)


def test_rows_with_messages_are_conversations(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    place = f"{path}, row 1, column 'messages'"
    assert load(path, {"messages": MESSAGES}) == [Chat(messages=list(MESSAGES), tools=[], place=place)]


def test_rows_without_are_pairs(tmp_path: Path) -> None:
    assert load(tmp_path / "rows.jsonl", {"prompt": "1+1", "answer": "2"}) == [Row(prompt="1+1", answer="2")]


def test_the_columns_can_be_named(tmp_path: Path) -> None:
    record = {"talk": MESSAGES, "functions": [{"name": "add"}]}
    (row,) = load(tmp_path / "rows.jsonl", record, messages_column="talk", tools_column="functions")
    assert isinstance(row, Chat) and row.tools == [{"name": "add"}]


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    records = [{"messages": [MESSAGES[0], {**MESSAGES[1], "name": "a"}]}, {"messages": MESSAGES}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "rows.parquet")
    config = SftDataConfig(train=str(tmp_path / "rows.parquet"))
    read = load_sft_rows(config, is_held_out=False, seed=0).rows
    assert [row.messages for row in read if isinstance(row, Chat)] == [record["messages"] for record in records]


def test_a_row_of_another_kind_than_the_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2 has no column 'messages', only prompt"):
        load(tmp_path / "rows.jsonl", {"messages": MESSAGES}, {"prompt": "1+1"})
    with pytest.raises(DataError, match="row 2: 'messages' is null"):
        load(tmp_path / "rows.jsonl", {"messages": MESSAGES}, {"messages": None})


def test_a_task_makes_pairs() -> None:
    config = SftDataConfig(task="async_rl.data.tasks.addition:Addition", num_train=3)
    assert all(isinstance(row, Row) for row in load_sft_rows(config, is_held_out=False, seed=0).rows)


def test_what_a_limit_leaves_of_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"messages": MESSAGES}) for _ in range(1500)))
    config = SftDataConfig(train=str(path), evaluate=str(path), num_train=0, num_evaluate=7)
    assert load_sft_rows(config, is_held_out=False, seed=0).messages == []
    held_out = load_sft_rows(config, is_held_out=True, seed=0)
    assert len(held_out.rows) == 7
    assert held_out.messages == [
        "Of the 1,500 rows of data.evaluate the first 7 are taken; data.num_evaluate=0 takes all."
    ]
