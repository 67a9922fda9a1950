"""Floods of connections, and clients that speak slowly, at both ports: bounded, on loopback, ended by themselves."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import socket
import ssl
import time
from contextlib import ExitStack

import pytest
from tests.unit.server.test_access import USERS, self_signed
from tests.unit.server.test_attacks import raw, said

from watersmeet.cli.serving import raise_descriptors
from watersmeet.server.clients import Limits
from watersmeet.server.service import AcceptErrors

HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
#: Longer than any limit that these tests set.
LONG_S = 20


def closed(client: socket.socket) -> bytes:
    """All that the server said until it closed the connection, which it does in time."""
    client.settimeout(LONG_S)
    return said(client)


@pytest.mark.parametrize("half", [b"", HEAD, b"POST /api/run HTTP/1.1\r\nContent-Length: 5\r\n"])
def test_half_open_requests_keep_nobody_out(serving, half):
    served = serving(http_port=0, limits=Limits(starting=10, connections=5, authentication_s=600))
    with ExitStack() as flood:
        clients = [flood.enter_context(raw(served.server.http_port)) for _ in range(60)]
        for client in clients:
            try:
                client.sendall(half)
            except OSError:
                pass  # it made room for a later one
        assert served.http("/livez").status == 200
        with served.connect() as client:
            assert client.execute("SELECT 1").fetchone() == (1,)
        assert closed(clients[0]) == b"", "the oldest makes room"
        clients[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            clients[-1].recv(1)


def test_a_request_that_drips_ends_in_time(serving):
    served = serving(http_port=0, limits=Limits(authentication_s=0.5))
    with raw(served.server.http_port) as dripping, raw(served.server.http_port) as silent:
        ends_s = time.monotonic() + LONG_S
        dripping.sendall(HEAD)
        try:
            while time.monotonic() < ends_s:
                dripping.sendall(b"X-A: b\r\n")
                time.sleep(0.05)
            raise AssertionError("it may go on")
        except OSError:
            pass
        assert closed(silent) == b""


def test_a_body_that_does_not_come_ends_in_time(serving):
    served = serving(http_port=0, limits=Limits(authentication_s=0.5))
    with raw(served.server.http_port) as client:
        client.sendall(
            b"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 50\r\n\r\n{"
        )
        answer = closed(client)
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["condition"] == "IDLE_TIMEOUT"


def test_a_client_that_reads_no_answer_ends_in_time(serving):
    served = serving(http_port=0, limits=Limits(slow_client_s=0.5))
    body = json.dumps({"text": "SELECT repeat('x', 20000000)"}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.server.http_port))
        client.sendall(
            b"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        ends_s = time.monotonic() + LONG_S
        while served.server._server._web._accepting._answering or served.server._server._web._accepting._waiting:
            assert time.monotonic() < ends_s
            time.sleep(0.05)


def test_handshakes_that_never_end_keep_nobody_out(serving, tmp_path):
    certificate, key = self_signed(tmp_path)
    limits = Limits(starting=10, connections=5, authentication_s=600)
    served = serving(USERS, certificate=certificate, key=key, http_port=0, limits=limits)
    context = ssl.create_default_context(cafile=certificate)
    with ExitStack() as flood:
        clients = [flood.enter_context(raw(served.server.http_port)) for _ in range(60)]
        with context.wrap_socket(raw(served.server.http_port), server_hostname="127.0.0.1") as client:
            client.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert said(client).startswith(b"HTTP/1.1 200")
        assert closed(clients[0]) == b""


def test_connections_that_are_kept_alive_answer_again(serving):
    served = serving(http_port=0)
    with raw(served.server.http_port) as client:
        for _ in range(3):
            client.sendall(HEAD + b"\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_lack_of_descriptors_is_logged_once(caplog):
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        AcceptErrors(loop)
        for _ in range(3):
            cause = OSError(errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "accept", "exception": cause, "socket": None})
        loop.call_exception_handler({"message": "another error", "exception": ValueError("odd")})

    asyncio.run(fail())
    assert [r.getMessage() for r in caplog.records if "accepted" in r.getMessage()] == [
        "a connection can't be accepted: Too many open files. Retrying every second."
    ]
    assert any("another error" in r.getMessage() for r in caplog.records)


def test_a_server_asks_for_the_descriptors_of_all_clients(caplog):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_descriptors(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        raise_descriptors(200)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        assert not caplog.records
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
