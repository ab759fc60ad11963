"""The update, against torch's own AdamW."""

import torch

from learner.megatron.adam import FusedLayoutAdamW


def test_five_steps_equal_torchs() -> None:
    torch.manual_seed(0)
    ours = [torch.randn(5, 3).requires_grad_(), torch.randn(4).requires_grad_()]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    options = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    optimizer = FusedLayoutAdamW([{"params": ours}], adam_w_mode=True, **options)  # type: ignore[arg-type]
    reference = torch.optim.AdamW(theirs, **options)  # type: ignore[arg-type]
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        optimizer.step()
        reference.step()
    assert all(torch.allclose(p, q, rtol=0, atol=1e-7) for p, q in zip(ours, theirs, strict=True))
    assert optimizer.param_groups[0]["step"] == 5


def test_a_parameter_without_gradient_stays() -> None:
    moved, kept = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    moved.grad = torch.ones(2)
    FusedLayoutAdamW(
        [{"params": [moved, kept]}], lr=0.1, betas=(0.9, 0.9), eps=1e-8, weight_decay=0.5, adam_w_mode=True
    ).step()
    assert kept.tolist() == [1.0, 1.0]
    assert moved.tolist() != [1.0, 1.0]
