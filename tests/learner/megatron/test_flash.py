"""The fused kernels, against a softmax written out."""

import pytest
import torch

from learner.megatron.flash import attend, attend_backward

NUM, HEADS, GROUPS, LENGTH, HEAD, SCALE = 3, 4, 2, 7, 8, 0.3


def drawn(num_keys: int) -> list[torch.Tensor]:
    """Query, key and value, float64."""
    torch.manual_seed(num_keys)
    shapes = [(NUM, HEADS, LENGTH, HEAD), (NUM, GROUPS, num_keys, HEAD), (NUM, GROUPS, num_keys, HEAD)]
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def products(query: torch.Tensor, key: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    """[N, H, L, K]"""
    scores = query @ key.repeat_interleave(HEADS // GROUPS, dim=1).mT * SCALE
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf) if is_causal else scores


@pytest.mark.parametrize(("num_keys", "is_causal"), [(LENGTH, True), (11, False), (1, False)])
def test_output_log_sum_exp_and_gradients(num_keys: int, is_causal: bool) -> None:
    query, key, value = drawn(num_keys)
    scores = products(query, key, is_causal=is_causal)
    expected = scores.softmax(-1) @ value.repeat_interleave(HEADS // GROUPS, dim=1)
    q, k, v = (x.detach() for x in (query, key, value))
    output, log_sum_exp = attend(q, k, v, is_causal=is_causal, scale=SCALE)
    assert (output - expected).abs().max() < 1e-12
    assert (log_sum_exp - scores.logsumexp(-1)).abs().max() < 1e-12
    grad = torch.randn_like(output)
    expected.backward(grad)
    found = attend_backward(grad, q, k, v, output, log_sum_exp, is_causal=is_causal, scale=SCALE)
    for x, y in zip(found, (query, key, value), strict=True):
        assert y.grad is not None and (x - y.grad).abs().max() < 1e-12


def test_a_merge_s_output_and_log_sum_exp_give_each_part_s_gradient() -> None:
    query, key, value = drawn(11)
    expected = products(query, key, is_causal=False).softmax(-1) @ value.repeat_interleave(HEADS // GROUPS, dim=1)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    q, k, v = (x.detach() for x in (query, key, value))
    whole = attend(q, k, v, is_causal=False, scale=SCALE)
    queries = torch.zeros_like(q)
    for keys in (slice(4), slice(4, 11)):
        dq, dk, dv = attend_backward(grad, q, k[:, :, keys], v[:, :, keys], *whole, is_causal=False, scale=SCALE)
        queries += dq
        for part, x in ((dk, key), (dv, value)):
            assert x.grad is not None and (part - x.grad[:, :, keys]).abs().max() < 1e-12
    assert query.grad is not None and (queries - query.grad).abs().max() < 1e-12
