"""Scores and their gradients, against log_softmax and autograd in float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from learner import token_scores as module
from learner.packing import PackedSequences
from learner.token_scores import RowScores, score_rows, token_scores

SEQUENCES = PackedSequences.pack([[3, 1, 4], [1], [5, 2, 0, 5, 3]])
VOCABULARY = 7


class GivenLogits:
    """`LazyLogits` that are there, and remember the largest chunk."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self.largest = 0

    def chunk(self, rows: slice) -> Tensor:
        chosen = self._logits[rows]
        self.largest = max(self.largest, len(chosen))
        return chosen.float() if self._logits.dtype != torch.float64 else chosen


def naive(logits: Tensor, labels: Tensor, others: Tensor, temperature: float) -> RowScores:
    """[N, V], [N], [N, V] by their definitions, in the logits' own dtype."""
    logp = torch.log_softmax(logits / temperature, dim=-1)
    log_q = torch.log_softmax(others / temperature, dim=-1)
    return RowScores(
        logprobs=logp.gather(-1, labels[:, None])[:, 0],
        entropy=-(logp.exp() * logp).sum(-1),
        sum_pi_squared=logp.exp().square().sum(-1),
        exact_kl=(logp.exp() * (logp - log_q)).sum(-1),
    )


def by_sequence(rows: Tensor) -> Tensor:
    """[T], where row t speaks of token t + 1, to what stands at each token, sequence by sequence."""
    parts = SEQUENCES.unpack(rows)
    return torch.cat([torch.cat([part.new_zeros(1), part[:-1]]) for part in parts])


@contextmanager
def chunks_of(elements: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_CPU_CHUNK_ELEMENTS", elements)
        patch.setattr(module, "_REFERENCE_ROWS", 1)
        yield


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("chunk_elements", [1, 14, 1 << 20])
def test_scores_and_gradients_are_exact(
    monkeypatch: pytest.MonkeyPatch, temperature: float, chunk_elements: int
) -> None:
    torch.manual_seed(0)
    exact = (3 * torch.randn(9, VOCABULARY, dtype=torch.float64)).requires_grad_()
    others = 3 * torch.randn(9, VOCABULARY)
    leaf = exact.detach().float().requires_grad_()
    weights = torch.randn(3, 9)
    expected = naive(exact, SEQUENCES.token_ids.roll(-1), others.double(), temperature)
    with chunks_of(chunk_elements, monkeypatch):
        # The backward pass overwrites the logits, which a leaf may not suffer.
        found = token_scores(
            leaf * 1.0,
            SEQUENCES,
            temperature=temperature,
            with_sum_pi_squared=True,
            reference=GivenLogits(others),
        )
        assert found.exact_kl is not None and found.sum_pi_squared is not None and expected.exact_kl is not None
        pairs = [
            (found.logprobs, by_sequence(expected.logprobs)),
            (found.entropy, by_sequence(expected.entropy)),
            (found.exact_kl, by_sequence(expected.exact_kl)),
        ]
        sum((w.double() @ theirs for w, (_, theirs) in zip(weights, pairs, strict=True)), torch.zeros(())).backward()
        sum((w @ ours for w, (ours, _) in zip(weights, pairs, strict=True)), torch.zeros(())).backward()
    for ours, theirs in [*pairs, (found.sum_pi_squared, by_sequence(expected.sum_pi_squared))]:  # type: ignore[arg-type]
        assert ours.dtype == torch.float32
        assert ((ours - theirs).abs() / (1 + theirs.abs())).max() < 1e-6
    assert leaf.grad is not None and exact.grad is not None
    assert (leaf.grad - exact.grad).abs().max() < 1e-5


@pytest.mark.parametrize("used", ["logprobs", "entropy", "exact_kl"])
def test_each_score_has_its_own_gradient(used: str) -> None:
    torch.manual_seed(1)
    labels, others = torch.randint(0, VOCABULARY, (5,)), torch.randn(5, VOCABULARY, dtype=torch.float64)
    leaf = torch.randn(5, VOCABULARY, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, dtype=torch.float64)
    expected = torch.autograd.grad(weights @ getattr(naive(leaf, labels, others, 0.7), used), leaf)[0]
    found = score_rows(leaf * 1.0, labels, temperature=0.7, reference=GivenLogits(others))
    assert (torch.autograd.grad(weights @ getattr(found, used), leaf)[0] - expected).abs().max() < 1e-12


def test_float64_stays_float64_and_any_shape_is_a_row() -> None:
    torch.manual_seed(2)
    logits, others = torch.randn(2, 3, 4, VOCABULARY, dtype=torch.float64), torch.randn(24, VOCABULARY).double()
    labels = torch.randint(0, VOCABULARY, (2, 3, 4))
    expected = naive(logits.flatten(0, 2), labels.flatten(), others, 1.0)
    found = score_rows(logits, labels, temperature=1.0, with_sum_pi_squared=True, reference=GivenLogits(others))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours is not None and theirs is not None and ours.shape == labels.shape
        assert (ours.flatten() - theirs).abs().max() < 1e-12


def test_what_was_not_asked_for_is_not_there() -> None:
    found = token_scores(torch.randn(9, VOCABULARY), SEQUENCES, temperature=1.0)
    assert found.sum_pi_squared is None and found.exact_kl is None


def test_sum_pi_squared_has_no_gradient() -> None:
    logits = torch.randn(9, VOCABULARY, requires_grad=True)
    found = token_scores(logits * 1.0, SEQUENCES, temperature=1.0, with_sum_pi_squared=True)
    assert found.sum_pi_squared is not None and not found.sum_pi_squared.requires_grad
    assert found.logprobs.requires_grad


def test_the_reference_is_asked_for_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, VOCABULARY, requires_grad=True)
    reference = GivenLogits(torch.randn(9, VOCABULARY))
    with chunks_of(2 * VOCABULARY, monkeypatch):
        found = token_scores(logits * 1.0, SEQUENCES, temperature=1.0, reference=reference)
        assert found.exact_kl is not None
        found.exact_kl.sum().backward()
    assert reference.largest == 2


