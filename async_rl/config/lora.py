"""Adapters of low rank: few weights that train in the place of all.

Owns the options of `learner.lora`.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option


class LoraPublish(StrEnum):
    """What generators are sent."""

    merged = "merged"
    adapter = "adapter"


@dataclass(frozen=True)
class LoraConfig:
    """LoRA (arXiv:2106.09685) for the policy: adapters beside the projections of attention and of dense MLPs train, and
    nothing else does. The reference is then the policy without them, at no cost of memory. Experts get none."""

    rank: int = option(0, "Rank of the adapters; 0: no adapters, all weights train.", minimum=0)
    alpha: float = option(32.0, "What adapters add is scaled by alpha / rank.", exclusive_minimum=0)
    publish: LoraPublish = option(
        LoraPublish.merged,
        "What generators are sent: all weights, the adapters `merged` into them; or the `adapter` alone, which each "
        "generator merges into the weights that it read from `model.path`: far fewer bytes, the same numbers.",
    )

    @property
    def sends_adapter(self) -> bool:
        """Whether generators get adapters and not weights."""
        return self.rank > 0 and self.publish is LoraPublish.adapter

    @property
    def scale(self) -> float:
        """Of what an adapter adds."""
        return self.alpha / self.rank
