"""Products are those of torch's own, whatever kernel makes them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.products import multiply, multiply_transposed

sizes = st.integers(0, 40)


@given(sizes, sizes, sizes, st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_products_of_any_shape_strides_and_format(
    m: int, n: int, k: int, a_is_turned: bool, b_is_turned: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    a = torch.randn(k, m, dtype=dtype).t() if a_is_turned else torch.randn(m, k, dtype=dtype)
    b = torch.randn(k, n, dtype=dtype).t() if b_is_turned else torch.randn(n, k, dtype=dtype)
    expected = a.double() @ b.double().t()
    bound = 1e-5 if dtype == torch.float32 else 1e-12
    for found in (multiply(a, b), multiply_transposed(a.t(), b.t())):
        assert found.dtype == dtype and found.shape == (m, n)
        assert torch.allclose(found.double(), expected, rtol=0, atol=bound * (1 + k**0.5))


def test_bfloat16_stays_so() -> None:
    a, b = torch.randn(5, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    assert multiply(a, b).dtype == torch.bfloat16
    assert torch.allclose(multiply(a, b), a @ b.t(), atol=0.1)


def test_float32_is_not_rounded_to_less() -> None:
    # In bfloat16 or TF32, 1 + 2⁻²⁰ is 1.
    a = torch.full((64, 64), 1 + 2**-20)
    assert multiply(a, torch.eye(64)).equal(a)


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AssertionError):
        multiply(torch.zeros(2, 3), torch.zeros(3, 2))
