"""Fine-tuning as a user types it: on one rank and on several, stopped, killed and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from async_rl.checkpoints import Checkpoints
from async_rl.config.model import NewModel
from learner.model_folder import create_model
from tests.async_rl.data.chat_templates import save_chat_tokenizer
from tests.integration.conftest import ASYNC_RL

pytestmark = pytest.mark.integration

TORCHRUN = Path(sys.executable).with_name("torchrun")
CONFIG = """
defaults: [sft_schema, _self_]
steps: 3
batch_size: 16
validate_every: 3
num_threads: 1
micro_batch_tokens: 256
model: {path: model}
data: {train: rows.jsonl, evaluate: rows.jsonl, num_evaluate: 20}
# With Adam's usual epsilon the sign of a gradient near 0, which is noise, would be a whole step.
optimizer: {lr: 3.0e-3, eps: 1.0e-3, schedule: cosine, warmup_steps: 2}
checkpoint: {every: 4}
tracking: {aim: false}
"""
SHAPE = NewModel(hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with its model and its conversations of one or two turns."""
    folder = tmp_path_factory.mktemp("sft")
    save_chat_tokenizer(folder / "tokenizer")
    create_model(folder / "model", SHAPE, tokenizer=folder / "tokenizer", seed=0)
    sums = [(a, b) for a in range(0, 100, 7) for b in range(0, 100, 9)]
    rows = []
    for number, (a, b) in enumerate(sums):
        first = [{"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": str(a + b)}]
        second = [{"role": "user", "content": "and 1 more"}, {"role": "assistant", "content": f"is {a + b + 1}"}]
        rows.append({"messages": first + second * (number % 2)})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "sft.yaml").write_text(CONFIG)
    return folder


def begin(folder: Path, name: str, *words: str, ranks: int = 1) -> subprocess.Popen[str]:
    program = [str(ASYNC_RL)] if ranks == 1 else [str(TORCHRUN), f"--nproc-per-node={ranks}", "-m", "async_rl.cli"]
    return subprocess.Popen(
        [*program, "sft", "sft.yaml", f"name={name}", f"output={name}", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def at_step(folder: Path, name: str, step: int, process: subprocess.Popen[str]) -> None:
    """Waits until a run has a checkpoint of this step or a later one."""
    wait_for(lambda: max(versions(folder, name), default=0) >= step, process)


def versions(folder: Path, name: str) -> list[int]:
    return Checkpoints(folder / "runs" / name / "checkpoints", keep=2).versions()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.02)


def steps(folder: Path, name: str) -> dict[int, tuple[float, float]]:
    """Loss and gradient norm by step; of a step that was taken again, those of the last time."""
    lines = map(json.loads, (folder / "runs" / name / "metrics.jsonl").read_text().splitlines())
    scalars = {line["step"]: line["scalars"] for line in lines if "sft/loss" in line["scalars"]}
    return {step: (values["sft/loss"], values["sft/grad_norm"]) for step, values in scalars.items()}


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / name / "model.safetensors")


@pytest.fixture(scope="module")
def one_rank(folder: Path) -> Path:
    finish(begin(folder, "one"))
    return folder


@pytest.mark.parametrize("layout", ["dp=2", "tp=2"])
def test_two_ranks_under_torchrun_train_what_one_does(one_rank: Path, layout: str) -> None:
    name = layout.replace("=", "")
    output = finish(begin(one_rank, name, f"parallel.{layout}", ranks=2))
    assert output.count("Training on") == 1, "one rank speaks"
    expected = steps(one_rank, "one")
    assert steps(one_rank, name).keys() == expected.keys() == {1, 2, 3}
    for step, numbers in steps(one_rank, name).items():
        assert numbers == pytest.approx(expected[step], abs=5e-6)
    ours, theirs = weights(one_rank, name), weights(one_rank, "one")
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) <= 5e-6


def test_a_run_that_was_stopped_and_killed_ends_as_the_one_that_was_not(folder: Path) -> None:
    words = ("steps=60", "batch_size=48")
    finish(begin(folder, "whole", *words))

    process = begin(folder, "parts", *words)
    at_step(folder, "parts", 4, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    stopped = versions(folder, "parts")[-1]
    assert f"To go on from version {stopped}: async-rl sft sft.yaml name=parts" in output
    assert json.loads((folder / "runs/parts/summary.json").read_text())["exit"] == "stopped"

    process = begin(folder, "parts", *words, "--resume", "auto")
    at_step(folder, "parts", stopped + 4, process)
    process.kill()
    process.communicate()
    killed = max(steps(folder, "parts"))
    assert stopped + 4 <= killed < 60

    finish(begin(folder, "parts", *words, "--resume", "auto"))
    assert steps(folder, "parts") == steps(folder, "whole")
    parts, whole = weights(folder, "parts"), weights(folder, "whole")
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_ctrl_c_under_torchrun_leaves_a_checkpoint_of_all_ranks(folder: Path) -> None:
    words = ("steps=400", "batch_size=48", "parallel.dp=2")
    process = begin(folder, "ranks", *words, ranks=2)
    at_step(folder, "ranks", 4, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    stopped = versions(folder, "ranks")[-1]
    assert f"To go on from version {stopped}: torchrun … -m async_rl.cli sft sft.yaml name=ranks" in output
    # The same checkpoint, on another layout.
    output = finish(begin(folder, "ranks", f"steps={stopped + 1}", "batch_size=48", "--resume", "auto"))
    assert f"Going on from version {stopped}" in output
    assert max(steps(folder, "ranks")) == stopped + 1


def test_a_ray_group_stops_dies_and_goes_on_as_one_rank_does(folder: Path, ray_address: str) -> None:
    words = ("steps=400", "batch_size=48", "parallel.dp=2", f"cluster.address={ray_address}")
    process = begin(folder, "group", *words)
    at_step(folder, "group", 4, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    stopped = versions(folder, "group")[-1]

    process = begin(folder, "group", *words, "--resume", "auto")
    at_step(folder, "group", stopped + 4, process)
    (pid,) = re.findall(r"rank-1 is process (\d+)", (folder / "runs/group/logs/rank-1.log").read_text())[-1:]
    os.kill(int(pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "The run could not go on: rank-1 died" in output
    kept = versions(folder, "group")[-1]
    assert f"To go on from version {kept}: async-rl sft sft.yaml name=group" in output

    finish(begin(folder, "group", f"steps={kept + 1}", "batch_size=48", "--resume", "auto"))
    assert max(steps(folder, "group")) == kept + 1


def test_a_mistake_is_said_once_whatever_the_number_of_ranks(folder: Path) -> None:
    process = begin(folder, "wrong", "data.train=nowhere.jsonl", ranks=2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert output.count("error:  there is no file nowhere.jsonl") == 1, output
