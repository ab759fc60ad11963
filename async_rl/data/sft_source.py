"""What supervised fine-tuning reads: conversations where a file's first row has messages, else prompts and answers.

Owns this choice. Reading is `source`'s.
"""

from collections.abc import Sequence

from async_rl.config.schema import SftDataConfig
from async_rl.data.chat import Chat
from async_rl.data.row import Row
from async_rl.data.source import Record, load_records, load_rows, to_row


def load_sft_rows(config: SftDataConfig, *, is_held_out: bool, seed: int) -> Sequence[Row] | Sequence[Chat]:
    """The rows of one split, all of one kind, at most as many as the config says.

    Raises:
        DataError: a file or task is missing, malformed, or has no rows.
    """
    if config.task:
        return load_rows(config, is_held_out=is_held_out, seed=seed)
    records = load_records(config, is_held_out=is_held_out)
    if records and config.messages_column in records[0].values:
        return [_to_chat(record, config) for record in records]
    return [to_row(record, config) for record in records]


def _to_chat(record: Record, config: SftDataConfig) -> Chat:
    return Chat.read(
        record.column(config.messages_column, "messages_column"),
        record.values.get(config.tools_column),
        place=f"{record.place}, column {config.messages_column!r}",
        option=record.option,
    )
