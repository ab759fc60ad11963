"""What goes on around the models: delivery of weights, accounts, sockets, checkpoints, evaluations, metrics, machines.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option

# Enum members are named like their values, since Hydra reads enums by name.


class Transport(StrEnum):
    """How weights travel from the learner to the generators."""

    shm = "shm"
    file = "file"


@dataclass(frozen=True)
class WeightsConfig:
    """How new weights reach the generators."""

    publish_every: int = option(1, "Batches between two published versions; adds to the lag.", minimum=1)
    transport: Transport = option(
        Transport.shm, "`shm`: shared memory of one machine; `file`: files of a folder that all machines see."
    )
    folder: str = option("", "`file`: that folder; each run has its own in it. Empty: `weights` in the run's folder.")
    deadline_s: float = option(
        60.0,
        "A generator that has not activated a version by then is named, and gets no leases until it has.",
        exclusive_minimum=0,
    )


@dataclass(frozen=True)
class LedgerConfig:
    """How groups are kept account of."""

    lease_timeout_s: float = option(120.0, "A group not delivered by then is leased again.", exclusive_minimum=0)
    max_attempts: int = option(3, "After so many leases that ended without delivery, a group has failed.", minimum=1)
    max_failed: int = option(32, "After so many groups in a row that failed, the run stops and says why.", minimum=1)


@dataclass(frozen=True)
class ChannelConfig:
    """ZeroMQ between controller, generators and learner."""

    host: str = option("127.0.0.1", "Interface that the controller binds; other machines need to reach it.")
    port: int = option(0, "Port; 0 takes a free one.", minimum=0, maximum=65535)
    max_message_mib: int = option(64, "Larger frames are refused.", minimum=1, maximum=2047)
    heartbeat_s: float = option(1.0, "How often a generator says that it lives.", exclusive_minimum=0)
    dead_after_s: float = option(
        30.0, "A generator silent for so long has lost its leases (its death is seen at once).", exclusive_minimum=0
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run can be resumed from."""

    every: int = option(50, "Batches between two checkpoints; 0: only at the end, on Ctrl-C and SIGUSR1.", minimum=0)
    keep: int = option(2, "The newest so many are kept.", minimum=1)
    keep_best: int = option(
        0,
        "Besides them the best so many, by the reward of sampled held-out answers at their version (`async-rl sft`: by "
        "the validation loss); `checkpoints/best` points at the first.",
        minimum=0,
    )
    walltime_s: float = option(
        0.0,
        "The run stops by itself, with a checkpoint, before it is so old; 0: never. It keeps back the longest step and "
        "the longest checkpoint so far.",
        minimum=0,
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out prompts, sampled and greedy, on the generators."""

    every: int = option(0, "Batches between two evaluations; 0: only at start and end.", minimum=0)
    samples_per_prompt: int = option(1, "Samples of each held-out prompt for the sampled reward.", minimum=1)


@dataclass(frozen=True)
class TrackingConfig:
    """Where metrics go, beside `metrics.jsonl`."""

    aim: bool = option(True, "Write an Aim run.")
    aim_repo: str = option("", "Folder of the Aim repository; empty: `runs_dir`.")
    interval_s: float = option(
        1.0, "How often the system metrics of `async-rl launch` (idle, queues, leases) are written.", minimum=0.1
    )


@dataclass(frozen=True)
class ClusterConfig:
    """Where processes run."""

    address: str = option("", "Ray cluster to join; empty starts one on this machine.")
    num_nodes: int = option(1, "Machines of the cluster.", minimum=1)
    gpus_per_node: int = option(0, "GPUs of each; 0: a run on CPUs.", minimum=0)
    gpu_memory_gib: float = option(
        0.0, "Memory of a GPU: a run that cannot fit is refused before it starts; 0: not known.", minimum=0
    )
    peak_tflops: float = option(
        0.0,
        "What a rank's device can do at most, in 10¹² floating-point operations a second: MFU is a share of it. 0: "
        "measured at the start, by large matrix products.",
        minimum=0,
    )
    pin_cores: bool = option(True, "On CPU, pin each generator to a core of its own and the learner to what is left.")
