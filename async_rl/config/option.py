"""One option of the config tree: its default, what it does, and the range it may have.

Declared once, beside the field; validation, `--help` texts and docs/config.md read the same words.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from async_rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Help:
    """What is known of an option beside its type."""

    text: str
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None

    @property
    def range(self) -> str:
        """The range in words, empty when every value of the type will do."""
        parts = []
        if self.minimum is not None:
            parts.append(f"≥ {self.minimum:g}")
        if self.exclusive_minimum is not None:
            parts.append(f"> {self.exclusive_minimum:g}")
        if self.maximum is not None:
            parts.append(f"≤ {self.maximum:g}")
        return ", ".join(parts)

    def admits(self, value: float) -> bool:
        """Whether a number lies in the range; NaN lies in none."""
        return (
            not math.isnan(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.exclusive_minimum is None or value > self.exclusive_minimum)
            and (self.maximum is None or value <= self.maximum)
        )


def option(
    default: Any = MISSING,
    text: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    exclusive_minimum: float | None = None,
) -> Any:
    """A dataclass field with its help: `depth: int = option(1, "…", minimum=0)`."""
    help_ = Help(text=text, minimum=minimum, maximum=maximum, exclusive_minimum=exclusive_minimum)
    if factory is not None:
        return field(default_factory=factory, metadata={"help": help_})
    return field(default=default, metadata={"help": help_})


def section(kind: type, text: str) -> Any:
    """A field that holds a part of the tree."""
    return option(text=text, factory=kind)


@dataclass(frozen=True)
class Entry:
    """One leaf of a config tree: where it stands, what it is, what it holds."""

    path: str
    type: object
    value: Any
    help: Help


def walk(config: object, prefix: str = "") -> Iterator[Entry]:
    """Every leaf of a dataclass tree, in the order of declaration."""
    assert is_dataclass(config) and not isinstance(config, type), config
    for f in fields(config):
        value = getattr(config, f.name)
        path = f"{prefix}{f.name}"
        if is_dataclass(value):
            yield from walk(value, f"{path}.")
        else:
            yield Entry(path, f.type, value, f.metadata["help"])


_Config = TypeVar("_Config")


def with_options(config: _Config, options: Mapping[str, object]) -> _Config:
    """The same tree with other values at some paths."""
    for path, value in options.items():
        head, _, rest = path.partition(".")
        assert is_dataclass(config) and not isinstance(config, type) and head in {f.name for f in fields(config)}, path
        config = replace(config, **{head: with_options(getattr(config, head), {rest: value}) if rest else value})
    return config


def check_ranges(config: object) -> None:
    """Raises a `ConfigError` for the first number that lies outside of its range."""
    for entry in walk(config):
        values = entry.value if isinstance(entry.value, list) else [entry.value]
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not entry.help.admits(value):
                raise ConfigError(
                    f"{entry.path}={value} is out of range",
                    place=entry.path,
                    remedy=f"give a number {entry.help.range or 'that is not NaN'}",
                )


def plain_values(config: object) -> dict[str, bool | int | float | str]:
    """Every leaf by its path: numbers and words as they are, enums as their words, lists as they are written."""
    return {e.path: e.value if isinstance(e.value, bool | int | float) else written(e.value) for e in walk(config)}


def written(value: object) -> str:
    """A value as one would write it in YAML: true, 0.5, words, [a, b]."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
