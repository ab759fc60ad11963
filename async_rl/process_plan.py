"""The processes of a run in words: what each does, and where it goes.

Owns their names and the words of a layout. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.ranks import num_ranks, num_shards
from async_rl.config.schema import RunConfig
from async_rl.placement import Placement


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process of a run."""

    name: str
    work: str
    where: str


def layout(config: RunConfig) -> str:
    """Ranks of the learner, and which sizes they are the product of: 16 ranks = tp 8 · pp 2 · dp 1."""
    parallel, count = config.learner.parallel, num_ranks(config)
    sizes = {"tp": parallel.tp, "pp": parallel.pp, "cp": parallel.cp, "dp": num_shards(config)}
    factors = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name in ("tp", "dp")]
    words = f"{count} ranks = {' · '.join(factors)}" if count > 1 else "1 rank"
    if parallel.vpp > 1:
        words += f", each stage in {parallel.vpp} pieces"
    if parallel.ep > 1 or parallel.etp > 1:
        words += f", experts over ep {parallel.ep}" + (f" · etp {parallel.etp}" if parallel.etp > 1 else "")
    return words


def processes(config: RunConfig, placement: Placement) -> list[ProcessPlan]:
    """All of them, in the order in which a user meets them."""
    port = config.channel.port
    address = f"{config.channel.host}:{port}" if port else f"{config.channel.host}, a free port"
    repo = config.tracking.aim_repo or config.runs_dir
    aim = f"metrics.jsonl and the Aim repository in {repo}" if config.tracking.aim else "metrics.jsonl"
    return [
        ProcessPlan(name="controller", work=f"ledger, bound, batches; listens on {address}", where="this process"),
        *_generators(config, placement),
        *_reward_model(config),
        *_learner(config, placement),
        ProcessPlan(name="tracker", work=aim, where="not pinned"),
    ]


def _generators(config: RunConfig, placement: Placement) -> list[ProcessPlan]:
    generation, workers = config.generation, config.reward.num_workers
    work = (
        f"engine of {generation.max_concurrent} requests, {generation.kv_cache_gib:g} GiB of keys and values, "
        f"{workers} reward {'process' if workers == 1 else 'processes'}"
    )
    if config.cluster.gpus_per_node:
        where = f"{gpus(generation.tp)} of one node" + (" each" if generation.num_generators > 1 else "")
        return [ProcessPlan(name=_numbered("generator", generation.num_generators), work=work, where=where)]
    return [
        ProcessPlan(name=f"generator-{number}", work=work, where=_where(cores))
        for number, cores in enumerate(placement.generators)
    ]


def _reward_model(config: RunConfig) -> list[ProcessPlan]:
    model = config.reward.model
    if not model.path:
        return []
    where = "1 GPU" if config.cluster.gpus_per_node else "not pinned"
    return [ProcessPlan(name="reward-model", work=f"scores responses with {model.path}", where=where)]


def _learner(config: RunConfig, placement: Placement) -> list[ProcessPlan]:
    learner, count = config.learner, num_ranks(config)
    critic = ", and a critic" if config.advantage.estimator in VALUE_ESTIMATORS else ""
    work = (
        f"{layout(config)}; {learner.groups_per_step} groups of {config.generation.group_size} a batch, in "
        f"micro-batches of {learner.micro_batch_tokens} tokens{critic}"
    )
    if config.cluster.gpus_per_node:
        nodes = math.ceil(count / config.cluster.gpus_per_node)
        where = f"{gpus(count)} of {'one node' if nodes == 1 else f'{nodes} nodes'}"
        return [ProcessPlan(name=_numbered("learner", count), work=work, where=where)]
    return [
        ProcessPlan(name=f"learner-{rank}", work="" if rank else work, where=_where(cores))
        for rank, cores in enumerate(placement.ranks)
    ]


def _numbered(name: str, count: int) -> str:
    return f"{name}-0" if count == 1 else f"{name}-0 … {count - 1}"


def gpus(count: int) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count} {'GPU' if count == 1 else 'GPUs'}"


def _where(cores: Sequence[int] | None) -> str:
    if cores is None:
        return "not pinned"
    return f"{'core' if len(cores) == 1 else 'cores'} {', '.join(map(str, cores))}"


def shares_cores(placement: Placement) -> bool:
    """Whether some core has to serve two busy processes."""
    pinned = [core for cores in [*placement.generators, *placement.ranks] if cores is not None for core in cores]
    return len(pinned) != len(set(pinned))
