"""A whole learner process, but for its supervisor: Megatron, shared memory, sockets and checkpoints."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from async_rl.channel.controller_socket import ControllerSocket
from async_rl.checkpoints import Checkpoints, LoopState
from async_rl.config.learner import CriticConfig, LearnerConfig, OptimizerConfig
from async_rl.config.loop import CheckpointConfig
from async_rl.config.model import ModelConfig
from async_rl.config.objective import AdvantageConfig, Estimator, KLConfig, KLEstimator
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import RunConfig
from async_rl.ledger import Ledger
from async_rl.protocol import (
    Batch,
    BatchRequest,
    CheckpointKept,
    CheckpointWritten,
    Commit,
    End,
    Hello,
    Published,
    StepMetrics,
)
from async_rl.weights.shm import ShmWeightSubscriber
from learner.place import Place
from learner.process import run_learner
from tests.learner.conftest import MakeReference
from tests.learner.groups import random_groups
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

LEARNER = "learner-0-a"


class Script:
    """A controller that gives each of its shards `last - first` batches and keeps what it hears."""

    def __init__(self, socket: ControllerSocket, checkpoints: Checkpoints, *, last: int, num_shards: int = 1) -> None:
        self._socket = socket
        self._num_shards = num_shards
        self._checkpoints = checkpoints
        self._subscriber = ShmWeightSubscriber()
        self._last = last
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.metrics: dict[int, StepMetrics] = {}
        self.heard: list[str] = []

    async def run(self) -> None:
        """Serves for ever."""
        while True:
            peer, message = await self._socket.receive()
            match message:
                case BatchRequest(version=version) if version == self._last:
                    await self._socket.send(peer, End(reason="enough", checkpoint=True))
                case BatchRequest(version=version, shard=shard):
                    groups = random_groups(num_groups=2, group_size=3, version=version)
                    shards = [[i % self._num_shards for i in range(3)] for _ in groups]
                    cut = Batch.cut(version=version, groups=groups, shards=shards, count=self._num_shards)
                    await self._socket.send(peer, cut[shard])
                case Published(manifest=manifest):
                    self.heard.append(f"publish {manifest.version}")
                    received = self._subscriber.receive(manifest)
                    self.weights[manifest.version] = {name: tensor.clone() for name, tensor in received}
                case Commit(version=version, metrics=metrics):
                    self.heard.append(f"commit {version}")
                    self.metrics[version] = metrics
                case CheckpointWritten(version=version, folder=folder):
                    self.heard.append(f"keep {version}")
                    state = LoopState(
                        version=version,
                        ledger=Ledger(max_attempts=3).snapshot(),
                        trained_tokens=0,
                        next_evaluation_id=0,
                        run_hash=None,
                    )
                    self._checkpoints.complete(Path(folder), state)
                    await self._socket.send(peer, CheckpointKept(version=version))
                case Hello():
                    pass
                case _:
                    raise AssertionError(message)

    def close(self) -> None:
        self._subscriber.close()


@pytest.fixture
async def socket() -> AsyncIterator[ControllerSocket]:
    controller = ControllerSocket("127.0.0.1", 0, max_message_bytes=1 << 24, epoch="e1")
    yield controller
    controller.close()


async def learn(
    config: RunConfig, socket: ControllerSocket, folder: Path, *, last: int, checkpoint: Path | None
) -> Script:
    script = Script(socket, Checkpoints(folder=folder / "checkpoints", keep=2), last=last)
    serving = asyncio.create_task(script.run())
    learner = asyncio.create_task(
        asyncio.to_thread(
            run_learner,
            config,
            rank=0,
            world_size=1,
            rendezvous="",
            address=socket.address,
            incarnation=LEARNER,
            run_folder=folder,
            run_id=f"test-{os.getpid()}",
            checkpoint=checkpoint,
        )
    )
    await asyncio.wait({serving, learner}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    script.close()
    await learner
    return script


async def test_a_learner_publishes_commits_checkpoints_exports_and_goes_on_from_there(
    socket: ControllerSocket, make_reference: MakeReference, tmp_path: Path
) -> None:
    model = make_reference("Qwen3ForCausalLM")
    config = RunConfig(
        steps=4,
        model=ModelConfig(path=str(tmp_path / "model")),
        learner=LearnerConfig(groups_per_step=2, micro_batch_tokens=64),
        checkpoint=CheckpointConfig(every=2),
        kl=KLConfig(coef=0.01),
    )
    whole = await learn(config, socket, tmp_path / "whole", last=4, checkpoint=None)
    assert sorted(whole.weights) == [0, 1, 2, 3, 4] and sorted(whole.metrics) == [1, 2, 3, 4]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(whole.weights[0][name], parameter.detach(), rtol=0, atol=0)
    exported = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    assert exported.keys() == whole.weights[4].keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in whole.weights[4].items())
    assert whole.metrics[1].scalars["reference/kl"] == pytest.approx(0, abs=1e-6)
    assert whole.metrics[4].scalars["reference/kl"] > 1e-6
    assert not list(Path("/dev/shm").glob(f"*test-{os.getpid()}*"))

    half = tmp_path / "whole" / "checkpoints" / "00000002"
    resumed = await learn(config, socket, tmp_path / "resumed", last=4, checkpoint=half)
    assert sorted(resumed.metrics) == [3, 4]
    assert resumed.metrics[4].scalars["lr"] == whole.metrics[4].scalars["lr"]
    for name, tensor in whole.weights[4].items():
        torch.testing.assert_close(resumed.weights[4][name], tensor, rtol=0, atol=1e-6)
    assert resumed.metrics[4].scalars["reference/kl"] == pytest.approx(
        whole.metrics[4].scalars["reference/kl"], rel=1e-3
    )


async def test_a_critic_is_trained_and_goes_on_from_its_checkpoint(
    socket: ControllerSocket, make_reference: MakeReference, tmp_path: Path
) -> None:
    make_reference("Qwen3ForCausalLM")
    make_reference("LlamaForCausalLM", folder="body", num_hidden_layers=1)
    config = RunConfig(
        steps=3,
        model=ModelConfig(path=str(tmp_path / "model")),
        learner=LearnerConfig(groups_per_step=2, micro_batch_tokens=64),
        checkpoint=CheckpointConfig(every=2),
        advantage=AdvantageConfig(estimator=Estimator.gae),
        critic=CriticConfig(path=str(tmp_path / "body"), optimizer=OptimizerConfig(lr=1e-2)),
        kl=KLConfig(coef=0.01, estimator=KLEstimator.full),
    )
    whole = await learn(config, socket, tmp_path / "whole", last=3, checkpoint=None)
    assert whole.metrics[1].scalars["reference/kl"] == pytest.approx(0, abs=1e-6)
    assert whole.metrics[3].scalars["reference/kl"] > 1e-6
    half = tmp_path / "whole" / "checkpoints" / "00000002"
    resumed = await learn(config, socket, tmp_path / "resumed", last=3, checkpoint=half)
    for name, tensor in whole.weights[3].items():
        torch.testing.assert_close(resumed.weights[3][name], tensor, rtol=0, atol=1e-6)
    critics = [scalars_of_the_critic(run.metrics[3]) for run in (whole, resumed)]
    assert critics[0] and critics[0] == pytest.approx(critics[1], rel=1e-4)


def scalars_of_the_critic(metrics: StepMetrics) -> dict[str, float]:
    return {name: value for name, value in metrics.scalars.items() if name.startswith("critic/")}


def test_two_ranks_do_what_one_does_and_one_of_them_speaks(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen3ForCausalLM")
    config = RunConfig(
        steps=2,
        model=ModelConfig(path=str(tmp_path / "model")),
        # Adam divides gradients near zero by eps, which would blow rounding up.
        learner=LearnerConfig(groups_per_step=2, optimizer=OptimizerConfig(eps=1e-3)),
        checkpoint=CheckpointConfig(every=1),
    )
    exported = {}
    for num_ranks in (1, 2):
        folder = tmp_path / str(num_ranks)
        folder.mkdir()
        parallel = ParallelConfig(dp=num_ranks)
        # The last of the processes is the controller.
        *_, heard = run_ranks(
            num_ranks + 1, learn_or_control, replace(config, learner=replace(config.learner, parallel=parallel)), folder
        )
        # A checkpoint is whole at some time after its commit.
        assert [line for line in heard if "keep" not in line] == [
            "publish 0",
            *("publish 1", "commit 1"),
            *("publish 2", "commit 2"),
        ]
        assert [line for line in heard if "keep" in line] == ["keep 1", "keep 2"]
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["00000001", "00000002"]
        exported[num_ranks] = load_file(folder / "model" / "model.safetensors")
    for name, weight in exported[1].items():
        torch.testing.assert_close(exported[2][name], weight, rtol=0, atol=5e-6)


def learn_or_control(place: Place, config: RunConfig, folder: Path) -> list[str]:
    """What the controller heard; of ranks of the learner, nothing."""
    num_ranks = place.world_size - 1
    if place.rank == num_ranks:
        return asyncio.run(control(num_ranks, folder))
    address = folder / "address"
    while not address.is_file():
        time.sleep(0.05)
    run_learner(
        config,
        rank=place.rank,
        world_size=num_ranks,
        rendezvous=f"file://{folder}/meeting",
        address=address.read_text(),
        incarnation=f"learner-{place.rank}-a",
        run_folder=folder,
        run_id=f"test-{os.getpid()}",
        checkpoint=None,
    )
    (folder / f"left-{place.rank}").touch()
    return []


async def control(num_ranks: int, folder: Path) -> list[str]:
    """Serves until all ranks have left."""
    socket = ControllerSocket("127.0.0.1", 0, max_message_bytes=1 << 24, epoch="e1")
    script = Script(socket, Checkpoints(folder=folder / "checkpoints", keep=2), last=2, num_shards=num_ranks)
    serving = asyncio.create_task(script.run())
    whole = folder / "address.part"
    whole.write_text(socket.address)
    whole.rename(folder / "address")
    while not serving.done() and not all((folder / f"left-{rank}").is_file() for rank in range(num_ranks)):
        await asyncio.sleep(0.05)
    serving.cancel()
    await asyncio.wait({serving})
    if not serving.cancelled():
        serving.result()
    script.close()
    socket.close()
    return script.heard
