"""The program as a user runs it: a process of its own, its two streams and its exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from async_rl.config.presets import load_presets, preset_file

PRESETS = [preset.name for preset in load_presets()]
HEAVY = ("torch", "vllm", "ray", "megatron", "transformers", "aim", "zmq")
RUN = """defaults: [run_schema, _self_]
model: {path: no/model}
data: {task: 'async_rl.data.tasks.addition:Addition'}
reward: {function: 'async_rl.data.tasks.exact_match:reward'}
"""


def async_rl(*words: str, cwd: Path, then: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the program; `then` is run in the same process at its end."""
    program = f"import atexit, sys\nfrom async_rl.cli import main\n{then}\nsys.argv[0] = 'async-rl'\nmain()"
    repository = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=cwd,
        env={"PYTHONPATH": repository, "COLUMNS": "200", "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN, encoding="utf-8")
    return path


def test_a_dry_run_shows_config_processes_and_guarantees_and_starts_nothing(config: Path) -> None:
    done = async_rl("launch", "run.yaml", "steps=7", "--dry-run", "--name", "mine", cwd=config.parent)
    assert done.returncode == 0, done.stderr
    for words in (
        "steps: 7",
        "name: mine",
        "generator-0",
        "learner",
        "4,096 rows; 7 batches take 112 groups: 3% of them",
        "No token trains that is more than 4 versions older",
        "Generation runs up to 1 batch ahead",
        "The learner waits for the group",
        "there is no model folder no/model",
        "Dry run: nothing was started.",
    ):
        assert words in done.stdout
    assert not (config.parent / "runs").exists()


def test_the_config_that_a_dry_run_shows_can_be_launched(config: Path) -> None:
    shown = async_rl("launch", "run.yaml", "steps=7", "--dry-run", cwd=config.parent).stdout
    (config.parent / "again.yaml").write_text(shown.split("Config\n")[1].split("Processes\n")[0], encoding="utf-8")
    again = async_rl("launch", "again.yaml", "--dry-run", cwd=config.parent)
    assert again.stdout == shown


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["launch", "run.yaml", "--dry-run"]], ids=" ".join)
def test_what_only_informs_loads_nothing_heavy(config: Path, words: list[str]) -> None:
    then = f"atexit.register(lambda: print('loaded', [m for m in {HEAVY} if m in sys.modules]))"
    done = async_rl(*words, cwd=config.parent, then=then)
    assert done.stdout.endswith("loaded []\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["launch", "run.yaml", "stepz=3"],
            ["error:  there is no option `stepz`", "where:  command line: stepz=3", "remedy: did you mean `steps`?"],
        ),
        (
            ["launch", "run.yaml", "staleness.depth=5", "--dry-run"],
            [
                "error:  staleness.depth=5 lets generation run further ahead than staleness.max=4 lets anything train",
                "where:  staleness.depth, staleness.max",
                "remedy: set staleness.depth=4 or less, or staleness.max=5 or more",
            ],
        ),
        (
            ["presets", "zzz"],
            ["error:  there is no preset zzz", "where:  NAME", f"remedy: give one of {', '.join(PRESETS)}"],
        ),
        (
            ["launch", "nothing.yaml"],
            [
                "error:  there is no config file FOLDER/nothing.yaml",
                "where:  CONFIG",
                "remedy: name a YAML file that exists",
            ],
        ),
        (
            ["launch", "run.yaml", "--name", "a/b"],
            [
                "error:  name='a/b' cannot be the name of a folder",
                "where:  name",
                "remedy: give a name of letters, digits, dots, dashes and underscores",
            ],
        ),
        (
            ["sft", "run.yaml"],
            [
                "error:  run.yaml is a config for `async-rl launch`",
                "where:  FOLDER/run.yaml:1",
                "remedy: run `async-rl launch FOLDER/run.yaml`, or give a config for `async-rl sft`",
            ],
        ),
        (
            ["dashboard", "--repo", "nowhere"],
            [
                "error:  no Aim repository in nowhere",
                "where:  --repo",
                "remedy: give the runs_dir of a run (or its tracking.aim_repo), after a run with tracking.aim=true",
            ],
        ),
    ],
    ids=lambda value: " ".join(value[:3]),
)
def test_a_mistake_is_three_lines_and_exit_code_2(config: Path, words: list[str], lines: list[str]) -> None:
    done = async_rl(*words, cwd=config.parent)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-3:] == [line.replace("FOLDER", str(config.parent)) for line in lines]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [["launch"], ["launch", "run.yaml", "--nope"], ["launch", "run.yaml", "--resume", "x"], ["nope"]],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(config: Path, words: list[str]) -> None:
    done = async_rl(*words, cwd=config.parent)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


