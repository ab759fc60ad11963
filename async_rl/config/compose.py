"""From a YAML file and `key=value` overrides to a checked config tree.

Owns Hydra and OmegaConf, whose containers nobody else sees, and the translation of what they refuse.
Must not know what the options mean: their ranges stand in `schema`, their contradictions in `rules`.

A config file begins with `defaults: [run_schema, _self_]` (`sft_schema` for `async-rl sft`), or with the
name of a file which does. It may lie anywhere; its groups are folders next to it, and those that come along.
"""

import re
import shlex
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from async_rl.config.groups import chosen_groups, group_files, is_group, not_in_group
from async_rl.config.option import check_ranges, walk, written
from async_rl.config.presets import read_preset
from async_rl.config.rules import check_run
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.config.sft_rules import check_sft
from async_rl.config.shipped import shipped_folder
from async_rl.config.source import broken_yaml, check_source, line_of, no_schema
from async_rl.config.tree import RUN, SFT, Tree, expected, not_a_list, not_a_section, takes_list, wrong_element
from async_rl.errors import ConfigError


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of `async-rl launch`: composed, typed, in range and free of contradictions.

    Raises `ConfigError`, naming the value, the file's line or the override, and the remedy.
    """
    config = cast(RunConfig, _load(path.absolute(), overrides, RUN))
    check_ranges(config)
    check_run(config)
    return config


def load_sft_config(path: Path, overrides: Sequence[str] = ()) -> SftConfig:
    """The config of `async-rl sft`; raises like `load_run_config`."""
    config = cast(SftConfig, _load(path.absolute(), overrides, SFT))
    check_ranges(config)
    check_sft(config)
    return config


def load_earlier_config(path: Path) -> RunConfig | SftConfig:
    """What `dump_config` wrote, for either command; raises like `load_run_config`."""
    first_line = path.read_text(encoding="utf-8").partition("\n")[0]
    return load_sft_config(path) if SFT.schema_name in first_line else load_run_config(path)


def dump_config(config: RunConfig | SftConfig) -> str:
    """The config as YAML, which loads again to an equal tree."""
    tree = RUN if isinstance(config, RunConfig) else SFT
    return f"defaults: [{tree.schema_name}, _self_]\n{OmegaConf.to_yaml(OmegaConf.structured(config))}"


def _load(path: Path, overrides: Sequence[str], tree: Tree) -> object:
    check_source(path, tree)
    checked = [_check_override(text, path.parent, tree) for text in overrides]
    _register(tree)
    Plugins.instance().register(ShippedConfigs)
    chosen = chosen_groups(path)
    choices = {o.key_or_group: o.value() for o in checked if is_group(o.key_or_group, path.parent, tree)}
    added = {group: name for group, name in choices.items() if group not in chosen and not isinstance(name, dict)}
    try:
        with initialize_config_dir(str(path.parent), job_name="async_rl", version_base="1.3"):
            primary = _with_choices(path, added) if added else path.stem
            composed = compose(primary, [_for_hydra(o, choices) for o in checked if o.key_or_group not in added])
        if OmegaConf.get_type(composed) is not tree.kind:
            raise no_schema(path, tree)
        config = OmegaConf.to_object(composed)
    except yaml.YAMLError as error:
        raise broken_yaml(path, error) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise _refusal(error, path, overrides, tree) from error
    _check_elements(config, path, overrides)
    given = {o.key_or_group for o in checked}
    for group, name in choices.items():
        _check_effect(group, name, config, path, given)
    return config


class ShippedConfigs(SearchPathPlugin):
    """Lets every file choose from the groups that come along, and start from the files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="async-rl", path=str(shipped_folder()))


def _with_choices(path: Path, choices: Mapping[str, object]) -> str:
    """The file with groups chosen before its own values, which win over them; returns its name for Hydra."""
    node = OmegaConf.load(path)
    assert isinstance(node, DictConfig), path
    defaults = list(node["defaults"])
    at = defaults.index("_self_")
    node["defaults"] = [*defaults[:at], *({group: name} for group, name in choices.items()), *defaults[at:]]
    ConfigStore.instance().store("async_rl_with_choices", node)
    return "async_rl_with_choices"


def _for_hydra(override: Override, choices: Container[str]) -> str:
    """`group=null` takes a choice back, for which Hydra writes `~group`."""
    assert override.input_line is not None
    takes_back = override.key_or_group in choices and override.value() is None
    return f"~{override.key_or_group}" if takes_back else override.input_line


def _check_effect(group: str, name: object, config: object, path: Path, given: Container[str]) -> None:
    """Refuses a choice that the file hides whole, as the resolved config of an earlier run does.

    Args:
        given: options that the command line sets one by one, which is no mistake.
    """
    file = group_files(group, path.parent).get(str(name))
    settings = {} if file is None else read_preset(file).settings
    values = {entry.path: entry.value for entry in walk(config)}
    lost = [option for option, value in settings.items() if values.get(option, value) != value and option not in given]
    if lost and all(line_of(path, option) for option in settings):
        single = " ".join(shlex.quote(f"{option}={written(settings[option])}") for option in lost)
        raise ConfigError(
            f"`{group}={name}` changes nothing: {path.name} itself sets all that it sets, and wins over it",
            place=f"{path}:{line_of(path, lost[0])}",
            remedy=f"take those lines out of the file, or give the options one by one: {single}",
        )


