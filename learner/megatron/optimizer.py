"""Megatron's distributed AdamW and its learning-rate schedule, from our options.

Owns the translation of `OptimizerConfig` and one guarded update. Knows nothing of losses or models.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from async_rl.config.learner import OptimizerConfig, Schedule

_STYLES = {
    Schedule.constant: "constant",
    Schedule.linear: "linear",
    Schedule.cosine: "cosine",
    # Warm-up, stable, decay (MiniCPM, arXiv:2404.06395).
    Schedule.wsd: "WSD",
}
_FORMAT = "fully_reshardable"
"""Megatron's name of a format in which each weight has its moments, in its own shape."""

# What a parameter group has from the config; its learning rate is the schedule's.
_OPTIONS = ("max_lr", "min_lr", "betas", "eps")


class GuardedOptimizer:
    """An update that either happens whole or not at all."""

    def __init__(self, chunks: Sequence[DistributedDataParallel], config: OptimizerConfig, *, num_steps: int) -> None:
        self.clip_grad_norm = config.clip_grad_norm
        self.optimizer: MegatronOptimizer = get_megatron_optimizer(
            MegatronOptimizerConfig(
                optimizer="adam",
                lr=config.lr,
                min_lr=config.min_lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.beta1,
                adam_beta2=config.beta2,
                adam_eps=config.eps,
                clip_grad=config.clip_grad_norm,
                bf16=chunks[0].config.bf16,
                params_dtype=chunks[0].config.params_dtype,
                use_distributed_optimizer=True,
            ),
            list(chunks),
        )
        _make_moments(self._parts)
        self.scheduler = _scheduler(self.optimizer, config, num_steps)

    @property
    def _parts(self) -> Sequence[MegatronOptimizer]:
        """One, or one for the experts as well."""
        if isinstance(self.optimizer, ChainedOptimizer):
            return cast(Sequence[MegatronOptimizer], self.optimizer.chained_optimizers)
        return [self.optimizer]

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, loss: float) -> tuple[float, bool]:
        """Updates the weights from the gradients at hand, unless these or the loss are not finite.

        Returns:
            The gradient's norm before clipping, and whether the update happened.
        """
        self.optimizer.prepare_grads()
        grad_norm = float(self.optimizer.get_grad_norm())
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return grad_norm, False
        if self.clip_grad_norm > 0.0:
            for part in self._parts:
                clip_grad_by_total_norm_fp32(part.get_parameters(), self.clip_grad_norm, grad_norm)
        self.optimizer.step_with_ready_grads()
        self.scheduler.step(1)
        return grad_norm, True

    @property
    def num_updates(self) -> int:
        """That Adam has counted."""
        groups = self.optimizer.param_groups
        return max((int(group["step"]) for group in groups if "step" in group), default=0)

    def sharded_state(self, weights: ShardedStateDict, *, is_loading: bool) -> ShardedStateDict:
        """Moments and main weights, for a checkpoint; called by all ranks at once.

        Their names are those of the weights, whatever the layout: an optimizer of its own for experts shows in none.
        """
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        metadata = {
            "distrib_optim_sharding_type": _FORMAT,
            "dp_cp_group": group,
            "chained_optim_avoid_prefix": True,
        }
        with _padding_counted(self._parts):
            parts = [part.sharded_state_dict(weights, is_loading, metadata=metadata) for part in self._parts]
        return {index: part["param_state"] for index, part in enumerate(parts)}

    @torch.no_grad()
    def load_state(self, state: Mapping[int, object], num_updates: int, scheduler: dict[str, object]) -> None:
        """Takes back moments, main weights and counters; the options stay those of this run's config.

        Args:
            state: as `sharded_state` described it, with what was read.
            num_updates: see there.
            scheduler: its state.
        """
        options = [{name: group[name] for name in _OPTIONS} for group in self.optimizer.param_groups]
        for index, part in enumerate(self._parts):
            own = part.state_dict()
            for group in own["optimizer"]["param_groups"]:
                group["step"] = num_updates
            part.load_state_dict({**own, "param_state": state[index], "param_state_sharding_type": _FORMAT})
        for group, kept in zip(self.optimizer.param_groups, options, strict=True):
            group.update(kept)
        # Loading adds the saved steps to those already counted.
        self.scheduler.num_steps = 0
        self.scheduler.load_state_dict(scheduler)


@contextmanager
def _padding_counted(parts: Sequence[MegatronOptimizer]) -> Iterator[None]:
    """Lets Megatron find each weight's moments where they are.

    It lays the buckets of a buffer end to end without the padding behind each, and looks for a weight at its place in
    the buffer, where the padding is counted. Where there is any between two buckets, it would write the moments of
    other weights.
    """
    padded = [item for part in parts for buffer in part.buffers for item in (buffer, *buffer.buckets)]
    before = [item.numel_unpadded for item in padded]
    for item in padded:
        item.numel_unpadded = item.grad_data.numel()
    try:
        yield
    finally:
        for item, numel in zip(padded, before, strict=True):
            item.numel_unpadded = numel


def _make_moments(parts: Sequence[MegatronOptimizer]) -> None:
    # Megatron makes them at the first update, and a checkpoint before it (Ctrl-C) would miss them.
    for part in parts:
        part.init_state_fn(part.optimizer, part.config)


def _scheduler(optimizer: MegatronOptimizer, config: OptimizerConfig, num_steps: int) -> OptimizerParamScheduler:
    # Megatron's first step of a warm-up has learning rate 0 and does nothing. Starting one step further
    # on the same line, the first step takes lr / warmup_steps and step `warmup_steps` takes lr.
    warmup_steps = max(config.warmup(num_steps) - 1, 0)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=config.lr / max(config.warmup(num_steps), 1),
        max_lr=config.lr,
        min_lr=config.min_lr,
        lr_warmup_steps=warmup_steps,
        lr_decay_steps=max(num_steps, warmup_steps + 1),
        lr_decay_style=_STYLES[config.schedule],
        wsd_decay_steps=config.decay(num_steps),
        lr_wsd_decay_style="linear",
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )
