"""docs/config.md: every option with its type, default, range and effect, from the schema.

Pure. Run as `python -m async_rl.config.reference`, it prints the page.
"""

from collections.abc import Iterator
from enum import StrEnum

from async_rl.config.option import Entry, written
from async_rl.config.tree import RUN, SFT, Tree

HEADER = """# Options

Made from the schema by `python -m async_rl.config.reference > docs/config.md`; do not edit.

A config file begins with the name of its schema, and sets what differs from the default:

```yaml
defaults: [run_schema, _self_]
steps: 200
staleness:
  max: 4
  depth: 1
```

On the command line the same options are `key=value`, after the file: `async-rl launch run.yaml steps=50
staleness.max=0 staleness.depth=0`. They win over the file. Paths count from the folder where the command is given;
groups (`defaults: [run_schema, model: small, _self_]`) are folders next to the config file. Unknown keys, values of the
wrong type, numbers out of range and options that contradict each other are refused before anything starts.
`async-rl config` lists the options in the terminal.

A list stands in brackets: `reject: [seq_mean_k3:0.01, token_k1:0.5_2.0]` in YAML (no space after a colon in it), and
on the command line, in quotes for the shell, `'correction.reject=[seq_mean_k3:0.01,token_k1:0.5_2.0]'`.

Parts of a config come along as groups, each a folder of files: `model`, `cluster`, `learner`, `generation`, `staleness`
and `correction`. A file chooses with `defaults: [run_schema, model: qwen3-8b, staleness: strict, _self_]`, the command
line with `staleness=strict`, which takes the place of the file's choice. What the file sets itself wins over a group,
wherever that is chosen; a single option on the command line wins over both. A folder of the group's name next to the
config file adds others. `async-rl presets` lists those of the correction; docs/scale.md says how to choose the rest.
"""

_TYPES: dict[object, str] = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "text",
    list[str]: "list of text",
    list[float]: "list of float",
}


def reference_page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([HEADER, *_tree(RUN), *_tree(SFT)])


def type_words(entry: Entry) -> str:
    """The type of an option: int, float, bool, text, a list of those, or its choices."""
    if isinstance(entry.type, type) and issubclass(entry.type, StrEnum):
        return " \\| ".join(f"`{choice}`" for choice in entry.type)
    return _TYPES[entry.type]


def default_words(entry: Entry) -> str:
    """The default as one would write it in YAML."""
    if entry.value == "":
        return "empty"
    return f"`{written(entry.value)}`"


def _tree(tree: Tree) -> Iterator[str]:
    yield f"## `{tree.command}` (`{tree.schema_name}`)\n"
    yield from _table(tree, "")
    for section, text in tree.sections.items():
        yield f"### `{section}`\n\n{text}\n"
        yield from _table(tree, f"{section}.")


def _table(tree: Tree, prefix: str) -> Iterator[str]:
    yield "| option | type | default | range | effect |\n|---|---|---|---|---|"
    for path, entry in tree.entries.items():
        name = path.removeprefix(prefix)
        if path.startswith(prefix) and "." not in name:
            text = entry.help.text.replace("|", "\\|")
            yield f"| `{path}` | {type_words(entry)} | {default_words(entry)} | {entry.help.range} | {text} |"
    yield ""


if __name__ == "__main__":
    print(reference_page(), end="")
