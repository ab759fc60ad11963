"""A model with experts trains on ranks that share them, is published to vLLM, and scores what vLLM sampled alike."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig, NewModel
from async_rl.config.parallel import ParallelConfig
from async_rl.data.tasks.sorting import Sorting
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.protocol import Sampling
from async_rl.weights.shm import ShmWeightPublisher
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
Published = list[tuple[str, npt.NDArray[np.float32]]]
PLACED = {
    "qwen3_moe": ParallelConfig(dp=2, ep=2),
    "mixtral": ParallelConfig(tp=2, ep=2, sequence_parallel=True),
}


@pytest.mark.parametrize("family", PLACED)
def test_what_vllm_samples_is_scored_alike(tmp_path: Path, family: str) -> None:
    save_character_tokenizer(Sorting.alphabet, tmp_path / "tokenizer")
    shape = NewModel(
        family=family, hidden_size=64, num_layers=2, intermediate_size=64, num_experts=4, tie_embeddings=False
    )
    create_model(tmp_path / "new", shape, tokenizer=tmp_path / "tokenizer", seed=0)
    weights, nothing = run_ranks(2, train, PLACED[family], tmp_path)
    assert weights and not nothing
    before, after = read_folder(tmp_path / "new"), read_folder(tmp_path / "trained")
    assert {name for name in before if torch.equal(before[name], after[name])} == set()

    samples = asyncio.run(sample(tmp_path / "new", tmp_path, weights))
    assert {span.version for sample in samples for span in sample.spans} == {1}
    rollout = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
    for scored in run_ranks(2, score, PLACED[family], tmp_path / "trained", samples):
        assert (torch.tensor(scored) - rollout).abs().max() <= 1e-4
    untrained, _ = run_ranks(2, score, PLACED[family], tmp_path / "new", samples)
    assert (torch.tensor(untrained) - rollout).abs().max() > 0.5


def train(place: Place, parallel: ParallelConfig, folder: Path) -> Published:
    """Some steps on what each shard draws for itself; all export to folder/trained, and the speaker has what it would
    publish."""
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        backend = MegatronBackend(
            ground, ModelConfig(path=str(folder / "new")), OptimizerConfig(lr=1e-2), num_steps=NUM_STEPS
        )
        rng = np.random.default_rng(place.rank if parallel.dp > 1 else 0)
        for _ in range(NUM_STEPS):
            packed = PackedSequences.pack([rng.integers(1, 11, 24) for _ in range(8)])
            result = backend.step([packed], lambda scores, _: -scores.logprobs.mean(), temperature=1.0)
            assert not result.skipped
        # No tensors, which do not survive the end of a forked process.
        published = [(name, tensor.detach().numpy().copy()) for name, tensor in backend.named_weights()]
        backend.export(folder / "trained")
        backend.close()
        return published


async def sample(model: Path, scratch: Path, weights: Published) -> Sequence[Sample]:
    """Of every prompt, by an engine that began with other weights."""
    if "vllm" not in sys.modules:
        prepare_for_vllm(None, scratch)
    from generators.vllm_engine import VllmEngine

    generation = GenerationConfig(max_concurrent=16, kv_cache_gib=0.25, max_model_len=64, group_size=1)
    engine = VllmEngine(ModelConfig(path=str(model)), generation, seed=5)
    publisher = ShmWeightPublisher(f"test-experts-{os.getpid()}")
    try:
        await engine.start()
        tensors = ((name, torch.from_numpy(array)) for name, array in weights)
        await engine.update_weights(publisher.publish(1, tensors))
        return await asyncio.gather(
            *(engine.generate(str(n), prompt, Sampling(max_tokens=16)) for n, prompt in enumerate(PROMPTS))
        )
    finally:
        await engine.close()
        publisher.close()


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
