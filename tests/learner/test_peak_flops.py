import torch

from learner.peak_flops import peak_flops

CPU = torch.device("cpu")


def test_a_given_peak_is_taken() -> None:
    assert peak_flops(989.0, device=CPU, dtype=torch.bfloat16) == 989e12


def test_a_measured_peak_is_that_of_a_machine() -> None:
    """More than an interpreter does, less than any CPU."""
    assert 1e8 < peak_flops(0.0, device=CPU, dtype=torch.float32) < 1e14
