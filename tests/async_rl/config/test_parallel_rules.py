"""What no cluster could keep of a layout: each refused with its value, its place and a remedy that works."""

from dataclasses import replace

import pytest

from async_rl.config.loop import Transport
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig
from async_rl.config.parallel_rules import check_layout_sizes, check_sizes
from async_rl.errors import ConfigError
from tests.async_rl.config.sound import SOUND, accepted, changed, refusal

DENSE = ModelSizes(
    num_layers=36,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12288,
    vocab_size=151936,
)
EXPERTS = replace(DENSE, num_kv_heads=4, intermediate_size=768, num_experts=128, top_k=8)
CLUSTER = {
    "cluster.address": "auto",
    "cluster.num_nodes": 2,
    "cluster.gpus_per_node": 8,
    "weights.transport": Transport.file,
}


def refused(parallel: ParallelConfig, sizes: ModelSizes = DENSE) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_layout_sizes(parallel, sizes, "learner.parallel")
    return caught.value


def test_pieces_of_stages_need_a_pipeline_and_shared_activations_need_tensor_parallel_ranks() -> None:
    error = refusal(learner__parallel__vpp=2)
    assert error.place == "learner.parallel.vpp, learner.parallel.pp"
    accepted(learner__parallel__vpp=2, learner__parallel__pp=2)
    error = refusal(learner__parallel__sequence_parallel=True)
    assert "learner.parallel.tp=2 or more" in error.remedy
    accepted(learner__parallel__sequence_parallel=True, learner__parallel__tp=2)


def test_engines_on_cpus_have_one_rank() -> None:
    accepted(learner__parallel__cp=2)
    assert refusal(generation__tp=2).remedy == "set generation.tp=1, or give the number of GPUs of a machine"
    accepted(generation__tp=2, cluster__gpus_per_node=8)


def test_who_shares_each_matrix_lies_on_one_machine() -> None:
    error = refusal(generation__tp=3, cluster__gpus_per_node=8)
    assert "generation.tp to one of 1, 2, 4, 8" in error.remedy
    error = refusal(**CLUSTER, learner__parallel__tp=16)
    assert error.place == "learner.parallel.tp, cluster.gpus_per_node"


def test_several_machines_are_joined_by_ray() -> None:
    error = refusal(cluster__num_nodes=2, cluster__gpus_per_node=8)
    assert error.place == "cluster.num_nodes, cluster.address"
    assert "cluster.address=auto" in error.remedy


def test_shared_memory_reaches_one_machine() -> None:
    error = refusal(cluster__num_nodes=2, cluster__address="auto")
    assert error.place == "weights.transport, cluster.num_nodes"
    accepted(cluster__num_nodes=2, cluster__address="auto", weights__transport=Transport.file)


def test_generators_leave_room_for_a_copy_of_the_model() -> None:
    options: dict[str, object] = {**CLUSTER, "learner.parallel.tp": 8, "generation.num_generators": 9}
    error = refusal(**options)
    assert "leave 7 of the cluster's 16 GPUs, and the learner needs 8 (tp 8 · pp 1 · cp 1)" in error.problem
    assert error.remedy == "set generation.num_generators=8 or less, or give 17 GPUs"
    accepted(**{**options, "generation.num_generators": 8})
    options |= {"reward.model.path": "classifier", "learner.parallel.dp": 1}
    error = refusal(**{**options, "generation.num_generators": 8})
    assert "8 generators of 1 GPUs each and the reward model leave 7" in error.problem
    assert error.remedy == "set generation.num_generators=7 or less, or give 17 GPUs"
    accepted(**{**options, "generation.num_generators": 7})


def test_the_copies_that_are_asked_for_have_to_be_there() -> None:
    options: dict[str, object] = {**CLUSTER, "learner.parallel.tp": 4, "generation.num_generators": 4}
    error = refusal(**options, learner__parallel__dp=4)
    assert "the learner needs 16 (tp 4 · pp 1 · cp 1 · dp 4)" in error.problem
    assert error.remedy == "give 20 GPUs"
    accepted(**options, learner__parallel__dp=3)


def test_no_gpu_stands_idle_unasked() -> None:
    options: dict[str, object] = {**CLUSTER, "learner.parallel.tp": 4, "generation.num_generators": 2}
    error = refusal(**options)
    assert "14 GPUs" in error.problem and "2 would stand idle" in error.problem
    assert error.remedy.startswith("set learner.parallel.dp=3 ")
    accepted(**options, learner__parallel__dp=3)


