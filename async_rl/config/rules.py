"""Contradictions between options: what no run could keep is refused before it starts.

Owns the rules that join two options or more; a range of one option stands beside it in `schema`.
Must not look at the machine or at any file: whether a model folder can be read is for the launch to say.
"""

import math

from async_rl.config.loop import Transport
from async_rl.config.lora import LoraPublish
from async_rl.config.objective import Estimator
from async_rl.config.objective_rules import VALUE_ESTIMATORS, check_objective
from async_rl.config.offload_rules import check_offload
from async_rl.config.parallel_rules import check_parallel, check_parallel_sizes, check_sizes
from async_rl.config.part_rules import check_data, check_name, check_optimizer, check_reference, refuse
from async_rl.config.schema import RunConfig

TOKEN_BYTES = 13
"""A response token in a frame: id (4), log-probability (4), reward (4), mask (1)."""
PROMPT_TOKEN_BYTES = 5
"""A prompt token in a frame, at most."""
TRAJECTORY_BYTES = 256
"""What else a trajectory brings: spans, reward, names."""


def check_run(config: RunConfig) -> None:
    """Raises a `ConfigError` for the first contradiction; the rules are ordered by what a user mends first."""
    check_name(config.name, config.runs_dir)
    _check_model(config)
    check_data(config.data)
    _check_heldout(config)
    _check_reward(config)
    _check_lengths(config)
    _check_groups(config)
    _check_staleness(config)
    check_objective(config)
    _check_warmup(config)
    check_offload(config)
    _check_learner(config)
    _check_delivery(config)
    check_parallel(config)
    if config.model.sizes.is_given:
        check_parallel_sizes(config, config.model.sizes)
    check_optimizer(
        config.learner.optimizer,
        "learner.optimizer",
        optimizer_steps(config),
    )
    if config.advantage.estimator in VALUE_ESTIMATORS:
        check_optimizer(config.critic.optimizer, "critic.optimizer", critic_steps(config))
    _check_channel(config)


def max_group_bytes(config: RunConfig) -> int:
    """The largest frame that a group of full length can need, in bytes."""
    trajectory = config.generation.max_new_tokens * TOKEN_BYTES + TRAJECTORY_BYTES
    return config.data.max_prompt_tokens * PROMPT_TOKEN_BYTES + config.generation.group_size * trajectory


def _check_model(config: RunConfig) -> None:
    refuse(
        not config.model.path,
        "model.path is empty: there is no policy to train",
        place="model.path",
        remedy="name a Hugging Face folder; `async-rl sft` makes one",
    )
    check_sizes(config.model.sizes, "model.sizes")


def optimizer_steps(config: RunConfig) -> int:
    """The policy's steps of the whole run."""
    return (config.steps - config.critic.warmup) * config.learner.mini_batches * config.learner.epochs


def critic_steps(config: RunConfig) -> int:
    """The critic's."""
    return config.steps * config.learner.mini_batches * config.learner.epochs


def has_heldout(config: RunConfig) -> bool:
    """Whether there are held-out rows to evaluate on."""
    return config.data.num_evaluate > 0 if config.data.task else bool(config.data.evaluate)


def _check_heldout(config: RunConfig) -> None:
    refuse(
        config.evaluation.every > 0 and not has_heldout(config),
        f"evaluation.every={config.evaluation.every}, and there are no held-out rows",
        place="evaluation.every, data.evaluate, data.num_evaluate",
        remedy="set data.num_evaluate ≥ 1 with a task or data.evaluate with files, or evaluation.every=0",
    )


def _check_reward(config: RunConfig) -> None:
    reward, lease = config.reward, config.ledger.lease_timeout_s
    refuse(
        not reward.function and not reward.model.path,
        "reward.function and reward.model.path are empty: nobody says what a trajectory is worth",
        place="reward.function, reward.model.path",
        remedy="name a function, `module:function` or `path/to/file.py:function`, or the folder of a reward model",
    )
    if reward.function:
        check_reference(reward.function, option="reward.function", kind="function")
    refuse(
        bool(reward.model.path and config.advantage.reward_components),
        "a reward model's score has no place among advantage.reward_components",
        place="reward.model.path, advantage.reward_components",
        remedy="set reward.model.path= or advantage.reward_components=[]",
    )
    refuse(
        reward.timeout_s >= lease,
        f"reward.timeout_s={reward.timeout_s:g} lets a reward outlive its lease of {lease:g} s",
        place="reward.timeout_s, ledger.lease_timeout_s",
        remedy=f"set reward.timeout_s below {lease:g}, or ledger.lease_timeout_s above {reward.timeout_s:g}",
    )


def _check_lengths(config: RunConfig) -> None:
    prompt, response = config.data.max_prompt_tokens, config.generation.max_new_tokens
    limit, budget = config.generation.max_model_len, config.learner.micro_batch_tokens
    refuse(
        prompt + response > limit,
        f"a prompt of {prompt} and a response of {response} tokens do not fit in generation.max_model_len={limit}",
        place="data.max_prompt_tokens, generation.max_new_tokens, generation.max_model_len",
        remedy=f"set generation.max_model_len={prompt + response}, or lower one of the other two",
    )
    refuse(
        prompt + response > budget,
        f"a trajectory of {prompt + response} tokens does not fit in learner.micro_batch_tokens={budget}",
        place="learner.micro_batch_tokens",
        remedy=f"set learner.micro_batch_tokens={prompt + response} or more",
    )


