"""A rank's memory: laws that any layout keeps. tests/learner/megatron/test_memory.py has the real thing."""

from dataclasses import replace

import pytest

from async_rl.config.model import Dtype
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.sizing.account import GIB
from async_rl.sizing.activations import layers_in_flight
from async_rl.sizing.training import HeldModel, Training, stage_account, training_account
from tests.async_rl.sizing.shapes import LLAMA3_70B, QWEN3_8B, QWEN3_30B_A3B

POLICY = HeldModel(name="policy")


def make(sizes: ModelSizes = QWEN3_8B, parallel: ParallelConfig | None = None, shards: int = 1) -> Training:
    return Training(
        sizes=sizes,
        models=(POLICY,),
        parallel=parallel or ParallelConfig(),
        num_shards=shards,
        recompute=Recompute.none,
        dtype=Dtype.bfloat16,
        tokens=8192,
        micro_batches=8,
        on_gpus=True,
    )


def part(training: Training, name: str, stage: int = 0) -> int:
    found = stage_account(training, stage).part(name)
    assert found is not None
    return found.num_bytes


def test_a_weight_takes_18_bytes_under_bfloat16_and_16_under_float32() -> None:
    """ZeRO (arXiv:1910.02054) counts 16: it takes gradients of two bytes, and ours have four."""
    mixed, plain = make(), replace(make(), dtype=Dtype.float32)
    state = ("weights", "gradients", "optimizer")
    assert sum(part(mixed, name) for name in state) / part(mixed, "weights") == pytest.approx(18 / 2)
    assert sum(part(plain, name) for name in state) / part(plain, "weights") == pytest.approx(16 / 4)


def test_data_parallel_ranks_share_the_optimizer_alone() -> None:
    one, four = make(), make(shards=4)
    assert part(four, "optimizer") == pytest.approx(part(one, "optimizer") / 4)
    assert part(four, "gradients") == part(one, "gradients")


def test_tensor_parallel_ranks_share_all_but_the_norms() -> None:
    one, four = make(), make(parallel=ParallelConfig(tp=4, sequence_parallel=True))
    for name in ("weights", "gradients", "optimizer", "activations"):
        assert part(four, name) == pytest.approx(part(one, name) / 4, rel=1e-3)
    partly = make(parallel=ParallelConfig(tp=4))
    assert part(four, "activations") < part(partly, "activations") < part(one, "activations")


def test_experts_are_shared_by_more_ranks_than_the_rest() -> None:
    parallel = ParallelConfig(tp=4, ep=8, sequence_parallel=True)
    spread = make(QWEN3_30B_A3B, parallel, shards=4)
    alone = make(QWEN3_30B_A3B, replace(parallel, ep=1), shards=4)
    assert part(spread, "weights") < part(alone, "weights") / 4
    # 16 ranks hold the optimizer's state of each expert once, on either layout.
    assert part(spread, "optimizer") == pytest.approx(part(alone, "optimizer"), rel=1e-3)
    assert part(spread, "optimizer") * 16 == pytest.approx(12 * 30.5e9, rel=0.01)


def test_a_pipelines_first_stage_holds_the_most_activations() -> None:
    parallel = ParallelConfig(tp=8, pp=4, sequence_parallel=True)
    training = make(LLAMA3_70B, parallel)
    kept = [part(training, "activations", stage) for stage in range(4)]
    # The last stage keeps the input of the norm behind all layers, too.
    assert [kept[0] / k for k in kept] == pytest.approx([1, 4 / 3, 2, 4], rel=0.003)
    assert training_account(training).owner == "learner rank, stage 1 of 4"


@pytest.mark.parametrize(("vpp", "pieces"), [(1, 4), (2, 2 * 3 + 4 + 1), (5, 2 * 3 + 4 * 4 + 1)])
def test_pieces_of_stages_keep_more(vpp: int, pieces: int) -> None:
    """Korthikanti et al.: (1 + (p − 1)/(pm)) times the activations of 1F1B, and one piece more for the start."""
    parallel = ParallelConfig(pp=4, vpp=vpp)
    layers = layers_in_flight(LLAMA3_70B, parallel, 0, micro_batches=64)
    assert layers == pieces * 80 // (4 * vpp)
    if vpp > 1:
        assert layers == pytest.approx(80 * (1 + 3 / (4 * vpp)), abs=80 / (4 * vpp))


def test_a_short_step_has_less_in_flight() -> None:
    assert layers_in_flight(LLAMA3_70B, ParallelConfig(pp=4), 0, micro_batches=2) == 2 * 20


def test_recomputing_keeps_a_layers_input_alone() -> None:
    whole, full = make(), replace(make(), recompute=Recompute.full)
    assert part(full, "activations") == (36 + 1) * 8192 * 4096 * 2
    assert part(full, "activations") < part(whole, "activations") / 10
    assert part(full, "working memory") > part(whole, "working memory")


def test_context_parallel_ranks_share_the_tokens() -> None:
    assert part(make(parallel=ParallelConfig(cp=2)), "activations") == part(make(), "activations") // 2


def test_more_models_take_more() -> None:
    policy = make()
    both = replace(policy, models=(POLICY, HeldModel(name="critic", has_vocabulary=False)))
    frozen = replace(policy, models=(POLICY, HeldModel(name="reference", is_trained=False)))
    assert part(both, "optimizer") == pytest.approx(2 * part(policy, "optimizer"), rel=0.1)
    assert part(frozen, "weights") == 2 * part(policy, "weights")
    assert part(frozen, "optimizer") == part(policy, "optimizer")


def test_of_models_that_come_and_go_the_largest_counts() -> None:
    policy = make()
    critic = HeldModel(name="critic", has_vocabulary=False, is_offloaded=True)
    reference = HeldModel(name="reference", is_trained=False, is_offloaded=True)
    assert training_account(replace(policy, models=(POLICY, reference, critic))) == (
        training_account(replace(policy, models=(POLICY, replace(critic, is_offloaded=False))))
    )


def test_adapters_are_all_that_gradients_and_optimizer_are_of() -> None:
    policy, lora = make(), replace(make(), models=(HeldModel(name="policy", lora_rank=16),))
    # 43.6 million: 36 layers of 16 · (4·4096 + 2·(4096 + 1024) + 3·12288).
    adapters = 36 * 16 * (4 * 4096 + 2 * (4096 + 1024) + 3 * 12288)
    assert part(lora, "weights") - part(policy, "weights") == 2 * adapters
    assert (part(lora, "gradients"), part(lora, "optimizer")) == (4 * adapters, 12 * adapters)
    shared = replace(lora, parallel=ParallelConfig(tp=2, pp=2))
    assert part(shared, "gradients") == 4 * 18 * 16 * (4 * 4096 + 4096 + 1024 + 3 * 12288 // 2)


def test_an_exact_kl_keeps_hidden_states_of_all_tokens() -> None:
    policy = make()
    exact = replace(policy, keeps_reference_states=True)
    assert part(exact, "activations") - part(policy, "activations") == 8 * 8192 * 4096 * 2


def test_8b_on_one_rank_needs_more_than_any_gpu_has() -> None:
    account = training_account(make())
    assert account.total > 150 * GIB
    assert account.total == sum(p.num_bytes for p in account.parts)
