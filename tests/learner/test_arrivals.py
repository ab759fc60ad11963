"""What was scored on arrival: it comes back at the right tokens, once, and not for ever."""

import torch

from async_rl.protocol import Batch, TrajectoryGroup
from learner.arrivals import Arrivals
from learner.batch import TrainingBatch
from tests.learner.groups import make_group, make_trajectory


def laid_out(version: int, *groups: TrajectoryGroup) -> TrainingBatch:
    return TrainingBatch.build(Batch.whole(version=version, groups=list(groups)), mask_above=None)


CROSSED = make_group(0, [8], [make_trajectory([1, 2], versions=[3, 4]), make_trajectory([4], versions=[4])])
LONG = make_group(1, [9], [make_trajectory([5] * 3, versions=[4] * 3), make_trajectory([7], versions=[4])])
SCORES = torch.tensor([[-0.1, -0.2], [-0.3, 0.0]])


def stored() -> Arrivals:
    arrivals = Arrivals()
    arrivals.put(CROSSED.key, laid_out(4, CROSSED), SCORES)
    return arrivals


def known(arrivals: Arrivals, batch: TrainingBatch) -> list[list[float]]:
    """Scores that are known, row by row."""
    scores = arrivals.take(batch)
    return [
        [round(x, 3) for x in logprobs[scored].tolist()]
        for logprobs, scored in zip(scores.logprobs, scores.scored, strict=True)
    ]


def test_of_a_group_those_tokens_are_known_that_the_scoring_version_sampled() -> None:
    batch = laid_out(5, LONG, CROSSED)
    scored = stored().take(batch).scored
    assert scored.tolist() == [[False] * 3, [False] * 3, [False, True, False], [True, False, False]]
    assert known(stored(), batch) == [[], [], [-0.2], [-0.3]]


def test_what_is_known_is_given_out_once() -> None:
    arrivals, batch = stored(), laid_out(5, CROSSED)
    assert known(arrivals, batch) == [[-0.2], [-0.3]]
    assert known(arrivals, batch) == [[], []] and len(arrivals) == 0


def test_what_never_trained_is_forgotten_once_it_is_too_old() -> None:
    arrivals = stored()
    arrivals.forget_before(4)
    assert len(arrivals) == 1
    arrivals.forget_before(5)
    assert len(arrivals) == 0


def test_another_delivery_of_the_same_group_is_not_known() -> None:
    again = TrajectoryGroup(
        group_id=0,
        attempt=1,
        incarnation=CROSSED.incarnation,
        prompt_id=0,
        task="",
        prompt_token_ids=[8],
        trajectories=CROSSED.trajectories,
    )
    assert known(stored(), laid_out(5, again)) == [[], []]
