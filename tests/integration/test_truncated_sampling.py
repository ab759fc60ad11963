"""What vLLM samples with top-k and top-p has, on the learner, the probabilities that it was drawn with."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from async_rl.config.generation import GenerationConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import ParallelConfig
from async_rl.protocol import Sampling
from generators.engine import Sample
from generators.vllm_environment import prepare_for_vllm
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from learner.place import Place
from learner.truncation import Truncation
from tests.generators.tiny_model import build_model, save
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

TEMPERATURE = 1.3
PROMPTS = [[3 + n, 4, 5] for n in range(16)]
SAMPLINGS = [
    GenerationConfig(temperature=TEMPERATURE, top_k=5),
    GenerationConfig(temperature=TEMPERATURE, top_p=0.8),
    GenerationConfig(temperature=TEMPERATURE, top_k=20, top_p=0.9),
]


def test_mu_is_what_the_learner_says_of_the_words_that_are_kept(tmp_path: Path) -> None:
    save(build_model(0, tie=False), tmp_path)
    for config, samples in zip(SAMPLINGS, asyncio.run(sample(tmp_path)), strict=True):
        mu = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
        truncation = Truncation.of(config)
        for parallel, num_ranks in [(ParallelConfig(), 1), (ParallelConfig(tp=2), 2)]:
            for found in run_ranks(num_ranks, score, parallel, tmp_path, samples, truncation):
                assert (found - mu).abs().max() <= 1e-4, (config, parallel)
        # What it was before: the probability of the words that are never drawn, missing from every token's.
        (whole,) = run_ranks(1, score, ParallelConfig(), tmp_path, samples, None)
        assert (mu - whole).mean() > 0.02


async def sample(model: Path) -> list[Sequence[Sample]]:
    """Of every prompt, in each of the ways."""
    if "vllm" not in sys.modules:
        prepare_for_vllm(None, model)
    from generators.vllm_engine import VllmEngine

    generation = GenerationConfig(max_concurrent=16, kv_cache_gib=0.25, max_model_len=64, group_size=1)
    engine = VllmEngine(ModelConfig(path=str(model)), generation, seed=5)
    try:
        await engine.start()
        return [
            await asyncio.gather(*(engine.generate(f"{i}-{n}", p, sampling) for n, p in enumerate(PROMPTS)))
            for i, sampling in enumerate(
                Sampling(max_tokens=40, temperature=c.temperature, top_p=c.top_p, top_k=c.top_k) for c in SAMPLINGS
            )
        ]
    finally:
        await engine.close()


def score(
    place: Place,
    parallel: ParallelConfig,
    model: Path,
    samples: Sequence[Sample],
    truncation: Truncation | None,
) -> Tensor:
    """Log-probabilities of all sampled tokens, one after the other."""
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        backend = MegatronBackend(ground, ModelConfig(path=str(model)), None, num_steps=0)
        packed = PackedSequences.pack(
            [[*prompt, *sample.token_ids] for prompt, sample in zip(PROMPTS, samples, strict=True)],
            [len(sample.token_ids) for sample in samples],
        )
        (scores,) = backend.score([packed], temperature=TEMPERATURE, truncation=truncation)
        backend.close()
        return scores.logprobs
