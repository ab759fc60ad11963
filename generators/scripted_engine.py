"""An engine without a model: what it answers and how long it takes is written down in advance.

Owns a stand-in for tests of the loop's logic and for simulations. Needs neither torch nor vLLM.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from async_rl.errors import WeightsError
from async_rl.protocol import NO_VERSION, FinishReason, Sampling, WeightManifest
from generators.engine import Sample, UpdateTiming, merge_spans

Lengths = Callable[[str], int]
"""From a request's id to how many tokens it will sample, before the limit."""


class ScriptedEngine:
    """Samples token `f(prompt, position, version)`, one every `token_s`; versions advance with `update_weights`.

    `unreadable` names versions whose update raises `WeightsError`, as one does that was overwritten meanwhile.
    The same calls give the same tokens and log-probabilities; spans depend on when updates come.
    """

    def __init__(
        self,
        *,
        lengths: Lengths = lambda request_id: 8,
        token_s: float = 0.0,
        transfer_s: float = 0.0,
        pause_s: float = 0.0,
        vocab_size: int = 32,
        unreadable: frozenset[int] = frozenset(),
    ) -> None:
        self._lengths = lengths
        self._token_s = token_s
        self._transfer_s = transfer_s
        self._pause_s = pause_s
        self._vocab_size = vocab_size
        self._unreadable = unreadable
        self._active_version = NO_VERSION
        self._paused_s = 0.0
        self._running = asyncio.Event()
        self.open_requests: set[str] = set()
        """Ids of the requests that are being sampled now."""
        self.started_requests: list[str] = []
        """Ids of all requests so far, in their order."""
        self.most_open = 0
        """The largest number of requests that were open at once."""

    @property
    def active_version(self) -> int:
        return self._active_version

    @property
    def paused_s(self) -> float:
        return self._paused_s

    async def start(self) -> None:
        self._running.set()

    async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
        assert request_id not in self.open_requests, f"request {request_id} runs already"
        self.started_requests.append(request_id)
        self.open_requests.add(request_id)
        self.most_open = max(self.most_open, len(self.open_requests))
        try:
            return await self._sample(self._lengths(request_id), sum(prompt_token_ids), sampling)
        finally:
            self.open_requests.discard(request_id)

    async def _sample(self, length: int, seed: int, sampling: Sampling) -> Sample:
        num_tokens = min(length, sampling.max_tokens)
        token_ids, logprobs, versions = [], [], []
        for position in range(num_tokens):
            await asyncio.sleep(self._token_s)
            await self._running.wait()
            version = self._active_version
            token = (seed + 7 * position + 3 * version) % self._vocab_size
            token_ids.append(token)
            logprobs.append(-1.0 - token / self._vocab_size)
            versions.append(version)
        reason = FinishReason.STOP if length <= sampling.max_tokens else FinishReason.LENGTH
        return Sample(token_ids=token_ids, logprobs=logprobs, spans=merge_spans(versions), finish_reason=reason)

    async def update_weights(self, manifest: WeightManifest) -> UpdateTiming:
        started = time.monotonic()
        await asyncio.sleep(self._transfer_s)
        if manifest.version in self._unreadable:
            raise WeightsError(f"version {manifest.version} was overwritten before it was read")
        self._running.clear()
        paused = time.monotonic()
        await asyncio.sleep(self._pause_s)
        self._active_version = manifest.version
        self._running.set()
        pause_s = time.monotonic() - paused
        self._paused_s += pause_s
        return UpdateTiming(transfer_s=paused - started, pause_s=pause_s)

    async def close(self) -> None:
        self._running.set()