def test_a_policy_has_no_kl_to_itself() -> None:
    logits = 5 * torch.randn(9, VOCABULARY)
    leaf = logits.clone().requires_grad_()
    found = token_scores(leaf * 1.0, SEQUENCES, temperature=0.5, reference=GivenLogits(logits))
    assert found.exact_kl is not None
    found.exact_kl.sum().backward()
    assert found.exact_kl.detach().abs().max() < 1e-6
    assert leaf.grad is not None and leaf.grad.abs().max() < 1e-6


def test_first_tokens_score_zero() -> None:
    found = token_scores(
        torch.randn(9, VOCABULARY),
        SEQUENCES,
        temperature=1.0,
        with_sum_pi_squared=True,
        reference=GivenLogits(torch.randn(9, VOCABULARY)),
    )
    for column in (found.logprobs, found.entropy, found.sum_pi_squared, found.exact_kl):
        assert column is not None and column[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]


def test_certain_and_impossible_words_stay_finite() -> None:
    leaf = torch.tensor([[1e4, -1e4, 0.0], [-3e4, 3e4, 3e4]]).requires_grad_()
    reference = GivenLogits(torch.tensor([[-1e4, 1e4, 0.0], [0.0, 0.0, 1e4]]))
    found = score_rows(leaf * 1.0, torch.tensor([1, 1]), temperature=1.0, with_sum_pi_squared=True, reference=reference)
    assert found.logprobs.tolist() == pytest.approx([-2e4, -0.6931472])
    assert found.entropy.tolist() == pytest.approx([0.0, 0.6931472])
    assert found.exact_kl is not None and found.sum_pi_squared is not None
    assert found.exact_kl.tolist() == pytest.approx([2e4, 5e3 - 0.6931472])
    assert found.sum_pi_squared.tolist() == pytest.approx([1.0, 0.5])
    (found.logprobs + found.entropy + found.exact_kl).sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


def test_bfloat16_logits_score_in_float32() -> None:
    logits = torch.randn(9, VOCABULARY).bfloat16()
    found = token_scores(logits.clone(), SEQUENCES, temperature=1.0)
    expected = naive(logits.double(), SEQUENCES.token_ids.roll(-1), logits.double(), 1.0)
    assert found.logprobs.dtype == torch.float32
    assert (found.logprobs - by_sequence(expected.logprobs)).abs().max() < 2e-6
