"""Cases of the kinds `kl` and `kl_in_reward`, through `learner/losses/kl.py` and `learner/kl_controller.py`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from async_rl.config.objective import KLConfig
from correction.ratios import log_difference
from learner.kl_controller import KL_CONTROLLERS
from learner.losses.kl import KL_ESTIMATORS, kl_in_reward, straight_through
from tests.golden.folder import Golden

Outputs = Mapping[str, float | Tensor]


def kl(case: Golden) -> Outputs:
    """An estimator, after `+` with the gradient of k2."""
    name: str = case.option("estimator")
    estimator = KL_ESTIMATORS[name.removesuffix("+")]
    if name.endswith("+"):
        estimator = straight_through(estimator)
    logprobs = case.input("logprobs").requires_grad_()
    everything = torch.ones(logprobs.shape, dtype=torch.bool)
    estimate = estimator(log_difference(logprobs, case.input("ref_logprobs"), everything))
    (gradient,) = torch.autograd.grad(estimate.sum(), logprobs)
    return {"kl": estimate, "grad_logprobs": gradient}


def penalised_rewards(case: Golden) -> Outputs:
    """The KL taken from rewards, and where its coefficient goes."""
    mask, name = case.input("mask"), case.option("estimator")
    config = KLConfig(
        coef=case.option("kl_coef"),
        target=case.option("target_kl", KLConfig().target),
        horizon=case.option("horizon", KLConfig().horizon),
    )
    result = kl_in_reward(
        case.input("scores"),
        case.input("old_logprobs"),
        case.input("ref_logprobs"),
        mask,
        estimator=name,
        coef=config.coef,
    )
    controller = KL_CONTROLLERS[case.option("controller", "fixed")](config)
    following = controller.after(float(result.kl_mean), len(mask))
    return {"rewards": result.token_rewards, "kl_mean": result.kl_mean, "kl_coef_next": following.coef}
