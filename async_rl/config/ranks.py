"""How many learner ranks a run has, and of what.

Owns what `parallel.dp=0` comes to on a cluster. Whether there is room for it is for the rules to say.
"""

from async_rl.config.schema import RunConfig, SftConfig


def gpus_left(config: RunConfig) -> int:
    """GPUs of the cluster that generators and reward model leave to the learner; below 0 where there are too few."""
    cluster, generation = config.cluster, config.generation
    taken = generation.num_generators * generation.tp + bool(config.reward.model.path)
    return cluster.num_nodes * cluster.gpus_per_node - taken


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


def num_sft_ranks(config: SftConfig) -> int:
    """The same of a fine-tuning, which has the cluster to itself. 0 only where a cluster has too few GPUs."""
    parallel, gpus = config.parallel, config.cluster.num_nodes * config.cluster.gpus_per_node
    num_shards = parallel.dp or (gpus // parallel.ranks_of_copy if gpus else 1)
    return parallel.ranks_of_copy * num_shards
