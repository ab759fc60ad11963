"""Checkpoints: whole or not there, the newest few kept, read back as they were."""

from pathlib import Path

import pytest

from async_rl.checkpoints import Checkpoints, LoopState, SftState, read_loop_state, read_state
from async_rl.checksums import Damage
from async_rl.errors import ResourceError
from async_rl.ledger import LedgerSnapshot


def state(version: int) -> LoopState:
    return LoopState(
        version=version,
        ledger=LedgerSnapshot(issued=9, ended={"trained": 7}, live_failures={7: 0, 8: 2}),
        trained_tokens=123,
        next_evaluation_id=4,
        run_hash="abc",
    )


def written(folder: Path, version: int) -> Path:
    """What the learner leaves."""
    part = Checkpoints(folder, keep=1).beside(version)
    (part / "learner").mkdir(parents=True)
    (part / "learner" / "weights").write_text(f"of {version}")
    return part


def complete(checkpoints: Checkpoints, version: int) -> Path:
    return checkpoints.complete(written(checkpoints.folder, version), state(version))


def test_a_checkpoint_is_read_back_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert Checkpoints(tmp_path, keep=2).latest is None
    folder = complete(checkpoints, 12)
    assert folder == checkpoints.latest == tmp_path / "00000012"
    assert read_loop_state(folder) == state(12)
    assert (folder / "learner" / "weights").read_text() == "of 12"
    assert not list(tmp_path.glob(".writing-*"))


def test_a_fine_tuning_has_a_state_of_its_own(tmp_path: Path) -> None:
    tuned = SftState(version=12, trained_tokens=123, run_hash=None, best_step=8, best_loss=0.1 + 0.2)
    folder = Checkpoints(tmp_path, keep=1).complete(written(tmp_path, 12), tuned)
    assert read_state(folder, SftState) == tuned
    with pytest.raises(ResourceError, match="missing required field `ledger`"):
        read_loop_state(folder)


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for version in (9, 10, 100):
        complete(checkpoints, version)
    assert checkpoints.versions() == [10, 100]


def scored(checkpoints: Checkpoints, scores: dict[int, float | None]) -> None:
    for version, score in scores.items():
        checkpoints.complete(written(checkpoints.folder, version), state(version), score=score)


def test_the_best_are_kept_besides_the_newest_and_the_first_has_a_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=2)
    scored(checkpoints, {1: 0.5, 2: 0.75, 3: None, 4: 0.25, 5: 0.75, 6: 0.125, 7: None})
    assert checkpoints.versions() == [2, 5, 7]
    assert checkpoints.best() == [5, 2], "of equal ones the newer"
    assert read_loop_state(tmp_path / "best") == state(5)
    assert checkpoints.latest == tmp_path / "00000007"


def test_a_score_may_come_later_and_its_checkpoint_waits_for_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=1)
    scored(checkpoints, {1: 0.5, 2: None})
    checkpoints.complete(written(tmp_path, 3), state(3), spared=[2])
    assert checkpoints.versions() == [1, 2, 3]
    checkpoints.score(2, 0.75)
    assert (tmp_path / "best").resolve().name == "00000002"
    scored(checkpoints, {4: None})
    assert checkpoints.versions() == [2, 4]


def test_without_keep_best_nothing_is_scored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    scored(checkpoints, {1: 0.5, 2: 0.25})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000002"]


def test_a_torn_score_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_best=1)
    scored(checkpoints, {1: 0.5, 2: 0.25})
    (tmp_path / "00000001" / "score.json").write_text("{")
    assert checkpoints.best() == [2]


def test_a_damaged_checkpoint_is_set_aside_where_there_is_an_older_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, keep_best=1)
    scored(checkpoints, {1: 0.25, 2: 0.5})
    damaged = tmp_path / "00000002"
    error = checkpoints.refusal(damaged, Damage(file="learner/a", why="is damaged"))
    assert error.problem == f"the checkpoint {damaged} is damaged: learner/a is damaged"
    assert (error.place, error.remedy) == (
        f"{damaged}/learner/a",
        "go on from an older checkpoint: --resume auto takes version 1",
    )
    assert checkpoints.pass_over(damaged) == tmp_path / "damaged-00000002"
    assert checkpoints.versions() == [1] and (tmp_path / "best").resolve().name == "00000001"
    assert checkpoints.pass_over(tmp_path / "00000001") is None
    assert checkpoints.versions() == [1]
    scored(checkpoints, {2: 0.5})
    assert checkpoints.pass_over(damaged) == tmp_path / "damaged-00000002-2", "the same version once more"


def test_the_same_version_written_again_replaces_the_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    (complete(checkpoints, 3) / "old").write_text("")
    folder = complete(checkpoints, 3)
    assert not (folder / "old").exists()
    assert checkpoints.versions() == [3]


def test_what_a_crash_left_half_written_is_no_checkpoint_and_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    complete(checkpoints, 3)
    written(tmp_path, 4)
    (tmp_path / "00000005" / "learner").mkdir(parents=True)
    assert checkpoints.versions() == [3], "without the loop's part it is none either"
    checkpoints.remove_unfinished()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000003", "00000005"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "it has no loop.json"),
        ("{", "loop.json is damaged (Input data was truncated)"),
        (
            '{"version": 3, "trained_tokens": 1, "run_hash": null}',
            "loop.json is damaged (Object missing required field `ledger`)",
        ),
    ],
    ids=["missing", "torn", "of another kind"],
)
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / "loop.json").write_text(content)
    with pytest.raises(ResourceError) as caught:
        read_loop_state(tmp_path)
    assert (caught.value.problem, caught.value.place) == (f"{tmp_path} is not a checkpoint: {why}", str(tmp_path))
    assert caught.value.remedy == "give a folder runs/NAME/checkpoints/VERSION with loop.json"


def test_what_is_nowhere_and_the_folder_of_a_run_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="nowhere is not a checkpoint: there is no such folder"):
        read_loop_state(tmp_path / "nowhere")
    folder = complete(Checkpoints(tmp_path / "checkpoints", keep=1), 12)
    with pytest.raises(ResourceError) as caught:
        read_loop_state(tmp_path)
    assert caught.value.remedy == f"did you mean {folder}?"


def test_a_place_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot write a checkpoint"):
        Checkpoints(tmp_path, keep=1).complete(tmp_path / "never written", state(1))
