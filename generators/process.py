"""The whole life of a generator's process: engine, rewards, connection, and the generator between them.

Owns the order of their beginning and end. What a user can mend is found first, then the slow engine starts, and only a
generator that can sample says hello: from there on the controller counts its silence.
"""

import asyncio
import os
import socket
import zlib
from contextlib import AsyncExitStack
from pathlib import Path

from async_rl.channel.peer_socket import PeerSocket
from async_rl.channel.score_sockets import ScoreClient
from async_rl.config.schema import RunConfig
from async_rl.protocol import SCHEMA_VERSION, Hello, Role
from generators.generator import Generator
from generators.reward import RewardRunner
from generators.reward_reader import RewardReader
from generators.scratch import scratch_folder
from generators.vllm_environment import prepare_for_vllm


async def run_generator(
    config: RunConfig,
    *,
    index: int,
    address: str,
    scores: str | None = None,
    cores: list[int] | None,
    incarnation: str,
) -> None:
    """Serves the controller at `address` until its `End`; `incarnation` is new in every life of a process.

    `scores` is where a reward model answers, if there is one.

    Raises a `UserError` for a reward function or a tokenizer that cannot be used, `ChannelError` where the controller
    does not answer or refuses, and whatever the engine raises. In each case the process should end.
    """
    async with AsyncExitStack() as cleanup:
        scratch = cleanup.enter_context(scratch_folder())
        prepare_for_vllm(cores, scratch)
        # Not at the top: vLLM, and torch below both, read their environment while they are imported.
        from async_rl.data.tokenizer import Tokenizer
        from generators.vllm_engine import VllmEngine

        tokenizer = Tokenizer(Path(config.model.path))
        model = None
        if scores is not None:
            model = ScoreClient(scores)
            cleanup.callback(model.close)
            cleanup.callback(asyncio.create_task(model.run(), name="scores").cancel)
        rewards = RewardRunner(config.reward, RewardReader.of(config.advantage), tokenizer.decode, model=model)
        cleanup.callback(rewards.close)
        engine = VllmEngine(config.model, config.generation, seed=_engine_seed(config.seed, incarnation))
        cleanup.push_async_callback(engine.close)
        await engine.start()
        link = PeerSocket(address, _hello(index, incarnation), max_message_bytes=config.channel.max_message_mib * 2**20)
        cleanup.callback(link.close)
        await link.connect(config.channel.dead_after_s)
        generator = Generator(
            engine=engine,
            rewards=rewards,
            link=link,
            incarnation=incarnation,
            requests_per_group=config.generation.group_size + config.advantage.takes_greedy_baseline,
            max_concurrent=config.generation.max_concurrent,
            max_retries=config.reward.max_retries,
            heartbeat_s=config.channel.heartbeat_s,
        )
        await generator.run()


def _hello(index: int, incarnation: str) -> Hello:
    return Hello(
        schema_version=SCHEMA_VERSION,
        role=Role.GENERATOR,
        name=f"generator-{index}",
        incarnation=incarnation,
        pid=os.getpid(),
        host=socket.gethostname(),
    )


def _engine_seed(seed: int, incarnation: str) -> int:
    """Another one for every life of every generator: two that sample alike would waste half of the work."""
    return zlib.crc32(f"{seed}/{incarnation}".encode())
