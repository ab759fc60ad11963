"""Cores: engines first, the learner's ranks on what is left. Nodes: who talks most shares one."""

from dataclasses import replace

from async_rl.config.generation import GenerationConfig
from async_rl.config.loop import ClusterConfig
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import RunConfig
from async_rl.placement import Bundle, Placement, generator_bundles, in_order_of_nodes, learner_bundles, place


def pinned(num_generators: int, num_ranks: int, cores: list[int]) -> Placement:
    return place(num_generators=num_generators, num_ranks=num_ranks, cores=cores, pin=True)


def test_one_generator_and_the_learner_share_no_core_on_two() -> None:
    assert pinned(1, 1, [0, 1]) == Placement(generators=[[0]], ranks=[[1]])


def test_ranks_share_out_all_cores_that_are_left() -> None:
    assert pinned(2, 1, [3, 1, 0, 2]).ranks == [[2, 3]]
    assert pinned(1, 2, [0, 1, 2, 3, 4]).ranks == [[1, 2], [3, 4]]
    assert pinned(1, 2, [0, 1, 2, 3]).ranks == [[1], [2, 3]]


def test_more_ranks_than_cores_left_go_round() -> None:
    assert pinned(1, 3, [0, 1, 2]).ranks == [[1], [2], [1]]


def test_where_generators_take_all_cores_ranks_go_round_from_the_last() -> None:
    assert pinned(3, 1, [0, 1]) == Placement(generators=[[0], [1], [0]], ranks=[[1]])
    assert pinned(2, 2, [0, 1]).ranks == [[1], [0]]


def test_without_pinning_the_system_decides() -> None:
    placement = place(num_generators=2, num_ranks=2, cores=[0, 1], pin=False)
    assert placement == Placement(generators=[None, None], ranks=[None, None])


def make(*, gpus: int) -> RunConfig:
    config = RunConfig()
    return replace(
        config,
        learner=replace(config.learner, parallel=ParallelConfig(tp=2, pp=2, dp=2)),
        generation=GenerationConfig(num_generators=3, tp=4),
        cluster=ClusterConfig(num_nodes=4, gpus_per_node=gpus),
    )


def test_tensor_parallel_peers_share_a_node_and_an_engines_gpus_too() -> None:
    learner, generators = learner_bundles(make(gpus=8)), generator_bundles(make(gpus=8))
    assert learner == [Bundle(num_processes=2, cpus=1, gpus=1)] * 4
    assert learner[0].resources == {"CPU": 2.0, "GPU": 2.0}
    assert generators == [Bundle(num_processes=1, cpus=1, gpus=4)] * 3
    assert generators[0].resources == {"CPU": 1.0, "GPU": 4.0}


def test_on_cpus_nobody_asks_for_gpus() -> None:
    bundles = [*learner_bundles(make(gpus=0)), *generator_bundles(make(gpus=0))]
    assert [bundle.resources for bundle in bundles] == [{"CPU": 2.0}] * 4 + [{"CPU": 1.0}] * 3


def test_bundles_of_one_node_follow_each_other() -> None:
    assert in_order_of_nodes({0: "b", 1: "a", 2: "b", 3: "c", 4: "a"}) == [0, 2, 1, 4, 3]
