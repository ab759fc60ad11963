"""How many ranks train: as asked for, or what the cluster leaves."""

from dataclasses import replace

from async_rl.config.generation import GenerationConfig
from async_rl.config.loop import ClusterConfig
from async_rl.config.parallel import ParallelConfig
from async_rl.config.ranks import gpus_left, num_ranks, num_sft_ranks, num_shards
from async_rl.config.schema import RunConfig, SftConfig


def make(parallel: ParallelConfig, *, gpus: int = 0, nodes: int = 1, generators: int = 1, tp: int = 1) -> RunConfig:
    config = RunConfig()
    return replace(
        config,
        learner=replace(config.learner, parallel=parallel),
        generation=GenerationConfig(num_generators=generators, tp=tp),
        cluster=ClusterConfig(num_nodes=nodes, gpus_per_node=gpus),
    )


def test_the_default_is_one_rank_on_cpus() -> None:
    assert (num_shards(RunConfig()), num_ranks(RunConfig())) == (1, 1)


def test_on_cpus_each_copy_is_there_once_unless_more_are_asked_for() -> None:
    assert num_ranks(make(ParallelConfig(tp=2, pp=2))) == 4
    asked = make(ParallelConfig(tp=2, dp=3))
    assert (num_shards(asked), num_ranks(asked)) == (3, 6)


def test_what_the_generators_leave_of_a_cluster_trains() -> None:
    config = make(ParallelConfig(tp=2), gpus=8, nodes=2, generators=4)
    assert (gpus_left(config), num_shards(config), num_ranks(config)) == (12, 6, 12)
    wide = make(ParallelConfig(tp=2, pp=2, cp=2), gpus=8, nodes=2, generators=2, tp=4)
    assert (gpus_left(wide), num_shards(wide), num_ranks(wide)) == (8, 1, 8)


def test_a_cluster_without_room_has_no_shard() -> None:
    config = make(ParallelConfig(tp=4), gpus=2, generators=1)
    assert (gpus_left(config), num_shards(config), num_ranks(config)) == (1, 0, 0)


def test_a_size_that_is_asked_for_is_taken_as_it_is() -> None:
    assert num_shards(make(ParallelConfig(dp=2), gpus=8, generators=2)) == 2


def test_a_fine_tuning_has_the_cluster_to_itself() -> None:
    assert num_sft_ranks(SftConfig()) == 1
    assert num_sft_ranks(SftConfig(parallel=ParallelConfig(tp=2, dp=3))) == 6
    eight = ClusterConfig(num_nodes=2, gpus_per_node=4)
    assert num_sft_ranks(SftConfig(parallel=ParallelConfig(tp=2), cluster=eight)) == 8
    assert num_sft_ranks(SftConfig(parallel=ParallelConfig(tp=16), cluster=eight)) == 0
