"""How many learner ranks a run has, and of what.

Owns what `learner.parallel.dp=0` comes to on a cluster. Whether there is room for it is for the rules to say.
"""

from async_rl.config.schema import RunConfig


def gpus_left(config: RunConfig) -> int:
    """GPUs of the cluster that the generators leave to the learner; below 0 where they ask for more than there are."""
    cluster, generation = config.cluster, config.generation
    return cluster.num_nodes * cluster.gpus_per_node - generation.num_generators * generation.tp


def num_shards(config: RunConfig) -> int:
    """Data parallel size: into how many parts each batch goes. Below 1 only where a cluster has too few GPUs."""
    parallel = config.learner.parallel
    if parallel.dp:
        return parallel.dp
    if not config.cluster.gpus_per_node:
        return 1
    return gpus_left(config) // parallel.ranks_of_copy


def num_ranks(config: RunConfig) -> int:
    """Processes that train together: a GPU each, or on CPUs some cores."""
    return config.learner.parallel.ranks_of_copy * num_shards(config)
