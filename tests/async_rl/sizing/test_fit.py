"""What does not fit is refused, with a remedy that makes it fit."""

import re
from dataclasses import replace

import pytest

from async_rl.config.loop import Transport
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.objective import Estimator, KLEstimator
from async_rl.config.option import with_options
from async_rl.config.parallel import Recompute
from async_rl.config.schema import RunConfig
from async_rl.errors import ResourceError
from async_rl.sizing.fit import check_fit
from async_rl.sizing.run import accounts, held_models, training_of
from tests.async_rl.config.sound import SOUND
from tests.async_rl.sizing.shapes import LLAMA3_70B, QWEN3_8B

MACHINE = with_options(
    SOUND,
    {
        "model": ModelConfig(path="m", dtype=Dtype.bfloat16),
        "cluster.gpus_per_node": 8,
        "cluster.gpu_memory_gib": 79.0,
        "data.max_prompt_tokens": 1024,
        "generation.num_generators": 4,
        "generation.max_new_tokens": 7168,
        "generation.max_model_len": 8192,
        "generation.kv_cache_gib": 40.0,
        "learner.micro_batch_tokens": 32768,
        "learner.parallel.tp": 4,
        "learner.parallel.sequence_parallel": True,
    },
)


def refusal(config: RunConfig, sizes: ModelSizes = QWEN3_8B) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        check_fit(config, sizes)
    return caught.value


def mended(config: RunConfig, error: ResourceError) -> RunConfig:
    """The config with what the remedy says."""
    kinds: dict[str, type] = {"recompute": Recompute, "kv_cache_gib": float}
    options: dict[str, object] = {}
    for option, value in re.findall(r"([a-z_.]+)=(\S+)", error.remedy):
        kind = kinds.get(option.rpartition(".")[2], int)
        options[option] = value == "true" if value in ("true", "false") else kind(value)
    assert options, error.remedy
    return with_options(config, options)


def test_what_fits_is_taken() -> None:
    check_fit(with_options(MACHINE, {"learner.recompute": Recompute.full}), QWEN3_8B)


def test_unknown_memory_refuses_nothing() -> None:
    for option in ("cluster.gpu_memory_gib", "cluster.gpus_per_node"):
        check_fit(with_options(MACHINE, {option: 0, "learner.parallel.dp": 1}), QWEN3_8B)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, "set learner.recompute=full"),
        ({"learner.parallel.sequence_parallel": False}, "set learner.recompute=full"),
        (
            {"learner.recompute": Recompute.full, "learner.micro_batch_tokens": 2**20, "learner.groups_per_step": 256},
            "set learner.micro_batch_tokens=131072",
        ),
    ],
)
def test_the_cheapest_remedy_of_the_learner_is_named_and_works(options: dict[str, object], remedy: str) -> None:
    config = with_options(MACHINE, options)
    error = refusal(config)
    assert "each learner rank needs" in error.problem and "are 75.0 GiB" in error.problem
    assert error.place == "learner, cluster.gpu_memory_gib"
    assert error.remedy == remedy
    check_fit(mended(config, error), QWEN3_8B)


def test_models_that_come_and_go_make_room() -> None:
    config = with_options(
        MACHINE,
        {"learner.recompute": Recompute.full, "kl.coef": 0.1, "advantage.estimator": Estimator.gae},
    )
    error = refusal(config)
    assert error.remedy == "set critic.offload=true kl.offload=true"
    check_fit(mended(config, error), QWEN3_8B)
    exact = with_options(config, {"kl.estimator": KLEstimator.full})
    assert "kl.offload" not in refusal(exact).remedy


def test_where_thrift_is_not_enough_more_ranks_share_the_model() -> None:
    cluster: dict[str, object] = {
        "cluster.num_nodes": 4,
        "cluster.address": "auto",
        "weights.transport": Transport.file,
        "generation.tp": 4,
    }
    config = with_options(MACHINE, cluster)
    error = refusal(config, LLAMA3_70B)
    # The 16 GPUs that the engines leave cannot hold it, however they share it.
    assert error.remedy == ("set cluster.num_nodes=8 learner.parallel.pp=4 learner.recompute=full")
    learner, _ = accounts(mended(config, error), LLAMA3_70B)
    assert learner.gib < 75


def test_a_model_too_large_for_the_cluster_has_no_small_remedy() -> None:
    error = refusal(with_options(MACHINE, {"cluster.gpu_memory_gib": 20.0}), LLAMA3_70B)
    assert "give larger GPUs" in error.remedy


def test_fewer_keys_and_values_or_more_gpus_an_engine() -> None:
    thrifty = with_options(MACHINE, {"learner.recompute": Recompute.full})
    greedy = with_options(thrifty, {"generation.kv_cache_gib": 70.0})
    error = refusal(greedy)
    assert "each engine needs" in error.problem and "keys and values (70.0 GiB)" in error.problem
    assert error.remedy == "set generation.kv_cache_gib=56"
    check_fit(mended(greedy, error), QWEN3_8B)


def test_an_engine_that_could_finish_no_sequence_is_refused_everywhere() -> None:
    config = with_options(MACHINE, {"cluster.gpu_memory_gib": 0.0, "generation.kv_cache_gib": 1.0})
    error = refusal(config)
    assert "holds the keys and values of 7,281 tokens, and a sequence may have generation.max_model_len=8,192" in (
        error.problem
    )
    assert error.remedy.startswith("set generation.kv_cache_gib=1.2 or more; 64 requests of full length at once take ")
    check_fit(with_options(config, {"generation.kv_cache_gib": 1.2}), QWEN3_8B)


def test_the_models_of_a_rank_are_those_of_the_objective() -> None:
    def names(config: RunConfig) -> list[str]:
        return [model.name for model in held_models(config)]

    assert names(SOUND) == ["policy"]
    assert names(with_options(SOUND, {"kl.coef": 0.1})) == ["policy", "reference"]
    assert names(with_options(SOUND, {"kl.coef": 0.1, "learner.lora.rank": 8})) == ["policy"]
    assert names(with_options(SOUND, {"advantage.estimator": Estimator.gae})) == ["policy", "critic"]


def test_a_micro_batch_is_no_larger_than_the_batch() -> None:
    small = replace(SOUND, learner=replace(SOUND.learner, groups_per_step=2, micro_batch_tokens=2**20))
    training = training_of(small, QWEN3_8B)
    longest = small.data.max_prompt_tokens + small.generation.max_new_tokens
    assert (training.tokens, training.micro_batches) == (2 * small.generation.group_size * longest, 1)
    large = replace(small, learner=replace(small.learner, groups_per_step=64, micro_batch_tokens=4 * longest))
    training = training_of(large, QWEN3_8B)
    assert (training.tokens, training.micro_batches) == (4 * longest, 64 * small.generation.group_size // 4)
