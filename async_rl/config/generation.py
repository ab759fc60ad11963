"""The generators, and what becomes of running requests when weights change.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option

# Enum members are named like their values, since Hydra reads enums by name.


class KvOnUpdate(StrEnum):
    """What happens to the keys and values of running requests when weights change."""

    recompute = "recompute"
    keep = "keep"


@dataclass(frozen=True)
class GenerationConfig:
    """The generators: one vLLM engine each."""

    num_generators: int = option(1, "How many; each has a core (CPU) or `tp` GPUs.", minimum=1)
    tp: int = option(1, "GPUs that share an engine's matrices; 1 on CPUs.", minimum=1)
    group_size: int = option(8, "Samples of one prompt.", minimum=1)
    max_new_tokens: int = option(64, "A response that reaches this ends with finish reason `length`.", minimum=1)
    temperature: float = option(
        1.0, "Sampling temperature; learner and engine both apply it to log-probabilities.", exclusive_minimum=0
    )
    top_p: float = option(
        1.0,
        "Sample among the likeliest tokens that together have this probability; learner and engine both leave out "
        "the others.",
        exclusive_minimum=0,
        maximum=1,
    )
    top_k: int = option(0, "Sample among the k likeliest tokens, on learner and engine alike; 0: all.", minimum=0)
    max_concurrent: int = option(
        64, "Requests at once in an engine; more are faster and staler. At least `group_size`.", minimum=1
    )
    max_model_len: int = option(256, "Longest prompt and response together.", minimum=2)
    kv_cache_gib: float = option(
        1.0, "Memory for keys and values, per engine; on GPUs, on each that the engine has.", exclusive_minimum=0
    )
    kv_on_update: KvOnUpdate = option(
        KvOnUpdate.recompute,
        "Running requests, when weights change: `recompute` their keys and values under the new weights, "
        "or `keep` the old ones (faster; μ is then of new weights over old keys).",
    )
    max_restarts: int = option(10, "How often a dead generator is started again.", minimum=0)
