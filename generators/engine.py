"""What a generator asks of an inference engine.

Owns the seam and its words. Knows nothing of vLLM, sockets, rewards or leases; an engine knows nothing of groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from async_rl.errors import AsyncRLError
from async_rl.protocol import FinishReason, Sampling, VersionSpan, WeightManifest, spans_cover


class RequestRefused(AsyncRLError):
    """The engine does not take this request, and never will; others go on."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One finished request: R response tokens, the end token included if the model sampled it."""

    token_ids: list[int]
    """[R]"""
    logprobs: list[float]
    """[R] nats: log-probability under the weights and the sampling settings that chose the token; a group with one
    that is not finite goes back."""
    spans: list[VersionSpan]
    """Who sampled what; they cover [0, R)."""
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs), (len(self.token_ids), len(self.logprobs))
        assert spans_cover(self.spans, len(self.token_ids)), (self.spans, len(self.token_ids))


@dataclass(frozen=True, kw_only=True)
class UpdateTiming:
    """What one weight update cost, in seconds."""

    transfer_s: float
    """Reading and verifying, while generation went on."""
    pause_s: float
    """The engine stood still."""


class Engine(Protocol):
    """Samples from a policy whose weights change while requests are running.

        await engine.start()
        sample = await engine.generate("7.0.3", prompt.token_ids, sampling)     # many at once
        timing = await engine.update_weights(manifest)                          # meanwhile
        await engine.close()

    After an exception of `generate` or `update_weights` other than `RequestRefused`, `WeightsError` and cancellation
    the engine cannot be trusted; its process has to end.
    """

    @property
    def active_version(self) -> int:
        """The version that new tokens are sampled with; `NO_VERSION` before the first update."""
        ...

    @property
    def paused_s(self) -> float:
        """Seconds since the start in which the engine stood still for weights."""
        ...

    async def start(self) -> None:
        """Loads the model; returns when requests can be taken."""
        ...

    async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
        """Samples one response; raises `RequestRefused` for a prompt that it cannot take.

        Cancelling the awaiting task ends the request in the engine, too.
        """
        ...

    async def update_weights(self, manifest: WeightManifest) -> UpdateTiming:
        """Reads and verifies a version while requests go on, then stands still, loads and goes on with it.

        Its number may be one that was active before, or a smaller one: after the learner has gone back to a checkpoint,
        the same numbers are of other weights.

        Raises `WeightsError` where the version cannot be read whole; the old one stays active and nothing is lost.
        """
        ...

    async def close(self) -> None:
        """Ends every request and frees what the engine holds. May be called again."""
        ...


def merge_spans(versions: Sequence[int]) -> list[VersionSpan]:
    """The spans of versions given token by token [R]; neighbours of one version become one span."""
    spans: list[VersionSpan] = []
    start = 0
    for end in range(1, len(versions) + 1):
        if end == len(versions) or versions[end] != versions[start]:
            spans.append(VersionSpan(version=versions[start], start=start, end=end))
            start = end
    return spans
