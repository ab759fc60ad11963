"""Asks for rewards beside generation, with a time limit, and says when there is none.

Plain functions run in processes of their own, which are ended when a call takes too long; async ones run on the event
loop; a reward model runs elsewhere. Owns the calls and their counts; knows nothing of groups, and never makes a number
out of a failure.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from async_rl.channel.score_sockets import NoScore
from async_rl.config.reward import RewardConfig
from async_rl.errors import RewardError
from async_rl.protocol import Prompt, RewardFailures
from async_rl.reward import Reward
from generators.reward_call import RewardCall, RewardFailed
from generators.reward_function import RewardFunction, is_async, load_reward_function, takes_tokens
from generators.reward_pool import RewardPool
from generators.reward_process import ProcessEnded
from generators.reward_reader import RewardReader

Decode = Callable[[Sequence[int]], str]
"""Response token ids [R] → their text, without special tokens."""

DEADLY_PROMPTS = 4
"""Once calls for so many prompts in a row ended their process, the function is at fault, not a prompt."""


class ScoreSource(Protocol):
    """A reward model, wherever it runs."""

    async def score(self, text: str) -> float:
        """What a prompt and its response are worth together; `NoScore` says why nobody knows."""
        ...


class RewardRunner:
    """Scores responses with what the config names: a function, a reward model, or both.

    Raises a `RewardError` at once if that function cannot be used. `close` ends the processes.
    """

    def __init__(
        self, config: RewardConfig, reader: RewardReader, decode: Decode, *, model: ScoreSource | None = None
    ) -> None:
        assert (model is not None) == bool(config.model.path), config.model.path
        self._config = config
        self._reader = reader
        self._decode = decode
        self._model = model
        self._function = load_reward_function(config.function) if config.function else None
        self._takes_tokens = self._function is not None and takes_tokens(self._function)
        self._turns = asyncio.Semaphore(config.max_concurrent)
        self._pool: RewardPool | None = None
        if self._function is not None and not is_async(self._function):
            self._pool = RewardPool(config.function, reader, num_workers=config.num_workers)
        self._failures: dict[str, RewardFailures] = {}
        self._deadly: set[str] = set()
        """Prompts whose calls ended their process since one last came back."""
        self.errors = 0
        """Calls that raised, returned what is no reward, or lost their process."""
        self.timeouts = 0
        """Calls that took longer than `reward.timeout_s`."""

    async def score(self, prompt: Prompt, token_ids: Sequence[int]) -> Reward:
        """The reward of a response [R]. Cancelling it ends the call.

        Raises:
            RewardFailed: this call gave none.
            RewardError: no call comes back: each ends its process.
        """
        call = RewardCall(
            prompt=prompt.text,
            response=self._decode(token_ids),
            answer=prompt.answer,
            metadata=dict(prompt.metadata),
            num_tokens=len(token_ids),
            tokens=[self._decode([token_id]) for token_id in token_ids] if self._takes_tokens else None,
        )
        try:
            said = await self._call(call)
            score = await self._ask_model(call)
        except TimeoutError:
            self.timeouts += 1
            limit = f"longer than {self._config.timeout_s:g} s"
            failed = RewardFailed(f"the reward took {limit}", limit)
            self._remember(failed)
            raise failed from None
        except RewardFailed as failed:
            self.errors += 1
            self._remember(failed)
            raise
        return _added(said, self._config.model.weight * score)

    async def _call(self, call: RewardCall) -> Reward:
        if self._function is None:
            return Reward(total=0.0)
        if self._pool is None:
            return await self._call_async(self._function, call)
        return await self._call_in_process(self._pool, call)

    async def _ask_model(self, call: RewardCall) -> float:
        if self._model is None:
            return 0.0
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await self._model.score(call.prompt + call.response)
        except NoScore as error:
            raise RewardFailed(str(error), "the reward model has no score") from error

    async def _call_in_process(self, pool: RewardPool, call: RewardCall) -> Reward:
        try:
            outcome = await pool.make(call, self._config.timeout_s)
        except ProcessEnded as death:
            raise self._lost(call.prompt, death.exit_code) from death
        self._deadly.clear()
        if isinstance(outcome, RewardFailed):
            raise outcome
        return outcome

    def _lost(self, prompt: str, exit_code: int) -> RewardFailed | RewardError:
        """What a process's death comes to: one prompt's bad luck, or a function that cannot be used at all."""
        ending = f"exit code {exit_code}" + (f" ({signal.strsignal(-exit_code)})" if exit_code < 0 else "")
        self._deadly.add(prompt)
        if len(self._deadly) < DEADLY_PROMPTS:
            return RewardFailed(f"{self._config.function} ended its process with {ending}", ending)
        self.errors += 1
        return RewardError(
            f"{self._config.function} ended its process for {DEADLY_PROMPTS} prompts in a row, the last with {ending}",
            place="reward.function",
            remedy="call it by hand with such a prompt: it may raise, but must not exit, crash or use up the memory",
        )

    async def _call_async(self, function: RewardFunction, call: RewardCall) -> Reward:
        async with self._turns, asyncio.timeout(self._config.timeout_s):
            try:
                value = await cast(Awaitable[object], call.make(function))
                return self._reader.read(value, num_tokens=call.num_tokens)
            except (Exception, SystemExit) as error:  # `sys.exit` in it must not end the generator
                raise RewardFailed.by(error) from error

    def _remember(self, failed: RewardFailed) -> None:
        known = self._failures.get(failed.cause)
        count = 1 if known is None else known.count + 1
        self._failures[failed.cause] = RewardFailures(cause=failed.cause, reason=failed.reason, count=count)

    def take_failures(self) -> list[RewardFailures]:
        """What failed since this was last asked, by cause."""
        failures, self._failures = list(self._failures.values()), {}
        return failures

    def close(self) -> None:
        """Ends the processes, whatever they are doing. May be called again."""
        if self._pool is not None:
            self._pool.close()


def _added(reward: Reward, score: float) -> Reward:
    """A reward and a score of the whole response; where tokens earn rewards of their own, it stands at the last."""
    per_token = None if reward.per_token is None else list(reward.per_token)
    if per_token:
        per_token[-1] += score
    return Reward(total=reward.total + score, components=reward.components, per_token=per_token)
