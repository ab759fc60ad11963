"""Contradictions between how models are spread over ranks, their sizes, and the cluster.

Owns the rules that join `parallel`, `model.sizes`, `generation` and `cluster`. Whether it fits into memory is worked
out in `async_rl.sizing`. Must not look at the machine or at any file.
"""

from async_rl.config.loop import Transport
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig
from async_rl.config.part_rules import refuse
from async_rl.config.ranks import gpus_left, num_shards
from async_rl.config.schema import RunConfig

_MOST_RANKS = 128
"""That a remedy names."""


def check_parallel(config: RunConfig) -> None:
    """Raises a `ConfigError` for the first contradiction that can be seen without the model's sizes."""
    check_layout(config.learner.parallel, "learner.parallel")
    _check_cluster(config)
    check_experts(config.learner.parallel, num_shards(config), "learner.parallel")
    _check_batch(config)


def check_parallel_sizes(config: RunConfig, sizes: ModelSizes) -> None:
    """Raises a `ConfigError` for the first size of the model that ranks or engines could not share."""
    check_layout_sizes(config.learner.parallel, sizes, "learner.parallel")
    tp = config.generation.tp
    _refuse_uneven(sizes.num_heads, "query heads", tp, "generation.tp")
    kv_heads = sizes.num_kv_heads
    refuse(
        kv_heads % tp != 0 and tp % kv_heads != 0,
        f"generation.tp={tp} neither divides the model's {kv_heads} key and value heads nor is a multiple of them",
        place="generation.tp",
        remedy=f"set generation.tp to one of {_divisors(kv_heads)}, or to a multiple of {kv_heads}",
    )
    _refuse_uneven(sizes.intermediate_size, "columns of a feed-forward layer", tp, "generation.tp")


def check_layout(parallel: ParallelConfig, place: str) -> None:
    """Raises a `ConfigError` where the sizes of a layout contradict each other.

    Args:
        place: of the section, as the user writes it.
    """
    refuse(
        parallel.vpp > 1 and parallel.pp == 1,
        f"{place}.vpp={parallel.vpp} cuts the stages of a pipeline into pieces, and {place}.pp=1 is no pipeline",
        place=f"{place}.vpp, {place}.pp",
        remedy=f"set {place}.vpp=1, or {place}.pp=2 or more",
    )
    refuse(
        parallel.sequence_parallel and parallel.tp == 1,
        f"{place}.sequence_parallel=true shares activations among tensor parallel ranks, and {place}.tp=1 has none",
        place=f"{place}.sequence_parallel, {place}.tp",
        remedy=f"set {place}.sequence_parallel=false, or {place}.tp=2 or more",
    )


def check_experts(parallel: ParallelConfig, num_shards: int, place: str) -> None:
    """Raises a `ConfigError` where the ranks of a pipeline stage cannot be dealt out to experts evenly."""
    ranks, needed = parallel.tp * parallel.cp * num_shards, parallel.ep * parallel.etp
    refuse(
        ranks % needed != 0,
        f"{place}.ep={parallel.ep} times etp={parallel.etp} does not divide the {ranks} ranks of a stage "
        f"(tp {parallel.tp} · cp {parallel.cp} · dp {num_shards})",
        place=f"{place}.ep, {place}.etp",
        remedy=f"let ep · etp be one of {_divisors(ranks)}",
    )


def check_layout_sizes(parallel: ParallelConfig, sizes: ModelSizes, place: str) -> None:
    """Raises a `ConfigError` where a layout does not divide a model."""
    _refuse_uneven(sizes.num_heads, "query heads", parallel.tp, f"{place}.tp")
    _refuse_uneven(sizes.num_heads // parallel.tp, "query heads of a tensor parallel rank", parallel.cp, f"{place}.cp")
    _refuse_uneven(sizes.num_kv_heads, "key and value heads", parallel.tp, f"{place}.tp")
    pieces, layers = parallel.pp * parallel.vpp, sizes.num_layers
    refuse(
        layers % pieces != 0,
        f"{place}.pp={parallel.pp} times vpp={parallel.vpp} does not divide the model's {layers} layers",
        place=f"{place}.pp, {place}.vpp",
        remedy=f"let pp · vpp be one of {_divisors(layers)}",
    )
    if sizes.num_experts:
        _check_moe(parallel, sizes, place)
        return
    refuse(
        parallel.ep > 1 or parallel.etp > 1,
        f"{place}.ep={parallel.ep} and etp={parallel.etp} spread experts over ranks, and the model has none",
        place=f"{place}.ep, {place}.etp",
        remedy=f"set {place}.ep=1 and {place}.etp=1",
    )
    _refuse_uneven(sizes.intermediate_size, "columns of a feed-forward layer", parallel.tp, f"{place}.tp")


def check_sizes(sizes: ModelSizes, place: str) -> None:
    """Raises a `ConfigError` where sizes are given in part, or contradict each other."""
    numbers = {
        "num_layers": sizes.num_layers,
        "hidden_size": sizes.hidden_size,
        "num_heads": sizes.num_heads,
        "num_kv_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.intermediate_size,
        "vocab_size": sizes.vocab_size,
    }
    given = any((*numbers.values(), sizes.num_experts, sizes.top_k))
    absent = [f"{place}.{name}" for name, number in numbers.items() if not number]
    refuse(
        given and bool(absent),
        f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} 0, and other sizes of the model are given",
        place=place,
        remedy="give all of them, or none: they are then read from the model's config.json",
    )
    refuse(
        given and sizes.num_heads % sizes.num_kv_heads != 0,
        f"{place}.num_kv_heads={sizes.num_kv_heads} does not divide {place}.num_heads={sizes.num_heads}",
        place=f"{place}.num_kv_heads, {place}.num_heads",
        remedy=f"give one of {_divisors(sizes.num_heads)}",
    )
    refuse(
        sizes.top_k > sizes.num_experts or (sizes.num_experts > 0 and sizes.top_k == 0),
        f"{place}.top_k={sizes.top_k} of {place}.num_experts={sizes.num_experts} experts",
        place=f"{place}.top_k, {place}.num_experts",
        remedy="give 1 ≤ top_k ≤ num_experts, or 0 for both: a dense model",
    )


