"""vLLM samples what transformers says it should, also for requests that weight updates cross.

Two engines for all tests, one for each `kv_on_update`, one with tied and one with untied embeddings.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import torch
from transformers import Qwen3ForCausalLM

from async_rl.config.generation import GenerationConfig, KvOnUpdate
from async_rl.config.model import ModelConfig
from async_rl.errors import WeightsError
from async_rl.protocol import FinishReason, Sampling, WeightManifest
from async_rl.weights.shm import ShmWeightPublisher
from generators.engine import RequestRefused, Sample
from generators.vllm_environment import prepare_for_vllm
from tests.generators.tiny_model import (
    EOS,
    build_model,
    logprobs_over_old_keys,
    logprobs_recomputed,
    save,
)

if TYPE_CHECKING:  # importing it imports vLLM, which first needs its environment
    from generators.vllm_engine import VllmEngine

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-4
MAX_TOKENS = 230
SHARED = [2 + 7 * n % 90 for n in range(140)]
"""More than one block of the prefix cache, which has 128 tokens."""

Reference = Callable[..., torch.Tensor]


@dataclass
class Lab:
    """An engine, its publisher, and every version's weights in transformers; −1 are those of the folder."""

    engine: "VllmEngine"
    publisher: ShmWeightPublisher
    kv_on_update: KvOnUpdate
    tie: bool
    models: dict[int, Qwen3ForCausalLM]
    serial: int = 0

    @property
    def reference(self) -> Reference:
        """What μ must be for requests that an update crosses."""
        return logprobs_recomputed if self.kv_on_update is KvOnUpdate.recompute else logprobs_over_old_keys

    @property
    def version(self) -> int:
        """The newest."""
        return max(self.models)

    def publish(self) -> WeightManifest:
        """New weights, as the next version."""
        version = self.version + 1
        self.models[version] = build_model(100 + version, tie=self.tie)
        return self.publisher.publish(version, self.named_weights(version))

    def named_weights(self, version: int) -> list[tuple[str, torch.Tensor]]:
        """As a learner gives them out: tied embeddings once."""
        return [(name, tensor.detach()) for name, tensor in self.models[version].named_parameters()]

    async def generate(self, prompt: Sequence[int], *, temperature: float = 1.0, max_tokens: int = 32) -> Sample:
        self.serial += 1
        return await self.engine.generate(
            f"r{self.serial}", prompt, Sampling(max_tokens=max_tokens, temperature=temperature)
        )

    def error(
        self, prompt: Sequence[int], sample: Sample, *, reference: Reference | None = None, temperature: float = 1.0
    ) -> float:
        """The largest |μ − reference| of a sample's tokens."""
        expected = (reference or self.reference)(self.models, prompt, sample.token_ids, sample.spans, temperature)
        return float((torch.tensor(sample.logprobs) - expected).abs().max())


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[(KvOnUpdate.recompute, True), (KvOnUpdate.keep, False)],
    ids=["recompute-tied", "keep-untied"],
)
async def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    kv_on_update, tie = request.param
    if "vllm" not in sys.modules:
        prepare_for_vllm(None, tmp_path_factory.mktemp("vllm"))
    from generators.vllm_engine import VllmEngine

    folder = tmp_path_factory.mktemp("model")
    model = build_model(0, tie=tie)
    save(model, folder)
    generation = GenerationConfig(
        max_concurrent=32, kv_cache_gib=0.25, max_model_len=384, kv_on_update=kv_on_update, group_size=4
    )
    engine = VllmEngine(ModelConfig(path=str(folder)), generation, seed=5)
    publisher = ShmWeightPublisher(f"test-{os.getpid()}-{kv_on_update}")
    try:
        await engine.start()
        yield Lab(engine, publisher, kv_on_update, tie, {-1: model})
    finally:
        await engine.close()
        publisher.close()


async def test_before_the_first_update_the_folders_weights_sample(lab: Lab) -> None:
    prompt = [5, 6, 7]
    sample = await lab.generate(prompt)
    assert [span.version for span in sample.spans] == [-1]
    assert lab.error(prompt, sample) <= TOLERANCE


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
async def test_mu_is_of_the_distribution_at_the_sampling_temperature(lab: Lab, temperature: float) -> None:
    prompts = [[3 + n, 4, 5] for n in range(8)]
    samples = await asyncio.gather(*(lab.generate(p, temperature=temperature) for p in prompts))
    for prompt, sample in zip(prompts, samples, strict=True):
        assert lab.error(prompt, sample, temperature=temperature) <= TOLERANCE
    if temperature != 1.0:
        assert max(lab.error(p, s) for p, s in zip(prompts, samples, strict=True)) > 0.1


async def test_a_response_ends_with_its_end_token_or_at_the_limit(lab: Lab) -> None:
    samples = await asyncio.gather(*(lab.generate([7, 8, 9], max_tokens=80) for _ in range(32)))
    assert {s.finish_reason for s in samples} == {FinishReason.STOP, FinishReason.LENGTH}
    for sample in samples:
        assert EOS not in sample.token_ids[:-1]
        assert (sample.token_ids[-1] == EOS) is (sample.finish_reason is FinishReason.STOP)
        assert len(sample.token_ids) == 80 or sample.finish_reason is FinishReason.STOP
    assert len({tuple(s.token_ids) for s in samples}) > 1


