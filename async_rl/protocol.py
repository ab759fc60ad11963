"""What crosses a process boundary: msgspec structs, one frame a message, no pickle.

Owns the words of the wire and their invariants. Knows nothing of sockets, torch, engines or files.

Shapes: P prompt tokens, R response tokens of one trajectory (what the policy sampled and what an
environment answered). Arrays travel as the bytes of little-endian numpy arrays: `int32` token ids,
`float32` log-probabilities (nats), `uint8` masks. Read them through the properties, which copy nothing.

`SCHEMA_VERSION` is compared at hello; raise it whenever a struct below changes.
"""

import math
from enum import StrEnum
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 1

Scalar = str | int | float | bool | None

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class FinishReason(StrEnum):
    """Why a trajectory ended: `stop` by its own end token, `length` at the limit."""

    STOP = "stop"
    LENGTH = "length"


class Purpose(StrEnum):
    """What a lease is for: `train` is counted by the run's ledger, `evaluate` by the evaluation's own."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every struct that travels inside a message."""


class Prompt(Wire, frozen=True, kw_only=True):
    """One row of the data set, tokenised."""

    prompt_id: int
    """Row number in the data set: the same row has the same id in every epoch."""
    text: str
    """The prompt as the model reads it (chat template applied)."""
    token_ids: list[int]
    """[P]"""
    answer: str
    """What the reward function compares with."""
    task: str = ""
    """Metrics are also reported by this name."""
    metadata: dict[str, Scalar] = {}
    """The row's other columns, handed to the reward function untouched."""


class Sampling(Wire, frozen=True, kw_only=True):
    """How an engine samples; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""


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
    finish_reason: FinishReason
    num_turns: int = 1

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
        if not math.isfinite(self.reward):
            raise ValueError(f"a reward of {self.reward}")

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
    ) -> Self:
        """Packs arrays [R]; without a mask every token is the policy's own."""
        tokens = np.ascontiguousarray(token_ids, dtype="<i4")
        logprobs = np.ascontiguousarray(rollout_logprobs, dtype="<f4")
        mask = np.ones(tokens.shape, np.uint8) if loss_mask is None else np.ascontiguousarray(loss_mask, dtype=np.uint8)
        assert tokens.ndim == 1 and tokens.shape == logprobs.shape == mask.shape, (tokens.shape, logprobs.shape)
        assert spans_cover(spans, len(tokens)), (spans, len(tokens))
        return cls(
            token_bytes=memoryview(tokens.tobytes()),
            loss_mask_bytes=memoryview(mask.tobytes()),
            rollout_logprob_bytes=memoryview(logprobs.tobytes()),
            spans=spans,
            reward=reward,
            finish_reason=finish_reason,
            num_turns=num_turns,
        )

    @property
    def token_ids(self) -> Int32Array:
        """[R] int32."""
        return np.frombuffer(self.token_bytes, dtype="<i4")

    @property
    def rollout_logprobs(self) -> Float32Array:
        """[R] float32: μ, the log-probability under the weights and settings that sampled the token."""
        return np.frombuffer(self.rollout_logprob_bytes, dtype="<f4")

    @property
    def loss_mask(self) -> BoolArray:
        """[R] bool: True where the policy sampled the token, False where an environment wrote it."""
        return np.frombuffer(self.loss_mask_bytes, dtype=np.bool_)

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
    """How often the group had been leased before this lease."""
    incarnation: str
    """Which life of which generator made it: with id and attempt, the key of one delivery."""
    prompt_id: int
    task: str
    prompt_token_ids: list[int]
    """[P]"""
    trajectories: list[Trajectory]
    """The `group_size` samples, with at least one token among them."""

    def __post_init__(self) -> None:
        if not any(t.num_tokens for t in self.trajectories):
            raise ValueError("a group without a token")

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


class Lease(Wire, frozen=True, kw_only=True):
    """A group handed to a generator: what to sample, how often, and until when."""

    group_id: int
    attempt: int
    purpose: Purpose
    prompt: Prompt
    group_size: int
    sampling: Sampling
    timeout_s: float
    """The lease ends this long after the grant; the generator then stops working on it."""


class TensorEntry(Wire, frozen=True, kw_only=True):
    """Where one tensor lies in a published version."""

    name: str
    """Hugging Face name."""
    dtype: str
    """torch's name without its prefix: float32, bfloat16."""
    shape: list[int]
    offset: int
    num_bytes: int
    checksum: int
    """xxh3_64 of the bytes."""


class WeightManifest(Wire, frozen=True, kw_only=True):
    """A published version: which tensors, where, and how to know that they are whole."""

    version: int
    transport: str
    """Which transport can read `location`."""
    location: str
    generation: int
    """Rises with each publish; the slot at `location` carries it too, so that a reader who comes
    late sees that the slot has been written again."""
    tensors: list[TensorEntry]
    num_bytes: int
    gather_s: float
    """How long the learner took to bring its parameters into Hugging Face form."""
    transfer_s: float
    """How long the learner took to write them."""


