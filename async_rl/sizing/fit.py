"""Whether a run fits into the memory of its GPUs, and what would make it fit.

Owns the refusal and the search for its remedy: the first change, of those that cost least, with which everything fits.
Pure.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import product

from async_rl.config.loop import Transport
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.objective import KLEstimator
from async_rl.config.option import with_options, written
from async_rl.config.parallel import Recompute
from async_rl.config.parallel_rules import check_parallel, check_parallel_sizes
from async_rl.config.schema import RunConfig
from async_rl.errors import ConfigError, ResourceError
from async_rl.sizing.account import GIB, Account
from async_rl.sizing.engine import kv_token_bytes, kv_tokens
from async_rl.sizing.run import accounts, held_models, longest_trajectory

USABLE = 0.95
"""Of a GPU's memory; the rest is lost between blocks of memory."""

_FACTORS = (1, 2, 4, 8)

Change = Mapping[str, object]
"""Options by their paths."""


def check_fit(config: RunConfig, sizes: ModelSizes) -> None:
    """Raises a `ResourceError` where a GPU is too small for what the run puts on it, as far as that is known."""
    _check_keys(config, sizes)
    if not usable_bytes(config):
        return
    learner, engine = accounts(config, sizes)
    if learner.total > usable_bytes(config):
        raise _refusal(config, sizes, learner, "learner", _learner_changes(config))
    if engine.total > usable_bytes(config):
        raise _refusal(config, sizes, engine, "generation", _engine_changes(config))


def usable_bytes(config: RunConfig) -> int:
    """Of each GPU; 0: not known, or a run on CPUs."""
    return int(USABLE * config.cluster.gpu_memory_gib * GIB) if config.cluster.gpus_per_node else 0


def _check_keys(config: RunConfig, sizes: ModelSizes) -> None:
    """An engine refuses to start where one sequence of full length could not be finished."""
    generation = config.generation
    held = kv_tokens(sizes, config.model, generation)
    if held < generation.max_model_len:
        needed = generation.max_model_len * kv_token_bytes(sizes, config.model, generation) / GIB
        raise ResourceError(
            f"generation.kv_cache_gib={generation.kv_cache_gib:g} holds the keys and values of {held:,} tokens, and a "
            f"sequence may have generation.max_model_len={generation.max_model_len:,}",
            place="generation.kv_cache_gib, generation.max_model_len",
            remedy=f"set generation.kv_cache_gib={_up(needed):g} or more; {generation.max_concurrent} requests of full "
            f"length at once take {_up(needed * generation.max_concurrent):g}",
        )


def _refusal(
    config: RunConfig, sizes: ModelSizes, account: Account, section: str, changes: Iterator[Change]
) -> ResourceError:
    memory, largest = config.cluster.gpu_memory_gib, max(account.parts, key=lambda part: part.num_bytes)
    fitting = next((change for change in changes if _fits(config, sizes, change, section)), None)
    if fitting is None:
        remedy = "give larger GPUs, or more of them to share the model: raise cluster.num_nodes and its parallel sizes"
    else:
        remedy = "set " + " ".join(f"{option}={written(value)}" for option, value in fitting.items())
    return ResourceError(
        f"each {account.owner} needs {account.gib:.1f} GiB, most of it for {largest.name} ({largest.gib:.1f} GiB), and "
        f"{USABLE:.0%} of cluster.gpu_memory_gib={memory:g} are {USABLE * memory:.1f} GiB",
        place=f"{section}, cluster.gpu_memory_gib",
        remedy=remedy,
    )


def _fits(config: RunConfig, sizes: ModelSizes, change: Change, section: str) -> bool:
    """Whether a change is allowed and makes room for what the refusal is about."""
    changed = with_options(config, change)
    try:
        check_parallel(changed)
        check_parallel_sizes(changed, sizes)
        if section == "generation":
            _check_keys(changed, sizes)
    except (ConfigError, ResourceError):
        return False
    learner, engine = accounts(changed, sizes)
    return (learner if section == "learner" else engine).total <= usable_bytes(config)


def _learner_changes(config: RunConfig) -> Iterator[Change]:
    """From those that cost some time to those that cost many GPUs."""
    sharing: Change = {"learner.parallel.sequence_parallel": True} if config.learner.parallel.tp > 1 else {}
    full: Change = {"learner.recompute": Recompute.full}
    offloading = _offloading(config)
    thrift: Change = {**sharing, **full}
    yield sharing
    yield full
    yield thrift
    yield offloading
    thrift = {**thrift, **offloading}
    yield thrift
    budgets = list(_budgets(config))
    plain: Change = {}
    for change in (plain, thrift):
        for tokens in budgets:
            yield {**change, "learner.micro_batch_tokens": tokens}
    for change in _more_ranks(config):
        yield {**change, **full, **offloading}


def _offloading(config: RunConfig) -> Change:
    """Of all models that can come and go."""
    models = held_models(config)
    change: dict[str, object] = {}
    if any(model.name == "critic" for model in models):
        change["critic.offload"] = True
    if any(model.name == "reference" for model in models) and config.kl.estimator is not KLEstimator.full:
        change["kl.offload"] = True
    return change


def _more_ranks(config: RunConfig) -> Iterator[Change]:
    """The model shared by more ranks: first those that there are, then those of more machines."""
    parallel, cluster = config.learner.parallel, config.cluster
    for nodes in _FACTORS:
        machines: Change = {"cluster.num_nodes": cluster.num_nodes * nodes} if nodes > 1 else {}
        if nodes > 1 and not cluster.address:
            machines = {"cluster.address": "auto", "weights.transport": Transport.file, **machines}
        for tp, pp, ep in sorted(product(_FACTORS, repeat=3), key=lambda factors: math.prod(factors)):
            change = dict(machines)
            if tp > 1:
                change |= {"learner.parallel.tp": parallel.tp * tp, "learner.parallel.sequence_parallel": True}
            if pp > 1:
                change["learner.parallel.pp"] = parallel.pp * pp
            if ep > 1:
                change["learner.parallel.ep"] = parallel.ep * ep
            yield change


def _budgets(config: RunConfig) -> Iterator[int]:
    """Smaller micro-batches, by halves, down to one trajectory."""
    least, tokens = longest_trajectory(config), config.learner.micro_batch_tokens
    while tokens > least:
        tokens = max(tokens // 2, least)
        yield tokens


def _engine_changes(config: RunConfig) -> Iterator[Change]:
    generation = config.generation
    kv_cache_gib: float = generation.kv_cache_gib
    while kv_cache_gib > 1:
        kv_cache_gib = math.ceil(kv_cache_gib) - 1
        yield {"generation.kv_cache_gib": kv_cache_gib}
    for factor in (2, 4, 8):
        engines = generation.num_generators // factor
        if engines:
            yield {"generation.tp": generation.tp * factor, "generation.num_generators": engines}


def _up(gib: float) -> float:
    """To a tenth, never less."""
    return -int(-gib * 10 // 1) / 10
