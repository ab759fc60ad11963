"""The policy's loss of one mini-batch, micro-batch by micro-batch.

Owns what a backend calls during a step: it turns a micro-batch's packed scores into rows, adds what is known of
them, and remembers what the loss said. Normalisers are of the whole mini-batch. Must not know optimizers.

Legend: N trajectories, T response positions; S sequences of a micro-batch, T' positions of its longest response.
"""

from dataclasses import dataclass, field

from torch import Tensor

from async_rl.config.schema import RunConfig
from learner.backend import TokenScores
from learner.batch import TrainingBatch
from learner.losses.policy_loss import PolicyTokens, policy_loss
from learner.mini_batch import MicroBatch, MiniBatch
from learner.off_policy import OffPolicy
from learner.outcome import BatchScores, TrainedTokens, UpdateOutcome


@dataclass(frozen=True, kw_only=True)
class PolicyStep:
    """A `LossFunction` with what it needs to know of a mini-batch."""

    batch: TrainingBatch
    scores: BatchScores
    mini_batch: MiniBatch
    row_scales: Tensor
    """[N] float64, of the aggregation over the mini-batch."""
    selected: Tensor | None
    """[N, T] bool: tokens that the surrogate chose over the whole mini-batch."""
    off_policy: OffPolicy
    config: RunConfig
    kl_coef: float
    """Of the KL in the loss; 0 where it is in the reward."""
    outcome: UpdateOutcome
    is_first: bool
    """The first time that these tokens train."""
    said: dict[int, TrainedTokens] = field(default_factory=dict)
    logprobs: dict[int, Tensor] = field(default_factory=dict)
    """Packed, of each micro-batch, where these tokens train for the first time."""

    def __call__(self, said: TokenScores, index: int) -> Tensor:
        """The micro-batch's share of the loss, scalar with gradient."""
        m = self.mini_batch.micro_batches[index]
        if not m.width:
            # Of nothing: 0, with gradients of 0.
            return said.logprobs.sum()
        logprobs = m.rows_of(said.logprobs)
        tokens = self._tokens(m, logprobs.detach())
        result = policy_loss(
            logprobs,
            m.rows_of(said.entropy),
            tokens,
            self.config.loss,
            self.config.kl,
            kl_coef=self.kl_coef,
            exact_kl=None if said.exact_kl is None else m.rows_of(said.exact_kl),
        )
        self.said[index] = TrainedTokens.of(m.pick(self.scores.mask), result)
        if self.is_first:
            self.logprobs[index] = said.logprobs.detach()
        return result.loss

    def conclude(self) -> None:
        """Hands on what the policy and the loss said, in the order of the micro-batches: only now, since all of it had
        to come from the device."""
        self.outcome.tokens += [self.said[index].cpu() for index in sorted(self.said)]
        for index, logprobs in self.logprobs.items():
            self.mini_batch.micro_batches[index].put(self.outcome.logprobs, logprobs.cpu())

    def _tokens(self, m: MicroBatch, logprobs: Tensor) -> PolicyTokens:
        """Everything but the policy's own scores, on its device; π_prox and weights from `logprobs` if not fixed."""

        def own(rows: Tensor | None) -> Tensor | None:
            return None if rows is None else m.pick(rows).to(logprobs.device)

        mask, mu, staleness = own(self.scores.mask), own(self.batch.rollout_logprobs), own(self.batch.staleness)
        advantages = own(self.scores.advantages.advantages)
        assert mask is not None and mu is not None and staleness is not None and advantages is not None
        start = own(self.scores.models.logprobs)
        proximal = self.off_policy.proximal(logprobs if start is None else start, mu, staleness, mask, now=logprobs)
        corrected = self.scores.corrected
        if corrected is not None and not self.off_policy.follows_policy:
            weights = own(corrected.weights)
        else:
            given = own(self.batch.mask)
            assert given is not None
            weights = self.off_policy.weights(logprobs, mu, staleness, given)
            if corrected is not None:
                weights /= corrected.diagnostics.weights.normalizer
        return PolicyTokens(
            mask=mask,
            row_scales=self.row_scales[m.indices].to(logprobs.device),
            advantages=advantages,
            weights=weights,
            proximal_logprobs=proximal,
            reference_logprobs=own(self.scores.models.reference_logprobs),
            selected=own(self.selected),
        )
