"""All advantage estimators by the name that the config gives them, and what each needs.

Adding one is a function (inputs, config) → advantages and a line here (docs/objectives.md).
"""

from typing import NamedTuple

from learner.advantages.group_relative import gdpo, gpg, grpo, grpo_passk, opo, reinforce_plus_plus_baseline, rloo
from learner.advantages.inputs import EstimatorFunction, Need


class Estimator(NamedTuple):
    """A formula, and what the learner has to get ready for it."""

    function: EstimatorFunction
    needs: frozenset[Need] = frozenset()


ADVANTAGES: dict[str, Estimator] = {
    "grpo": Estimator(grpo),
    "grpo_passk": Estimator(grpo_passk),
    "gdpo": Estimator(gdpo, frozenset({Need.COMPONENTS})),
    "rloo": Estimator(rloo),
    "reinforce_plus_plus_baseline": Estimator(reinforce_plus_plus_baseline),
    "opo": Estimator(opo),
    "gpg": Estimator(gpg),
}
"""Keys are the words of `async_rl.config.objective.Estimator`."""