ENDS = {
    "completes": ("return Exit.COMPLETED", 0, []),
    "is stopped with a checkpoint": ("return Exit.STOPPED", 130, []),
    "is stopped at once": ("raise Interrupted('stopped at once')", 130, []),
    "is interrupted before it began": ("raise KeyboardInterrupt", 130, []),
    "cannot go on": (
        "raise RunError('no generator is left')",
        1,
        ["Logs of every process: runs/run/logs", "The run could not go on: no generator is left"],
    ),
    "finds a port occupied": (
        "raise ResourceError('port 5555 is taken', place='channel.port', remedy='choose another')",
        2,
        ["error:  port 5555 is taken", "where:  channel.port", "remedy: choose another"],
    ),
}
FAKE_LAUNCH = """
import types
from enum import StrEnum
from async_rl.errors import ResourceError, RunError
from async_rl.summary import Exit
module = types.ModuleType('async_rl.launch.run')
class Interrupted(RunError): pass
class Resume(StrEnum):
    NEVER = 'never'
    AUTO = 'auto'
def launch(config, *, resume, console):
    assert resume is Resume.AUTO
    {end}
module.Interrupted, module.launch = Interrupted, launch
start = types.ModuleType('async_rl.launch.start')
start.Resume = Resume
sys.modules['async_rl.launch'] = types.ModuleType('async_rl.launch')
sys.modules['async_rl.launch.run'] = module
sys.modules['async_rl.launch.start'] = start
"""


@pytest.mark.parametrize(("end", "code", "lines"), ENDS.values(), ids=ENDS.keys())
def test_the_end_of_a_run_is_an_exit_code(config: Path, end: str, code: int, lines: list[str]) -> None:
    done = async_rl("launch", "run.yaml", "--resume", "auto", cwd=config.parent, then=FAKE_LAUNCH.format(end=end))
    assert (done.returncode, done.stderr.splitlines()) == (code, lines)


@pytest.mark.parametrize("end", ["raise RunError('the learner died')", "return Exit.STOPPED"])
def test_a_run_that_ended_early_says_how_to_go_on(config: Path, end: str) -> None:
    checkpoint = config.parent / "runs" / "mine" / "checkpoints" / "00000012"
    checkpoint.mkdir(parents=True)
    (checkpoint / "loop.json").write_text("{}")
    words = ["launch", "run.yaml", "steps=20", "--name", "mine", "--resume", "auto"]
    done = async_rl(*words, cwd=config.parent, then=FAKE_LAUNCH.format(end=end))
    said = "To go on from version 12: async-rl launch run.yaml steps=20 --name mine --resume auto"
    assert said in done.stderr.splitlines()


def test_presets_are_listed_and_shown_as_they_stand_in_their_files(tmp_path: Path) -> None:
    listed = async_rl("presets", cwd=tmp_path)
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines() if line[0] not in " p"] == PRESETS
    shown = async_rl("presets", "vtrace", cwd=tmp_path).stdout
    assert shown == preset_file("vtrace").read_text(encoding="utf-8")


def test_help_teaches_by_examples(tmp_path: Path) -> None:
    done = async_rl("--help", cwd=tmp_path)
    assert "async-rl launch quickstart --dry-run" in done.stdout
    for command in ("launch", "sft", "export", "dashboard", "config", "presets"):
        assert "async-rl" in async_rl(command, "--help", cwd=tmp_path).stdout
