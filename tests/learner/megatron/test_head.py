"""Policy, reference and critic on up to four ranks, against one: what their heads say, and what they learn from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.parallel import ParallelConfig
from learner.backend import TokenScores
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference, read_folder
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

# Odd: the second of two ranks has a row of padding.
VOCAB = 67
TEMPERATURE = 0.8
LENGTHS = (9, 33, 2, 20, 27, 12)
rng = np.random.default_rng(6)
SEQUENCES = [rng.integers(0, VOCAB, n) for n in LENGTHS]
WEIGHTS = [torch.from_numpy(rng.normal(size=(3, n - 1))).float() for n in LENGTHS]
NUM_SCORED = sum(LENGTHS) - len(LENGTHS)
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1, clip_grad_norm=0.5)
NUM_STEPS = 3
BOUND = 5e-6

Plan = Sequence[Sequence[int]]
"""Micro-batches of a shard; one without sequences scores nothing."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a rank has heard."""

    plan: Plan
    scores: list[TokenScores]
    values: list[Tensor]
    losses: list[float]
    grad_norms: list[float]
    weights: dict[str, Tensor]
    """The speaker's alone."""

    def by_sequence(self) -> dict[int, Tensor]:
        """[5, t − 1]: scores and values of the tokens of each sequence of its shard but the first."""
        found: dict[int, Tensor] = {}
        for part, scores, values in zip(self.plan, self.scores, self.values, strict=True):
            assert scores.sum_pi_squared is not None and scores.exact_kl is not None
            columns = [scores.logprobs, scores.entropy, scores.sum_pi_squared, scores.exact_kl, values]
            rows = torch.stack(columns).split([LENGTHS[i] - 1 for i in part], dim=1)
            found |= dict(zip(part, rows, strict=True))
        return found


def learn(place: Place, folder: Path, parallel: ParallelConfig, plans: Sequence[Plan], dtype: Dtype) -> Learned:
    """A rank's part."""
    with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
        plan = plans[MegatronMesh().shard]
        micro_batches = [PackedSequences.pack([SEQUENCES[i] for i in part] or [[0]]) for part in plan]
        weights = [torch.cat([WEIGHTS[i] for i in part], 1) if part else torch.zeros(3, 0) for part in plan]
        model, other = (ModelConfig(path=str(folder / name), dtype=dtype) for name in ("model", "other"))
        policy = MegatronBackend(ground, model, OPTIMIZER, num_steps=NUM_STEPS)
        reference = MegatronBackend(ground, other, None, num_steps=NUM_STEPS)
        critic = MegatronCritic(ground, model, OPTIMIZER, num_steps=NUM_STEPS)

        def policy_loss(scores: TokenScores, index: int) -> Tensor:
            assert scores.exact_kl is not None
            said = torch.stack([scores.logprobs, scores.entropy, scores.exact_kl])
            return (weights[index] * said).sum() / NUM_SCORED

        def value_loss(values: Tensor, index: int) -> Tensor:
            return (values - weights[index][0]).square().sum() / NUM_SCORED

        results = []
        for _ in range(NUM_STEPS):
            results.append(policy.step(micro_batches, policy_loss, temperature=TEMPERATURE, reference=reference))
            results.append(critic.step(micro_batches, value_loss))
        learned = Learned(
            plan=plan,
            scores=policy.score(micro_batches, temperature=TEMPERATURE, with_sum_pi_squared=True, reference=reference),
            values=critic.values(micro_batches),
            losses=[result.loss for result in results],
            grad_norms=[result.grad_norm for result in results],
            weights={name: weight.clone() for name, weight in policy.named_weights()},
        )
        policy.export(folder / "export")
        return learned


ALL: Plan = (tuple(range(len(LENGTHS))),)
LAYOUTS: dict[str, tuple[int, ParallelConfig, Sequence[Plan]]] = {
    "tp2": (2, ParallelConfig(tp=2), [((0, 1, 2), (3, 4, 5))]),
    "tp2, sequence parallel": (2, ParallelConfig(tp=2, sequence_parallel=True), [((5, 1), (), (0, 2, 3, 4))]),
    "pp2": (2, ParallelConfig(pp=2), [((0, 1), (), (2, 3), (4, 5))]),
    "dp2, uneven": (2, ParallelConfig(dp=2), [((0, 1, 2), (3, 5)), ((4,), ())]),
    "tp2 pp2, sequence parallel, interleaved": (
        4,
        ParallelConfig(tp=2, pp=2, vpp=2, sequence_parallel=True),
        [((0, 1), (2, 3), (4, 5))],
    ),
}


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_on_many_ranks_say_and_learn_what_they_do_on_one(
    make_reference: MakeReference, tmp_path: Path, layout: str, tie: bool
) -> None:
    make_reference(tie_word_embeddings=tie, vocab_size=VOCAB, num_hidden_layers=4)
    # A pipeline of four pieces needs four layers.
    num_layers = 4 if "interleaved" in layout else 2
    make_reference(
        tie_word_embeddings=tie, vocab_size=VOCAB, num_hidden_layers=num_layers, hidden_size=32, folder="other"
    )
    (expected,) = run_ranks(1, learn, tmp_path, ParallelConfig(), [ALL], Dtype.float32)
    exported = read_folder(tmp_path / "export")
    assert min(expected.grad_norms[::2]) > OPTIMIZER.clip_grad_norm

    world_size, parallel, plans = LAYOUTS[layout]
    found = run_ranks(world_size, learn, tmp_path, parallel, plans, Dtype.float32)
    for rank in found:
        assert rank.losses == pytest.approx(expected.losses, abs=BOUND)
        assert rank.grad_norms == pytest.approx(expected.grad_norms, rel=BOUND)
        for sequence, rows in rank.by_sequence().items():
            assert (rows - expected.by_sequence()[sequence]).abs().max() < 5 * BOUND
    assert found[0].weights.keys() == expected.weights.keys() and not any(rank.weights for rank in found[1:])
    for name, weight in found[0].weights.items():
        assert (weight - expected.weights[name]).abs().max() <= BOUND, name
    again = read_folder(tmp_path / "export")
    assert again.keys() == exported.keys()
    assert all(torch.equal(tensor, found[0].weights[name]) for name, tensor in again.items())


def test_two_ranks_train_in_bfloat16_as_one_does(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference(vocab_size=VOCAB)
    make_reference(vocab_size=VOCAB, num_hidden_layers=1, folder="other")
    (expected,) = run_ranks(1, learn, tmp_path, ParallelConfig(), [ALL], Dtype.bfloat16)
    found = run_ranks(2, learn, tmp_path, ParallelConfig(tp=2), [ALL], Dtype.bfloat16)
    # Sums over two ranks are rounded to bfloat16 differently.
    assert found[0].losses == pytest.approx(expected.losses, rel=0.02, abs=0.01)
    assert found[0].losses == found[1].losses


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_a_rank_may_have_hardly_a_word(make_reference: MakeReference, tmp_path: Path, vocab_size: int) -> None:
    make_reference(vocab_size=vocab_size)

    def score(place: Place, parallel: ParallelConfig) -> Tensor:
        with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
            backend = MegatronBackend(ground, ModelConfig(path=str(tmp_path / "model")), None, num_steps=1)
            packed = PackedSequences.pack([[0, 1, vocab_size - 1, 0, 1]])
            (scores,) = backend.score([packed], temperature=TEMPERATURE)
            return torch.stack([scores.logprobs, scores.entropy])

    (expected,) = run_ranks(1, score, ParallelConfig())
    for found in run_ranks(2, score, ParallelConfig(tp=2)):
        assert (found - expected).abs().max() < BOUND
