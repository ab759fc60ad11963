"""The whole life of a reward model's process: takes requests, scores what has gathered in one go, answers.

    requests ─► those that came while the last pass ran ─► RewardModel.score, in a thread ─► answers

Owns this loop. While nobody asks it sleeps; under load its passes fill up by themselves.
"""

import asyncio
import math

from async_rl.channel.score_sockets import ScoreServer
from async_rl.errors import RewardError
from async_rl.protocol.score import Score, ScoreFailed, ScoreRequest
from generators.reward_model import RewardModel

MAX_GATHERED = 256
"""Requests of one go: the answers of those before should not wait for ever."""


async def serve_at(address: str, model: RewardModel, *, max_message_bytes: int) -> None:
    """Serves at `HOST:PORT`, for ever; a `ResourceError` where it cannot listen there."""
    host, _, port = address.rpartition(":")
    server = ScoreServer(host, int(port), max_message_bytes=max_message_bytes)
    try:
        await serve_scores(model, server)
    finally:
        server.close()


async def serve_scores(model: RewardModel, server: ScoreServer) -> None:
    """Answers requests, for ever."""
    while True:
        asked = [await server.receive()]
        while len(asked) < MAX_GATHERED and await server.poll():
            asked.append(await server.receive())
        readable: list[tuple[bytes, ScoreRequest, list[int]]] = []
        for sender, request in asked:
            try:
                readable.append((sender, request, model.tokenize(request.text)))
            except RewardError as error:
                await server.answer(sender, ScoreFailed(number=request.number, reason=error.problem))
        if readable:
            values = await asyncio.to_thread(model.score, [row for _, _, row in readable])
            for (sender, request, _), value in zip(readable, values, strict=True):
                await server.answer(sender, _answer(request.number, value))


def _answer(number: int, value: float) -> Score | ScoreFailed:
    if math.isfinite(value):
        return Score(number=number, value=value)
    return ScoreFailed(number=number, reason=f"the reward model said {value}")
