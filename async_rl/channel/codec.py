"""Frames: one msgspec message each, and nothing else.

Owns encoding, and the refusal of what is no message: wrong bytes, unknown kinds and fields, and structs that
break the invariants which `async_rl.protocol` states. Knows no sockets.
"""

import msgspec

from async_rl.errors import ChannelError
from async_rl.protocol import ControllerMessage, PeerMessage

# A frame of a hundred thousand nested arrays is no message either.
_NO_MESSAGE = (msgspec.DecodeError, ValueError, RecursionError)

_encoder = msgspec.msgpack.Encoder()
_peer_decoder = msgspec.msgpack.Decoder(PeerMessage)
_controller_decoder = msgspec.msgpack.Decoder(ControllerMessage)


def encode(message: PeerMessage | ControllerMessage) -> bytes:
    """The frame of a message."""
    return _encoder.encode(message)


def decode_peer_message(frame: bytes) -> PeerMessage:
    """What a peer said; arrays point into the frame.

    Raises:
        ChannelError: the frame is no message of a peer.
    """
    try:
        return _peer_decoder.decode(frame)
    except _NO_MESSAGE as error:
        raise ChannelError(f"malformed frame of {len(frame)} bytes: {error}") from error


def decode_controller_message(frame: bytes) -> ControllerMessage:
    """What the controller said.

    Raises:
        ChannelError: the frame is no message of a controller.
    """
    try:
        return _controller_decoder.decode(frame)
    except _NO_MESSAGE as error:
        raise ChannelError(f"malformed frame of {len(frame)} bytes: {error}") from error


class _Version(msgspec.Struct):
    """The one field of a hello that every schema has."""

    schema_version: int


def schema_version_of(frame: bytes) -> int | None:
    """The schema that a peer speaks, read from a hello of any schema; None if the frame is no hello."""
    try:
        return msgspec.msgpack.decode(frame, type=_Version).schema_version
    except _NO_MESSAGE:
        return None
