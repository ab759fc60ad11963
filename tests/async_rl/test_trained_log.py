"""trained.jsonl has each trained batch once, whatever was lost."""

from pathlib import Path

from async_rl.trained_log import TrainedLog
from tests.async_rl.groups import make_group


def test_batches_of_a_lost_history_are_taken_out(tmp_path: Path) -> None:
    log = TrainedLog(tmp_path / "trained.jsonl")
    assert log.read() == []
    for version in range(4):
        log.append(version, [make_group(2 * version, (version,)), make_group(2 * version + 1, (0, version))])
    log.forget_from(2)
    log.append(2, [make_group(9, (1,))])
    assert [(b.version, b.group_ids, b.oldest_versions) for b in log.read()] == [
        (0, [0, 1], [0, 0]),
        (1, [2, 3], [1, 0]),
        (2, [9], [1]),
    ]


def test_half_a_line_is_not_read(tmp_path: Path) -> None:
    log = TrainedLog(tmp_path / "trained.jsonl")
    log.append(0, [make_group(0)])
    with log.path.open("ab") as file:
        file.write(b'{"version": 1, "gro')
    assert [b.version for b in log.read()] == [0]
    log.forget_from(5)
    log.append(1, [make_group(1)])
    assert [b.version for b in log.read()] == [0, 1]