def _check_elements(config: object, path: Path, overrides: Sequence[str]) -> None:
    """OmegaConf takes an object for text where it stands in a list."""
    for entry in walk(config):
        error = wrong_element(entry, place=_place(entry.path, path, overrides)) if takes_list(entry) else None
        if error is not None:
            raise error


def _register(tree: Tree) -> None:
    """Makes the schema known to Hydra, as a tree that files may still write to."""
    node = OmegaConf.structured(tree.kind)
    _thaw(node)
    ConfigStore.instance().store(tree.schema_name, node)


def _thaw(node: DictConfig) -> None:
    """Frozen dataclasses become read-only nodes, which no file could be merged into."""
    node._set_flag("readonly", None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _thaw(child)


def _check_override(text: str, folder: Path, tree: Tree) -> Override:
    """Hydra takes `+a=1` and `~a` for keys that do not exist, and any key below `hydra`."""
    override = _parse_override(text)
    key, place = override.key_or_group, f"command line: {text}"
    if override.type is not OverrideType.CHANGE or override.package is not None:
        raise ConfigError(
            f"`{text}` adds, moves or removes a key, and the keys are fixed", place=place, remedy=f"write {key}=VALUE"
        )
    if override.is_sweep_override() and key in tree.entries and takes_list(tree.entries[key]):
        raise not_a_list(tree.entries[key], place=place)
    if override.is_sweep_override():
        raise ConfigError(
            f"`{key}` is given several values at once",
            place=place,
            remedy=f"give one; text that holds a comma is quoted: '{key}=\"a,b\"'",
        )
    value = override.value()
    if is_group(key, folder, tree) and not isinstance(value, dict):
        for name in value if isinstance(value, list) else [value]:
            if name is not None and str(name) not in group_files(key, folder):
                raise not_in_group(key, str(name), folder, place=place)
    elif key not in tree.entries and key not in tree.sections:
        raise tree.unknown(key, place=place)
    elif key not in tree.entries and not isinstance(value, dict):
        raise not_a_section(key, place=place)
    return override


def _parse_override(text: str) -> Override:
    place = f"command line: {text}"
    if text.startswith("~"):
        raise ConfigError(
            f"`{text}` removes a key, and the keys are fixed", place=place, remedy="set the value that you want"
        )
    if "=" not in text:
        raise ConfigError(f"`{text}` is not an override", place=place, remedy="write key=value, for example steps=50")
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, _, value = text.partition("=")
        raise ConfigError(
            f"the value of `{key}` cannot be read",
            place=place,
            remedy=f'quote every text in the list: \'{key}=["A","B"]\''
            if value.startswith("[")
            else f"quote it, for Hydra and for the shell: '{key}=\"{value}\"'",
        ) from error


def _refusal(error: Exception, path: Path, overrides: Sequence[str], tree: Tree) -> ConfigError:
    """What Hydra or OmegaConf said, in the form of a `ConfigError`."""
    text = _spoken(error)
    problem = next((line for line in text.splitlines() if line and not line.startswith("In '")), text)
    if match := re.search(r"Could not find '(.+)'", text):
        group, _, name = match[1].rpartition("/")
        if group:
            return not_in_group(group, name, path.parent, place=f"{path}: defaults")
        return ConfigError(
            f"there is no {match[1]}.yaml in {path.parent}",
            place=f"{path}: defaults",
            remedy="name a file that exists; groups are folders next to the config file",
        )
    found = re.search(r"full_key: ([^\s[]+)", text)
    key = found[1] if found else ""
    place = _place(key, path, overrides)
    entry = tree.entries.get(key)
    if entry is None:
        return ConfigError(problem, place=place, remedy=tree.suggestion(key))
    if takes_list(entry):
        return not_a_list(entry, place=place)
    given = re.search(r"alue '(.*?)'", problem)
    return ConfigError(f"`{key}`: {problem}", place=place, remedy=f"give {expected(entry, given[1] if given else '')}")


def _spoken(error: Exception) -> str:
    """OmegaConf's own words, where Hydra has wrapped them; errors further in are templates."""
    inner = error.__cause__
    return str(inner if isinstance(inner, OmegaConfBaseException) else error).strip()


def _place(key: str, path: Path, overrides: Sequence[str]) -> str:
    """Where the value of an option was given; an override wins over the file."""
    for text in reversed(overrides):
        if key and text.partition("=")[0] == key:
            return f"command line: {text}"
    line = line_of(path, key)
    return str(path) if line is None else f"{path}:{line}"
