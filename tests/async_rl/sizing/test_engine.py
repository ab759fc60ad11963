"""An engine's memory."""

from dataclasses import replace

import pytest

from async_rl.config.generation import GenerationConfig
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.model_sizes import ModelSizes
from async_rl.sizing.account import GIB
from async_rl.sizing.engine import engine_account, kv_token_bytes, kv_tokens
from tests.async_rl.sizing.shapes import LLAMA3_70B, QWEN3_8B, QWEN3_30B_A3B

MODEL = ModelConfig(dtype=Dtype.bfloat16)
GENERATION = GenerationConfig(kv_cache_gib=40, max_model_len=16384, max_concurrent=256)


def weights_gib(sizes: ModelSizes, tp: int) -> float:
    account = engine_account(sizes, MODEL, replace(GENERATION, tp=tp), on_gpus=True)
    found = account.part("weights")
    assert found is not None
    return found.gib


def test_weights_are_shared_by_the_gpus_of_an_engine() -> None:
    assert weights_gib(QWEN3_8B, 1) == pytest.approx(16.4e9 / GIB, rel=0.01)
    assert weights_gib(LLAMA3_70B, 8) == pytest.approx(141.1e9 / 8 / GIB, rel=0.01)


def test_a_token_of_llama_70b_takes_320_kib_and_fewer_heads_than_gpus_are_there_twice() -> None:
    assert kv_token_bytes(LLAMA3_70B, MODEL, GENERATION) == 320 * 1024
    assert kv_token_bytes(LLAMA3_70B, MODEL, replace(GENERATION, tp=8)) == 40 * 1024
    four = kv_token_bytes(QWEN3_30B_A3B, MODEL, replace(GENERATION, tp=4))
    assert kv_token_bytes(QWEN3_30B_A3B, MODEL, replace(GENERATION, tp=8)) == four
    assert weights_gib(QWEN3_30B_A3B, 8) > weights_gib(QWEN3_30B_A3B, 4) / 2


def test_tokens_that_an_engine_holds() -> None:
    assert kv_tokens(LLAMA3_70B, MODEL, replace(GENERATION, kv_cache_gib=10)) == 10 * 2**30 // (320 * 1024)
