"""Works on one lease: samples its responses all at once, rewards each as it ends, samples again where a reward failed.

A greedy answer, where the lease asks for one, is a sample like the others that ends as the group's baseline. Owns a
group from lease to trajectories. Knows no sockets, credits or weights.
"""

import asyncio
import itertools
import math
from typing import NamedTuple

from async_rl.errors import AsyncRLError
from async_rl.protocol import Lease, Sampling, Trajectory, TrajectoryGroup
from async_rl.reward import Reward
from generators.engine import Engine, RequestRefused, Sample
from generators.reward import RewardRunner
from generators.reward_call import RewardFailed
from generators.slots import Reservation, Slots


class GroupUnfinished(AsyncRLError):
    """A group that this generator gives back, and why."""


class RewardedSample(NamedTuple):
    """One finished request and what it earned."""

    sample: Sample
    reward: Reward

    def as_trajectory(self) -> Trajectory:
        """What trains."""
        return Trajectory.build(
            token_ids=self.sample.token_ids,
            rollout_logprobs=self.sample.logprobs,
            spans=self.sample.spans,
            finish_reason=self.sample.finish_reason,
            reward=self.reward.total,
            token_rewards=self.reward.per_token,
            reward_components=list(self.reward.components.values()),
        )


class GroupSampler:
    """Turns leases into trajectory groups; every sample of a group is a request of its own."""

    def __init__(
        self,
        *,
        engine: Engine,
        rewards: RewardRunner,
        slots: Slots,
        incarnation: str,
        max_retries: int,
    ) -> None:
        self._engine = engine
        self._rewards = rewards
        self._slots = slots
        self._incarnation = incarnation
        self._max_retries = max_retries
        self._serial = itertools.count()
        self.sampled_tokens = 0
        """Response tokens of all finished requests."""
        self.resampled = 0
        """Samples generated again because their reward failed."""

    async def sample(self, lease: Lease, reservation: Reservation) -> TrajectoryGroup:
        """The lease's trajectories. Raises `GroupUnfinished` if it cannot be done; the engine's own errors pass."""
        settings = [lease.sampling] * lease.group_size + [lease.sampling.greedy()] * lease.greedy_baseline
        tasks: list[asyncio.Task[RewardedSample]] = []
        try:
            async with asyncio.TaskGroup() as samples:
                for index, sampling in enumerate(settings):
                    name = f"sample-{lease.group_id}.{lease.attempt}.{index}"
                    tasks.append(samples.create_task(self._sample_one(lease, index, sampling, reservation), name=name))
        except BaseExceptionGroup as failures:
            # Siblings are cancelled by then. One reason is enough, and a failure of the engine outweighs the others.
            _, grave = failures.split(GroupUnfinished)
            raise first_leaf(grave or failures) from failures
        results = [task.result() for task in tasks]
        return TrajectoryGroup(
            group_id=lease.group_id,
            attempt=lease.attempt,
            incarnation=self._incarnation,
            prompt_id=lease.prompt.prompt_id,
            task=lease.prompt.task,
            prompt_token_ids=lease.prompt.token_ids,
            trajectories=[result.as_trajectory() for result in results[: lease.group_size]],
            baseline_reward=results[-1].reward.total if lease.greedy_baseline else None,
        )

    async def _sample_one(
        self, lease: Lease, index: int, sampling: Sampling, reservation: Reservation
    ) -> RewardedSample:
        for retry in itertools.count():
            # The serial keeps ids apart where the same attempt is granted again after a controller's restart.
            request_id = f"{lease.purpose}-{lease.group_id}.{lease.attempt}.{index}.{retry}-{next(self._serial)}"
            sample = await self._generate(request_id, lease.prompt.token_ids, sampling)
            reservation.release()
            try:
                return RewardedSample(sample, await self._rewards.score(lease.prompt, sample.token_ids))
            except RewardFailed as failed:
                if retry == self._max_retries:
                    raise GroupUnfinished(f"no reward after {retry + 1} samples: {failed}") from failed
            self.resampled += 1
            reservation.extend()
        raise AssertionError("count never ends")

    async def _generate(self, request_id: str, prompt_token_ids: list[int], sampling: Sampling) -> Sample:
        try:
            async with self._slots.running_request():
                sample = await self._engine.generate(request_id, prompt_token_ids, sampling)
        except RequestRefused as refused:
            raise GroupUnfinished(f"the engine refused the request: {refused}") from refused
        self.sampled_tokens += len(sample.token_ids)
        for position, logprob in enumerate(sample.logprobs):
            if not math.isfinite(logprob):
                # Of such a token nothing could be learnt, and its version's weights or their numbers are broken.
                raise GroupUnfinished(
                    f"the engine sampled token {position} with log-probability {logprob}: logits that are not finite"
                )
        return sample


def first_leaf(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure of a task group, out of the groups that it may be nested in."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
