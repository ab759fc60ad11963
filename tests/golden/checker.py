"""Runs every case of a folder through the public functions and says what agrees.

Owns the verdict: nothing is skipped, so an unknown kind, name, option, input or output is a failure like a wrong
number. Must not know any function of ours: `adapters` does.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.golden.folder import FolderError, Golden

Adapter = Callable[[Golden], Mapping[str, float | Tensor]]
"""A case → everything that our functions give for it, by the names of the format."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a case."""

    case: Golden
    excess: float
    """Largest error over all outputs, in units of its bound."""
    complaints: tuple[str, ...]
    """Empty where the case passed."""


@dataclass(frozen=True, kw_only=True)
class KindSummary:
    """A line of the outcome: cases of one kind."""

    kind: str
    num_cases: int
    num_passed: int
    excess: float

    def __str__(self) -> str:
        return f"{self.kind:28} {self.num_cases:5} {self.num_passed:7} {self.excess:15.3g}"


HEADER = f"{'kind':28} {'cases':>5} {'passed':>7} {'error / bound':>15}"


def check(case: Golden, adapters: Mapping[str, Adapter]) -> Verdict:
    """Compares all outputs of a case."""
    try:
        # A case that no adapter fits is told apart from one that our functions get wrong by its message alone.
        got = adapters[case.kind](case) if case.kind in adapters else None
    except FolderError:
        raise
    except Exception as error:  # Whatever a function does to a case, the others still get theirs.
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = f"raised {type(error).__name__}: {error} ({place.name}, line {place.lineno} of {place.filename})"
        return Verdict(case=case, excess=float("inf"), complaints=(words,))
    if got is None:
        return Verdict(case=case, excess=float("inf"), complaints=(f"unknown kind {case.kind!r}",))
    excesses = {name: _excess(case, name, got) for name in case.wanted()}
    complaints = [_complaint(case, name, excess, got) for name, excess in excesses.items() if not excess <= 1]
    complaints += [f"does not know {name!r}" for name in sorted(case.unasked())]
    return Verdict(case=case, excess=max(excesses.values(), default=0.0), complaints=tuple(complaints))


def summarise(verdicts: Sequence[Verdict]) -> Iterator[KindSummary]:
    """A line for each kind, those of differences by themselves."""
    lines: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        lines.setdefault(verdict.case.kind + (" (differs)" if verdict.case.differs else ""), []).append(verdict)
    for kind, members in lines.items():
        yield KindSummary(
            kind=kind,
            num_cases=len(members),
            num_passed=sum(not verdict.complaints for verdict in members),
            excess=max(verdict.excess for verdict in members),
        )


def _excess(case: Golden, name: str, got: Mapping[str, float | Tensor]) -> float:
    return case.excess(name, torch.as_tensor(got[name])) if name in got else float("inf")


def _complaint(case: Golden, name: str, excess: float, got: Mapping[str, float | Tensor]) -> str:
    if name not in got:
        return f"{name}: nothing of ours has this name"
    ours, want = torch.as_tensor(got[name]).detach(), case.wanted()[name]
    if ours.shape != want.shape:
        return f"{name}: shape {tuple(ours.shape)} instead of {tuple(want.shape)}"
    if want.dtype == torch.bool:
        if ours.dtype != torch.bool:
            return f"{name}: {ours.dtype} instead of bool"
        return f"{name}: {int((ours != want).sum())} of {want.numel()} differ"
    error = (ours.double() - want.double()).abs()
    place = int(torch.where(error.isnan(), torch.inf, error).argmax())
    where = f" at {tuple(int(i) for i in torch.unravel_index(torch.tensor(place), want.shape))}" if want.dim() else ""
    return (
        f"{name}: {float(ours.flatten()[place]):.9g} instead of {float(want.flatten()[place]):.9g}{where}, "
        f"error {float(error.flatten()[place]):.3g}, {excess:.3g} times its bound"
    )
