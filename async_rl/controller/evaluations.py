"""When held-out prompts are answered: of the first published version, every `evaluation.every` batches, at the end.

Owns the present evaluation and the ids of all of them. Who answers what is for the generators' desk to say; what the
answers amount to, for `Evaluation`.
"""

from collections.abc import Sequence

from async_rl.config.schema import RunConfig
from async_rl.evaluation import Evaluation
from async_rl.protocol import Prompt, Sampling


class Evaluations:
    """One at a time."""

    def __init__(self, config: RunConfig, *, held_out: Sequence[Prompt], sampling: Sampling, next_id: int) -> None:
        """
        Args:
            config: the run.
            held_out: the prompts; without any nothing is ever evaluated.
            sampling: how training samples are drawn.
            next_id: above the ids of all that were before; it only rises, so that late answers of an earlier
                evaluation never count in a later one, of whichever history.
        """
        self._config = config
        self._held_out = held_out
        self._sampling = sampling
        self._is_due = True
        """Of the version that is published next."""
        self._published_version: int | None = None
        self.next_id = next_id
        self.present: Evaluation | None = None

    @property
    def is_between(self) -> bool:
        """Whether something has been published, and no evaluation is going on."""
        return self.present is None and self._published_version is not None

    def published(self, version: int) -> None:
        """Generators will sample with a version."""
        if self._is_due:
            self._begin(version)
        self._is_due = False
        self._published_version = version

    def committed(self, version: int) -> str:
        """The learner has made a version; returns what to tell the user of it, if anything."""
        every = self._config.evaluation.every
        if version == self._config.steps:
            self._begin(version)
        elif every and version % every == 0 and self._published_version is not None:
            if self.present is not None:
                return f"No evaluation at version {version}: the last one is still going on."
            self._begin(self._published_version)
        return ""

    def drop(self) -> None:
        """The present one is wanted no more."""
        self.present = None

    def roll_back(self, version: int) -> None:
        """The learner has gone back to a version, and will publish it: what it undid will be evaluated when it comes
        again, and what went on of `version` or before begins anew."""
        if self.present is not None and self.present.version <= version:
            self._is_due = True
        self.present = None
        self._published_version = None

    def _begin(self, version: int) -> None:
        if not self._held_out:
            return
        self.present = Evaluation(
            version=version,
            prompts=self._held_out,
            sampling=self._sampling,
            samples_per_prompt=self._config.evaluation.samples_per_prompt,
            first_id=self.next_id,
            max_attempts=self._config.ledger.max_attempts,
        )
        self.next_id = self.present.next_first_id
