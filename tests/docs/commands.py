"""The commands that README.md and docs/*.md show, by a convention of two fences.

```console      every line that begins with `$ ` is run, and has to succeed
```sh           too long or too far-reaching to be run: each command has to exist
any other       not looked at
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Kind(StrEnum):
    """What the check does with a command."""

    RUN = "console"
    EXISTS = "sh"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One shown command and where it stands."""

    place: str
    """`README.md:12`"""
    kind: Kind
    text: str


def documented_commands(repository: Path) -> list[Command]:
    """All commands of README.md and docs/**/*.md."""
    pages = [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]
    return [
        command
        for page in pages
        for command in commands_of(page.read_text(encoding="utf-8"), page.relative_to(repository).as_posix())
    ]


def commands_of(markdown: str, page: str) -> Iterator[Command]:
    """The commands of one page, continued lines joined, comments left out."""
    for block in BLOCK.finditer(markdown):
        kind = Kind(block[1])
        first_line = markdown.count("\n", 0, block.start(2)) + 1
        pending, place = "", 0
        for number, line in enumerate(block[2].splitlines(), start=first_line):
            text = line.removeprefix("$ ") if kind is Kind.RUN else line
            if not pending and (not text.strip() or text.startswith("#") or (kind is Kind.RUN and text == line)):
                continue
            place = place if pending else number
            pending += text.removesuffix("\\")
            if not text.endswith("\\"):
                yield Command(place=f"{page}:{place}", kind=kind, text=pending.split("  #")[0].strip())
                pending = ""
