"""What the config makes of π_prox and of π_prox/μ: the correction, with its parts filled in.

Owns the way from options to the correction's values, and which policy stands for π_prox. The maths is the
correction's.

Legend: N sequences, T response positions.
"""

from torch import Tensor

from async_rl.config.criterion import CriterionConfig, parse_criterion
from async_rl.config.objective import CorrectionConfig, Proximal, Weighting
from correction.correction import Corrected, Correction, correct, weigh_tokens
from correction.decomposition import BehaviourScores
from correction.proximal import log_linear_proximal
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.weights import OFF, Masked, Truncated
from correction.weights import Weighting as TokenWeighting
from learner.batch import TrainingBatch


class OffPolicy:
    """The correction of a run."""

    def __init__(self, config: CorrectionConfig) -> None:
        self._config = config
        self._correction = Correction(
            level=config.level.value,
            weighting=_weighting(config),
            normalize=config.normalize,
            criteria=tuple(_criterion(parse_criterion(text), config) for text in config.reject),
            veto=config.veto,
            staleness_cap=config.staleness_cap,
            mismatch_cap=config.mismatch_cap,
        )

    @property
    def follows_policy(self) -> bool:
        """Whether the weights are those of the policy at each step, as π_prox is or as no ratio of the loss makes up
        for; else they are of the batch's start, and the loss's ratio says what has moved since."""
        return self._config.proximal is not Proximal.recompute

    def correct(self, batch: TrainingBatch, logprobs: Tensor, behaviour: BehaviourScores | None = None) -> Corrected:
        """Weighs and rejects a whole batch.

        Args:
            batch: μ, staleness, and the mask of what may train.
            logprobs: [N, T] of the policy at the batch's start.
            behaviour: π_b where it is known; caps mismatch and staleness by themselves there.
        """
        mu, mask = batch.rollout_logprobs, batch.mask
        numerator = self._numerator(logprobs, mu, batch.staleness, mask)
        return correct(numerator, mu, mask, self._correction, behaviour=behaviour)

    def weights(self, logprobs: Tensor, rollout_logprobs: Tensor, staleness: Tensor, mask: Tensor) -> Tensor:
        """[N, T] weights of some rows, without rejection and normaliser, which need the whole batch."""
        numerator = self._numerator(logprobs, rollout_logprobs, staleness, mask)
        return weigh_tokens(numerator, rollout_logprobs, mask, self._correction).weights

    def proximal(
        self, start: Tensor, rollout_logprobs: Tensor, staleness: Tensor, mask: Tensor, *, now: Tensor
    ) -> Tensor:
        """[N, T] log π_prox, that the loss's ratio is of.

        Args:
            start: [N, T] the policy at the batch's start.
            rollout_logprobs: [N, T] log μ.
            staleness: [N, T] versions.
            mask: [N, T] bool.
            now: [N, T] the policy at this step, without gradient.
        """
        match self._config.proximal:
            case Proximal.recompute:
                return start
            case Proximal.rollout:
                return rollout_logprobs
            case Proximal.log_linear:
                return log_linear_proximal(now, rollout_logprobs, staleness, mask)

    def _numerator(self, logprobs: Tensor, rollout_logprobs: Tensor, staleness: Tensor, mask: Tensor) -> Tensor:
        """Of the importance ratio: with π_prox = μ that ratio would be 1, and the policy itself is meant."""
        if self._config.proximal is Proximal.log_linear:
            return log_linear_proximal(logprobs, rollout_logprobs, staleness, mask)
        return logprobs


def _weighting(config: CorrectionConfig) -> TokenWeighting:
    match config.weighting:
        case Weighting.off:
            return OFF
        case Weighting.truncated:
            return Truncated(cap=config.cap, floor=config.floor)
        case Weighting.masked:
            return Masked(floor=config.floor, cap=config.cap)


def _criterion(criterion: CriterionConfig, config: CorrectionConfig) -> Criterion:
    return Criterion(
        level=CriterionLevel(criterion.level.value),
        statistic=Statistic(criterion.statistic.value),
        low=criterion.low,
        high=criterion.high,
        verl_compatible=config.verl_compatible,
    )
