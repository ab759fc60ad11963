"""A config file before Hydra reads it: that it is there, is YAML, names its schema, and knows its keys.

Owns the line numbers that errors point at. Must not compose anything: groups and overrides come later.
"""

import difflib
from pathlib import Path

import yaml

from async_rl.config.option import Entry
from async_rl.config.tree import TREES, Tree, not_a_list, not_a_section, takes_list
from async_rl.errors import ConfigError


def check_source(path: Path, tree: Tree) -> None:
    """Raises a `ConfigError` for the first thing in the file that cannot be meant."""
    _check_path(path)
    root = read_nodes(path)
    if not isinstance(root, yaml.MappingNode):
        raise no_schema(path, tree)
    _check_defaults(path, root, tree)
    _check_keys(path, root, "", tree)


def read_nodes(path: Path) -> yaml.Node | None:
    """The file as YAML nodes, which know their lines; None for an empty file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text: {error}", place=str(path), remedy="save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", place=str(path), remedy="make the file readable"
        ) from error
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise broken_yaml(path, error) from error


def line_of(path: Path, option: str) -> int | None:
    """The line, from 1, where the file sets an option; None where it does not."""
    node, line = read_nodes(path), None
    for name in option.split("."):
        if not isinstance(node, yaml.MappingNode):
            return None
        found = [(key, value) for key, value in node.value if key.value == name]
        if not found:
            return None
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return line


def no_schema(path: Path, tree: Tree) -> ConfigError:
    """Without its schema, Hydra would take any key and any value."""
    return ConfigError(
        f"{path.name} does not name its schema, so nothing in it can be checked",
        place=str(path),
        remedy=f"begin the file with `defaults: [{tree.schema_name}, _self_]`",
    )


def broken_yaml(path: Path, error: yaml.YAMLError) -> ConfigError:
    """What the parser could not read, and where; in `path` or in a file that it includes."""
    place, problem = str(path), str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        problem = error.problem or problem
        mark = error.problem_mark
        if mark is not None:
            file = mark.name if Path(mark.name).is_file() else place
            place = f"{file}:{mark.line + 1}:{mark.column + 1}"
    return ConfigError(
        f"not valid YAML: {problem}",
        place=place,
        remedy="mend the line; YAML indents with spaces and writes `key: value`, each key once",
    )


def _check_path(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", place="CONFIG", remedy="name a YAML file in it")
    if not path.exists():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.yaml")], n=1, cutoff=0.75)
        raise ConfigError(
            f"there is no config file {path}",
            place="CONFIG",
            remedy=f"did you mean {path.parent / near[0]}?" if near else "name a YAML file that exists",
        )
    if path.suffix != ".yaml":
        raise ConfigError(f"{path} does not end in .yaml", place="CONFIG", remedy=f"rename it to {path.stem}.yaml")


def _check_defaults(path: Path, root: yaml.MappingNode, tree: Tree) -> None:
    """The schema comes first: whatever stands before it is overwritten by its default values, silently."""
    defaults = next((value for key, value in root.value if key.value == "defaults"), None)
    if not isinstance(defaults, yaml.SequenceNode) or not defaults.value:
        raise no_schema(path, tree)
    names = [item.value if isinstance(item, yaml.ScalarNode) else "" for item in defaults.value]
    for other in TREES:
        if other is not tree and other.schema_name in names:
            raise ConfigError(
                f"{path.name} is a config for `{other.command}`",
                place=f"{path}:{defaults.start_mark.line + 1}",
                remedy=f"run `{other.command} {path}`, or give a config for `{tree.command}`",
            )
    if "_self_" not in names:
        raise ConfigError(
            "`defaults` does not say where the file's own values stand",
            place=f"{path}:{defaults.start_mark.line + 1}",
            remedy=f"end it with `_self_`, so that they win: `defaults: [{', '.join(filter(None, names))}, _self_]`",
        )
    if names[0] == "_self_" or tree.schema_name in names[1:]:
        raise ConfigError(
            "the schema does not come first in `defaults`, so its default values would replace the file's",
            place=f"{path}:{defaults.start_mark.line + 1}",
            remedy=f"write `defaults: [{tree.schema_name}, …, _self_]`",
        )


def _check_keys(path: Path, node: yaml.MappingNode, prefix: str, tree: Tree) -> None:
    """Unknown keys, keys given twice, and sections that hold a value; types are OmegaConf's to check."""
    for key, value in node.value:
        option = f"{prefix}{key.value}"
        place = f"{path}:{key.start_mark.line + 1}"
        if option in ("defaults", "hydra"):
            continue
        if "." not in key.value and option in tree.entries:
            _check_list(tree.entries[option], value, place)
            continue
        if "." in key.value:
            raise ConfigError(
                f"`{key.value}` is one key with a dot in it", place=place, remedy=f"nest it: {_nested(key.value)}"
            )
        if option not in tree.sections:
            raise tree.unknown(option, place=place)
        if isinstance(value, yaml.MappingNode):
            _check_keys(path, value, f"{option}.", tree)
        elif not (isinstance(value, yaml.ScalarNode) and "${" in value.value):
            raise not_a_section(option, place=place)


def _check_list(entry: Entry, value: yaml.Node, place: str) -> None:
    is_reference = isinstance(value, yaml.ScalarNode) and "${" in value.value
    if takes_list(entry) and not isinstance(value, yaml.SequenceNode) and not is_reference:
        raise not_a_list(entry, place=place)


def _nested(key: str) -> str:
    """a.b.c as {a: {b: {c: …}}}."""
    parts = key.split(".")
    return "{".join(f"{part}: " for part in parts) + "…" + "}" * (len(parts) - 1)
