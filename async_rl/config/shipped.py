"""Where a config that is named on the command line lies: at the path given, or among those that come along.

Owns the place of the shipped configs: inside the installed package, or beside it in a checkout.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_folder() -> Path:
    """The folder with the shipped configs."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def find_config(name: str, *, shipped: Path) -> Path:
    """The file that `name` means: a path as given, else a shipped config, with or without its ending.

    Where neither exists, the path as given: whoever opens it says what is wrong.
    """
    given = Path(name)
    if given.exists():
        return given
    for candidate in (shipped / f"{name}.yaml", shipped / name, shipped.parent / name):
        if not given.is_absolute() and candidate.is_file():
            return candidate
    return given
