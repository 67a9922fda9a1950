"""A server that is away for an hour, for what is captured from it and delivered to it at once."""

from __future__ import annotations

import datetime as dt

import pytest
from scripts.servers import mariadb
from scripts.servers import postgres as pg
from tests.movedclock import MovedClock
from tests.unit.sinks.databasetargets import KEYED, content, is_done, wait, written_options
from tests.waiting import until

import watersmeet

HOUR_S = 3600
#: More than users wait, as each attempt costs the test some time.
LAST_RETRY_S = 300
GIVEN = "CREATE TABLE given (id int PRIMARY KEY, name text); INSERT INTO given VALUES (1, 'a')"


def source(database):
    is_mysql = isinstance(database.server, mariadb.MariaDB)
    connector, user = ("mysql-cdc", mariadb) if is_mysql else ("postgres-cdc", pg)
    return f"""CREATE SOURCE there WITH (connector = '{connector}', hostname = '127.0.0.1',
        port = '{database.server.port}', username = '{user.USER}', password = '{user.PASSWORD}',
        database.name = '{database.name}')"""


def states(connection):
    """(state, reason) of the source and of the sink."""
    ((_, state, why, *_),) = connection.execute("SHOW SOURCES").fetchall()
    cursor = connection.execute("SHOW SINKS")
    shown = dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True))
    return (state, why), (shown["state"], shown["detail"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_postgres", pytest.param("own_mysql", marks=pytest.mark.slow)])
def test_an_hour_without_its_server(name, request, tmp_path, monkeypatch):
    """It is tried ever less often, the states say since when and why, also after a restart without it; nothing is lost,
    and it goes on by itself.
    """
    database, clock = request.getfixturevalue(name), MovedClock()
    clock.install(monkeypatch)
    for service in ("capture.capturing", "sinkwriters.writers"):
        monkeypatch.setattr(f"watersmeet.{service}._LAST_RETRY_S", LAST_RETRY_S)
    database.execute(KEYED)
    database.execute(GIVEN)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            {source(database)};
            CREATE TABLE given (*) FROM there TABLE 'given';
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            INSERT INTO t VALUES (1, 'a');
            CREATE SINK k FROM t WITH ({written_options(database)}, type = 'upsert', primary_key = 'id');
            FLUSH
        """)
        wait(connection, is_done)
        clock.waits.clear()
        database.server.kill()
        began = dt.datetime.fromtimestamp(clock.now_us() // 1_000_000, dt.UTC)
        connection.execute("INSERT INTO t VALUES (2, 'b')")
        clock.pass_time(HOUR_S, threads=2)
        for state, why in states(connection):
            assert state in ("waiting", "retrying")
            assert f"(since {began:%Y-%m-%d %H:%M:%S} UTC)" in why
            assert not {mariadb.PASSWORD, pg.PASSWORD} & {*why.split()}
        assert 'source "there" was not waited for' in connection.flush()[0]
        # A dozen times until it is that seldom; then a wait is between half of that and all.
        for thread in ("watersmeet-capture", "watersmeet-sink-writer"):
            assert HOUR_S / LAST_RETRY_S <= clock.waits[thread] <= 2 * HOUR_S / LAST_RETRY_S + 12
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        until(lambda: [s for s, _ in states(connection)] == ["waiting", "retrying"])
        connection.execute("UPDATE t SET name = 'c' WHERE id = 1")
        assert connection.execute("SELECT * FROM given").fetchall() == [(1, "a")]
        database.server.start()
        database.execute("INSERT INTO given VALUES (2, 'b')")
        clock.is_free = True
        wait(connection, is_done)
        until(lambda: sorted(connection.execute("FLUSH; SELECT * FROM given").fetchall()) == [(1, "a"), (2, "b")])
        assert [s for s, _ in states(connection)] == ["running", "running"]
        assert content(database) == [(1, "c"), (2, "b")]