def _check_moe(parallel: ParallelConfig, sizes: ModelSizes, place: str) -> None:
    _refuse_uneven(sizes.num_experts, "experts", parallel.ep, f"{place}.ep")
    _refuse_uneven(sizes.intermediate_size, "columns of an expert", parallel.etp, f"{place}.etp")
    refuse(
        parallel.tp > 1 and not parallel.sequence_parallel,
        f"{place}.tp={parallel.tp} without sequence parallelism would send each token to its experts "
        f"{parallel.tp} times",
        place=f"{place}.sequence_parallel, {place}.tp",
        remedy=f"set {place}.sequence_parallel=true",
    )


def _check_cluster(config: RunConfig) -> None:
    parallel, tp, gpus = config.learner.parallel, config.generation.tp, config.cluster.gpus_per_node
    refuse(
        config.cluster.num_nodes > 1 and not config.cluster.address,
        f"cluster.num_nodes={config.cluster.num_nodes}, and an empty cluster.address starts Ray on this machine alone",
        place="cluster.num_nodes, cluster.address",
        remedy="start Ray on all machines (`ray start`) and set cluster.address=auto, or set cluster.num_nodes=1",
    )
    refuse(
        config.cluster.num_nodes > 1 and config.weights.transport is Transport.shm,
        f"weights.transport=shm reaches one machine, and cluster.num_nodes={config.cluster.num_nodes}",
        place="weights.transport, cluster.num_nodes",
        remedy="set weights.transport=file, with the run's folder or weights.folder where all machines see it",
    )
    if not gpus:
        refuse(
            tp > 1,
            f"generation.tp={tp} on CPUs, where each engine has one rank (cluster.gpus_per_node=0)",
            place="generation.tp, cluster.gpus_per_node",
            remedy="set generation.tp=1, or give the number of GPUs of a machine",
        )
        return
    refuse(
        gpus % tp != 0,
        f"generation.tp={tp} does not divide cluster.gpus_per_node={gpus}: an engine would lie on two machines",
        place="generation.tp, cluster.gpus_per_node",
        remedy=f"set generation.tp to one of {_divisors(gpus)}",
    )
    refuse(
        gpus % parallel.tp != 0,
        f"learner.parallel.tp={parallel.tp} does not divide cluster.gpus_per_node={gpus}: ranks that share each matrix "
        "would lie on two machines",
        place="learner.parallel.tp, cluster.gpus_per_node",
        remedy=f"set learner.parallel.tp to one of {_divisors(gpus)}; stages of a pipeline (pp) may lie on several",
    )
    _check_room(config)


def _check_room(config: RunConfig) -> None:
    """Enough GPUs for the generators and for whole copies of the model."""
    parallel, cluster, generation = config.learner.parallel, config.cluster, config.generation
    total, copy, left = cluster.num_nodes * cluster.gpus_per_node, parallel.ranks_of_copy, gpus_left(config)
    needed = copy * max(parallel.dp, 1)
    sizes = f"tp {parallel.tp} · pp {parallel.pp} · cp {parallel.cp}" + (f" · dp {parallel.dp}" if parallel.dp else "")
    taken = total - left
    most_generators = (total - needed - taken) // generation.tp + generation.num_generators
    others = " and the reward model" if config.reward.model.path else ""
    refuse(
        left < needed,
        f"{generation.num_generators} generators of {generation.tp} GPUs each{others} leave {max(left, 0)} of the "
        f"cluster's {total} GPUs, and the learner needs {needed} ({sizes})",
        place="generation.num_generators, generation.tp, learner.parallel, cluster.num_nodes, cluster.gpus_per_node",
        remedy=(f"set generation.num_generators={most_generators} or less, or " if most_generators > 0 else "")
        + f"give {taken + needed} GPUs",
    )
    refuse(
        parallel.dp == 0 and left % copy != 0,
        f"the {left} GPUs that the generators leave are no multiple of the {copy} that a copy of the model takes "
        f"({sizes}): {left % copy} would stand idle",
        place="learner.parallel, generation.num_generators",
        remedy=f"set learner.parallel.dp={left // copy} to leave them idle, or change generation.num_generators",
    )


def _check_batch(config: RunConfig) -> None:
    """Each shard has something of each mini-batch."""
    learner = config.learner
    trajectories = learner.groups_per_step * config.generation.group_size // learner.mini_batches
    shards = num_shards(config)
    refuse(
        shards > trajectories,
        f"{shards} data parallel ranks share a mini-batch of {trajectories} trajectories: some would have none",
        place="learner.parallel.dp, learner.groups_per_step, generation.group_size, learner.mini_batches",
        remedy=f"let groups_per_step · group_size / mini_batches be {shards} or more, or use fewer ranks",
    )


def _refuse_uneven(size: int, what: str, parts: int, option: str) -> None:
    refuse(
        size % parts != 0,
        f"{option}={parts} does not divide the model's {size} {what}",
        place=option,
        remedy=f"set {option} to one of {_divisors(size)}",
    )


def _divisors(number: int) -> str:
    """Those that a number of ranks may have, in words."""
    return ", ".join(str(n) for n in range(1, min(number, _MOST_RANKS) + 1) if number % n == 0)
