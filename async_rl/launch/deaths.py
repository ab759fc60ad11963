"""What the end of a process says: whose it was, why, and whether another start can help.

Owns the reading of Ray's errors. Pure but for the look at a disk that may be full.
"""

from collections.abc import Mapping
from pathlib import Path

from ray.exceptions import RayError, RayTaskError

from async_rl.disk import RUN_REMEDY, is_full
from async_rl.errors import NonFiniteError, ResourceError, UserError

MAX_REASON = 300
"""Characters of a reason on the terminal; the log has it whole."""


def culprit(failures: Mapping[str, RayError]) -> str:
    """Whose failure explains those of the others, who lost a peer: who says why, else who died, else the first."""
    return min(failures, key=lambda name: (not _says_why(failures[name]), isinstance(failures[name], RayTaskError)))


def ending(name: str, error: RayError, folder: Path) -> Exception | None:
    """What ends the run, where a process failed in a way that another start would not mend; else None.

    Args:
        name: of the process.
        error: as Ray raised it.
        folder: the run's, whose disk may be what the process failed of.
    """
    if isinstance(error, RayTaskError) and _says_why(error):
        cause: Exception = error.cause
        return cause
    if is_full(folder):
        # Libraries that write checkpoints say anything but that, or nothing.
        return ResourceError(f"{name} failed, and the disk is full", place=str(folder), remedy=RUN_REMEDY)
    return None


def account(name: str, error: RayError) -> str:
    """A line: `learner-0 died: …`, `learner-1 failed: KeyError: …`."""
    if not isinstance(error, RayTaskError):
        return f"{name} died: {first_line(error)}"
    reason = str(error.cause).splitlines() or [""]
    return f"{name} failed: {type(error.cause).__name__}: {reason[0][:MAX_REASON]}"


def first_line(error: Exception) -> str:
    """What Ray says of a death, without its page of advice."""
    return str(error).strip().splitlines()[0][:MAX_REASON].rstrip(".")


def _says_why(error: RayError) -> bool:
    return isinstance(error, RayTaskError) and isinstance(error.cause, UserError | NonFiniteError)
