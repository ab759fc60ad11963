"""A conversation of a data set, before a chat template renders it.

Owns what a conversation has to be. Knows neither files nor tokenizers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from async_rl.errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, object]
"""`role`, `content` as text, and whatever else the template reads (`tool_calls`, `name`, `reasoning_content`)."""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One conversation."""

    messages: list[Message]
    tools: list[Mapping[str, object]]
    """JSON schemas of functions, as chat templates take them; empty where there are none."""
    place: str
    """Where it was read, for messages: `rows.jsonl, row 3`."""

    @classmethod
    def read(cls, messages: object, tools: object, *, place: str, option: str) -> "Chat":
        """Takes values as they stand in a file.

        Args:
            messages: a list of objects.
            tools: a list of objects, the same as JSON text, or None.
            place: of the row.
            option: that names the file.

        Raises:
            DataError: they are no conversation.
        """
        if not isinstance(messages, list) or not messages:
            raise DataError(
                f"{place}: the messages are {messages!r:.60}",
                place=option,
                remedy="give a list of at least one {role, content} object, or leave the row out",
            )
        return cls(
            messages=[_message(value, f"{place}, message {n}", option) for n, value in enumerate(messages, 1)],
            tools=_tools(tools, place, option),
            place=place,
        )


def _message(value: object, place: str, option: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(
            f"{place} is {type(value).__name__}, not an object",
            place=option,
            remedy="a message is an object with `role` and `content`",
        )
    role = value.get("role")
    if role not in ROLES:
        # Many templates drop in silence what they do not know.
        raise DataError(
            f"{place} has the role {role!r}" if "role" in value else f"{place} has no role, only {', '.join(value)}",
            place=option,
            remedy=f"give it one of {', '.join(ROLES)}: answers that are to be learned are the assistant's",
        )
    content = value.get("content")
    # A call of a tool has none; templates put text together, and would write "None".
    if content is None and value.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise DataError(
            f"{place} has the content {content!r:.60}, not text" if content is not None else f"{place} has no content",
            place=option,
            remedy="give `content` as text; empty text where there is nothing to say",
        )
    # Parquet has every field in every message, null where it is missing.
    return {name: part for name, part in value.items() if part is not None} | {"content": content}


def _tools(value: object, place: str, option: str) -> list[Mapping[str, object]]:
    if value is None or value == "":
        return []
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = value
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise DataError(
            f"{place}: the tools are {value!r:.60}",
            place=option,
            remedy="give a list of JSON schemas, or the same as JSON text",
        )
    return found