async def test_tokens_of_requests_that_updates_cross_are_by_the_weights_of_their_span(lab: Lab) -> None:
    prompts = [[*SHARED, 3 + n] if n % 2 else [3 + n, 4, 5] for n in range(32)]
    requests = [asyncio.create_task(lab.generate(p, max_tokens=MAX_TOKENS)) for p in prompts]
    before = lab.version
    for _ in range(2):
        await asyncio.sleep(0.05)
        timing = await lab.engine.update_weights(lab.publish())
        assert 0 < timing.pause_s < 5 and timing.transfer_s > 0
    samples = await asyncio.gather(*requests)
    crossing = [(p, s) for p, s in zip(prompts, samples, strict=True) if len(s.spans) > 1]
    assert any(len(p) > 128 for p, _ in crossing) and any(len(p) < 128 for p, _ in crossing)
    assert any(len(s.spans) == 3 for _, s in crossing)
    for prompt, sample in zip(prompts, samples, strict=True):
        assert {span.version for span in sample.spans} <= {before, before + 1, before + 2}
        assert lab.error(prompt, sample) <= TOLERANCE
    # The two ways differ, so each engine does what it was asked for.
    other = logprobs_over_old_keys if lab.kv_on_update is KvOnUpdate.recompute else logprobs_recomputed
    assert max(lab.error(p, s, reference=other) for p, s in crossing) > 0.1


async def test_a_new_request_never_reads_the_prefix_cache_of_an_older_version(lab: Lab) -> None:
    prompts = [[*SHARED, 11 + n] for n in range(4)]
    old = [await lab.generate(prompt, max_tokens=4) for prompt in prompts]
    stale_version = old[0].spans[0].version
    await lab.engine.update_weights(lab.publish())
    new = await asyncio.gather(*(lab.generate(prompt, max_tokens=4) for prompt in prompts))
    for prompt, sample in zip(prompts, new, strict=True):
        assert [span.version for span in sample.spans] == [stale_version + 1]
        assert lab.error(prompt, sample) <= TOLERANCE


async def test_other_weights_of_the_same_number_read_no_prefix_of_the_first(lab: Lab) -> None:
    prompt = [*SHARED, 21]
    await lab.engine.update_weights(lab.publish())
    version = lab.version
    await lab.generate(prompt, max_tokens=4)
    # The learner has gone back to a checkpoint, and comes by the same numbers again.
    for number in (version - 1, version):
        lab.models[number] = build_model(1000 + number, tie=lab.tie)
        await lab.engine.update_weights(lab.publisher.publish(number, lab.named_weights(number)))
    sample = await lab.generate(prompt, max_tokens=4)
    assert [span.version for span in sample.spans] == [version]
    assert lab.error(prompt, sample) <= TOLERANCE


async def test_requests_that_arrive_during_an_update_are_of_the_new_version(lab: Lab) -> None:
    long = [asyncio.create_task(lab.generate([*SHARED, 30 + n], max_tokens=MAX_TOKENS)) for n in range(4)]
    await asyncio.sleep(0.1)
    update = asyncio.create_task(lab.engine.update_weights(lab.publish()))
    arriving: list[asyncio.Task[Sample]] = []
    while not update.done():
        arriving.append(asyncio.create_task(lab.generate([*SHARED, 50], max_tokens=3)))
        await asyncio.sleep(0.002)
    late = await asyncio.gather(*(lab.generate([*SHARED, 51], max_tokens=3) for _ in range(3)))
    for task in arriving:
        assert lab.error([*SHARED, 50], await task) <= TOLERANCE
    for sample in late:
        assert [span.version for span in sample.spans] == [lab.version]
        assert lab.error([*SHARED, 51], sample) <= TOLERANCE
    for n, task in enumerate(long):
        assert lab.error([*SHARED, 30 + n], await task) <= TOLERANCE


async def test_a_version_that_was_overwritten_changes_nothing(lab: Lab) -> None:
    manifest = lab.publish()
    for _ in range(2):
        lab.publisher.publish(lab.version, lab.named_weights(lab.version))
    active = lab.engine.active_version
    with pytest.raises(WeightsError, match="overwritten"):
        await lab.engine.update_weights(manifest)
    assert lab.engine.active_version == active
    sample = await lab.generate([5, 6, 7])
    assert [span.version for span in sample.spans] == [active]
    assert lab.error([5, 6, 7], sample) <= TOLERANCE


async def test_a_prompt_that_does_not_fit_is_refused_and_others_go_on(lab: Lab) -> None:
    with pytest.raises(RequestRefused):
        await lab.generate([3] * 400)
    assert len((await lab.generate([3, 4], max_tokens=1)).token_ids) == 1


async def test_cancelled_requests_leave_the_engine(lab: Lab) -> None:
    tasks = [asyncio.create_task(lab.generate([4, 5, n], max_tokens=200)) for n in range(3, 35)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(result, asyncio.CancelledError) for result in ended)
    sample = await lab.generate([5, 6, 7])
    assert lab.error([5, 6, 7], sample) <= TOLERANCE
    assert lab.engine._engine.get_num_unfinished_requests() == 0


async def test_a_version_that_lacks_a_tensor_ends_the_engine(lab: Lab) -> None:
    """The last of the tests, since it ends the engine."""
    publisher = ShmWeightPublisher(f"test-{os.getpid()}-lacking")
    try:
        manifest = publisher.publish(lab.version + 1, lab.named_weights(lab.version)[:-1])
        running = [asyncio.create_task(lab.generate([5, 6, n], max_tokens=300)) for n in range(3, 19)]
        await asyncio.sleep(0.02)
        with pytest.raises(Exception, match="the published version has no"):
            await lab.engine.update_weights(manifest)
        # Who still awaits a response hears of it.
        async with asyncio.timeout(10):
            ended = await asyncio.gather(*running, return_exceptions=True)
        assert any("EngineCore" in str(result) for result in ended if isinstance(result, Exception))
    finally:
        publisher.close()
    with pytest.raises(AssertionError, match="has ended"):
        await lab.generate([5, 6, 7])
