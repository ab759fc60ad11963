"""Scores and their gradients, against log_softmax and autograd in float64."""

import pytest
import torch

from learner.megatron import scores
from learner.megatron.scores import token_scores
from learner.packing import PackedSequences

SEQUENCES = PackedSequences.pack([[3, 1, 4], [1], [5, 2, 0, 5, 3]])


def reference(logits: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, V] → log-probabilities [T] and entropies [T], sequence by sequence as the definition reads."""
    logprobs, entropies = [], []
    for rows, tokens in zip(SEQUENCES.unpack(logits), SEQUENCES.unpack(SEQUENCES.token_ids), strict=True):
        for t in range(len(tokens)):
            logp = torch.log_softmax(rows[t - 1] / temperature, dim=-1)
            logprobs.append(logp[tokens[t]] if t else logp.new_zeros(()))
            entropies.append(-(logp.exp() * logp).sum() if t else logp.new_zeros(()))
    return torch.stack(logprobs), torch.stack(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("chunk_elements", [1, 14, 1 << 20])
def test_scores_and_gradients_are_exact(
    monkeypatch: pytest.MonkeyPatch, temperature: float, chunk_elements: int
) -> None:
    monkeypatch.setattr(scores, "_CHUNK_ELEMENTS", chunk_elements)
    torch.manual_seed(0)
    exact = (3 * torch.randn(9, 7, dtype=torch.float64)).requires_grad_()
    leaf = exact.detach().float().requires_grad_()
    weights = torch.randn(2, 9)
    expected = reference(exact, temperature)
    # The backward pass overwrites the logits, which a leaf may not suffer.
    found = token_scores(leaf * 1.0, SEQUENCES, temperature=temperature)
    (weights[0].double() @ expected[0] + weights[1].double() @ expected[1]).backward()
    (weights[0] @ found.logprobs + weights[1] @ found.entropy).backward()
    assert leaf.grad is not None and exact.grad is not None
    assert (found.logprobs - expected[0]).abs().max() < 2e-6
    assert (found.entropy - expected[1]).abs().max() < 2e-6
    assert (leaf.grad - exact.grad).abs().max() < 5e-6


def test_first_tokens_score_zero() -> None:
    found = token_scores(torch.randn(9, 7), SEQUENCES, temperature=1.0)
    assert found.logprobs[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    assert found.entropy[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]


def test_bfloat16_logits_score_in_float32() -> None:
    logits = torch.randn(9, 7).bfloat16()
    found = token_scores(logits.clone(), SEQUENCES, temperature=1.0)
    assert found.logprobs.dtype == torch.float32
    assert (found.logprobs - reference(logits.double(), 1.0)[0]).abs().max() < 2e-6
