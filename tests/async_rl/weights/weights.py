"""Tensors of every kind that travels, and their comparison."""

import torch

Tensors = list[tuple[str, torch.Tensor]]


def weights(version: int) -> Tensors:
    """Two dtypes, odd sizes, a scalar, an empty one, a transposed one."""
    generator = torch.Generator().manual_seed(version)
    return [
        ("embed", torch.randn(37, 5, generator=generator)),
        ("half", torch.randn(3, 7, 2, generator=generator).to(torch.bfloat16)),
        ("scalar", torch.tensor(float(version))),
        ("empty", torch.zeros(0, 4)),
        ("transposed", torch.randn(16, 9, generator=generator).T),
        ("large", torch.randn(700_001, generator=generator)),
    ]


def assert_same(received: Tensors, expected: Tensors) -> None:
    """Names, dtypes, shapes and every bit of a number's value."""
    assert [name for name, _ in received] == [name for name, _ in expected]
    for (name, left), (_, right) in zip(received, expected, strict=True):
        assert left.dtype == right.dtype and left.shape == right.shape, name
        assert torch.equal(left, right), name
