"""One evaluation: held-out prompts, sampled and greedy, answered by the generators under a ledger of its own.

Owns which prompts are still to be answered and what the answers amount to. The run's ledger knows nothing
of it. Groups carry ids from `first_id` on, so that late deliveries of an earlier evaluation are not counted.

Pure: time comes in as an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from async_rl.ledger import Ledger, State
from async_rl.protocol import Lease, Prompt, Purpose, Sampling, TrajectoryGroup


class Mode(StrEnum):
    """How a held-out prompt is answered."""

    SAMPLED = "sampled"
    GREEDY = "greedy"


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What the policy earns on held-out prompts; NaN where nothing was answered."""

    version: int
    reward: float
    """Mean over sampled answers."""
    greedy: float
    """Mean over greedy answers."""
    num_answers: int
    num_failed: int
    """Prompts without an answer, by mode: they count in no mean."""


@dataclass
class Evaluation:
    """The evaluation of one version; done when no prompt is left."""

    version: int
    """Only generators that sample with this version or a newer one may answer."""
    prompts: Sequence[Prompt]
    sampling: Sampling
    samples_per_prompt: int
    first_id: int
    max_attempts: int
    ledger: Ledger = field(init=False)
    rewards: dict[Mode, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.max_attempts, issued=self.first_id)
        for _ in range(2 * len(self.prompts)):
            self.ledger.issue()
        self.rewards = {mode: [] for mode in Mode}

    @property
    def next_first_id(self) -> int:
        """Where the ids of the next evaluation begin."""
        return self.first_id + 2 * len(self.prompts)

    @property
    def is_done(self) -> bool:
        """Whether every prompt has been answered or has failed."""
        return not self.ledger.records

    def lease(self, holder: str, active_version: int, *, wanted: int, now_s: float, timeout_s: float) -> list[Lease]:
        """Up to `wanted` leases for a generator."""
        if active_version < self.version:
            return []
        queued = sorted(self.ledger.in_state(State.QUEUED))[:wanted]
        return [self._lease(i, holder, active_version, now_s, timeout_s) for i in queued]

    def _lease(self, group_id: int, holder: str, active_version: int, now_s: float, timeout_s: float) -> Lease:
        mode, prompt = self._assignment(group_id)
        return Lease(
            group_id=group_id,
            attempt=self.ledger.lease(group_id, holder, version=active_version, expires_s=now_s + timeout_s),
            purpose=Purpose.EVALUATE,
            prompt=prompt,
            group_size=1 if mode is Mode.GREEDY else self.samples_per_prompt,
            sampling=self.sampling.greedy() if mode is Mode.GREEDY else self.sampling,
            timeout_s=timeout_s,
        )

    def deliver(self, group: TrajectoryGroup) -> bool:
        """An answer came; False for a duplicate or one of another evaluation."""
        if not self.ledger.deliver(group.group_id, group.attempt, group.incarnation):
            return False
        mode, _ = self._assignment(group.group_id)
        self.rewards[mode] += group.rewards
        self.ledger.filter(group.group_id)
        return True

    @property
    def result(self) -> EvaluationResult:
        """The means over what was answered so far."""
        sampled, greedy = self.rewards[Mode.SAMPLED], self.rewards[Mode.GREEDY]
        return EvaluationResult(
            version=self.version,
            reward=float(np.mean(sampled)) if sampled else float("nan"),
            greedy=float(np.mean(greedy)) if greedy else float("nan"),
            num_answers=len(sampled) + len(greedy),
            num_failed=self.ledger.counts.failed,
        )

    def _assignment(self, group_id: int) -> tuple[Mode, Prompt]:
        index = group_id - self.first_id
        if index < len(self.prompts):
            return Mode.SAMPLED, self.prompts[index]
        return Mode.GREEDY, self.prompts[index - len(self.prompts)]
