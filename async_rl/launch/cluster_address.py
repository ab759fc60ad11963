"""Whether anything like a Ray cluster answers at an address, asked before Ray asks.

Ray itself would try for two minutes, and hear no Ctrl-C meanwhile. Owns the forms of `cluster.address` and the
question; starts nothing.
"""

import os
import socket

from async_rl.errors import ResourceError

TIMEOUT_S = 5.0
GRPC_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of HTTP/2 begins: the preface and an empty SETTINGS frame. Ray speaks gRPC, which is HTTP/2."""
FRAME_HEADER_BYTES = 9
SETTINGS = 4
WITHOUT_PLACE = ("", "auto", "local")
"""No cluster to join, or one that Ray finds on this machine, or says at once that it does not."""


def check_cluster(address: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Raises a `ResourceError` where nothing answers at `HOST:PORT` or `ray://HOST:PORT`, or something else does."""
    place = address.removeprefix("ray://")
    # Of other schemes Ray has plug-ins, which know better.
    if address in WITHOUT_PLACE or "://" in place:
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise _refusal(f"cluster.address={address} is no address of a cluster")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
            if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
                return
            connection.sendall(GRPC_HELLO)
            answer = connection.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    except (OSError, OverflowError) as error:
        raise _refusal(f"no Ray cluster answers at {address}: {error}") from error
    if len(answer) < FRAME_HEADER_BYTES or answer[3] != SETTINGS:
        raise _refusal(f"what listens at {address} is no Ray cluster")


def _refusal(problem: str) -> ResourceError:
    return ResourceError(
        problem,
        place="cluster.address",
        remedy="give the address of a running cluster, HOST:6379, or leave it empty to start Ray here",
    )
