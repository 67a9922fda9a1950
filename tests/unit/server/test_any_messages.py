"""Messages in any order and of any length: the server answers with errors, and goes on."""

from __future__ import annotations

import random
import socket
import struct

import psycopg
import pytest
from tests.thorough import mostly_slow

TEXTS = (
    b"",
    b"SELECT 1",
    b"SELECT $1",
    b"SELECT a FROM t WHERE a = $1",
    b"BEGIN",
    b"COMMIT",
    b"ROLLBACK",
    b"INSERT INTO t VALUES ($1)",
    b"COPY t FROM STDIN",
    b"COPY t TO STDOUT",
    b"DECLARE c CURSOR FOR SELECT 1",
    b"FETCH 1 FROM c",
    b"SELECT 1; SELECT",
    b"SELECT '",
    b"\xff\xfe",
    b"SELECT relname FROM pg_class",
    b"SAVEPOINT s",
    b"ROLLBACK TO s",
    b"SHOW server_version",
    b"PREPARE a AS SELECT a FROM t WHERE a = $1",
    b"EXECUTE a(1)",
    b"DEALLOCATE ALL",
    b"COPY t FROM STDIN (FORMAT binary)",
    b"COPY (SELECT a FROM t) TO STDOUT (FORMAT binary)",
    b"DISCARD ALL",
    b"SET ROLE nobody",
    b"CREATE TABLE made (a int)",
    b"SELECT pg_backend_pid(), $1::int",
    b"SELECT a FROM t; COPY t FROM STDIN; SELECT 1",
    b"UPDATE t SET a = a + 1 RETURNING a",
)
NAMES = (b"", b"a", b"c", b"\xff")


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def some_message(rng: random.Random) -> bytes:
    text, name, other = rng.choice(TEXTS) + b"\0", rng.choice(NAMES) + b"\0", rng.choice(NAMES) + b"\0"
    values = [rng.choice((None, b"", b"1", b"\0\0\0\1", b"x" * 70)) for _ in range(rng.randint(0, 2))]
    bind = b"".join(struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)
    made = rng.choice(
        (
            message(b"Q", text),
            message(b"P", name + text + struct.pack(">h", 0)),
            message(b"P", name + text + struct.pack(">hi", 1, rng.choice((0, 23, 25, 99999)))),
            message(b"B", name + other + struct.pack(">hhh", 1, rng.choice((0, 1, 7)), len(values)) + bind + b"\0\0"),
            message(b"D", rng.choice((b"S", b"P", b"?")) + name),
            message(b"E", name + struct.pack(">i", rng.choice((0, 1, -1)))),
            message(b"C", rng.choice((b"S", b"P", b"?")) + name),
            message(b"S", b""),
            message(b"H", b""),
            message(b"d", rng.choice((b"1\n", b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\0\0\0\4\0\0\0\7\xff\xff"))),
            message(b"c", b""),
            message(b"f", b"no\0"),
            message(b"p", b"password\0"),
            message(bytes([rng.randrange(256)]), rng.randbytes(rng.randint(0, 30))),
        )
    )
    broken = rng.random()
    if broken < 0.05:
        return made[: rng.randint(1, len(made))]
    if broken < 0.1:
        return made[:1] + struct.pack(">i", rng.choice((0, 3, -1, 1 << 30, len(made) + 5))) + made[5:]
    return made


def started(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    body = struct.pack(">I", 3 << 16) + b"user\0u\0\0"
    client.sendall(struct.pack(">i", len(body) + 4) + body)
    return client


def frames(data: bytes) -> list[bytes]:
    """The letters of the messages; the server sends nothing else than whole messages."""
    found, place = [], 0
    while place < len(data):
        (length,) = struct.unpack(">i", data[place + 1 : place + 5])
        found.append(data[place : place + 1])
        place += 1 + length
    assert place == len(data)
    return found


def spoken(client: socket.socket, sent: bytes) -> list[bytes]:
    """What the server says until it closes the connection, or the client has said all and goes."""
    data = b""
    try:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while piece := client.recv(1 << 16):
            data += piece
    except ConnectionError:
        return []
    return frames(data.lstrip(b"N"))  # which answers requests for encryption


@pytest.mark.parametrize("seed", mostly_slow(range(100), 2, 2))
def test_messages_in_any_order_and_length(serving, seed, caplog):
    served = serving("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    rng = random.Random(seed)
    for _ in range(25):
        client = started(served.server.port)
        with client:
            said = spoken(client, b"".join(some_message(rng) for _ in range(rng.randint(1, 15))))
        assert not said or said[0] == b"R"
    with served.connect() as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
        assert client.execute("SELECT count(*) FROM pg_stat_activity").fetchone() == (1,)  # none was left behind
    assert not [r.getMessage() for r in caplog.records if "internal error" in r.getMessage()]


@pytest.mark.parametrize("seed", mostly_slow(range(30), 1, 1))
def test_any_bytes_in_front(serving, seed):
    served = serving()
    rng = random.Random(seed)
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", served.server.port), timeout=20) as client:
            length = rng.choice((0, 4, 8, 9, 16, 60, 10_004, 10_005, 1 << 31))
            code = rng.choice((3 << 16, 80877102, 80877103, 80877104, 2 << 16, rng.randrange(1 << 32)))
            spoken(client, struct.pack(">II", length & 0xFFFFFFFF, code) + rng.randbytes(rng.randint(0, 60)))
    with served.connect() as client:
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_request_for_gss_and_then_for_tls_and_a_newer_protocol(serving):
    served = serving()
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=20) as client:
        for code in (80877104, 80877103):
            client.sendall(struct.pack(">iI", 8, code))
            assert client.recv(1) == b"N"
        body = struct.pack(">I", (3 << 16) + 2) + b"user\0u\0_pq_.some\0thing\0\0"
        client.sendall(struct.pack(">i", len(body) + 4) + body)
        said = spoken(client, message(b"X", b""))
    assert said[:2] == [b"v", b"R"]


def test_pipelines_skip_to_the_next_sync(serving):
    with serving("CREATE TABLE t (a int)").connect(autocommit=True) as client:
        with pytest.raises(psycopg.errors.UndefinedTable), client.pipeline():
            client.execute("INSERT INTO t VALUES (1)")
            client.execute("SELECT * FROM nothing")
            client.execute("INSERT INTO t VALUES (2)")
        client.execute("FLUSH")
        assert client.execute("SELECT * FROM t").fetchall() == []


def test_portals_give_so_many_rows_at_a_time(serving):
    served = serving()
    query = b"SELECT x FROM generate_series(1, 5) AS g(x)\0"
    with started(served.server.port) as client:
        said = spoken(
            client,
            message(b"P", b"\0" + query + b"\0\0")
            + message(b"B", b"p\0\0" + bytes(6))
            + message(b"E", b"p\0" + struct.pack(">i", 2))
            + message(b"E", b"p\0" + struct.pack(">i", 2))
            + message(b"E", b"p\0" + struct.pack(">i", 2))
            + message(b"S", b"")
            + message(b"E", b"p\0" + struct.pack(">i", 2))
            + message(b"S", b""),
        )
    after = said[said.index(b"Z") + 1 :]
    assert b"".join(after) == b"12DDsDDsDCZEZ"
