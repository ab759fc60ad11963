"""Σπ² and the KL over the whole vocabulary, against a naive float64 computation with transformers."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import Dtype
from learner import output_layer
from learner.backend import TokenScores
from learner.packing import PackedSequences
from tests.learner.conftest import MakeReference
from tests.learner.megatron.conftest import OpenBackend

pytestmark = pytest.mark.integration

LENGTHS = (9, 33, 1, 20)
TEMPERATURE = 0.8
UNCLIPPED = OptimizerConfig(clip_grad_norm=0.0)

rng = np.random.default_rng(3)
SEQUENCES = [rng.integers(0, 67, n) for n in LENGTHS]
WEIGHTS = [torch.from_numpy(rng.normal(size=n - 1)) for n in LENGTHS]
PACKED = [PackedSequences.pack(SEQUENCES)]


def log_p(model: PreTrainedModel, tokens: npt.NDArray[np.int64]) -> Tensor:
    """[t − 1, V] float64: of every token but the first."""
    return torch.log_softmax(model(torch.from_numpy(tokens)[None]).logits[0, :-1] / TEMPERATURE, dim=-1)


def naive_kl(policy: PreTrainedModel, reference: PreTrainedModel) -> list[Tensor]:
    """One [t − 1] a sequence."""
    divergences = []
    for tokens in SEQUENCES:
        p = log_p(policy, tokens)
        divergences.append((p.exp() * (p - log_p(reference, tokens).detach())).sum(-1))
    return divergences


@pytest.mark.parametrize("tie", [True, False])
def test_the_exact_kl_and_its_gradient(
    make_reference: MakeReference, open_backend: OpenBackend, monkeypatch: pytest.MonkeyPatch, tie: bool
) -> None:
    monkeypatch.setattr(output_layer, "CPU_TILE", (10, 32))
    policy = make_reference(tie_word_embeddings=tie)
    reference = make_reference(tie_word_embeddings=tie, num_hidden_layers=1, folder="other")
    ours, theirs = open_backend(UNCLIPPED), open_backend(None, folder="other")
    expected = naive_kl(policy.double(), reference.double())
    total = sum((w @ kl for w, kl in zip(WEIGHTS, expected, strict=True)), torch.zeros(()))
    total.backward()

    (scores,) = ours.score(PACKED, temperature=TEMPERATURE, reference=theirs)
    assert scores.exact_kl is not None and not scores.exact_kl.requires_grad
    assert torch.cat(expected).max() > 0.1
    assert (scores.exact_kl - torch.cat(expected)).abs().max() < 1e-5

    plan = ((1, 3), (0, 2))
    micro_batches = [PackedSequences.pack([SEQUENCES[i] for i in part]) for part in plan]
    weights = [torch.cat([WEIGHTS[i] for i in part]).float() for part in plan]

    def loss(scores: TokenScores, index: int) -> Tensor:
        assert scores.exact_kl is not None
        return weights[index] @ scores.exact_kl

    result = ours.step(micro_batches, loss, temperature=TEMPERATURE, reference=theirs)
    assert result.loss == pytest.approx(float(total), rel=1e-5)
    gradients = {name: p.grad for name, p in policy.named_parameters()}
    for name, gradient in ours.named_gradients():
        exact = gradients[name]
        assert exact is not None
        assert (gradient - exact).abs().max() < 1e-5 * max(1.0, float(exact.abs().max()))


def test_sum_pi_squared_is_that_of_transformers(make_reference: MakeReference, open_backend: OpenBackend) -> None:
    model = make_reference().double()
    (scores,) = open_backend(None).score(PACKED, temperature=TEMPERATURE, with_sum_pi_squared=True)
    with torch.no_grad():
        expected = [log_p(model, tokens).exp().square().sum(-1) for tokens in SEQUENCES]
    assert scores.sum_pi_squared is not None
    assert (scores.sum_pi_squared - torch.cat(expected)).abs().max() < 1e-6


def test_lazy_logits_leave_the_model_as_it_was(make_reference: MakeReference, open_backend: OpenBackend) -> None:
    make_reference()
    backend = open_backend(OptimizerConfig())
    (before,) = backend.score(PACKED, temperature=1.0)
    backend.lazy_logits(PACKED)
    assert torch.equal(backend.score(PACKED, temperature=1.0)[0].logprobs, before.logprobs)


@torch.no_grad()
def test_a_tile_of_lazy_logits_is_that_of_transformers(
    make_reference: MakeReference, open_backend: OpenBackend
) -> None:
    model = make_reference()
    (lazy,) = open_backend(None).lazy_logits(PACKED)
    expected = torch.cat([model(torch.from_numpy(tokens)[None]).logits[0, :-1] for tokens in SEQUENCES])
    assert (lazy.tile(slice(4, 40), slice(20, 67)) - expected[4:40, 20:67]).abs().max() < 2e-5


def test_a_bfloat16_policy_has_next_to_no_kl_to_itself(
    make_reference: MakeReference, open_backend: OpenBackend, tmp_path: Path
) -> None:
    make_reference()
    policy, frozen = open_backend(OptimizerConfig(), dtype=Dtype.bfloat16), open_backend(None, dtype=Dtype.bfloat16)
    exact_kl = policy.score(PACKED, temperature=1.0, reference=frozen)[0].exact_kl
    assert exact_kl is not None and exact_kl.abs().max() < 1e-6
