"""A delivery stays until it is acknowledged or withdrawn, and no longer."""

from async_rl.protocol import Ack, Delivery, FinishReason, Purpose, Trajectory, TrajectoryGroup, VersionSpan
from generators.outbox import Outbox

TRAJECTORY = Trajectory.build(
    token_ids=[1],
    rollout_logprobs=[-1.0],
    spans=[VersionSpan(version=0, start=0, end=1)],
    reward=1.0,
    finish_reason=FinishReason.STOP,
)


def make_delivery(group_id: int, attempt: int = 0, purpose: Purpose = Purpose.TRAIN) -> Delivery:
    group = TrajectoryGroup(
        group_id=group_id,
        attempt=attempt,
        incarnation="a",
        prompt_id=0,
        task="",
        prompt_token_ids=[],
        trajectories=[TRAJECTORY],
    )
    return Delivery(purpose=purpose, group=group)


def test_what_is_unacked_comes_in_the_order_in_which_it_was_put() -> None:
    outbox = Outbox()
    for group_id in (3, 1, 2):
        outbox.put(make_delivery(group_id))
    assert [d.group.group_id for d in outbox] == [3, 1, 2]


def test_an_ack_is_for_one_attempt_of_one_purpose_and_may_come_twice() -> None:
    outbox = Outbox()
    kept = [make_delivery(1, attempt=1), make_delivery(1, purpose=Purpose.EVALUATE)]
    for delivery in [make_delivery(1), *kept]:
        outbox.put(delivery)
    ack = Ack(purpose=Purpose.TRAIN, group_id=1, attempt=0)
    assert outbox.acknowledge(ack)
    assert not outbox.acknowledge(ack)
    assert list(outbox) == kept


def test_a_withdrawn_group_is_forgotten_with_all_its_attempts() -> None:
    outbox = Outbox()
    for delivery in (make_delivery(1), make_delivery(1, attempt=1), make_delivery(2)):
        outbox.put(delivery)
    outbox.withdraw(Purpose.TRAIN, 1)
    assert [d.group.group_id for d in outbox] == [2] and len(outbox) == 1
