"""Trajectories and their groups: what generators deliver and the learner trains on.

Owns their invariants, which hold for whoever has one: a struct that contradicts itself is refused where it is read.

Shapes: P prompt tokens, R response tokens of one trajectory (what the policy sampled and what an environment
answered), K reward components. Arrays travel as the bytes of little-endian numpy arrays: `int32` token ids, `float32`
log-probabilities (nats) and rewards, `uint8` masks. Read them through the properties, which copy nothing.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from async_rl.protocol.wire import Wire

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

DeliveryKey = tuple[int, int, str]
"""Group, attempt and incarnation."""


class FinishReason(StrEnum):
    """Why a trajectory ended: `stop` by its own end token, `length` at the limit."""

    STOP = "stop"
    LENGTH = "length"


class VersionSpan(Wire, frozen=True, kw_only=True):
    """Response tokens [start, end) were sampled by the weights of `version`."""

    version: int
    start: int
    end: int


class Trajectory(Wire, frozen=True, kw_only=True):
    """One sample of a prompt: its response tokens, who sampled each, and what it earned.

    Spans cover [0, R) without gap or overlap, in order. Their versions rise, except where a restart restated those
    of a history that it undid.
    """

    token_bytes: memoryview
    loss_mask_bytes: memoryview
    rollout_logprob_bytes: memoryview
    spans: list[VersionSpan]
    reward: float
    """The total: what metrics, evaluations and the zero-signal filter look at."""
    finish_reason: FinishReason
    num_turns: int = 1
    token_reward_bytes: memoryview | None = None
    reward_components: list[float] = msgspec.field(default_factory=list)
    """[K] in the order of `advantage.reward_components`."""

    def __post_init__(self) -> None:
        """Raises `ValueError`, on the wire too: whoever has a trajectory has a sound one."""
        num_tokens = self.num_tokens
        if not (
            len(self.token_bytes) == len(self.rollout_logprob_bytes) == 4 * num_tokens
            and len(self.loss_mask_bytes) == num_tokens
            and spans_cover(self.spans, num_tokens)
        ):
            raise ValueError(f"tokens, mask, log-probabilities and spans of {num_tokens} tokens do not belong together")
        if (np.frombuffer(self.loss_mask_bytes, np.uint8) > 1).any():
            raise ValueError("a loss mask is of zeros and ones")
        if not np.isfinite(self.rollout_logprobs[self.loss_mask]).all():
            raise ValueError("sampled tokens with log-probabilities that are not finite")
        if not all(map(math.isfinite, (self.reward, *self.reward_components))):
            raise ValueError(f"a reward of {self.reward}, of components {self.reward_components}")
        rewards = self.token_rewards
        if rewards is not None and (rewards.shape != (num_tokens,) or not np.isfinite(rewards).all()):
            raise ValueError(f"rewards of {num_tokens} tokens that are not as many finite numbers")

    @classmethod
    def build(
        cls,
        *,
        token_ids: npt.ArrayLike,
        rollout_logprobs: npt.ArrayLike,
        spans: list[VersionSpan],
        reward: float,
        finish_reason: FinishReason,
        loss_mask: npt.ArrayLike | None = None,
        num_turns: int = 1,
        token_rewards: npt.ArrayLike | None = None,
        reward_components: Sequence[float] = (),
    ) -> Self:
        """Packs arrays [R]; without a mask every token is the policy's own."""
        tokens = np.ascontiguousarray(token_ids, dtype="<i4")
        logprobs = np.ascontiguousarray(rollout_logprobs, dtype="<f4")
        mask = np.ones(tokens.shape, np.uint8) if loss_mask is None else np.ascontiguousarray(loss_mask, dtype=np.uint8)
        assert tokens.ndim == 1 and tokens.shape == logprobs.shape == mask.shape, (tokens.shape, logprobs.shape)
        assert spans_cover(spans, len(tokens)), (spans, len(tokens))
        rewards = None if token_rewards is None else np.ascontiguousarray(token_rewards, dtype="<f4")
        return cls(
            token_bytes=memoryview(tokens.tobytes()),
            loss_mask_bytes=memoryview(mask.tobytes()),
            rollout_logprob_bytes=memoryview(logprobs.tobytes()),
            spans=spans,
            reward=reward,
            finish_reason=finish_reason,
            num_turns=num_turns,
            token_reward_bytes=None if rewards is None else memoryview(rewards.tobytes()),
            reward_components=list(reward_components),
        )

    @property
    def token_ids(self) -> Int32Array:
        """[R] int32."""
        return np.frombuffer(self.token_bytes, dtype="<i4")

    @property
    def rollout_logprobs(self) -> Float32Array:
        """[R] float32: μ, the log-probability under the weights and settings that sampled the token; finite where the
        policy did."""
        return np.frombuffer(self.rollout_logprob_bytes, dtype="<f4")

    @property
    def loss_mask(self) -> BoolArray:
        """[R] bool: True where the policy sampled the token, False where an environment wrote it."""
        return np.frombuffer(self.loss_mask_bytes, dtype=np.bool_)

    @property
    def token_rewards(self) -> Float32Array | None:
        """[R] float32: what each token earned; None where the whole reward is of the response as such."""
        return None if self.token_reward_bytes is None else np.frombuffer(self.token_reward_bytes, dtype="<f4")

    @property
    def weight_versions(self) -> Int32Array:
        """[R] int32: the version that sampled each token."""
        versions = [span.version for span in self.spans]
        lengths = [span.end - span.start for span in self.spans]
        return np.repeat(np.asarray(versions, np.int32), lengths)

    @property
    def num_tokens(self) -> int:
        """R"""
        return len(self.token_bytes) // 4


