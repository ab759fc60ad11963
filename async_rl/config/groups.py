"""Groups: folders of partial configs, of which a file's `defaults` or the command line choose one by its name.

Owns where they lie: beside the config file, then among the configs that come along; and which of them a file
chooses from. Knows no Hydra, which composes them.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path

import yaml

from async_rl.config.shipped import shipped_folder
from async_rl.config.source import read_nodes
from async_rl.config.tree import Tree
from async_rl.errors import ConfigError


def group_files(group: str, folder: Path) -> dict[str, Path]:
    """The files of a group by their names, in order; one beside the config file hides one that comes along."""
    found = {path.stem: path for base in (shipped_folder(), folder) for path in (base / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def is_group(key: str, folder: Path, tree: Tree) -> bool:
    """Whether a key on the command line chooses from a group; those that come along are named like their section."""
    return (folder / key).is_dir() or (key in tree.sections and bool(group_files(key, folder)))


def not_in_group(group: str, name: str, folder: Path, *, place: str) -> ConfigError:
    """There is no such file; perhaps another was meant."""
    names = list(group_files(group, folder))
    return ConfigError(
        f"there is no {group}/{name}.yaml, neither in {folder} nor among the configs that come along",
        place=place,
        remedy=one_of(names, name) if names else "name a file that exists; groups are folders next to the config file",
    )


def one_of(names: Sequence[str], given: str) -> str:
    """All names, and the one that was probably meant."""
    near = difflib.get_close_matches(given, names, n=1)
    return f"{f'did you mean {near[0]}? There are' if near else 'give one of'} {', '.join(names)}"


def chosen_groups(path: Path) -> set[str]:
    """The groups that a file chooses from, itself or through the files that it starts from.

    Raises:
        ConfigError: it starts from itself.
    """
    return set(_chosen(path, ()))


def _chosen(path: Path, through: tuple[Path, ...]) -> list[str]:
    if path in through:
        raise ConfigError(
            f"{path.name} starts from itself",
            place=f"{through[-1]}: defaults",
            remedy="let one of the two files not name the other",
        )
    root, groups = read_nodes(path), []
    values = root.value if isinstance(root, yaml.MappingNode) else []
    items = [item for key, value in values if key.value == "defaults" for item in value.value]
    for item in items:
        if isinstance(item, yaml.MappingNode):
            # `- override /model@policy: small` chooses from model.
            groups += [key.value.split()[-1].lstrip("/").partition("@")[0] for key, _ in item.value]
            continue
        bases = [folder / f"{item.value}.yaml" for folder in (path.parent, shipped_folder())]
        base = next((file for file in bases if file.is_file()), None)
        if base is not None:
            groups += _chosen(base, (*through, path))
    return groups
