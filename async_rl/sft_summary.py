"""What a fine-tuning came to: the keys of its summary.json.

Owns each number's definition. Pure: times come in as arguments, in seconds. Knows no file and no terminal.
"""

from dataclasses import dataclass, field

import msgspec

from async_rl.summary import Exit, Part, StartEnd


class BestValidation(Part, frozen=True, kw_only=True):
    """The lowest validation loss of the whole run; null without held-out rows."""

    loss: float | None
    step: int | None


class SftSummary(Part, frozen=True, kw_only=True):
    """summary.json of `async-rl sft`."""

    loss: StartEnd
    """Of the first and the last step of this launch."""
    validation: StartEnd
    """The first and the last of this launch."""
    best_validation: BestValidation
    steps: int
    """Of the whole run."""
    trained_tokens: int
    """That were learned, of the whole run."""
    wall_s: float
    """From the first step of this launch to its end, validations and checkpoints in between included."""
    tokens_per_s: float | None
    """Tokens of all steps over the time that they took."""
    mfu: float | None
    """Share of the devices' peak over the same time."""
    memory_gib: float | None
    """The most that a rank held."""
    exit: Exit

    def to_json(self) -> bytes:
        """The file's content."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


@dataclass(kw_only=True)
class SftSummaryBuilder:
    """Is told what happens."""

    steps: int
    trained_tokens: int
    """Both before this launch."""
    losses: list[float] = field(default_factory=list)
    validations: list[float] = field(default_factory=list)
    best: BestValidation = field(default_factory=lambda: BestValidation(loss=None, step=None))
    _num_tokens: int = 0
    _step_s: float = 0.0
    _mfu_s: float = 0.0
    _memory_gib: float | None = None

    def stepped(
        self, *, loss: float, num_tokens: int, num_learned: int, step_s: float, mfu: float, memory_gib: float
    ) -> None:
        """A step is done."""
        self.steps += 1
        self.trained_tokens += num_learned
        self.losses.append(loss)
        self._num_tokens += num_tokens
        self._step_s += step_s
        self._mfu_s += mfu * step_s
        self._memory_gib = memory_gib

    def validated(self, *, loss: float, best_step: int, best_loss: float | None) -> None:
        """So is a validation."""
        self.validations.append(loss)
        self.best = BestValidation(loss=best_loss, step=best_step or None)

    def build(self, exit_: Exit, *, wall_s: float) -> SftSummary:
        """The summary as it stands."""
        is_timed = self._step_s > 0
        return SftSummary(
            loss=_ends(self.losses),
            validation=_ends(self.validations),
            best_validation=self.best,
            steps=self.steps,
            trained_tokens=self.trained_tokens,
            wall_s=wall_s,
            tokens_per_s=self._num_tokens / self._step_s if is_timed else None,
            mfu=self._mfu_s / self._step_s if is_timed else None,
            memory_gib=self._memory_gib,
            exit=exit_,
        )


def _ends(values: list[float]) -> StartEnd:
    return StartEnd(start=values[0] if values else None, end=values[-1] if values else None)
