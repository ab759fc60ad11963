"""Training that was interrupted goes on as if it had not been."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from async_rl.config.learner import OptimizerConfig
from async_rl.errors import ModelError
from learner.megatron.backend import MegatronBackend
from tests.learner.conftest import MakeReference, read_folder
from tests.learner.megatron.training import open_learner, take_step

pytestmark = pytest.mark.integration


def learner_command(model: Path, checkpoint: Path, action: str) -> list[str]:
    return [sys.executable, "-m", "tests.learner.megatron.training", str(model), str(checkpoint), action]


def weights_of(backend: MegatronBackend) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in backend.named_weights()}


def are_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("tie", [True, False])
def test_a_fresh_process_goes_on_bit_for_bit(
    make_reference: MakeReference, tmp_path: Path, repository: Path, tie: bool
) -> None:
    make_reference(tie_word_embeddings=tie)
    with open_learner(tmp_path / "model") as backend:
        for index in range(3):
            take_step(backend, index)
        backend.snapshot().write(tmp_path / "checkpoint")
        expected = take_step(backend, 3)
        uninterrupted = weights_of(backend)
    command = learner_command(tmp_path / "model", tmp_path / "checkpoint", "go-on")
    done = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(expected)
    assert are_equal(read_folder(tmp_path / "after"), uninterrupted)


def test_loading_undoes_what_came_after_the_save(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    with open_learner(tmp_path / "model") as backend:
        take_step(backend, 0)
        backend.snapshot().write(tmp_path / "checkpoint")
        saved, drawn = weights_of(backend), torch.rand(3)
        second = take_step(backend, 1)
        backend.load(tmp_path / "checkpoint")
        assert are_equal(weights_of(backend), saved)
        assert torch.equal(torch.rand(3), drawn)
        assert take_step(backend, 1) == second


def test_the_options_are_those_of_the_resumed_config(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    with open_learner(tmp_path / "model", OptimizerConfig(lr=1e-2, warmup_steps=4)) as backend:
        take_step(backend, 0)
        backend.snapshot().write(tmp_path / "checkpoint")
    with open_learner(tmp_path / "model", OptimizerConfig(lr=4e-3, warmup_steps=4)) as backend:
        backend.load(tmp_path / "checkpoint")
        assert take_step(backend, 1).lr == pytest.approx(2e-3)


def test_a_folder_that_is_no_checkpoint_is_refused(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    with open_learner(tmp_path / "model") as backend, pytest.raises(ModelError, match="not a checkpoint"):
        backend.load(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    make_reference(folder="wider", hidden_size=128)
    with open_learner(tmp_path / "model") as backend:
        backend.snapshot().write(tmp_path / "checkpoint")
    with open_learner(tmp_path / "wider") as backend, pytest.raises(ModelError, match="cannot be read") as caught:
        backend.load(tmp_path / "checkpoint")
    assert caught.value.place == str(tmp_path / "checkpoint")


def test_a_torn_checkpoint_is_refused(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    with open_learner(tmp_path / "model") as backend:
        backend.snapshot().write(tmp_path / "checkpoint")
        for file in (tmp_path / "checkpoint").glob("*.distcp"):
            file.write_bytes(file.read_bytes()[:4000])
        with pytest.raises(ModelError, match="cannot be read"):
            backend.load(tmp_path / "checkpoint")


def test_a_learner_killed_while_saving_leaves_no_process(
    make_reference: MakeReference, tmp_path: Path, repository: Path
) -> None:
    make_reference()
    command = learner_command(tmp_path / "model", tmp_path / "all", "save")
    with subprocess.Popen(
        command, cwd=repository, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for _ in range(5):
                assert process.stdout.readline() == "saved\n"
                assert members_of(process.pid) == {process.pid}
        finally:
            process.send_signal(signal.SIGKILL)
    assert members_of(process.pid) == set()


def members_of(session: int) -> set[int]:
    """The processes of a session."""
    members = set()
    for pid in (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                members.add(pid)
    return members
