"""A prompt that is computed once for its responses changes no number: against rows that repeat it, and transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor
from transformers import PreTrainedModel

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import ParallelConfig, Recompute
from learner.backend import TokenScores
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.packing import Int64Array, PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference
from tests.learner.megatron.conftest import OpenBackend
from tests.learner.megatron.lengths import Groups, groups
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

BOUND = 1e-5
TEMPERATURE = 0.8
# So small that what a step changes is nothing.
STILL = OptimizerConfig(lr=1e-30, weight_decay=0.0, clip_grad_norm=0.0)
GROUPS: Groups = [(9, [4, 0, 7, 1]), (1, [3, 3]), (20, [6]), (9, [12, 12])]

Gradients = dict[str, Tensor]


def draw(lengths: Groups) -> list[tuple[Int64Array, list[Int64Array]]]:
    """Prompts and responses of these lengths."""
    rng = np.random.default_rng(0)
    return [(rng.integers(0, 67, prompt), [rng.integers(0, 67, n) for n in ns]) for prompt, ns in lengths]


def one_by_one(lengths: Groups) -> list[tuple[Int64Array, int]]:
    """Each prompt with each of its responses, and the response's length."""
    return [(np.concatenate([prompt, r]), len(r)) for prompt, responses in draw(lengths) for r in responses]


def rows(lengths: Groups) -> dict[str, PackedSequences]:
    """Both ways to pack them."""
    sequences = one_by_one(lengths)
    return {
        "shared": PackedSequences.pack_groups(draw(lengths)),
        "plain": PackedSequences.pack([tokens for tokens, _ in sequences], [count for _, count in sequences]),
    }


def loss_of(logprobs: Tensor) -> Tensor:
    """Not linear, and of another weight for each token."""
    weights = torch.linspace(-1.0, 1.0, len(logprobs), dtype=logprobs.dtype)
    return (weights * logprobs + 0.05 * logprobs.square()).sum() / max(len(logprobs), 1)


def take_step(backend: MegatronBackend, packed: PackedSequences) -> tuple[float, float]:
    """Loss and gradient norm."""

    def loss(scores: TokenScores, _: int) -> Tensor:
        return loss_of(scores.logprobs)

    result = backend.step([packed], loss, temperature=TEMPERATURE)
    return result.loss, result.grad_norm


def reference_logprobs(model: PreTrainedModel, lengths: Groups) -> Tensor:
    """[M] float64: by transformers, one sequence at a time."""
    found = [torch.empty(0, dtype=torch.float64)]
    for tokens, count in one_by_one(lengths):
        logits = model(torch.from_numpy(tokens)[None]).logits[0, len(tokens) - count - 1 : -1] / TEMPERATURE
        labels = torch.from_numpy(tokens[len(tokens) - count :])
        found.append(logits.log_softmax(-1).gather(1, labels[:, None])[:, 0])
    return torch.cat(found)


def apart(found: Gradients, expected: Gradients) -> float:
    """The largest difference of two gradients, all of whose numbers are of the order of 1 or smaller."""
    return max(float((found[name] - gradient).abs().max()) for name, gradient in expected.items())


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_scores_loss_and_gradients_are_those_of_plain_rows_and_of_transformers(
    make_reference: MakeReference, open_backend: OpenBackend, architecture: str
) -> None:
    model, backend = make_reference(architecture).double(), open_backend(STILL)

    @settings(max_examples=15)
    @given(lengths=groups())
    @example(lengths=GROUPS)
    @example(lengths=[(3, [0, 0])])
    def holds(lengths: Groups) -> None:
        model.zero_grad()
        logprobs = reference_logprobs(model, lengths)
        expected = loss_of(logprobs)
        if len(logprobs):
            expected.backward()
        gradients: dict[str, Gradients] = {}
        for name, packed in rows(lengths).items():
            (scores,) = backend.score([packed], temperature=TEMPERATURE)
            assert len(scores.logprobs) == len(logprobs)
            assert torch.allclose(scores.logprobs.double(), logprobs, rtol=0, atol=BOUND)
            loss, _ = take_step(backend, packed)
            assert loss == pytest.approx(float(expected), abs=BOUND)
            gradients[name] = {weight: gradient.clone() for weight, gradient in backend.named_gradients()}
        exact = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
        assert apart(gradients["shared"], gradients["plain"]) < BOUND
        assert apart(gradients["shared"], {name: exact[name] for name in gradients["shared"]}) < BOUND

    holds()


def scored(
    place: Place, folder: Path, parallel: ParallelConfig, recompute: Recompute
) -> tuple[dict[str, Tensor], dict[str, tuple[float, float]]]:
    """What a rank says of both rows: log-probabilities, and a step's loss and gradient norm."""
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        backend = MegatronBackend(ground, ModelConfig(path=str(folder)), STILL, num_steps=10, recompute=recompute)
        said = {name: backend.score([row], temperature=TEMPERATURE)[0].logprobs for name, row in rows(GROUPS).items()}
        steps = {name: take_step(backend, row) for name, row in rows(GROUPS).items()}
        backend.close()
    return said, steps


@pytest.mark.parametrize("recompute", list(Recompute))
def test_activations_made_twice_are_the_same(
    make_reference: MakeReference, tmp_path: Path, recompute: Recompute
) -> None:
    make_reference()
    (once,) = run_ranks(1, scored, tmp_path / "model", ParallelConfig(), Recompute.none)
    (twice,) = run_ranks(1, scored, tmp_path / "model", ParallelConfig(), recompute)
    assert once[0]["shared"].equal(twice[0]["shared"]) and once[1] == twice[1]


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        (2, ParallelConfig(tp=2)),
        (2, ParallelConfig(tp=2, sequence_parallel=True)),
        (2, ParallelConfig(pp=2)),
        (2, ParallelConfig(cp=2)),
    ],
)
def test_every_layout_of_ranks_says_the_same(
    make_reference: MakeReference, tmp_path: Path, world_size: int, parallel: ParallelConfig
) -> None:
    make_reference()
    ((expected, steps),) = run_ranks(1, scored, tmp_path / "model", ParallelConfig(), Recompute.none)
    for found, found_steps in run_ranks(world_size, scored, tmp_path / "model", parallel, Recompute.selective):
        for name in ("shared", "plain"):
            assert (found[name] - expected["plain"]).abs().max() < BOUND
            assert found_steps[name] == pytest.approx(steps["plain"], abs=BOUND)