def test_experts_are_dealt_out_evenly() -> None:
    assert refusal(learner__parallel__ep=2).place == "learner.parallel.ep, learner.parallel.etp"
    accepted(learner__parallel__ep=2, learner__parallel__dp=2)
    error = refusal(learner__parallel__ep=4, learner__parallel__etp=2, learner__parallel__dp=4)
    assert error.remedy == "let ep · etp be one of 1, 2, 4"


def test_each_rank_has_a_trajectory_of_each_mini_batch() -> None:
    options: dict[str, object] = {
        "generation.group_size": 2,
        "learner.groups_per_step": 4,
        "learner.mini_batches": 2,
        "learner.parallel.dp": 5,
    }
    assert "5 data parallel ranks share a mini-batch of 4 trajectories" in refusal(**options).problem
    accepted(**{**options, "learner.parallel.dp": 4})


@pytest.mark.parametrize(
    ("parallel", "problem", "remedy"),
    [
        (ParallelConfig(tp=3), "32 query heads", "1, 2, 4, 8, 16, 32"),
        (
            ParallelConfig(tp=4, cp=16),
            "8 query heads of a tensor parallel rank",
            "learner.parallel.cp to one of 1, 2, 4, 8",
        ),
        (ParallelConfig(tp=16), "8 key and value heads", "1, 2, 4, 8"),
        (ParallelConfig(pp=8), "pp=8 times vpp=1 does not divide the model's 36 layers", "1, 2, 3, 4, 6, 9"),
        (ParallelConfig(pp=4, vpp=2), "pp=4 times vpp=2", "1, 2, 3, 4"),
        (ParallelConfig(ep=2), "the model has none", "ep=1"),
    ],
)
def test_a_layout_divides_a_dense_model(parallel: ParallelConfig, problem: str, remedy: str) -> None:
    error = refused(parallel)
    assert problem in error.problem and remedy in error.remedy


@pytest.mark.parametrize(
    ("parallel", "problem"),
    [
        (ParallelConfig(ep=3), "128 experts"),
        (ParallelConfig(etp=5), "768 columns of an expert"),
        (ParallelConfig(tp=2), "without sequence parallelism"),
    ],
)
def test_a_layout_divides_a_model_of_experts(parallel: ParallelConfig, problem: str) -> None:
    assert problem in refused(parallel, EXPERTS).problem
    check_layout_sizes(ParallelConfig(tp=4, sequence_parallel=True, ep=8, pp=2, vpp=2), EXPERTS, "learner.parallel")


def test_an_engine_shares_key_heads_or_has_copies_of_them() -> None:
    sizes = {f"model.sizes.{name}": getattr(EXPERTS, name) for name in ModelSizes.__dataclass_fields__}
    accepted(**sizes, **CLUSTER, generation__tp=8)
    odd = {**sizes, "model.sizes.num_heads": 36, "model.sizes.num_kv_heads": 6}
    error = refusal(**odd, **CLUSTER, generation__tp=4)
    assert "neither divides the model's 6 key and value heads nor is a multiple" in error.problem


def test_sizes_are_given_whole() -> None:
    error = refusal(model__sizes__num_layers=36)
    assert error.problem.startswith("model.sizes.hidden_size, model.sizes.num_heads")
    assert "read from the model's config.json" in error.remedy
    check_sizes(ModelSizes(), "model.sizes")
    check_sizes(EXPERTS, "model.sizes")
    for wrong in (replace(EXPERTS, top_k=0), replace(EXPERTS, top_k=129), replace(DENSE, num_kv_heads=5)):
        with pytest.raises(ConfigError):
            check_sizes(wrong, "model.sizes")


def test_every_layout_of_the_remedies_is_taken() -> None:
    """A remedy that is refused in turn would be none."""
    config = changed(SOUND, {"learner.parallel.vpp": 2, "learner.parallel.pp": 2})
    assert config.learner.parallel.ranks_of_copy == 2
    for pp in (1, 2, 3, 4, 6, 9, 12, 18, 36):
        check_layout_sizes(ParallelConfig(pp=pp), DENSE, "learner.parallel")
