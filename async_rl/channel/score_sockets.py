"""Both ends of the channel between generators and a reward model.

Owns requests and their answers by number. A request that is lost, with the model's process or on the way, has no
answer: whoever asked sets the time that it waits. Frames that are no message are logged and passed over.
"""

import asyncio
import itertools
import logging

import msgspec
import zmq
import zmq.asyncio

from async_rl.errors import AsyncRLError, ResourceError
from async_rl.protocol.score import Score, ScoreAnswer, ScoreFailed, ScoreRequest

logger = logging.getLogger(__name__)

LINGER_MS = 1000

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(ScoreRequest)
_answer_decoder: msgspec.msgpack.Decoder[ScoreAnswer] = msgspec.msgpack.Decoder(ScoreAnswer)


class NoScore(AsyncRLError):
    """The reward model has none for this text, and says why."""


class ScoreServer:
    """The reward model's end."""

    def __init__(self, host: str, port: int, *, max_message_bytes: int) -> None:
        """Binds at once; port 0 takes a free one. A `ResourceError` where that cannot be done."""
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise ResourceError(
                f"the reward model cannot bind {host}:{port}: {error.strerror}",
                place="channel.host",
                remedy="give an address of the machine that it runs on, in numbers",
            ) from error
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])

    async def receive(self) -> tuple[bytes, ScoreRequest]:
        """(who asks, what); a cancelled call may lose one."""
        while True:
            sender, *frames = await self._socket.recv_multipart()
            try:
                return sender, _request_decoder.decode(b"".join(frames))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                logger.warning("a frame of %d bytes is no request: %s", sum(map(len, frames)), error)

    async def poll(self) -> bool:
        """Whether a request is there already."""
        return bool(await self._socket.poll(0))

    async def answer(self, sender: bytes, answer: ScoreAnswer) -> None:
        """Sends an answer; one whose asker is gone is dropped."""
        await self._socket.send_multipart([sender, _encoder.encode(answer)])

    def close(self) -> None:
        """Sends what is queued, for at most a second."""
        self._socket.close()
        self._context.term()


class ScoreClient:
    """A generator's end; `run` has to go on beside the calls of `score`."""

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.connect(address)
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[float]] = {}

    async def score(self, text: str) -> float:
        """The score of a text; waits for as long as the caller lets it.

        Raises:
            NoScore: the model says why there is none.
        """
        number = next(self._numbers)
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._socket.send(_encoder.encode(ScoreRequest(number=number, text=text)))
            return await answer
        finally:
            del self._waiting[number]

    async def run(self) -> None:
        """Takes answers, for ever."""
        while True:
            frame = await self._socket.recv()
            try:
                answer = _answer_decoder.decode(frame)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                logger.warning("a frame of %d bytes is no answer: %s", len(frame), error)
                continue
            waiting = self._waiting.get(answer.number)
            if waiting is None or waiting.done():
                continue  # nobody waits any more
            match answer:
                case Score(value=value):
                    waiting.set_result(value)
                case ScoreFailed(reason=reason):
                    waiting.set_exception(NoScore(reason))

    def close(self) -> None:
        """Nothing may be asked afterwards."""
        self._socket.close()
        self._context.term()
