"""Histories: what becomes of versions that a restart from a checkpoint has undone.

    history 0    0 ─ 1 ─ 2 ─ 3 ─ 4 ─ 5 ✗          the checkpoint is of version 3
    history 1                └── 4 ─ 5 ─ …        the same numbers, other weights

Owns how a group sampled by lost weights is restated, so that staleness stays the number of updates between two
policies. Pure.
"""

import msgspec

from async_rl.protocol import TrajectoryGroup, VersionSpan


def mirror_versions(group: TrajectoryGroup, version: int) -> TrajectoryGroup:
    """Restates versions that a restart at `version` has undone, by their distance.

    After a restart, weights newer than the checkpoint belong to a history that no longer exists. From version
    w > v of that history to version u of the new one lie (w − v) + (u − v) updates, by way of v. Version
    2v − w lies as far: staleness stays what it means, the number of updates between two policies.
    """
    if group.newest_version <= version:
        return group
    return msgspec.structs.replace(
        group,
        trajectories=[msgspec.structs.replace(t, spans=_mirrored(t.spans, version)) for t in group.trajectories],
    )


def _mirrored(spans: list[VersionSpan], version: int) -> list[VersionSpan]:
    return [msgspec.structs.replace(s, version=min(s.version, 2 * version - s.version)) for s in spans]
