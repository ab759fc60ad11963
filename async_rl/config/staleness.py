"""How old a token may be when it trains, and what happens where a group would pass the bound.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option

# Enum members are named like their values, since Hydra reads enums by name.


class OverBound(StrEnum):
    """What happens where a group would pass `staleness.max`."""

    wait = "wait"
    drop = "drop"
    requeue = "requeue"
    mask = "mask"
    train = "train"


@dataclass(frozen=True)
class StalenessConfig:
    """How old a token may be when it trains. Staleness 0 everywhere is synchronous RL."""

    max: int = option(4, "Hard bound per token, in versions.", minimum=0)
    depth: int = option(
        1, "How many batches generation may run ahead: the usual lag. More is faster; at most `max`.", minimum=0
    )
    over_bound: OverBound = option(
        OverBound.wait,
        "Where a group would pass the bound: `wait` for it, `drop` it, `requeue` its prompt, `mask` its old tokens, "
        "or `train` it all the same.",
    )
