"""Clients beside each other: what each sees while others write, and what happens to those that go or do not listen."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time

import psycopg
import pytest

from watersmeet.server.clients import Limits

BANK = """
CREATE TABLE accounts (id int PRIMARY KEY, money bigint);
INSERT INTO accounts SELECT i, 100 FROM generate_series(1, 6) AS g(i);
CREATE MATERIALIZED VIEW total AS SELECT sum(money) AS money, count(*) AS n FROM accounts;
"""


def transfer(client: psycopg.Connection, rng: random.Random) -> bool:
    """Moves money between two accounts; whether it was done."""
    source, target = rng.sample(range(1, 7), 2)
    try:
        with client.transaction():
            amount = rng.randint(0, 50)
            client.execute("UPDATE accounts SET money = money - %s WHERE id = %s", (amount, source))
            client.execute("UPDATE accounts SET money = money + %s WHERE id = %s", (amount, target))
            if rng.random() < 0.2:
                raise psycopg.Rollback
    except psycopg.errors.SerializationFailure:
        return False
    return True


@pytest.mark.slow
def test_transfers_of_several_clients_lose_nothing(serving):
    served = serving(BANK)
    failures: list[BaseException] = []
    done: list[bool] = []
    ended = threading.Event()

    def write(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with served.connect(autocommit=True) as client:
                done.extend(transfer(client, rng) for _ in range(8))
        except BaseException as cause:
            failures.append(cause)

    def read(query: str, *, in_transaction: bool) -> None:
        try:
            with served.connect(autocommit=not in_transaction) as client:
                while not ended.is_set():
                    assert client.execute(query).fetchone() == (600, 6)
                    client.rollback()
        except BaseException as cause:
            failures.append(cause)

    def flush() -> None:
        with served.connect(autocommit=True) as client:
            while not ended.is_set():
                client.execute("FLUSH")
                time.sleep(0.01)

    query = "SELECT sum(money)::bigint, count(*) FROM accounts"
    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    others = [
        threading.Thread(target=read, args=(query,), kwargs={"in_transaction": False}),
        threading.Thread(target=read, args=(query,), kwargs={"in_transaction": True}),
        threading.Thread(target=read, args=("SELECT money::bigint, n FROM total",), kwargs={"in_transaction": False}),
        threading.Thread(target=flush),
    ]
    for thread in (*writers, *others):
        thread.start()
    for thread in writers:
        thread.join(120)
    ended.set()
    for thread in others:
        thread.join(30)
    assert not failures
    assert any(done)
    served.python.execute("FLUSH")
    assert served.python.execute(query).fetchone() == (600, 6)
    assert served.python.execute("SELECT money::bigint, n FROM total").fetchone() == (600, 6)


def test_a_query_that_runs_sends_rows_as_they_come(serving):
    served = serving("SET dialect = 'timeplus'; CREATE STREAM s (a int32)", dialect="timeplus")
    found: list[tuple[int]] = []

    def follow() -> None:
        with served.connect(autocommit=True) as client:
            found.extend(client.execute("SELECT a FROM s LIMIT 3").fetchall())

    thread = threading.Thread(target=follow)
    thread.start()
    with served.connect(autocommit=True) as client:
        for i in range(100):
            client.execute(f"INSERT INTO s (a) VALUES ({i})")
            client.execute("FLUSH")
            if not thread.is_alive():
                break
            time.sleep(0.05)
        thread.join(30)
        assert len(found) == 3
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="can't be prepared"):
            client.execute("SELECT a FROM s WHERE a = %s", (1,))
    runs = served.connect(autocommit=True)
    timer = threading.Timer(0.5, runs.cancel_safe)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        runs.execute("SELECT a FROM s")
    assert runs.execute("SELECT 1").fetchone() == (1,)
    runs.close()


SLOW = b"SELECT count(*) FROM generate_series(1, 100000) AS a(x), generate_series(1, 100000) AS b(y) WHERE x + y < 0\0"


def sent(client: socket.socket, kind: bytes, body: bytes) -> None:
    client.sendall(kind + struct.pack(">i", len(body) + 4) + body)


def started(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    body = struct.pack(">I", 3 << 16) + b"user\0u\0\0"
    client.sendall(struct.pack(">i", len(body) + 4) + body)
    client.recv(1 << 16)
    return client


def test_a_client_that_goes_ends_its_query(serving):
    served = serving(limits=Limits(connections=1))
    with started(served.server.port) as client:
        sent(client, b"Q", SLOW)
        time.sleep(0.3)
    until = time.monotonic() + 20
    while not _connects(served):  # its place is free once its query has ended
        assert time.monotonic() < until
        time.sleep(0.1)


def _connects(served) -> bool:
    try:
        with served.connect() as other:
            return other.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_a_client_that_takes_no_rows_is_cut_off(serving):
    served = serving(limits=Limits(slow_client_s=0.3, connections=1))
    with started(served.server.port) as client:
        sent(client, b"Q", b"SELECT repeat('x', 1000) FROM generate_series(1, 30000) AS g(i)\0")
        until = time.monotonic() + 60
        while not _connects(served):  # its place is free once it is cut off
            assert time.monotonic() < until
            time.sleep(0.1)
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                if not client.recv(1 << 20):
                    raise ConnectionResetError


def test_idle_clients(serving):
    served = serving()
    with served.connect(autocommit=True) as client:
        client.execute("SET idle_in_transaction_session_timeout = '200ms'")
        time.sleep(0.4)
        client.execute("BEGIN")
        time.sleep(0.6)
        with pytest.raises(psycopg.OperationalError, match="idle_in_transaction_session_timeout"):
            client.execute("SELECT 1")


def test_the_server_ends_while_clients_work(serving):
    served = serving(BANK)
    client = served.connect(autocommit=True)
    client.execute("BEGIN")
    client.execute("UPDATE accounts SET money = 0")
    failures = []

    def run() -> None:
        with served.connect(autocommit=True) as other:
            try:
                other.execute(SLOW[:-1].decode())
            except psycopg.Error as err:
                failures.append(err)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    served.server.__exit__(None, None, None)
    thread.join(30)
    assert "administrator" in str(failures[0])
    with pytest.raises(psycopg.OperationalError, match="administrator"):
        client.execute("COMMIT")
    served.python.execute("FLUSH")
    assert served.python.execute("SELECT sum(money)::bigint FROM accounts").fetchone() == (600,)
    served.server.__exit__ = lambda *_: None
