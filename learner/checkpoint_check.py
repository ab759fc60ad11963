"""Whether a checkpoint is what was written, before anybody loads it.

Owns who reads what: each rank a share of the files. What damage is, the checksums say.
"""

from pathlib import Path

from async_rl.checkpoints import Checkpoints
from async_rl.checksums import damage
from learner.agreement import agreed
from learner.mesh import Mesh
from learner.place import Place


def check_checkpoint(checkpoint: Path, place: Place, mesh: Mesh) -> None:
    """Called by all ranks at once.

    Raises:
        DamagedCheckpoint: on every rank, for what any of them has found.
    """

    def check() -> None:
        found = damage(checkpoint, index=place.rank, count=place.world_size)
        if found is not None:
            raise Checkpoints(checkpoint.parent, keep=1).refusal(checkpoint, found)

    agreed(mesh, place.rank, check)
