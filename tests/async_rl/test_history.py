"""What a restart makes of versions that it undid."""

from async_rl.history import mirror_versions
from tests.async_rl.groups import make_group


def test_versions_undone_by_a_restart_keep_their_distance() -> None:
    mirrored = mirror_versions(make_group(0, (3, 5, 7)), 5)
    assert [s.version for s in mirrored.trajectories[0].spans] == [3, 5, 3]
    untouched = make_group(0, (3, 5))
    assert mirror_versions(untouched, 5) is untouched
