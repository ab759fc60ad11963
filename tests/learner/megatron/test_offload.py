"""A model that comes and goes: the same numbers to the bit, and nothing left behind on the device."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.parallel import ParallelConfig, Recompute
from learner.backend import StepResult
from learner.megatron import replicas
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.head import Head
from learner.megatron.network import Network
from learner.megatron.offload import Holding, Offload
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

CONFIG = OptimizerConfig(lr=1e-2, weight_decay=0.1)
rng = np.random.default_rng(5)
PACKED = [PackedSequences.pack([rng.integers(0, 67, n) for n in lengths]) for lengths in ((9, 33, 2), (20, 27))]


def loss(values: Tensor, index: int) -> Tensor:
    return (values - torch.arange(len(values)) / 7).square().sum() / 50


def train(critic: MegatronCritic, num_steps: int) -> tuple[list[StepResult], list[Tensor]]:
    """Steps and what the critic says between them."""
    steps, values = [], []
    for _ in range(num_steps):
        values += critic.values(PACKED)
        steps.append(critic.step(PACKED, loss))
    return steps, values + critic.values(PACKED)


def same(ours: tuple[list[StepResult], list[Tensor]], theirs: tuple[list[StepResult], list[Tensor]]) -> bool:
    return ours[0] == theirs[0] and all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))


OpenCritic = Callable[..., MegatronCritic]


@pytest.fixture
def open_critic(ground: Ground, tmp_path: Path) -> Iterator[OpenCritic]:
    """(*, offload, dtype=float32) → a critic on tmp_path/model."""
    with ExitStack() as stack:

        def open_(*, offload: bool, dtype: Dtype = Dtype.float32) -> MegatronCritic:
            model = ModelConfig(path=str(tmp_path / "model"), dtype=dtype)
            critic = MegatronCritic(ground, model, CONFIG, num_steps=10, offload=offload)
            stack.callback(critic.close)
            return critic

        yield open_


@pytest.mark.parametrize("dtype", list(Dtype))
def test_an_offloaded_critic_learns_the_same(
    make_reference: MakeReference, open_critic: OpenCritic, dtype: Dtype
) -> None:
    make_reference()
    staying, coming = (train(open_critic(offload=offload, dtype=dtype), 3) for offload in (False, True))
    assert staying[1][-1].abs().max() > 0.1
    assert same(staying, coming)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_an_offloaded_critic_goes_on_from_a_checkpoint_to_the_bit(
    make_reference: MakeReference, open_critic: OpenCritic, tmp_path: Path, dtype: Dtype
) -> None:
    make_reference()
    first = open_critic(offload=True, dtype=dtype)
    train(first, 2)
    first.snapshot().write(tmp_path / "checkpoint")
    resumed = open_critic(offload=True, dtype=dtype)
    train(resumed, 1)
    resumed.load(tmp_path / "checkpoint")
    assert same(train(first, 2), train(resumed, 2))


def _trained_on(place: Place, parallel: ParallelConfig, model: Path, offload: bool) -> tuple[list[float], list[Tensor]]:
    # As many as make several buckets, which travel one by one.
    replicas.BUCKET_SIZE = 2000
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        critic = MegatronCritic(ground, ModelConfig(path=str(model)), CONFIG, num_steps=10, offload=offload)
        steps, values = train(critic, 3)
        return [step.grad_norm for step in steps], values


@pytest.mark.parametrize(
    "parallel", [ParallelConfig(dp=2), ParallelConfig(tp=2, sequence_parallel=True), ParallelConfig(pp=2, vpp=2)]
)
def test_ranks_offload_their_parts(make_reference: MakeReference, tmp_path: Path, parallel: ParallelConfig) -> None:
    make_reference(num_hidden_layers=4)
    results = {offload: run_ranks(2, _trained_on, parallel, tmp_path / "model", offload) for offload in (False, True)}
    for (norms, values), (expected_norms, expected) in zip(results[True], results[False], strict=True):
        assert norms == expected_norms
        assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))


def test_an_offloaded_reference_scores_the_same(make_reference: MakeReference, ground: Ground, tmp_path: Path) -> None:
    make_reference()
    model = ModelConfig(path=str(tmp_path / "model"))
    staying, coming = (MegatronBackend(ground, model, None, num_steps=0, offload=offload) for offload in (False, True))
    expected = staying.score(PACKED, temperature=0.8)
    for _ in range(2):
        for ours, theirs in zip(coming.score(PACKED, temperature=0.8), expected, strict=True):
            assert torch.equal(ours.logprobs, theirs.logprobs)


def test_nothing_stays_on_the_device_between_uses(
    make_reference: MakeReference, ground: Ground, tmp_path: Path
) -> None:
    make_reference()
    network = Network(
        ground,
        ModelConfig(path=str(tmp_path / "model")),
        Head.VALUE,
        CONFIG,
        num_steps=10,
        recompute=Recompute.none,
        offload=True,
    )
    assert network.is_offloaded
    weights = [weight.untyped_storage() for chunk in network.chunks for weight in chunk.parameters()]
    gradients = [weight.main_grad.untyped_storage() for chunk in network.chunks for weight in chunk.parameters()]

    def held() -> tuple[bool, bool]:
        return any(s.nbytes() for s in weights), any(s.nbytes() for s in gradients)

    def loss_of(hidden: Tensor, index: int) -> Tensor:
        seen.append(held())
        return hidden.sum()

    seen: list[tuple[bool, bool]] = []
    assert held() == (False, False)
    network.evaluate(PACKED, lambda hidden, index: seen.append(held()))
    assert held() == (False, False)
    network.step(PACKED, loss_of)
    assert held() == (False, False)
    assert seen == 2 * [(True, False)] + 2 * [(True, True)]


def test_views_of_what_comes_back_are_views_still() -> None:
    whole, gradient, moment = torch.arange(6.0), torch.ones(6), torch.full((2,), 7.0)
    half = whole[3:]
    offload = Offload(
        {
            Holding.WEIGHTS: lambda: [whole, half],
            Holding.GRADIENTS: lambda: [gradient],
            Holding.OPTIMIZER: lambda: [half, moment],
        },
        is_frozen=False,
    )
    assert all(t.untyped_storage().nbytes() == 0 for t in (whole, gradient, moment))
    with offload.back(Holding.WEIGHTS, Holding.OPTIMIZER):
        assert moment.tolist() == [7, 7] and gradient.untyped_storage().nbytes() == 0
        half += 1
        moment += 1
    with offload.back(Holding.WEIGHTS):
        assert whole.tolist() == [0, 1, 2, 4, 5, 6]
        assert moment.untyped_storage().nbytes() == 0
    with offload.back(Holding.WEIGHTS, Holding.GRADIENTS, Holding.OPTIMIZER):
        assert moment.tolist() == [8, 8] and gradient.untyped_storage().nbytes() == 24


def test_what_went_wrong_in_a_use_leaves_nothing_behind() -> None:
    weight = torch.ones(3)
    offload = Offload({Holding.WEIGHTS: lambda: [weight]}, is_frozen=True)
    with pytest.raises(ZeroDivisionError), offload.back(Holding.WEIGHTS):
        _ = 1 / 0
    assert weight.untyped_storage().nbytes() == 0
    with offload.back(Holding.WEIGHTS):
        assert weight.tolist() == [1, 1, 1]
