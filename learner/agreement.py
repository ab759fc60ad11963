"""What ranks agree on: that all go on, or all raise.

Owns this. Knows no work.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from async_rl.errors import UserError
from learner.mesh import Mesh

_Done = TypeVar("_Done")


def agreed(mesh: Mesh, rank: int, work: Callable[[], _Done]) -> _Done:
    """A rank's own work, after which all go on together: what is wrong for one of them, each raises.

    Raises:
        UserError: of the highest rank that found a mistake.
    """
    done: _Done | None = None
    error: UserError | None = None
    try:
        done = work()
    except UserError as found:
        error = found
    culprit = int(mesh.largest(-1 if error is None else rank))
    if culprit < 0:
        return cast(_Done, done)
    error = mesh.hear(error, rank=culprit)
    assert error is not None
    raise error
