"""How a model is spread over ranks, and what its memory is saved by.

Owns the options of `learner.parallel` and what they come to in numbers of ranks. Rules that join them with a model's
sizes stand in `parallel_rules`.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass instead of being kept."""

    none = "none"
    selective = "selective"
    full = "full"


@dataclass(frozen=True)
class ParallelConfig:
    """How many ranks share what. A rank is a GPU, or on CPUs a process; tp · pp · cp · dp of them train."""

    tp: int = option(1, "Tensor parallel: ranks that share each matrix; divides the heads.", minimum=1)
    pp: int = option(1, "Pipeline parallel: stages of layers, one after the other.", minimum=1)
    vpp: int = option(
        1,
        "Interleaved pipeline: pieces of the model in each stage; more let the pipeline idle less.",
        minimum=1,
    )
    cp: int = option(
        1,
        "Context parallel: ranks that share each row of tokens, and its heads in attention; tp · cp divides the heads.",
        minimum=1,
    )
    ep: int = option(1, "Expert parallel: ranks that share a layer's experts; divides tp · cp · dp / etp.", minimum=1)
    etp: int = option(1, "Tensor parallel inside of an expert.", minimum=1)
    dp: int = option(
        0,
        "Data parallel: ranks with a part of the batch each; 0: what the cluster's GPUs leave (1 on CPUs).",
        minimum=0,
    )
    sequence_parallel: bool = option(
        False, "With tp above 1, share the activations between the matrices too: less memory, the same numbers."
    )

    @property
    def ranks_of_copy(self) -> int:
        """Ranks that hold one copy of the model."""
        return self.tp * self.pp * self.cp