class Activation(Wire, frozen=True, kw_only=True):
    """How one generator took a version."""

    version: int
    transfer_s: float
    """Reading and verifying, while generation went on."""
    pause_s: float
    """The engine stood still."""


class GeneratorStats(Wire, frozen=True, kw_only=True):
    """What a generator reports with each heartbeat; counters since its start, times in seconds."""

    active_version: int
    running_requests: int
    sampled_tokens: int
    elapsed_s: float
    idle_s: float
    """Of `elapsed_s`, while no request was in the engine."""
    paused_s: float
    """Of `elapsed_s`, while the engine stood still for weights."""
    reward_errors: int
    reward_timeouts: int
    resampled: int
    """Samples generated again because their reward failed."""


class Histogram(Wire, frozen=True, kw_only=True):
    """Counts between edges: `len(edges) == len(counts) + 1`."""

    edges: list[float]
    counts: list[int]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError(f"a histogram of {len(self.counts)} counts between {len(self.edges)} edges")


class StepMetrics(Wire, frozen=True, kw_only=True):
    """What the learner says of one step."""

    scalars: dict[str, float]
    """By metric name (docs/metrics.md)."""
    histograms: dict[str, Histogram] = {}


# --- messages: the one struct in a frame --------------------------------------------------------


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, tag_field="kind"):
    """Base of everything that is a frame of its own."""


class Role(StrEnum):
    """Who says hello."""

    GENERATOR = "generator"
    LEARNER = "learner"


class Hello(Message, frozen=True, kw_only=True):
    """A peer's first message, and again whenever the controller's epoch changes."""

    schema_version: int
    role: Role
    name: str
    """Stable over restarts: generator-0, learner-0."""
    incarnation: str
    """New with every start of the process."""
    pid: int
    host: str


class Welcome(Message, frozen=True, kw_only=True):
    """The controller takes a peer in."""

    epoch: str
    """New with every start of the controller: whoever sees another one sends again what is unacked."""


class Refused(Message, frozen=True, kw_only=True):
    """The controller does not take a peer, or a frame; the peer stops."""

    reason: str


class Credit(Message, frozen=True, kw_only=True):
    """How many leases a generator can have been granted, counted from its last `Welcome`.

    A total, like a window's right edge: a grant that crosses it on the way is already counted.
    """

    limit: int


class Grant(Message, frozen=True, kw_only=True):
    """Leases for a generator."""

    leases: list[Lease]


class Withdraw(Message, frozen=True, kw_only=True):
    """These leases have ended: stop working on them, their delivery would be dropped."""

    group_ids: list[int]
    purpose: Purpose


class Delivery(Message, frozen=True, kw_only=True):
    """A finished group; kept by the sender until its `Ack`."""

    purpose: Purpose
    group: TrajectoryGroup


class Ack(Message, frozen=True, kw_only=True):
    """A delivery is durable (or was known already): the sender may forget it."""

    purpose: Purpose
    group_id: int
    attempt: int


class GroupFailed(Message, frozen=True, kw_only=True):
    """A generator gives a lease back."""

    purpose: Purpose
    group_id: int
    attempt: int
    reason: str


class Heartbeat(Message, frozen=True, kw_only=True):
    """A generator lives."""

    stats: GeneratorStats


class Published(Message, frozen=True, kw_only=True):
    """Learner → controller → generators: a version can be read."""

    manifest: WeightManifest


class Activated(Message, frozen=True, kw_only=True):
    """A generator samples with this version from now on."""

    activation: Activation


class BatchRequest(Message, frozen=True, kw_only=True):
    """A learner rank wants the batch that takes the learner from `version` to `version + 1`."""

    version: int


class Batch(Message, frozen=True, kw_only=True):
    """`groups_per_step` groups; every rank that asks for a version gets the same bytes."""

    version: int
    groups: list[TrajectoryGroup]


class Commit(Message, frozen=True, kw_only=True):
    """The learner has finished the batch of `version - 1` and now is `version`."""

    version: int
    metrics: StepMetrics


class CheckpointWritten(Message, frozen=True, kw_only=True):
    """The learner's part of the checkpoint of `version` lies in `folder`; the controller adds its own and renames."""

    version: int
    folder: str


class CheckpointKept(Message, frozen=True, kw_only=True):
    """The checkpoint of `version` is complete."""

    version: int


class End(Message, frozen=True, kw_only=True):
    """The run is over. `checkpoint`: the learner first writes one of the version it has."""

    reason: str
    checkpoint: bool


GeneratorMessage = Hello | Credit | Delivery | GroupFailed | Heartbeat | Activated
LearnerMessage = Hello | BatchRequest | Commit | Published | CheckpointWritten
PeerMessage = (
    Hello
    | Credit
    | Delivery
    | GroupFailed
    | Heartbeat
    | Activated
    | BatchRequest
    | Commit
    | Published
    | CheckpointWritten
)
"""What the controller receives."""
ControllerMessage = Welcome | Refused | Grant | Withdraw | Ack | Published | Batch | CheckpointKept | End
"""What the controller sends."""
