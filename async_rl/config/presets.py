"""The correction presets that come along: what each sets, and when it is the one to take.

Owns how their files are read: `configs/correction/NAME.yaml`, of which the first comment says when to use it.
Composing them is `compose`'s. Run as `python -m async_rl.config.presets`, it prints their table as Markdown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from async_rl.config.groups import group_files, one_of
from async_rl.config.option import written
from async_rl.config.shipped import shipped_folder
from async_rl.errors import ConfigError

GROUP = "correction"
GLOBAL = "@package _global_"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One file of the group."""

    name: str
    use: str
    """When to take it."""
    settings: dict[str, object]
    """The options that it sets, by their paths."""

    @property
    def words(self) -> str:
        """The settings in a line, those of its own section without its name."""
        return ", ".join(f"{o.removeprefix(f'{GROUP}.')}={written(value)}" for o, value in self.settings.items())


def load_presets() -> list[Preset]:
    """All that come along, in the order of their names."""
    return [read_preset(path) for path in group_files(GROUP, shipped_folder()).values()]


def preset_file(name: str) -> Path:
    """Where a preset that comes along lies.

    Raises:
        ConfigError: there is none of this name; says which there are.
    """
    files = group_files(GROUP, shipped_folder())
    if name not in files:
        raise ConfigError(f"there is no preset {name}", place="NAME", remedy=one_of(list(files), name))
    return files[name]


def read_preset(path: Path) -> Preset:
    """A file of a group; without `@package _global_` its options are those of the group's section."""
    text = path.read_text(encoding="utf-8")
    comments = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return Preset(
        name=path.stem,
        use=next((comment for comment in comments if not comment.startswith("@")), ""),
        settings=dict(_leaves(yaml.safe_load(text) or {}, "" if GLOBAL in comments else f"{path.parent.name}.")),
    )


def presets_table() -> str:
    """The table in docs/correction.md."""
    rows = [f"| `{p.name}` | `{p.words}` | {p.use} |" for p in load_presets()]
    return "\n".join(["| preset | sets | when |", "|---|---|---|", *rows, ""])


def _leaves(values: dict[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif key != "defaults":
            yield f"{prefix}{key}", value


if __name__ == "__main__":
    print(presets_table(), end="")
