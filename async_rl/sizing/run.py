"""What a run comes to on its devices: the accounts of a learner rank and of an engine.

Owns what of the config tree decides it. Pure.
"""

import math

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.objective import KLEstimator
from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.ranks import num_shards
from async_rl.config.schema import RunConfig
from async_rl.sizing.account import Account
from async_rl.sizing.engine import engine_account
from async_rl.sizing.training import HeldModel, Training, training_account


def accounts(config: RunConfig, sizes: ModelSizes) -> list[Account]:
    """Of the learner rank that needs the most, and of an engine."""
    on_gpus = config.cluster.gpus_per_node > 0
    engine = engine_account(sizes, config.model, config.generation, on_gpus=on_gpus)
    return [training_account(training_of(config, sizes)), engine]


def training_of(config: RunConfig, sizes: ModelSizes) -> Training:
    """The learner's part; a critic with a folder of its own is taken to be of the policy's sizes."""
    learner, shards = config.learner, num_shards(config)
    longest = longest_trajectory(config)
    trajectories = math.ceil(learner.groups_per_step * config.generation.group_size / learner.mini_batches / shards)
    return Training(
        sizes=sizes,
        models=held_models(config),
        parallel=learner.parallel,
        num_shards=shards,
        recompute=learner.recompute,
        dtype=config.model.dtype,
        tokens=min(learner.micro_batch_tokens, trajectories * longest),
        micro_batches=math.ceil(trajectories / (learner.micro_batch_tokens // longest)),
        on_gpus=config.cluster.gpus_per_node > 0,
        keeps_reference_states=config.kl.coef > 0 and config.kl.estimator is KLEstimator.full,
    )


def held_models(config: RunConfig) -> tuple[HeldModel, ...]:
    """Those that the objective asks for, a part of each on each rank; a policy without adapters is its reference."""
    lora_rank = config.learner.lora.rank
    models = [HeldModel(name="policy", lora_rank=lora_rank)]
    if config.kl.coef > 0 and not lora_rank:
        models.append(HeldModel(name="reference", is_trained=False, is_offloaded=config.kl.offload))
    if config.advantage.estimator in VALUE_ESTIMATORS:
        models.append(HeldModel(name="critic", has_vocabulary=False, is_offloaded=config.critic.offload))
    return tuple(models)


def longest_trajectory(config: RunConfig) -> int:
    """Tokens of a prompt and a response at their longest."""
    return config.data.max_prompt_tokens + config.generation.max_new_tokens
