"""A model with experts trains on ranks that share them, is published to vLLM, and scores what vLLM sampled alike."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import GenerationConfig, ModelConfig, NewModel, OptimizerConfig
from async_rl.data.tasks.sorting import Sorting
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.protocol import Sampling, WeightManifest
from async_rl.weights.shm import ShmWeightPublisher
from async_rl.weights.slots import remove_leftovers
from generators.engine import Sample
from generators.vllm_environment import prepare_for_vllm
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.model_folder import create_model
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import read_folder
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

NUM_STEPS = 4
PROMPTS = [[1 + (number + n) % 10 for n in range(6)] for number in range(16)]
PLACED = {
    "qwen3_moe": ParallelConfig(dp=2, ep=2),
    "mixtral": ParallelConfig(tp=2, ep=2, sequence_parallel=True),
}


@pytest.fixture
def run_id() -> Iterator[str]:
    """Of the publisher, whose memory outlives the ranks."""
    name = f"test-experts-{os.getpid()}"
    yield name
    remove_leftovers(name)


@pytest.mark.parametrize("family", PLACED)
def test_what_vllm_samples_is_scored_alike(tmp_path: Path, run_id: str, family: str) -> None:
    save_character_tokenizer(Sorting.alphabet, tmp_path / "tokenizer")
    shape = NewModel(
        family=family, hidden_size=64, num_layers=2, intermediate_size=64, num_experts=4, tie_embeddings=False
    )
    create_model(tmp_path / "new", shape, tokenizer=tmp_path / "tokenizer", seed=0)
    manifest, *others = run_ranks(2, train, PLACED[family], tmp_path, run_id)
    assert manifest is not None and others == [None]
    before, after = read_folder(tmp_path / "new"), read_folder(tmp_path / "trained")
    assert {name for name in before if torch.equal(before[name], after[name])} == set()

    samples = asyncio.run(sample(tmp_path / "new", tmp_path, manifest))
    assert {span.version for sample in samples for span in sample.spans} == {1}
    rollout = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
    for scored in run_ranks(2, score, PLACED[family], tmp_path / "trained", samples):
        assert (torch.tensor(scored) - rollout).abs().max() <= 1e-4
    untrained, _ = run_ranks(2, score, PLACED[family], tmp_path / "new", samples)
    assert (torch.tensor(untrained) - rollout).abs().max() > 0.5


def train(place: Place, parallel: ParallelConfig, folder: Path, run_id: str) -> WeightManifest | None:
    """Some steps on what each shard draws for itself; the speaker publishes, and all export to folder/trained."""
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        backend = MegatronBackend(
            ground, ModelConfig(path=str(folder / "new")), OptimizerConfig(lr=1e-2), num_steps=NUM_STEPS
        )
        rng = np.random.default_rng(place.rank if parallel.dp > 1 else 0)
        for _ in range(NUM_STEPS):
            packed = PackedSequences.pack([rng.integers(1, 11, 24) for _ in range(8)])
            result = backend.step([packed], lambda scores, _: -scores.logprobs.mean(), temperature=1.0)
            assert not result.skipped
        manifest = None
        if place.rank == 0:
            manifest = ShmWeightPublisher(run_id).publish(1, backend.named_weights())
        else:
            assert list(backend.named_weights()) == []
        backend.export(folder / "trained")
        backend.close()
        return manifest


async def sample(model: Path, scratch: Path, manifest: WeightManifest) -> Sequence[Sample]:
    """Of every prompt, by an engine that began with other weights."""
    if "vllm" not in sys.modules:
        prepare_for_vllm(None, scratch)
    from generators.vllm_engine import VllmEngine

    generation = GenerationConfig(max_concurrent=16, kv_cache_gib=0.25, max_model_len=64, group_size=1)
    engine = VllmEngine(ModelConfig(path=str(model)), generation, seed=5)
    try:
        await engine.start()
        await engine.update_weights(manifest)
        return await asyncio.gather(
            *(engine.generate(str(n), prompt, Sampling(max_tokens=16)) for n, prompt in enumerate(PROMPTS))
        )
    finally:
        await engine.close()


def score(place: Place, parallel: ParallelConfig, model: Path, samples: Sequence[Sample]) -> list[float]:
    """Log-probabilities of all sampled tokens, one after the other."""
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        backend = MegatronBackend(ground, ModelConfig(path=str(model)), None, num_steps=0)
        packed = PackedSequences.pack(
            [[*prompt, *sample.token_ids] for prompt, sample in zip(PROMPTS, samples, strict=True)],
            [len(sample.token_ids) for sample in samples],
        )
        (scores,) = backend.score([packed], temperature=1.0)
        backend.close()
        return scores.logprobs.tolist()
