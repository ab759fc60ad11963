"""AdamW for the CPU in the state layout of apex's FusedAdam, which Megatron's checkpoints expect.

Owns the update and where its state lies: `step` in the parameter group, the two moments with the
parameter. Knows nothing of models or schedules.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch.optim.adamw import adamw


class FusedLayoutAdamW(torch.optim.Optimizer):
    """Decoupled Weight Decay Regularization (arXiv:1711.05101), one fused kernel a parameter."""

    def __init__(
        self,
        params: list[dict[str, object]],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        adam_w_mode: bool,
    ) -> None:
        assert adam_w_mode
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps, "step": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            self._update(group, [p for p in group["params"] if p.grad is not None])

    def _update(self, group: dict[str, object], params: list[torch.Tensor]) -> None:
        taken = cast(int, group["step"])
        group["step"] = taken + 1
        for param in params:
            if not self.state[param]:
                self.state[param] = {"exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}
        beta1, beta2 = cast(tuple[float, float], group["betas"])
        adamw(
            params,
            [cast(torch.Tensor, param.grad) for param in params],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            # The kernel counts these up itself, so each gets one of its own.
            [torch.tensor(float(taken)) for _ in params],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=cast(float, group["lr"]),
            weight_decay=cast(float, group["weight_decay"]),
            eps=cast(float, group["eps"]),
        )
