"""From files and overrides to a config: what becomes of each, and what is refused."""

from pathlib import Path

import pytest

from async_rl.config.compose import dump_config, load_earlier_config, load_run_config, load_sft_config
from async_rl.config.data import SftDataConfig
from async_rl.config.model import Dtype
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.config.staleness import OverBound
from async_rl.errors import ConfigError

HEAD = "defaults: [run_schema, _self_]\n"
RUNNABLE = HEAD + "model: {path: m}\ndata: {train: rows.jsonl}\nreward: {function: 'rewards.py:score'}\n"


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_what_either_command_wrote_is_read_as_that_commands(tmp_path: Path) -> None:
    tuned = SftConfig(data=SftDataConfig(task="tasks.py:Sum", max_prompt_tokens=16))
    assert load_earlier_config(write(tmp_path, dump_config(tuned), "sft.yaml")) == tuned
    run = load_run_config(write(tmp_path, RUNNABLE))
    assert load_earlier_config(write(tmp_path, dump_config(run), "again.yaml")) == run


def refused(path: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, overrides)
    return caught.value


def test_a_file_and_overrides_become_a_typed_frozen_tree(tmp_path: Path) -> None:
    path = write(tmp_path, RUNNABLE + "steps: 7\nlearner:\n  optimizer:\n    lr: 1e-3\n")
    config = load_run_config(path, ["staleness.over_bound=mask", "staleness.depth=2", "model.dtype=bfloat16"])
    assert isinstance(config, RunConfig)
    assert config.steps == 7
    assert config.learner.optimizer.lr == 1e-3
    assert config.learner.optimizer.beta1 == 0.9
    assert config.staleness.over_bound is OverBound.mask
    assert config.staleness.depth == 2
    assert config.model.dtype is Dtype.bfloat16
    with pytest.raises(AttributeError):
        config.steps = 8  # type: ignore[misc]


def test_an_override_wins_over_the_file_and_may_set_a_whole_section(tmp_path: Path) -> None:
    path = write(tmp_path, RUNNABLE + "staleness: {max: 6, depth: 3}\n")
    assert load_run_config(path, ["staleness={max: 2, depth: 0}"]).staleness.max == 2


def test_a_dumped_config_loads_to_an_equal_tree(tmp_path: Path) -> None:
    config = load_run_config(write(tmp_path, RUNNABLE), ["name=it", "staleness.max=9", "staleness.over_bound=drop"])
    assert load_run_config(write(tmp_path, dump_config(config), "again.yaml")) == config


def test_lists_are_written_in_brackets_and_dumped_so_that_they_load_again(tmp_path: Path) -> None:
    in_lines = write(tmp_path, RUNNABLE + "correction:\n  reject:\n    - seq_mean_k3:0.01\n    - token_k1:0.5_2.0\n")
    in_brackets = write(tmp_path, RUNNABLE + "correction: {reject: [seq_mean_k3:0.01, token_k1:0.5_2.0]}\n", "b.yaml")
    override = load_run_config(
        write(tmp_path, RUNNABLE, "c.yaml"), ["correction.reject=[seq_mean_k3:0.01,token_k1:0.5_2.0]"]
    )
    assert override.correction.reject == ["seq_mean_k3:0.01", "token_k1:0.5_2.0"]
    assert load_run_config(in_lines) == load_run_config(in_brackets) == override
    assert load_run_config(write(tmp_path, dump_config(override), "again.yaml")) == override
    assert load_run_config(in_lines, ["correction.reject=[]"]).correction.reject == []


def test_a_list_of_numbers_is_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, RUNNABLE)
    words = ["advantage.reward_components=[correct,short]", "advantage.reward_weights=[1,0.5]"]
    assert load_run_config(path, words).advantage.reward_weights == [1.0, 0.5]


def test_groups_lie_in_folders_next_to_the_file(tmp_path: Path) -> None:
    write(tmp_path, "path: small\n", "model/small.yaml")
    write(tmp_path, "path: large\n", "model/large.yaml")
    path = write(tmp_path, RUNNABLE.replace("run_schema,", "run_schema, model: small,").replace("model: {path: m}", ""))
    assert load_run_config(path).model.path == "small"
    assert load_run_config(path, ["model=large"]).model.path == "large"


