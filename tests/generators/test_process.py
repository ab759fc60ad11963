"""A generator's process serves a real controller socket, and leaves nothing behind, however it ends."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import torch

from async_rl.channel.controller_socket import ControllerSocket
from async_rl.data.tokenizer import Tokenizer
from async_rl.protocol import (
    Ack,
    Activated,
    Credit,
    Delivery,
    End,
    Grant,
    Hello,
    Message,
    Prompt,
    Published,
    Purpose,
    Role,
)
from async_rl.weights.shm import ShmWeightPublisher
from tests.generators import reward_functions
from tests.generators.desk import make_lease
from tests.generators.tiny_model import build_model, save

M = TypeVar("M", bound=Message)
REWARD = f"{Path(__file__).parent / 'reward_functions.py'}:checksum"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save(build_model(0, tie=True), folder)
    return folder


@asynccontextmanager
async def served(model_folder: Path) -> AsyncIterator[tuple[ControllerSocket, asyncio.subprocess.Process]]:
    socket = ControllerSocket("127.0.0.1", 0, max_message_bytes=2**20, epoch="1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.generators.serve", socket.address, str(model_folder), REWARD),
        cwd=Path(__file__).parents[2],
    )
    try:
        yield socket, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        socket.close()


async def hear(socket: ControllerSocket, kind: type[M]) -> M:
    """The next message of a kind."""
    async with asyncio.timeout(200):
        while True:
            _, message = await socket.receive()
            if isinstance(message, kind):
                return message


async def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs, within 10 s."""
    return not (await asyncio.to_thread(psutil.wait_procs, processes, timeout=10))[1]


def reward_of(response: str) -> float:
    return reward_functions.checksum("", response, "", {})


def greedy_answer(seed: int, prompt: list[int], *, max_tokens: int) -> list[int]:
    """As transformers finds it."""
    model = build_model(seed, tie=True)
    ids = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_tokens)
    answer: list[int] = ids[0, len(prompt) :].tolist()
    return answer


@pytest.mark.integration
async def test_it_serves_until_the_end_and_leaves_nothing(model_folder: Path) -> None:
    publisher = ShmWeightPublisher(f"test-process-{os.getpid()}")
    try:
        async with served(model_folder) as (socket, process):
            hello = await hear(socket, Hello)
            assert (hello.role, hello.name, hello.pid) == (Role.GENERATOR, "generator-0", process.pid)
            assert (await hear(socket, Credit)).limit == 4
            weights = build_model(7, tie=True).named_parameters()
            manifest = publisher.publish(3, ((name, tensor.detach()) for name, tensor in weights))
            await socket.send("generator-0-x", Published(manifest=manifest))
            assert (await hear(socket, Activated)).activation.version == 3

            prompt = Prompt(prompt_id=9, text="&'", token_ids=[6, 7], answer="")
            await socket.send("generator-0-x", Grant(leases=[make_lease(1, prompt=prompt, greedy_baseline=True)]))
            group = (await hear(socket, Delivery)).group
            await socket.send("generator-0-x", Ack(purpose=Purpose.TRAIN, group_id=1, attempt=0))
            decode = Tokenizer(model_folder).decode
            assert group.rewards == [reward_of(decode(t.token_ids.tolist())) for t in group.trajectories]
            assert group.baseline_reward == reward_of(decode(greedy_answer(7, prompt.token_ids, max_tokens=16)))
            assert group.oldest_version == group.newest_version == 3

            children = psutil.Process(process.pid).children(recursive=True)
            assert len(children) >= 2  # the engine and the reward function
            await socket.send("generator-0-x", End(reason="the test is over", checkpoint=False))
            async with asyncio.timeout(30):
                assert await process.wait() == 0
            assert await all_gone(children)
            assert not list(Path("/tmp").glob(f"async-rl-{process.pid}-*"))
    finally:
        publisher.close()


@pytest.mark.integration
async def test_a_killed_generator_leaves_no_process(model_folder: Path) -> None:
    async with served(model_folder) as (socket, process):
        await hear(socket, Hello)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.kill()
        assert await all_gone(children)
