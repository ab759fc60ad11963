"""A fine-tuning that its GPUs cannot hold is refused."""

from dataclasses import replace

import pytest

from async_rl.config.loop import ClusterConfig
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import SftConfig
from async_rl.errors import ResourceError
from async_rl.sizing.sft import check_sft_fit, sft_account
from tests.async_rl.sizing.shapes import QWEN3_8B

CONFIG = SftConfig(
    model=ModelConfig(path="m", dtype=Dtype.bfloat16),
    parallel=ParallelConfig(tp=4, sequence_parallel=True),
    cluster=ClusterConfig(gpus_per_node=8, gpu_memory_gib=80),
)


def test_eight_billion_parameters_fit_on_eight_large_gpus_and_not_on_small_ones() -> None:
    check_sft_fit(CONFIG, QWEN3_8B)
    small = replace(CONFIG, cluster=replace(CONFIG.cluster, gpu_memory_gib=16))
    with pytest.raises(ResourceError, match="each learner rank needs") as caught:
        check_sft_fit(small, QWEN3_8B)
    assert caught.value.remedy.startswith("set recompute=full, lower micro_batch_tokens")


def test_more_copies_share_the_optimizer() -> None:
    alone = replace(CONFIG, parallel=replace(CONFIG.parallel, dp=1))
    assert sft_account(alone, QWEN3_8B).total > sft_account(CONFIG, QWEN3_8B).total


def test_what_is_not_known_is_not_refused() -> None:
    check_sft_fit(replace(CONFIG, cluster=ClusterConfig(gpus_per_node=1)), QWEN3_8B)
    check_sft_fit(replace(CONFIG, cluster=ClusterConfig(gpu_memory_gib=1)), QWEN3_8B)
