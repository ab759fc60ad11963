"""What answers at an address, and what is said of it. A real cluster is asked by every test in tests/integration."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from async_rl.errors import ResourceError
from async_rl.launch.cluster_address import check_cluster

SETTINGS_FRAME = bytes([0, 0, 18, 4, 0, 0, 0, 0, 0]) + bytes(18)


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """An address where somebody answers every client with these bytes, or with nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client, suppress(ConnectionError):
                if answer is not None:
                    client.sendall(answer)
                while client.recv(1024):
                    pass

        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def refused(address: str) -> str:
    with pytest.raises(ResourceError) as caught:
        check_cluster(address, timeout_s=0.2)
    assert caught.value.place == "cluster.address"
    assert "HOST:6379" in caught.value.remedy
    return caught.value.problem


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_what_speaks_http_2_may_be_a_cluster(scheme: str) -> None:
    with listening(SETTINGS_FRAME) as address:
        check_cluster(scheme + address)


def test_a_port_where_nobody_listens_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert refused(f"127.0.0.1:{port}") == f"no Ray cluster answers at 127.0.0.1:{port}: [Errno 111] Connection refused"


def test_another_service_is_refused() -> None:
    with listening(b"-ERR unknown command\r\n") as address:
        assert refused(address) == f"what listens at {address} is no Ray cluster"


def test_who_keeps_silent_is_refused_in_time() -> None:
    with listening(None) as address:
        assert refused(address) == f"no Ray cluster answers at {address}: timed out"


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":6379", "localhost:redis"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert refused(address) == f"cluster.address={address} is no address of a cluster"


@pytest.mark.parametrize("address", ["", "auto", "local", "anyscale://mine"])
def test_what_names_no_place_is_rays_to_judge(address: str) -> None:
    check_cluster(address)


def test_a_cluster_behind_tls_is_only_knocked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with listening(b"\x15\x03\x01\x00\x02\x02\x46\x00\x00") as address:
        check_cluster(address)
