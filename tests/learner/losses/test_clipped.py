"""Where each clip binds, and what its flags say. Formulas and gradients are `test_policy_loss`'s."""

import math
from typing import Any

import pytest
import torch

from async_rl.config.objective import LossConfig, Surrogate
from learner.losses.surrogate import Surrogate as Said
from learner.losses.surrogate import SurrogateInputs
from learner.losses.table import SURROGATES


def said_of(name: Surrogate, log_ratio: float, advantage: float, base: float = -7.0, **options: Any) -> Said:
    """What a surrogate says of one token with log π_prox = `base`."""
    tokens = SurrogateInputs(
        policy=torch.tensor([[base + log_ratio]], dtype=torch.float64, requires_grad=True),
        proximal=torch.tensor([[base]], dtype=torch.float64),
        advantages=torch.tensor([[advantage]], dtype=torch.float64),
        mask=torch.tensor([[True]]),
        selected=None,
    )
    return SURROGATES[name].function(tokens, LossConfig(surrogate=name, **options))


def flags(said: Said) -> tuple[bool, bool, bool]:
    low, high, dual = (
        flag is not None and bool(flag) for flag in (said.clipped_low, said.clipped_high, said.clipped_dual)
    )
    return low, high, dual


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "wanted"),
    [
        (0.5, 1.0, (False, True, False)),
        (-0.5, -1.0, (True, False, False)),
        (2.0, -1.0, (False, False, True)),
        (0.5, -1.0, (False, False, False)),
        (-0.5, 1.0, (False, False, False)),
        (5.0, 0.0, (False, False, False)),
        (-5.0, 0.0, (False, False, False)),
    ],
)
def test_each_clip_of_ppo_binds_where_it_should(
    log_ratio: float, advantage: float, wanted: tuple[bool, bool, bool]
) -> None:
    assert flags(said_of(Surrogate.ppo_clip, log_ratio, advantage)) == wanted


def test_a_dual_clip_of_0_is_none() -> None:
    said = said_of(Surrogate.ppo_clip, 5.0, -1.0, clip_dual=0.0)
    assert float(said.losses.detach()) == pytest.approx(math.exp(5))
    assert flags(said) == (False, False, False)


def test_cispo_weighs_a_clipped_token_less_and_keeps_its_gradient() -> None:
    said = said_of(Surrogate.cispo, 2.0, 1.0, clip_high=0.3)
    assert float(said.losses.detach()) == pytest.approx(-1.3 * -5.0)
    assert said.losses.requires_grad
    assert flags(said) == (False, True, False)


@pytest.mark.parametrize(
    ("name", "log_ratio", "advantage", "wanted"),
    [
        # From 0.5 to 0.7: too far up, but only where the advantage is what moves it.
        (Surrogate.dppo_tv, math.log(1.4), 1.0, (False, True, False)),
        (Surrogate.dppo_tv, math.log(1.4), -1.0, (False, False, True)),
        # From 0.5 to 0.3.
        (Surrogate.dppo_tv, math.log(0.6), -1.0, (True, False, False)),
        (Surrogate.dppo_tv, math.log(0.6), 1.0, (False, False, False)),
        (Surrogate.dppo_kl, math.log(1.4), 1.0, (False, True, False)),
        (Surrogate.dppo_kl, math.log(1.4), -1.0, (False, False, True)),
        (Surrogate.dppo_kl, math.log(0.6), -1.0, (True, False, False)),
        (Surrogate.dppo_kl, math.log(0.6), 1.0, (False, False, False)),
    ],
)
def test_dppo_drops_a_token_that_moved_off_and_keeps_one_that_comes_back(
    name: Surrogate, log_ratio: float, advantage: float, wanted: tuple[bool, bool, bool]
) -> None:
    said = said_of(name, log_ratio, advantage, base=math.log(0.5), clip_low=0.05, clip_high=0.05, ratio_cap=1.2)
    assert flags(said) == wanted
    assert (float(said.losses.detach()) == 0) == (wanted[0] or wanted[1])


def test_topr_truncates_the_ratio_of_the_whole_sequence_of_a_bad_sample() -> None:
    logprobs = torch.tensor([[-1.0, -3.0], [-1.0, -3.0], [-1.0, -1.0]], requires_grad=True)
    tokens = SurrogateInputs(
        policy=logprobs,
        proximal=torch.tensor([[-2.0, -1.0], [-2.0, -1.0], [-2.0, -2.0]]),
        advantages=torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]]),
        mask=torch.ones(3, 2, dtype=torch.bool),
        selected=None,
    )
    said = SURROGATES["topr"].function(tokens, LossConfig())
    (gradient,) = torch.autograd.grad(said.losses.sum(), logprobs)
    assert gradient.flatten().tolist() == pytest.approx([-1.0, -1.0, math.exp(-1), math.exp(-1), 1.0, 1.0])
    assert said.clipped_high is not None
    assert said.clipped_high.tolist() == [[False, False], [False, False], [True, True]]
