"""Runs a generator as a process of its own: `python -m tests.generators.serve ADDRESS MODEL REWARD`."""

import asyncio
import sys

from async_rl.config.generation import GenerationConfig
from async_rl.config.model import ModelConfig
from async_rl.config.reward import RewardConfig
from async_rl.config.schema import RunConfig
from generators.process import run_generator

if __name__ == "__main__":
    address, model, reward = sys.argv[1:]
    config = RunConfig(
        model=ModelConfig(path=model),
        reward=RewardConfig(function=reward),
        generation=GenerationConfig(group_size=2, max_concurrent=8, kv_cache_gib=0.25),
    )
    asyncio.run(run_generator(config, index=0, address=address, cores=None, incarnation="generator-0-x"))