def test_a_file_may_start_from_one_that_comes_along(tmp_path: Path) -> None:
    assert load_run_config(write(tmp_path, "defaults: [quickstart, _self_]\nsteps: 50\n")).steps == 50


def test_a_file_may_start_from_another_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path, RUNNABLE + "steps: 5\n", "base.yaml")
    path = write(tmp_path, "defaults: [base, _self_]\nseed: 3\n")
    config = load_run_config(path)
    assert (config.steps, config.seed) == (5, 3)


def test_values_may_refer_to_other_values(tmp_path: Path) -> None:
    path = write(tmp_path, RUNNABLE + "steps: 12\nevaluation: {every: '${steps}'}\n")
    assert load_run_config(path, ["data.evaluate=e.jsonl"]).evaluation.every == 12


def test_a_path_with_spaces_and_dots_is_found(tmp_path: Path) -> None:
    assert load_run_config(write(tmp_path, RUNNABLE, "my configs/v1.2.yaml")).model.path == "m"


def test_a_warm_start_has_a_tree_of_its_own(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "defaults: [sft_schema, _self_]\ndata: {task: 'm:T', max_prompt_tokens: 16}\nnew_model: {num_heads: 8}\n",
    )
    assert load_sft_config(path).new_model.num_heads == 8
    error = refused(path)
    assert error.problem == "run.yaml is a config for `async-rl sft`"
    assert error.remedy == f"run `async-rl sft {path}`, or give a config for `async-rl launch`"


