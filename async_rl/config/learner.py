"""One step of the learner, and the optimizers of policy and critic.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.lora import LoraConfig
from async_rl.config.option import option, section
from async_rl.config.parallel import ParallelConfig, Recompute

# Enum members are named like their values, since Hydra reads enums by name.


class Schedule(StrEnum):
    """How the learning rate moves after its warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    wsd = "wsd"


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    lr: float = option(3e-4, "Peak learning rate.", exclusive_minimum=0)
    schedule: Schedule = option(
        Schedule.constant,
        "After the warm-up: `constant`, `linear` or `cosine` to `min_lr`, or `wsd`: constant, then linear to `min_lr` "
        "in the last `decay_share` of all steps.",
    )
    warmup_steps: int = option(0, "Steps from 0 to `lr`.", minimum=0)
    warmup_share: float = option(
        0.0, "The same as a share of all steps, in the place of a number.", minimum=0, maximum=1
    )
    decay_share: float = option(0.2, "Of all steps, in which `wsd` falls.", exclusive_minimum=0, maximum=1)
    min_lr: float = option(0.0, "Where the schedule ends.", minimum=0)
    weight_decay: float = option(0.0, "Decoupled weight decay.", minimum=0)
    beta1: float = option(0.9, "Adam's first decay.", minimum=0, maximum=1)
    beta2: float = option(0.95, "Adam's second decay.", minimum=0, maximum=1)
    eps: float = option(1e-8, "Adam's epsilon.", exclusive_minimum=0)
    clip_grad_norm: float = option(1.0, "Gradients are scaled down to this norm; 0 turns it off.", minimum=0)

    def warmup(self, num_steps: int) -> int:
        """Steps of the warm-up, of so many in all."""
        return self.warmup_steps or round(self.warmup_share * num_steps)

    def decay(self, num_steps: int) -> int:
        """Steps in which `wsd` falls, of so many in all; at least one."""
        return max(1, round(self.decay_share * num_steps))


@dataclass(frozen=True)
class CriticConfig:
    """The value model of `advantage.estimator=gae` and `vtrace`: the policy's architecture with one output."""

    path: str = option("", "Hugging Face folder that its body starts from; empty: `model.path`.")
    clip: float = option(
        0.2, "A value is clipped this far around the one before the batch's steps; 0 turns it off.", minimum=0
    )
    warmup: int = option(
        0, "Batches at the start that train the critic alone: the policy waits until values mean something.", minimum=0
    )
    offload: bool = option(
        False,
        "Keep the critic (weights, gradients, optimizer) in the host's memory between its uses, each of which costs "
        "the way to the GPU and back: the same numbers in less memory there. Only on GPUs.",
    )
    optimizer: OptimizerConfig = section(OptimizerConfig, "The critic's optimizer.")


@dataclass(frozen=True)
class LearnerConfig:
    """One step of the learner."""

    groups_per_step: int = option(16, "Groups in a batch.", minimum=1)
    mini_batches: int = option(1, "Optimizer steps that share a batch, each on its part of the groups.", minimum=1)
    epochs: int = option(1, "How often a batch is gone through.", minimum=1)
    micro_batch_tokens: int = option(
        8192, "Tokens packed into one forward pass: memory against speed, never the result.", minimum=1
    )
    share_prefixes: bool = option(
        True, "Compute a group's prompt once for all its responses that share a micro-batch: the same numbers, sooner."
    )
    parallel: ParallelConfig = section(ParallelConfig, "How the models are spread over ranks.")
    recompute: Recompute = option(
        Recompute.none,
        "Activations computed again in the backward pass: `none`, `selective` (those of attention) or `full` (all but "
        "each layer's input). Less memory for more time, the same numbers.",
    )
    lora: LoraConfig = section(LoraConfig, "Adapters of low rank that train in the place of all weights.")
    optimizer: OptimizerConfig = section(OptimizerConfig, "The optimizer.")
    max_skipped: int = option(
        5, "Steps skipped in a row for loss or gradients that are not finite, before the run stops.", minimum=0
    )
    num_threads: int = option(1, "CPU threads of each rank; ignored on GPUs.", minimum=1)
    max_restarts: int = option(
        3, "How often the learner is started again from its last checkpoint after a rank has died.", minimum=0
    )
