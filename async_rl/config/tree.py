"""A config tree as a list of names, and the words in which a name or a value is refused.

Owns suggestions and descriptions; knows neither YAML nor Hydra.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cached_property

from async_rl.config.option import Entry, walk, written
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The options that a kind of config has, and the name by which files ask to be checked against them."""

    schema_name: str
    kind: type[RunConfig] | type[SftConfig]
    command: str
    """Who takes such a config."""

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every option, by its path, with its default value."""
        return {entry.path: entry for entry in walk(self.kind())}

    @cached_property
    def sections(self) -> dict[str, str]:
        """What every section is for, by its path."""
        return dict(_sections(self.kind()))

    def unknown(self, option: str, *, place: str) -> ConfigError:
        """There is no such option; perhaps another was meant."""
        return ConfigError(f"there is no option `{option}`", place=place, remedy=self.suggestion(option))

    def suggestion(self, option: str) -> str:
        """The option that was probably meant: of the same last name elsewhere, or spelt nearly so."""
        known = [*self.entries, *self.sections]
        last = _last(option)
        near = [path for path in known if _last(path) == last]
        near = near or difflib.get_close_matches(option, known, n=1, cutoff=0.75)
        if not near:
            names = difflib.get_close_matches(last, {_last(path) for path in known}, n=1, cutoff=0.75)
            near = [path for path in known if _last(path) in names]
        if not near:
            return "`async-rl config` lists the options"
        return f"did you mean {' or '.join(f'`{path}`' for path in near[:3])}?"


RUN = Tree(schema_name="run_schema", kind=RunConfig, command="async-rl launch")
SFT = Tree(schema_name="sft_schema", kind=SftConfig, command="async-rl sft")
TREES = (RUN, SFT)


def not_a_section(option: str, *, place: str) -> ConfigError:
    """A value stands where options should."""
    return ConfigError(
        f"`{option}` is a section, not a value",
        place=place,
        remedy=f"set one of its options: `{option}.NAME=VALUE`, or in YAML a line below `{option}:`",
    )


_KINDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[str]: "a list of text",
    list[float]: "a list of numbers",
}
_ELEMENTS: dict[object, type] = {list[str]: str, list[float]: float}


def takes_list(entry: Entry) -> bool:
    """Whether the option is a list."""
    return entry.type in _ELEMENTS


def not_a_list(entry: Entry, *, place: str) -> ConfigError:
    """Something else stands where a list should: how one is written."""
    one, other = ("1", "0.5") if _ELEMENTS[entry.type] is float else ("A", "B")
    return ConfigError(
        f"`{entry.path}` takes {_KINDS[entry.type]}",
        place=place,
        remedy=f"write it in brackets: `{_last(entry.path)}: [{one}, {other}]` in YAML, and on the command line, in "
        f"quotes for the shell, '{entry.path}=[{one},{other}]'",
    )


def wrong_element(entry: Entry, *, place: str) -> ConfigError | None:
    """The refusal of the first element of a list that is not of its type; None where all are."""
    kind = _ELEMENTS[entry.type]
    wrong = next((element for element in entry.value if not isinstance(element, kind)), None)
    if wrong is None:
        return None
    # `- a: 1` and `[a: 1]` are an object in YAML, where `a:1` is text.
    is_pair = isinstance(wrong, dict) and len(wrong) == 1
    said = ":".join(written(part) for pair in wrong.items() for part in pair) if is_pair else written(wrong)
    return ConfigError(
        f"`{entry.path}` takes {_KINDS[entry.type]}, and holds {wrong}",
        place=place,
        remedy=f'write {said} without a space, or in quotes: "{said}"' if is_pair else f'put it in quotes: "{said}"',
    )


def expected(entry: Entry, given: str = "") -> str:
    """What an option takes, in words: a whole number ≥ 1; one of wait, drop (did you mean drop?)."""
    kind = entry.type
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if given == "False" and "off" in list(kind):
            return f'one of {", ".join(kind)}, and in YAML "off" in quotes, since off alone is read as false'
        near = difflib.get_close_matches(given, list(kind), n=1)
        return f"one of {', '.join(kind)}" + (f" (did you mean {near[0]}?)" if near else "")
    return f"{_KINDS[kind]} {entry.help.range}".rstrip()


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _sections(config: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    assert is_dataclass(config)
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield f"{prefix}{f.name}", f.metadata["help"].text
            yield from _sections(value, f"{prefix}{f.name}.")
