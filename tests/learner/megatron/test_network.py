"""What ranks agree on beside the numbers of a step: nothing to learn from, steps that are skipped, formats."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.errors import ConfigError
from learner.backend import StepResult
from learner.megatron.head import Head
from learner.megatron.mesh import MegatronMesh
from learner.megatron.network import Network
from learner.megatron.runtime import Ground
from learner.megatron.weights import named_weights
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

BATCH = [PackedSequences.pack([[1, 2, 3], [4, 5, 6, 7]]), PackedSequences.pack([[8, 9]]), PackedSequences.pack([[5]])]
LAYOUTS = [ParallelConfig(dp=2), ParallelConfig(pp=2), ParallelConfig(pp=2, vpp=2), ParallelConfig(tp=2)]


def open_network(ground: Ground, folder: Path, dtype: Dtype = Dtype.float32) -> Network:
    """One that trains."""
    model, optimizer = ModelConfig(path=str(folder), dtype=dtype), OptimizerConfig(lr=1e-2)
    return Network(ground, model, Head.VOCABULARY, optimizer, num_steps=9, recompute=Recompute.none)


def weights_of(network: Network) -> dict[str, Tensor]:
    """By their names; none but on rank 0."""
    return {name: tensor.clone() for name, tensor in named_weights(network.chunks, network.shape, lambda p: p)}


def are_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def mean(hidden: Tensor, index: int) -> Tensor:
    """A loss that every weight has a part in, if the output layer is the embedding."""
    return hidden.float().square().mean()


@pytest.mark.parametrize("parallel", LAYOUTS)
def test_nothing_to_learn_from_is_a_step_with_gradient_zero(
    make_reference: MakeReference, tmp_path: Path, parallel: ParallelConfig
) -> None:
    make_reference(num_hidden_layers=4)

    def step(place: Place) -> StepResult:
        with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
            network = open_network(ground, tmp_path / "model")
            return network.step(BATCH, lambda hidden, index: torch.zeros(()))

    for result in run_ranks(2, step):
        assert (result.loss, result.grad_norm, result.skipped) == (0.0, 0.0, False)


@pytest.mark.parametrize("parallel", LAYOUTS)
@pytest.mark.parametrize("broken", [lambda x: x * math.nan, lambda x: (0.0 * x).sqrt()], ids=["loss", "gradient"])
def test_what_is_not_finite_in_one_shard_is_skipped_by_all(
    make_reference: MakeReference, tmp_path: Path, parallel: ParallelConfig, broken: Callable[[Tensor], Tensor]
) -> None:
    make_reference(num_hidden_layers=4, tie_word_embeddings=True)

    def stumble(place: Place) -> tuple[StepResult, bool, StepResult]:
        with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
            network = open_network(ground, tmp_path / "model")
            before, is_unlucky = weights_of(network), MegatronMesh().shard == 0

            def loss_of(hidden: Tensor, index: int) -> Tensor:
                return broken(mean(hidden, index)) if is_unlucky and index == 1 else mean(hidden, index)

            skipped = network.step(BATCH, loss_of)
            return skipped, are_equal(weights_of(network), before), network.step(BATCH, mean)

    found = run_ranks(2, stumble)
    assert all(skipped.skipped and is_unchanged and not after.skipped for skipped, is_unchanged, after in found)
    assert found[0][2] == found[1][2]


def test_bfloat16_trains_on_float32_main_weights_on_every_rank(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference(num_hidden_layers=2)

    def train(place: Place) -> tuple[list[float], set[torch.dtype]]:
        parallel = ParallelConfig(tp=2, pp=2)
        with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
            network = open_network(ground, tmp_path / "model", Dtype.bfloat16)
            losses = [network.step(BATCH, mean).loss for _ in range(4)]
            return losses, {tensor.dtype for tensor in weights_of(network).values()}

    found = run_ranks(4, train)
    assert all(losses == found[0][0] for losses, _ in found)
    assert found[0][0][-1] < found[0][0][0]
    assert found[0][1] == {torch.bfloat16}


@pytest.mark.parametrize(
    ("parallel", "options", "place"),
    [
        (ParallelConfig(pp=2), {"num_hidden_layers": 3}, "learner.parallel.pp"),
        (ParallelConfig(pp=2, vpp=2), {"num_hidden_layers": 2}, "learner.parallel.pp"),
        (ParallelConfig(tp=2), {"architecture": "Qwen3MoeForCausalLM"}, "learner.parallel.sequence_parallel"),
    ],
)
def test_a_model_that_the_layout_does_not_divide_is_refused(
    make_reference: MakeReference, tmp_path: Path, parallel: ParallelConfig, options: dict[str, object], place: str
) -> None:
    make_reference(**options)

    def refuse(at: Place) -> str:
        with (
            Ground(parallel, at, seed=0, num_threads=1, timeout_s=60) as ground,
            pytest.raises(ConfigError) as caught,
        ):
            open_network(ground, tmp_path / "model")
        return caught.value.place

    assert run_ranks(2, refuse) == [place] * 2
