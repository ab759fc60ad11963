"""vLLM as an `Engine`: samples in a process of its own, takes new weights between two of its steps.

Owns vLLM's arguments, the order of an update, and the cut between requests before and after it. Knows nothing of
leases, rewards or sockets. Call `prepare_for_vllm` before this module is imported.

An update, while requests are running:

    stage      the worker copies and verifies the version in a thread; generation goes on
    close      new requests wait from here on, so that none carries the old weights' salt to the new ones;
               `keep` waits until the prompts of all earlier ones have been read under the old version
    pause      the engine stands still between two steps; `recompute` also drops every key and value
    load       parameters are overwritten in place
    label      tokens carry the new version from here on
    resume     `recompute`: running requests are prefilled again under the new weights, and go on
               `keep`: they go on over their old keys and values
    open       new requests carry a new salt: they share no prefix with older weights, whatever number those had

Whatever fails between close and open ends the engine: half-loaded weights never sample.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from vllm import AsyncEngineArgs, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from async_rl.config.generation import GenerationConfig, KvOnUpdate
from async_rl.config.model import ModelConfig
from async_rl.errors import WeightsError
from async_rl.protocol import NO_VERSION, FinishReason, Sampling, VersionSpan, WeightManifest
from generators.engine import RequestRefused, Sample, UpdateTiming

# A poll costs the engine about as much as a token; small versions are read within the first interval.
_POLL_S = 0.01


class VllmEngine:
    """One AsyncLLM; see `Engine` for the contract.

    `seed` should differ between engines and between their lives: requests carry none of their own, since on CPUs
    one together with chunked prefill ends vLLM.
    """

    def __init__(self, model: ModelConfig, generation: GenerationConfig, *, seed: int) -> None:
        self._arguments = _engine_arguments(model, generation, seed)
        self._drops_kv = generation.kv_on_update is KvOnUpdate.recompute
        self._llm: AsyncLLM | None = None
        self._active_version = NO_VERSION
        self._num_loads = 0
        self._paused_s = 0.0
        self._is_open = asyncio.Event()
        self._num_unread = 0
        self._all_read = asyncio.Event()
        self._all_read.set()

    @property
    def active_version(self) -> int:
        return self._active_version

    @property
    def paused_s(self) -> float:
        return self._paused_s

    async def start(self) -> None:
        """See `Engine`. Holds up the event loop for as long as vLLM takes."""
        self._llm = AsyncLLM.from_engine_args(self._arguments)
        await self._llm.update_weight_version(str(NO_VERSION))
        # Asked once here, so that submitting a request has no point at which an update can come between.
        await self._llm.get_supported_tasks()
        self._is_open.set()

    async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
        await self._is_open.wait()
        # Already rendered: raw prompts take a detour through a thread.
        prompt = tokens_input(list(prompt_token_ids), cache_salt=str(self._num_loads))
        outputs = self._engine.generate(prompt, _to_sampling_params(sampling), request_id)
        try:
            with self._unread_prompt():
                last = await anext(outputs)
            async for output in outputs:
                last = output
        except VLLMClientError as error:
            raise RequestRefused(str(error)) from error
        return _to_sample(last.outputs[0])

    @contextmanager
    def _unread_prompt(self) -> Iterator[None]:
        """A request between its submission and its first token."""
        self._num_unread += 1
        self._all_read.clear()
        try:
            yield
        finally:
            self._num_unread -= 1
            if self._num_unread == 0:
                self._all_read.set()

    async def update_weights(self, manifest: WeightManifest) -> UpdateTiming:
        started = time.monotonic()
        await self._stage(manifest)
        transfer_s = time.monotonic() - started
        return UpdateTiming(transfer_s=transfer_s, pause_s=await self._activate(manifest.version))

    async def _stage(self, manifest: WeightManifest) -> None:
        await self._engine.collective_rpc("begin_staging", args=(msgspec.msgpack.encode(manifest),))
        while True:
            polls: list[tuple[bool, str]] = await self._engine.collective_rpc("poll_staging")
            if all(done for done, _ in polls):
                break
            await asyncio.sleep(_POLL_S)
        for _, problem in polls:
            if problem:
                raise WeightsError(problem)

    async def _activate(self, version: int) -> float:
        self._is_open.clear()
        try:
            if not self._drops_kv:
                # One that still waits for its turn would find its prefix in the cache, by the old weights' salt.
                await self._all_read.wait()
            return await self._load(version)
        finally:
            self._is_open.set()

    async def _load(self, version: int) -> float:
        """Between two steps; returns the seconds in which the engine stood still."""
        llm = self._engine
        started = time.monotonic()
        try:
            # `AsyncLLM.pause_generation` adds a sleep of 20 ms, for callers who want all earlier outputs by then.
            await llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=self._drops_kv)
            await llm.collective_rpc("load_staged")
            await llm.update_weight_version(str(version))
            await llm.resume_generation()
        except BaseException:
            await self.close()
            raise
        pause_s = time.monotonic() - started
        self._paused_s += pause_s
        self._active_version = version
        self._num_loads += 1
        return pause_s

    async def close(self) -> None:
        if self._llm is not None:
            # Killed at once: it has nothing to save, and asked politely on one core it often misses the signal.
            self._llm.shutdown(timeout=0)
            # Otherwise whoever awaits a response waits for ever.
            self._llm.output_processor.propagate_error(EngineDeadError())
            self._llm = None

    @property
    def _engine(self) -> AsyncLLM:
        assert self._llm is not None, "the engine has not been started, or has ended"
        return self._llm


def _engine_arguments(model: ModelConfig, generation: GenerationConfig, seed: int) -> AsyncEngineArgs:
    return AsyncEngineArgs(
        model=model.path,
        dtype=str(model.dtype),
        seed=seed,
        max_model_len=generation.max_model_len,
        max_num_seqs=generation.max_concurrent,
        kv_cache_memory_bytes=int(generation.kv_cache_gib * 2**30),
        enforce_eager=True,
        # μ is of the distribution that was sampled from: temperature, top-p and top-k included.
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        # A long prompt shares its steps with tokens of other requests, instead of holding them up.
        enable_chunked_prefill=True,
        # On GPUs other kernels keep experts in layouts of their own, which loading in place would miss.
        moe_backend="triton" if current_platform.is_cuda() else "auto",
        disable_log_stats=True,
        enable_log_requests=False,
        worker_extension_cls="generators.vllm_worker.WeightLoader",
    )


def _to_sampling_params(sampling: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        # 0: of the sampled token alone.
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        # Two outputs a request, each with all tokens so far: the first token says that the prompt has been read.
        output_kind=RequestOutputKind.CUMULATIVE,
        stream_interval=sampling.max_tokens + 1,
    )


def _to_sample(output: CompletionOutput) -> Sample:
    assert output.weight_versions is not None and output.logprobs is not None, output
    return Sample(
        token_ids=list(output.token_ids),
        logprobs=list(output.logprobs.logprobs),
        spans=[VersionSpan(version=int(s.version), start=s.start, end=s.end) for s in output.weight_versions],
        finish_reason=FinishReason(output.finish_reason),
    )