def _check_groups(config: RunConfig) -> None:
    size, concurrent = config.generation.group_size, config.generation.max_concurrent
    if config.advantage.estimator is Estimator.remax:
        # The greedy answer is one more.
        size += 1
    refuse(
        config.generation.top_k == 1,
        "generation.top_k=1 makes all samples of a group alike, and every advantage 0",
        place="generation.top_k",
        remedy="set generation.top_k=0 (all tokens), or 2 or more",
    )
    refuse(
        concurrent < size,
        f"generation.max_concurrent={concurrent} cannot hold a group of {size}, so no batch ever fills",
        place="generation.max_concurrent, generation.group_size",
        remedy=f"set generation.max_concurrent={size} or more",
    )
    batch_mib = math.ceil(config.learner.groups_per_step * max_group_bytes(config) / 2**20)
    refuse(
        batch_mib > config.channel.max_message_mib,
        f"a batch can take {batch_mib} MiB, over channel.max_message_mib={config.channel.max_message_mib}",
        place="channel.max_message_mib, learner.groups_per_step, generation.group_size, generation.max_new_tokens",
        remedy=f"set channel.max_message_mib={batch_mib} or more, or make the batch smaller",
    )


def _check_staleness(config: RunConfig) -> None:
    bound, depth, every = config.staleness.max, config.staleness.depth, config.weights.publish_every
    refuse(
        depth > bound,
        f"staleness.depth={depth} lets generation run further ahead than staleness.max={bound} lets anything train",
        place="staleness.depth, staleness.max",
        remedy=f"set staleness.depth={bound} or less, or staleness.max={depth} or more",
    )
    refuse(
        every - 1 > bound,
        f"weights.publish_every={every} leaves generators {every - 1} versions behind, over staleness.max={bound}, "
        "so the bound can never be met",
        place="weights.publish_every, staleness.max",
        remedy=f"set weights.publish_every={bound + 1} or less, or staleness.max={every - 1} or more",
    )
    refuse(
        depth + every - 1 > bound,
        f"staleness.depth={depth} and weights.publish_every={every} together ask for tokens {depth + every - 1} "
        f"versions old, over staleness.max={bound}",
        place="staleness.depth, weights.publish_every, staleness.max",
        remedy=f"set staleness.max={depth + every - 1} or more, or staleness.depth={bound - every + 1} or less",
    )


def _check_learner(config: RunConfig) -> None:
    groups, parts = config.learner.groups_per_step, config.learner.mini_batches
    refuse(
        parts > groups,
        f"learner.mini_batches={parts} are more than learner.groups_per_step={groups}",
        place="learner.mini_batches, learner.groups_per_step",
        remedy=f"set learner.mini_batches={groups} or less",
    )
    divisors = [n for n in range(1, groups + 1) if groups % n == 0]
    refuse(
        groups % parts != 0,
        f"learner.mini_batches={parts} does not divide learner.groups_per_step={groups}",
        place="learner.mini_batches, learner.groups_per_step",
        remedy=f"set learner.mini_batches to one of {', '.join(map(str, divisors))}",
    )


def _check_warmup(config: RunConfig) -> None:
    warmup, estimator = config.critic.warmup, config.advantage.estimator
    refuse(
        warmup > 0 and estimator not in VALUE_ESTIMATORS,
        f"critic.warmup={warmup}, and advantage.estimator={estimator} has no critic",
        place="critic.warmup, advantage.estimator",
        remedy=f"set critic.warmup=0, or advantage.estimator to one of {', '.join(sorted(VALUE_ESTIMATORS))}",
    )
    refuse(
        warmup >= config.steps,
        f"critic.warmup={warmup} leaves nothing of steps={config.steps} to the policy",
        place="critic.warmup, steps",
        remedy=f"set critic.warmup below {config.steps}",
    )


def _check_delivery(config: RunConfig) -> None:
    """What says how weights are delivered has an effect."""
    lora, weights = config.learner.lora, config.weights
    refuse(
        lora.publish is LoraPublish.adapter and lora.rank == 0,
        "learner.lora.publish=adapter, and learner.lora.rank=0 makes no adapters",
        place="learner.lora.publish, learner.lora.rank",
        remedy="set learner.lora.rank=8, or learner.lora.publish=merged",
    )
    refuse(
        bool(weights.folder) and weights.transport is Transport.shm,
        f"weights.folder={weights.folder}, and weights.transport=shm writes no files",
        place="weights.folder, weights.transport",
        remedy="set weights.transport=file, or weights.folder=",
    )


def _check_channel(config: RunConfig) -> None:
    channel = config.channel
    refuse(not channel.host, "channel.host is empty", place="channel.host", remedy="name an interface: 127.0.0.1")
    refuse(
        channel.dead_after_s < 2 * channel.heartbeat_s,
        f"channel.dead_after_s={channel.dead_after_s:g} with a heartbeat every {channel.heartbeat_s:g} s: "
        "one late heartbeat, and a healthy generator is taken for dead",
        place="channel.dead_after_s, channel.heartbeat_s",
        remedy=f"set channel.dead_after_s={2 * channel.heartbeat_s:g} or more",
    )
