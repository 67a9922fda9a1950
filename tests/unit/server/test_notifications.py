"""LISTEN, UNLISTEN, NOTIFY and pg_notify as in PostgreSQL, and channels that announce the changes of a relation."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

import watersmeet
from watersmeet.server.service import BackgroundServer, Endpoint


def received(client: psycopg.Connection, count: int, seconds: float = 30) -> list[tuple[str, str]]:
    """The next notifications of a client: channel and payload."""
    return [(n.channel, n.payload) for n in client.notifies(timeout=seconds, stop_after=count)]


def exchange(listening: psycopg.Connection, sending: psycopg.Connection) -> list[object]:
    """The notifications that a client receives, which do not depend on the server."""
    found: list[object] = []
    listening.execute('LISTEN c; LISTEN "Odd name"')
    found.append(listening.execute("SELECT pg_listening_channels()").fetchall())
    sending.execute(
        "NOTIFY c, 'one'; NOTIFY \"Odd name\"; NOTIFY other, 'nobody'; SELECT pg_notify('c', 'by function')"
    )
    found.append(received(listening, 3))
    with sending.transaction(force_rollback=True):
        sending.execute("NOTIFY c, 'undone'")
    with sending.transaction():
        sending.execute("NOTIFY c, 'twice'; NOTIFY c, 'twice'; SAVEPOINT s; NOTIFY c, 'undone'; ROLLBACK TO s")
        sending.execute("NOTIFY c, 'last'")
    found.append(received(listening, 2))
    with listening.transaction():  # nothing arrives in a transaction
        sending.execute("NOTIFY c, 'late'")
        found.append(received(listening, 1, 0.5))
    found.append(received(listening, 1))
    with listening.transaction():
        listening.execute("NOTIFY c, 'own'; LISTEN d; NOTIFY d, 'in the same transaction'")
    found.append(received(listening, 2))
    with listening.transaction(force_rollback=True):
        listening.execute("LISTEN e; UNLISTEN c")
    sending.execute("NOTIFY e, 'undone'; NOTIFY c, 'still'")
    found.append(received(listening, 1))
    listening.execute("UNLISTEN c; UNLISTEN nothing")
    sending.execute("NOTIFY c, 'gone'; NOTIFY d, 'here'")
    found.append(received(listening, 1))
    listening.execute("UNLISTEN *")
    found.append(listening.execute("SELECT pg_listening_channels()").fetchall())
    for text in (
        f"LISTEN {'x' * 64}",
        f"NOTIFY c, '{'x' * 8000}'",
        "SELECT pg_notify('', 'x')",
        f"SELECT pg_notify('{'x' * 64}', 'x')",
    ):
        try:
            sending.execute(text)
        except psycopg.Error as err:
            found.append(err.sqlstate)
        else:
            found.append("accepted")
    return found


@pytest.mark.postgres
def test_as_in_postgresql(serving, postgres):
    served = serving()
    with served.connect(autocommit=True) as a, served.connect(autocommit=True) as b:
        own = exchange(a, b)
    with postgres.connect() as a, postgres.connect() as b:
        assert own == exchange(a, b)
    assert own[1] == [("c", "one"), ("Odd name", ""), ("c", "by function")]


def test_sender_and_end_of_a_listener(serving):
    served = serving()
    with served.connect(autocommit=True) as sending:
        with served.connect(autocommit=True) as listening:
            listening.execute("LISTEN c")
            sending.execute("NOTIFY c")
            (found,) = listening.notifies(timeout=30, stop_after=1)
            assert found.pid == sending.info.backend_pid
            listening.execute("DISCARD ALL")
            assert listening.execute("SELECT pg_listening_channels()").fetchall() == []
            listening.execute("LISTEN c")
        sending.execute("NOTIFY c")  # nobody is there
        served.python.execute("NOTIFY c, 'from Python'")
    with pytest.raises(watersmeet.NotSupportedError, match="LISTEN is not supported"):
        served.python.execute("LISTEN c")


def test_changes_of_relations(serving):
    served = serving("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t WHERE a > 0")
    with served.connect(autocommit=True) as listening, served.connect(autocommit=True) as writing:
        listening.execute('LISTEN "changes of v"')
        for value in (-1, 1, 2):
            writing.execute("INSERT INTO t VALUES (%s)", [value])
            writing.execute("FLUSH")
        found = received(listening, 2)
        assert {channel for channel, _ in found} == {"changes of v"}
        commits = [int(payload) for _, payload in found]
        assert commits == sorted(commits)
        assert listening.execute("SELECT n FROM v").fetchone() == (2,)
        with listening.transaction(force_rollback=True):
            listening.execute('LISTEN "changes of t"')
        writing.execute("DROP MATERIALIZED VIEW v")
        writing.execute("INSERT INTO t VALUES (3)")
        assert received(listening, 1) == [("changes of v", 'error: materialized view "v" was dropped')]
        with pytest.raises(psycopg.errors.UndefinedTable, match='relation "w" does not exist'):
            listening.execute('LISTEN "changes of w"')
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            writing.execute("NOTIFY \"changes of t\", '1'")


def test_asyncpg(serving):
    served = serving("CREATE TABLE t (a int)")
    found: list[tuple[str, str]] = []

    async def run() -> None:
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="someone", database="shop")
        arrived = asyncio.Event()

        def callback(connection, process, channel, payload) -> None:
            del connection, process
            found.append((channel, payload))
            arrived.set()

        await client.add_listener("news", callback)
        await client.add_listener("changes of t", callback)
        served.python.execute("NOTIFY news, 'hello'")  # the client is idle
        await asyncio.wait_for(arrived.wait(), 30)
        arrived.clear()
        await client.execute("INSERT INTO t VALUES (1)")
        await asyncio.wait_for(arrived.wait(), 30)
        await client.remove_listener("news", callback)
        await client.close()

    asyncio.run(run())
    assert found[0] == ("news", "hello")
    assert [channel for channel, _ in found[1:]] == ["changes of t"]


def test_read_only_servers_announce_changes_only(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as writing:
        writing.execute("CREATE TABLE t (a int)")
        with (
            watersmeet.connect(tmp_path / "db", read_only=True) as reading,
            BackgroundServer(reading.opened, Endpoint(port=0)) as server,
            psycopg.connect(f"host=127.0.0.1 port={server.port} user=x dbname=d", autocommit=True) as client,
        ):
            for text in ("LISTEN c", "NOTIFY c"):
                with pytest.raises(psycopg.Error) as refused:
                    client.execute(text)
                assert refused.value.sqlstate == "25006"
            client.execute('LISTEN "changes of t"')
            writing.execute("INSERT INTO t VALUES (1)")
            assert [channel for channel, _ in received(client, 1)] == ["changes of t"]
