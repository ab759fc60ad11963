"""Messages: the one struct in a frame, and who may say which.

Owns the conversation's words. `SCHEMA_VERSION` is compared at hello: raise it whenever a struct here or below changes.
"""

from enum import StrEnum

from async_rl.protocol.batch import Batch
from async_rl.protocol.lease import Lease, Purpose
from async_rl.protocol.report import GeneratorStats, StepMetrics
from async_rl.protocol.trajectory import TrajectoryGroup
from async_rl.protocol.weights import Activation, WeightManifest
from async_rl.protocol.wire import Message

SCHEMA_VERSION = 4


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


class RewardFailures(Message, frozen=True, kw_only=True):
    """Calls of the reward function failed at a generator, which samples again; said now and then for each cause."""

    cause: str
    """What they have in common."""
    reason: str
    """Of the last of them."""
    count: int
    """Since the generator last said so of this cause."""


class Heartbeat(Message, frozen=True, kw_only=True):
    """A generator lives."""

    stats: GeneratorStats


class Published(Message, frozen=True, kw_only=True):
    """Learner → controller → generators: a version can be read."""

    manifest: WeightManifest
    history: int = 0
    """How often the run has gone back to a checkpoint since its start, which the controller adds: only then do a
    version's weights have no others of the same number."""


class Activated(Message, frozen=True, kw_only=True):
    """A generator samples with this version from now on."""

    activation: Activation
    history: int = 0
    """That of the `Published` which it took."""


class BatchRequest(Message, frozen=True, kw_only=True):
    """A learner rank wants its shard of the batch that takes the learner from `version` to `version + 1`.

    Answered by that, by an `End`, or, for a rank that scores groups while it waits, by an `Arrival`: whichever it is,
    all ranks that have taken as many arrivals at this version get the same. Ranks that compute together go in step so.
    """

    version: int
    shard: int = 0
    num_arrivals: int | None = None
    """How many it has taken at this version; None: it takes none."""


class Arrival(Message, frozen=True, kw_only=True):
    """A delivered group whose newest tokens the learner's version sampled; it stays where the ledger has it."""

    version: int
    number: int
    """How many came before it at this version."""
    group: TrajectoryGroup


class Commit(Message, frozen=True, kw_only=True):
    """The learner has finished the batch of `version - 1` and now is `version`."""

    version: int
    metrics: StepMetrics
    checkpoint: bool = False
    """The learner begins to write one of `version`: whoever has the loop's part keeps that of now."""


class CheckpointWritten(Message, frozen=True, kw_only=True):
    """The learner's part of the checkpoint of `version` lies in `folder`; the controller adds its own and renames."""

    version: int
    folder: str
    stood_s: float = 0.0
    """Training stood still for it."""
    write_s: float = 0.0
    """It was written beside training."""


class CheckpointKept(Message, frozen=True, kw_only=True):
    """The checkpoint of `version` is complete."""

    version: int


class End(Message, frozen=True, kw_only=True):
    """The run is over. `checkpoint`: the learner first writes one of the version it has."""

    reason: str
    checkpoint: bool


GeneratorMessage = Hello | Credit | Delivery | GroupFailed | RewardFailures | Heartbeat | Activated
LearnerMessage = Hello | BatchRequest | Commit | Published | CheckpointWritten
PeerMessage = (
    Hello
    | Credit
    | Delivery
    | GroupFailed
    | RewardFailures
    | Heartbeat
    | Activated
    | BatchRequest
    | Commit
    | Published
    | CheckpointWritten
)
"""What the controller receives."""
ControllerMessage = Welcome | Refused | Grant | Withdraw | Ack | Published | Batch | Arrival | CheckpointKept | End
"""What the controller sends."""
