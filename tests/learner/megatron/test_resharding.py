"""A checkpoint of one layout of ranks, gone on from in another: the next step is that of the run that never stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import Tensor

from async_rl.config.learner import OptimizerConfig, Schedule
from async_rl.config.lora import LoraConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import ParallelConfig
from learner.backend import StepResult, TokenScores
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

LENGTHS = (9, 33, 2, 20, 27, 12)
SEQUENCES = [torch.randint(0, 67, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in LENGTHS]
NUM_SCORED = sum(LENGTHS) - len(LENGTHS)
BOUND = 5e-6
# Adam divides gradients near zero by eps, which would blow rounding up.
OPTIMIZER = OptimizerConfig(
    lr=1e-2, eps=1e-3, weight_decay=0.1, clip_grad_norm=0.5, schedule=Schedule.cosine, warmup_steps=3
)

ONE = ParallelConfig()
TP2 = ParallelConfig(tp=2)
SP2 = ParallelConfig(tp=2, sequence_parallel=True)
PP2 = ParallelConfig(pp=2)
DP2 = ParallelConfig(dp=2)
EP2 = ParallelConfig(ep=2, dp=2)
TP2_PP2 = ParallelConfig(tp=2, pp=2)
INTERLEAVED = ParallelConfig(pp=2, vpp=2)


@dataclass(frozen=True, kw_only=True)
class Gone:
    """One step further."""

    step: StepResult
    said: list[Tensor]
    """Of every sequence: log-probabilities or values."""
    weights: dict[str, Tensor]
    """Of rank 0; a critic does not tell its own."""
    random: list[Tensor]
    """This rank's states, as they were before the step."""


class Policy:
    """All weights train, or adapters."""

    def __init__(self, ground: Ground, folder: Path, lora: LoraConfig | None = None) -> None:
        self.model = MegatronBackend(ground, ModelConfig(path=str(folder)), OPTIMIZER, num_steps=10, lora=lora)

    def step(self, micro_batches: Sequence[PackedSequences]) -> StepResult:
        def loss(scores: TokenScores, index: int) -> Tensor:
            return (-scores.logprobs + 0.05 * scores.logprobs.square()).sum() / NUM_SCORED

        return self.model.step(micro_batches, loss, temperature=1.0)

    def say(self, micro_batches: Sequence[PackedSequences]) -> list[Tensor]:
        return [scores.logprobs for scores in self.model.score(micro_batches, temperature=1.0)]

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in self.model.named_weights()}


class Adapters(Policy):
    """A policy whose adapters train."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        super().__init__(ground, folder, LoraConfig(rank=4, alpha=8.0))


class Critic:
    """A body with a head of one number."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.model = MegatronCritic(ground, ModelConfig(path=str(folder)), OPTIMIZER, num_steps=10)

    def step(self, micro_batches: Sequence[PackedSequences]) -> StepResult:
        return self.model.step(micro_batches, lambda values, index: (values - 1).square().sum() / NUM_SCORED)

    def say(self, micro_batches: Sequence[PackedSequences]) -> list[Tensor]:
        return self.model.values(micro_batches)

    def weights(self) -> dict[str, Tensor]:
        return {}


Model = type[Policy] | type[Critic]


def go_on(model: Policy | Critic) -> Gone:
    random = [torch.get_rng_state(), *get_cuda_rng_tracker().get_states().values()]
    return Gone(
        random=[state.clone() for state in random],
        step=model.step(own()),
        said=model.say([PackedSequences.pack([sequence]) for sequence in SEQUENCES]),
        weights=model.weights(),
    )


def own() -> list[PackedSequences]:
    """This shard's, in two micro-batches."""
    mesh = MegatronMesh()
    sequences = SEQUENCES[mesh.shard :: mesh.num_shards]
    return [PackedSequences.pack(sequences[:1]), PackedSequences.pack(sequences[1:])]


def save(place: Place, kind: Model, parallel: ParallelConfig, folder: Path, checkpoint: Path) -> Gone:
    with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
        model = kind(ground, folder)
        for _ in range(2):
            model.step(own())
        torch.rand(3)
        model.model.snapshot().write(checkpoint)
        return go_on(model)


def load(place: Place, kind: Model, parallel: ParallelConfig, folder: Path, checkpoint: Path) -> Gone:
    with Ground(parallel, place, seed=1, num_threads=1, timeout_s=60) as ground:
        model = kind(ground, folder)
        model.model.load(checkpoint)
        return go_on(model)


def num_ranks(parallel: ParallelConfig) -> int:
    return parallel.ranks_of_copy * max(parallel.dp, 1)


CASES = {
    "policy, tp2": (Policy, TP2, (TP2, ONE, PP2, DP2)),
    "policy, pp2": (Policy, PP2, (PP2, DP2, ONE)),
    "policy, dp2": (Policy, DP2, (DP2, TP2, ONE)),
    "policy, tp2 pp2": (Policy, TP2_PP2, (ONE, SP2)),
    "policy, interleaved": (Policy, INTERLEAVED, (INTERLEAVED, PP2, ONE)),
    "policy, one": (Policy, ONE, (TP2_PP2, DP2)),
    "critic, tp2": (Critic, TP2, (TP2, ONE, DP2)),
    "critic, pp2": (Critic, PP2, (DP2,)),
    "adapters, tp2": (Adapters, TP2, (TP2, ONE, PP2)),
    "adapters, dp2": (Adapters, DP2, (TP2,)),
}


def assert_goes_on(
    make_reference: MakeReference, tmp_path: Path, case: tuple[Model, ParallelConfig, Sequence[ParallelConfig]]
) -> None:
    kind, before, afters = case
    arguments = (tmp_path / "model", tmp_path / "checkpoint")
    expected = run_ranks(num_ranks(before), save, kind, before, *arguments)
    assert not expected[0].step.skipped
    for after in afters:
        found = run_ranks(num_ranks(after), load, kind, after, *arguments)
        for rank in found:
            assert rank.step.lr == expected[0].step.lr
            assert rank.step.loss == pytest.approx(expected[0].step.loss, abs=BOUND)
            assert rank.step.grad_norm == pytest.approx(expected[0].step.grad_norm, abs=BOUND)
            for a, b in zip(rank.said, expected[0].said, strict=True):
                assert (a - b).abs().max() <= BOUND, after
        assert found[0].weights.keys() == expected[0].weights.keys()
        for name, weight in found[0].weights.items():
            assert (weight - expected[0].weights[name]).abs().max() <= BOUND, (after, name)
        is_same = after == before
        for rank, was in zip(found, expected, strict=False):
            assert all(torch.equal(a, b) for a, b in zip(rank.random, was.random, strict=True)) == is_same
        if is_same:
            assert [rank.step for rank in found] == [rank.step for rank in expected]
            assert all(torch.equal(weight, expected[0].weights[name]) for name, weight in found[0].weights.items())
            assert all(torch.equal(a, b) for a, b in zip(found[0].said, expected[0].said, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_next_step_is_the_same(make_reference: MakeReference, tmp_path: Path, case: str) -> None:
    make_reference(num_hidden_layers=4, tie_word_embeddings="policy" in case)
    assert_goes_on(make_reference, tmp_path, CASES[case])


@pytest.mark.parametrize("afters", [(EP2, ONE)], ids=["ep2, one"])
def test_experts_may_move(make_reference: MakeReference, tmp_path: Path, afters: Sequence[ParallelConfig]) -> None:
    make_reference("Qwen3MoeForCausalLM", tie_word_embeddings=False)
    assert_goes_on(make_reference, tmp_path, (Policy, EP2, afters))