FILES = {
    "an unknown key": (
        HEAD + "learner: {optimizer: {lrr: 1}}\n",
        "there is no option `learner.optimizer.lrr`\n  where:  PATH:2\n  remedy: did you mean `learner.optimizer.lr`?",
    ),
    "a key of another section": (
        HEAD + "steps: 3\nlr: 1\n",
        "there is no option `lr`\n  where:  PATH:3\n"
        "  remedy: did you mean `critic.optimizer.lr` or `learner.optimizer.lr`?",
    ),
    "a key that resembles none": (
        HEAD + "zzz: 1\n",
        "there is no option `zzz`\n  where:  PATH:2\n  remedy: `async-rl config` lists the options",
    ),
    "text for a list": (
        HEAD + "correction:\n  reject: seq_mean_k3:0.01\n",
        "`correction.reject` takes a list of text\n  where:  PATH:3\n"
        "  remedy: write it in brackets: `reject: [A, B]` in YAML, and on the command line, in quotes for the shell, "
        "'correction.reject=[A,B]'",
    ),
    "an object in a list": (
        HEAD + "correction:\n  reject: [seq_mean_k3: 0.01]\n",
        "`correction.reject` takes a list of text, and holds {'seq_mean_k3': 0.01}\n  where:  PATH:3\n"
        '  remedy: write seq_mean_k3:0.01 without a space, or in quotes: "seq_mean_k3:0.01"',
    ),
    "a word in a list of numbers": (
        HEAD + "advantage:\n  reward_weights: [1, x]\n",
        "`advantage.reward_weights` takes a list of numbers\n  where:  PATH:3\n"
        "  remedy: write it in brackets: `reward_weights: [1, 0.5]` in YAML, and on the command line, in quotes for "
        "the shell, 'advantage.reward_weights=[1,0.5]'",
    ),
    "a key with dots": (
        HEAD + "staleness.max: 1\n",
        "`staleness.max` is one key with a dot in it\n  where:  PATH:2\n  remedy: nest it: staleness: {max: …}",
    ),
    "a wrong type": (
        HEAD + "steps: many\n",
        "`steps`: Value 'many' of type 'str' could not be converted to Integer\n"
        "  where:  PATH:2\n  remedy: give a whole number ≥ 1",
    ),
    "a truth value for a number": (
        HEAD + "steps: true\n",
        "`steps`: Value 'True' of type 'bool' could not be converted to Integer\n"
        "  where:  PATH:2\n  remedy: give a whole number ≥ 1",
    ),
    "a word that is no choice": (
        HEAD + "staleness:\n  over_bound: dropp\n",
        "`staleness.over_bound`: Invalid value 'dropp', expected one of [wait, drop, requeue, mask, train]\n"
        "  where:  PATH:3\n  remedy: give one of wait, drop, requeue, mask, train (did you mean drop?)",
    ),
    "nothing for a value": (
        HEAD + "steps:\n",
        "`steps`: Incompatible value 'None' for field of type 'int'\n"
        "  where:  PATH:2\n  remedy: give a whole number ≥ 1",
    ),
    "a value for a section": (
        HEAD + "learner: 3\n",
        "`learner` is a section, not a value\n  where:  PATH:2\n"
        "  remedy: set one of its options: `learner.NAME=VALUE`, or in YAML a line below `learner:`",
    ),
    "no schema": (
        "steps: 3\n",
        "run.yaml does not name its schema, so nothing in it can be checked\n  where:  PATH\n"
        "  remedy: begin the file with `defaults: [run_schema, _self_]`",
    ),
    "an empty file": (
        "",
        "run.yaml does not name its schema, so nothing in it can be checked\n  where:  PATH\n"
        "  remedy: begin the file with `defaults: [run_schema, _self_]`",
    ),
    "a list": (
        "- steps\n",
        "run.yaml does not name its schema, so nothing in it can be checked\n  where:  PATH\n"
        "  remedy: begin the file with `defaults: [run_schema, _self_]`",
    ),
    "the schema after the file": (
        "defaults: [_self_, run_schema]\nsteps: 3\n",
        "the schema does not come first in `defaults`, so its default values would replace the file's\n"
        "  where:  PATH:1\n  remedy: write `defaults: [run_schema, …, _self_]`",
    ),
    "no place for the file's own values": (
        "defaults: [run_schema]\nsteps: 3\n",
        "`defaults` does not say where the file's own values stand\n  where:  PATH:1\n"
        "  remedy: end it with `_self_`, so that they win: `defaults: [run_schema, _self_]`",
    ),
    "broken YAML": (
        HEAD + "name: [a\nsteps: 3\n",
        "not valid YAML: expected ',' or ']', but got ':'\n  where:  PATH:3:6\n"
        "  remedy: mend the line; YAML indents with spaces and writes `key: value`, each key once",
    ),
    "a file in defaults that is not there": (
        "defaults: [run_schema, critic: tiny, _self_]\n",
        "there is no critic/tiny.yaml, neither in FOLDER nor among the configs that come along\n"
        "  where:  PATH: defaults\n"
        "  remedy: name a file that exists; groups are folders next to the config file",
    ),
    "a reference to nothing": (
        HEAD + "name: ${nope}\n",
        "`name`: Interpolation key 'nope' not found\n  where:  PATH:2\n  remedy: give text",
    ),
    "a number out of range": (
        HEAD + "steps: 0\n",
        "steps=0 is out of range\n  where:  steps\n  remedy: give a number ≥ 1",
    ),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES.keys())
def test_a_file_is_refused_with_value_place_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    assert str(refused(path)) == message.replace("PATH", str(path)).replace("FOLDER", str(tmp_path))


def test_a_file_that_starts_from_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "defaults: [run, _self_]\n", "base.yaml")
    error = refused(write(tmp_path, "defaults: [base, _self_]\n"))
    assert (error.problem, error.place) == ("run.yaml starts from itself", f"{tmp_path / 'base.yaml'}: defaults")


def test_off_without_quotes_is_explained(tmp_path: Path) -> None:
    assert refused(write(tmp_path, RUNNABLE + "correction: {weighting: off}\n")).remedy == (
        'give one of off, truncated, masked, and in YAML "off" in quotes, since off alone is read as false'
    )


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, RUNNABLE + "steps: 3\nsteps: 4\n")
    assert "found duplicate key steps" in str(refused(path))


