"""What supervised fine-tuning reads: conversations where a file's first row has messages, else prompts and answers.

Owns this choice. Reading is `source`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from async_rl.config.data import SftDataConfig
from async_rl.data.chat import Chat
from async_rl.data.row import Row
from async_rl.data.source import Record, load_records, load_rows, taken, to_row


@dataclass(frozen=True, kw_only=True)
class SftRows:
    """The rows of one split, all of one kind."""

    rows: Sequence[Row] | Sequence[Chat]
    messages: list[str]
    """What the user should know of them."""


def load_sft_rows(config: SftDataConfig, *, is_held_out: bool, seed: int) -> SftRows:
    """The rows of one split, at most as many as the config says.

    Raises:
        DataError: a file or task is missing, malformed, or has no rows.
    """
    if config.task:
        return SftRows(rows=load_rows(config, is_held_out=is_held_out, seed=seed), messages=[])
    everything = load_records(config, is_held_out=is_held_out)
    records = taken(everything, config, is_held_out=is_held_out)
    messages = []
    if len(records) < len(everything):
        option = "data.num_evaluate" if is_held_out else "data.num_train"
        messages.append(
            f"Of the {len(everything):,} rows of {records[0].option} the first {len(records):,} are taken; {option}=0 "
            "takes all."
        )
    if records and config.messages_column in records[0].values:
        return SftRows(rows=[_to_chat(record, config) for record in records], messages=messages)
    return SftRows(rows=[to_row(record, config) for record in records], messages=messages)


def _to_chat(record: Record, config: SftDataConfig) -> Chat:
    return Chat.read(
        record.column(config.messages_column, "messages_column"),
        record.values.get(config.tools_column),
        place=f"{record.place}, column {config.messages_column!r}",
        option=record.option,
    )