def spans_cover(spans: list[VersionSpan], num_tokens: int) -> bool:
    """Whether the spans cover [0, num_tokens) in order, without gap or overlap."""
    end = 0
    for span in spans:
        if span.start != end or span.end <= span.start:
            return False
        end = span.end
    return end == num_tokens


class TrajectoryGroup(Wire, frozen=True, kw_only=True):
    """The `group_size` trajectories of one prompt: what the ledger counts and a batch is made of."""

    group_id: int
    """The group's number in the order of issue; it decides its prompt."""
    attempt: int
    """Rises with each lease of the group."""
    incarnation: str
    """Which life of which generator made it: with id and attempt, the key of one delivery."""
    prompt_id: int
    task: str
    prompt_token_ids: list[int]
    """[P]"""
    trajectories: list[Trajectory]
    """The `group_size` samples, with at least one token among them."""
    baseline_reward: float | None = None
    """Reward of a greedy answer to the prompt, which does not train; None unless the lease asked for one."""

    def __post_init__(self) -> None:
        if not any(t.num_tokens for t in self.trajectories):
            raise ValueError("a group without a token")
        if len({len(t.reward_components) for t in self.trajectories}) > 1:
            raise ValueError("trajectories of one group with different numbers of reward components")
        if self.baseline_reward is not None and not math.isfinite(self.baseline_reward):
            raise ValueError(f"a baseline of {self.baseline_reward}")

    @property
    def key(self) -> DeliveryKey:
        """Tells one delivery from all others."""
        return self.group_id, self.attempt, self.incarnation

    @property
    def oldest_version(self) -> int:
        """The smallest weight version of any token: decides the group's deadline."""
        return min(span.version for t in self.trajectories for span in t.spans)

    @property
    def newest_version(self) -> int:
        """The largest weight version of any token."""
        return max(span.version for t in self.trajectories for span in t.spans)

    @property
    def rewards(self) -> list[float]:
        """One reward a trajectory."""
        return [t.reward for t in self.trajectories]

    @property
    def has_signal(self) -> bool:
        """Whether something sets a trajectory apart: from the greedy answer, or, component by component, from another.

        A group without signal has advantages of 0 wherever the baseline is the group's or the greedy answer's.
        """
        if self.baseline_reward is not None:
            return any(t.reward != self.baseline_reward for t in self.trajectories)
        return len({tuple(t.reward_components or [t.reward]) for t in self.trajectories}) > 1