AS_A_LIST = (
    "write it in brackets: `reject: [A, B]` in YAML, and on the command line, in quotes for the shell, "
    "'correction.reject=[A,B]'"
)
OVERRIDES = {
    "stepz=3": ("there is no option `stepz`", "did you mean `steps`?"),
    "depth=3": ("there is no option `depth`", "did you mean `staleness.depth`?"),
    "hydra.run.dir=x": ("there is no option `hydra.run.dir`", "`async-rl config` lists the options"),
    "+a=1": ("`+a=1` adds, moves or removes a key, and the keys are fixed", "write a=VALUE"),
    "++steps=3": ("`++steps=3` adds, moves or removes a key, and the keys are fixed", "write steps=VALUE"),
    "~steps": ("`~steps` removes a key, and the keys are fixed", "set the value that you want"),
    "model@data=x": ("`model@data=x` adds, moves or removes a key, and the keys are fixed", "write model=VALUE"),
    "steps": ("`steps` is not an override", "write key=value, for example steps=50"),
    "steps=x": ("`steps`: Value 'x' of type 'str' could not be converted to Integer", "give a whole number ≥ 1"),
    "steps=1.5": ("`steps`: Value '1.5' of type 'float' could not be converted to Integer", "give a whole number ≥ 1"),
    "steps=": ("`steps`: Value '' of type 'str' could not be converted to Integer", "give a whole number ≥ 1"),
    "steps=null": ("`steps`: field 'steps' is not Optional", "give a whole number ≥ 1"),
    "name=???": ("`name`: Structured config of type `RunConfig` has missing mandatory value: name", "give text"),
    "name=[1]": ("`name`: Cannot convert 'list' to string: '[1]'", "give text"),
    "steps=1,2": (
        "`steps` is given several values at once",
        "give one; text that holds a comma is quoted: 'steps=\"a,b\"'",
    ),
    "reward=3": (
        "`reward` is a section, not a value",
        "set one of its options: `reward.NAME=VALUE`, or in YAML a line below `reward:`",
    ),
    "staleness=strikt": (
        "there is no staleness/strikt.yaml, neither in FOLDER nor among the configs that come along",
        "did you mean strict? There are far_ahead, one_ahead, strict",
    ),
    "correction.reject=seq_mean_k3:0.01": ("`correction.reject` takes a list of text", AS_A_LIST),
    "correction.reject=seq_mean_k3:0.01,token_k1:2": ("`correction.reject` takes a list of text", AS_A_LIST),
    "correction.reject=null": ("`correction.reject` takes a list of text", AS_A_LIST),
    "correction.reject=[a=b]": (
        "the value of `correction.reject` cannot be read",
        'quote every text in the list: \'correction.reject=["A","B"]\'',
    ),
    "data.train=a=b.jsonl": (
        "the value of `data.train` cannot be read",
        "quote it, for Hydra and for the shell: 'data.train=\"a=b.jsonl\"'",
    ),
}


@pytest.mark.parametrize("text", OVERRIDES)
def test_an_override_is_refused_with_value_place_and_remedy(tmp_path: Path, text: str) -> None:
    error = refused(write(tmp_path, RUNNABLE), text)
    problem, remedy = OVERRIDES[text]
    problem = problem.replace("FOLDER", str(tmp_path))
    assert (error.problem, error.place, error.remedy) == (problem, f"command line: {text}", remedy)


def test_not_a_number_is_out_of_every_range(tmp_path: Path) -> None:
    assert refused(write(tmp_path, RUNNABLE), "learner.optimizer.lr=nan").place == "learner.optimizer.lr"


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, RUNNABLE)
    assert refused(tmp_path / "rum.yaml").remedy == f"did you mean {path}?"
    assert refused(tmp_path / "else" / "rum.yaml").remedy == "name a YAML file that exists"


def test_a_folder_and_another_ending_are_refused(tmp_path: Path) -> None:
    assert refused(tmp_path).problem == f"{tmp_path} is a folder"
    path = write(tmp_path, RUNNABLE, "run.yml")
    assert refused(path).remedy == "rename it to run.yaml"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    assert refused(path).remedy == "save it as UTF-8"


def test_contradictions_are_refused_too(tmp_path: Path) -> None:
    assert refused(write(tmp_path, RUNNABLE), "staleness.depth=5").place == "staleness.depth, staleness.max"
