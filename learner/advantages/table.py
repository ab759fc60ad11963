"""All advantage estimators by the name that the config gives them, and what each needs.

Adding one is a function (inputs, config) → advantages and a line here (docs/objectives.md).
"""

from typing import NamedTuple

from learner.advantages.critic import gae, vtrace
from learner.advantages.group_relative import gdpo, gpg, grpo, grpo_passk, opo, reinforce_plus_plus_baseline, rloo
from learner.advantages.inputs import EstimatorFunction, Need
from learner.advantages.reward_to_go import reinforce_plus_plus, remax
from learner.advantages.token_baseline import optimal_token_baseline, tir_optimal_token_baseline


class Estimator(NamedTuple):
    """A formula, and what the learner has to get ready for it."""

    function: EstimatorFunction
    needs: frozenset[Need] = frozenset()


ADVANTAGES: dict[str, Estimator] = {
    "gae": Estimator(gae, frozenset({Need.VALUES})),
    "vtrace": Estimator(vtrace, frozenset({Need.VALUES, Need.LOG_RHOS})),
    "grpo": Estimator(grpo),
    "grpo_passk": Estimator(grpo_passk),
    "gdpo": Estimator(gdpo, frozenset({Need.COMPONENTS})),
    "rloo": Estimator(rloo),
    "reinforce_plus_plus": Estimator(reinforce_plus_plus),
    "reinforce_plus_plus_baseline": Estimator(reinforce_plus_plus_baseline),
    "remax": Estimator(remax, frozenset({Need.GREEDY_BASELINE})),
    "opo": Estimator(opo),
    "gpg": Estimator(gpg),
    "optimal_token_baseline": Estimator(optimal_token_baseline, frozenset({Need.SCORES, Need.SUM_PI_SQUARED})),
    "tir_optimal_token_baseline": Estimator(tir_optimal_token_baseline, frozenset({Need.SCORES, Need.SUM_PI_SQUARED})),
}
"""Keys are the words of `async_rl.config.objective.Estimator`."""
