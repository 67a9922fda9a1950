"""Two servers of one database, of which one writes and the other one is a standby: `watersmeet serve --standby`."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from scripts.servers.process import free_ports
from tests.standbys import Server, connected

import watersmeet
from watersmeet.cli.serving import Openings, Task, Watch, stand_by, warm_nothing
from watersmeet.errors import Error
from watersmeet.server.service import Endpoint, OtherServer, other_server
from watersmeet.store.layout import Layout, WriterLock, has_writer

pytestmark = pytest.mark.slow

SCRIPT = "CREATE TABLE t (a int PRIMARY KEY);CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(a) AS s FROM t;"


@pytest.fixture
def servers():
    """Starts servers; those that still run at the end are killed."""
    started: list[Server] = []

    def start(*arguments):
        started.append(Server(*arguments))
        return started[-1]

    yield start
    for server in started:
        server.kill()


def test_a_standby_reads_and_takes_over_from_a_killed_server(tmp_path, servers):
    path, (first, second) = str(tmp_path / "db"), free_ports(2)
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    one = servers(path, first, str(script))
    one.writes()
    two = servers(path, second, str(script), "--http-port", "0")
    two.stands_by()
    two.says("the console is at http://127.0.0.1:")
    with connected(first, second) as client:
        client.execute("INSERT INTO t VALUES (1), (2)")
        client.execute("FLUSH")
    with psycopg.connect(host="127.0.0.1", port=second, user="u", autocommit=True) as reading:
        assert reading.execute("SELECT n, s FROM v").fetchone() == (2, 3)
        assert reading.info.parameter_status("in_hot_standby") == "on"
        assert reading.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            reading.execute("INSERT INTO t VALUES (3)")
        one.end(signal.SIGKILL)
        two.writes()
        with pytest.raises(psycopg.OperationalError, match="administrator"):
            reading.execute("SELECT 1")
    with connected(first, second) as client:
        assert client.info.port == second
        assert client.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        client.execute("INSERT INTO t VALUES (4)")
        client.execute("FLUSH")
        assert client.execute("SELECT n, s FROM v").fetchone() == (3, 7)
    assert two.end() == 0


def test_a_server_that_hangs_is_overtaken_and_becomes_the_standby(tmp_path, servers):
    path, (first, second) = str(tmp_path / "db"), free_ports(2)
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    one = servers(path, first, str(script), "--other", f"127.0.0.1:{second}")
    one.writes()
    two = servers(path, second, str(script), "--other", f"127.0.0.1:{first}")
    two.stands_by()
    client = connected(first, second)
    client.execute("INSERT INTO t VALUES (1)")
    time.sleep(1)  # so that the standby has asked
    one.process.send_signal(signal.SIGSTOP)
    two.writes()
    with connected(second) as other:
        other.execute("INSERT INTO t VALUES (2)")
        other.execute("FLUSH")  # a reader sees the rows of the newest epoch
    one.process.send_signal(signal.SIGCONT)
    with pytest.raises(psycopg.Error):
        for number in range(100, 100_000):  # until it learns that it was overtaken; none of them is kept
            client.execute(f"INSERT INTO t VALUES ({number})")
    one.stands_by()
    assert "another server has taken over" in " ".join(one.lines)
    with psycopg.connect(host="127.0.0.1", port=first, user="u", autocommit=True) as reading:
        assert reading.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (2,)]
    assert two.end() == 0
    one.writes(2)
    with connected(first, second) as client:
        client.execute("FLUSH")
        assert client.execute("SELECT n, s FROM v").fetchone() == (2, 3)
    assert one.end() == 0


def test_a_standby_that_starts_while_the_writer_hangs_takes_over(tmp_path, servers):
    """It has never had an answer: the file of the lock shows that the other server writes."""
    path, (first, second) = str(tmp_path / "db"), free_ports(2)
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    one = servers(path, first, str(script), "--other", f"127.0.0.1:{second}")
    one.writes()
    with connected(first) as client:
        client.execute("INSERT INTO t VALUES (1)")
    one.process.send_signal(signal.SIGSTOP)
    two = servers(path, second, str(script), "--other", f"127.0.0.1:{first}")
    two.writes()
    with connected(second) as client:
        client.execute("INSERT INTO t VALUES (2)")
        client.execute("FLUSH")
        assert client.execute("SELECT n, s FROM v").fetchone() == (2, 3)
    one.process.send_signal(signal.SIGCONT)
    one.stands_by()
    assert two.end() == 0
    one.writes(2)
    assert one.end() == 0


def test_only_a_process_that_serves_at_the_address_is_overtaken(tmp_path):
    """Another process that writes, such as a shell, does not answer either."""
    (port,) = free_ports(1)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        watch = Watch(Layout(tmp_path / "db", create=False), OtherServer("127.0.0.1", port), 1.5)
        for noted, overtaken in ((None, False), (port + 1, False), (port, True)):
            if noted is not None:
                connection.opened.serves(noted)
            watch._heard_s = float("-inf")
            assert watch.is_free() is overtaken
    assert watch.is_free()


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_restarts_in_turn_lose_no_row_and_no_place_of_a_subscriber(tmp_path, servers, request, place):
    """A client inserts again what was not acknowledged, and a subscriber resumes after its last token."""
    path = str(tmp_path / "db") if place == "directory" else request.getfixturevalue("database_url")
    ports = free_ports(2)
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)

    def start(number):
        other = f"127.0.0.1:{ports[1 - number]}"
        return servers(path, ports[number], str(script), *(() if place == "directory" else ("--other", other)))

    running = [start(0)]
    running[0].writes()
    running.append(start(1))
    running[1].stands_by()
    acknowledged: list[int] = []
    received: list[int] = []
    stopped = threading.Event()

    def insert():
        number = 0
        while not stopped.is_set():
            with contextlib.suppress(psycopg.Error), connected(*ports) as client:
                while not stopped.is_set():
                    client.execute(f"INSERT INTO t VALUES ({number}) ON CONFLICT DO NOTHING")
                    acknowledged.append(number)
                    number += 1

    def follow():
        token = ""
        while True:
            with contextlib.suppress(psycopg.Error), connected(*ports) as client:
                client.execute("BEGIN")
                client.execute(f"DECLARE c CURSOR FOR SUBSCRIBE t {token}")
                while True:
                    ended = stopped.is_set()
                    for commit, diff, row in client.execute("FETCH ALL c WITH (timeout = '1s')").fetchall():
                        assert diff == 1
                        received.append(row)
                        token, ended = f"AFTER {commit}", False
                    if ended:
                        return

    threads = [threading.Thread(target=f, daemon=True) for f in (insert, follow)]
    for thread in threads:
        thread.start()
    for turn in range(4):
        ending, taking = running[turn % 2], running[1 - turn % 2]
        taken = sum(x.startswith("listening") for x in taking.lines)
        count = len(acknowledged)
        while len(acknowledged) < count + 20:
            time.sleep(0.05)
        assert ending.end(signal.SIGKILL if turn == 2 else signal.SIGTERM) in (0, -signal.SIGKILL)
        taking.writes(taken + 1)
        running[turn % 2] = start(turn % 2)
        running[turn % 2].stands_by()
    stopped.set()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    with connected(*ports) as client:
        client.execute("FLUSH")
        kept = [a for (a,) in client.execute("SELECT a FROM t ORDER BY a").fetchall()]
        assert client.execute("SELECT n, s FROM v").fetchone() == (len(kept), sum(kept))
    assert set(acknowledged) <= set(kept)
    assert kept == list(range(len(kept)))
    assert sorted(received) == kept


def test_a_signal_while_it_opens_ends_it(tmp_path):
    """It closes the database that it has just opened."""
    opened: list[watersmeet.Connection] = []

    def writer(*, take_over: bool) -> watersmeet.Connection:
        opened.append(watersmeet.connect(tmp_path / "db", runtime="inprocess", take_over=take_over))
        signal.raise_signal(signal.SIGTERM)
        return opened[0]

    def reader() -> watersmeet.Connection:
        return watersmeet.connect(tmp_path / "db", read_only=True)

    openings = Openings(reader, writer, warm_nothing, None, 1.0)
    assert stand_by(openings, Task((), Endpoint(port=0))) == 0
    assert opened[0].opened.is_closed


def test_a_lock_is_only_broken_on_demand(tmp_path):
    layout = Layout(tmp_path / "db")
    held = WriterLock(layout)
    with pytest.raises(Error, match="in use by"):
        WriterLock(layout)
    broken = WriterLock(layout, breaks=True)
    with pytest.raises(Error, match="in use by"):
        WriterLock(layout)
    held.release()
    assert has_writer(layout.root)
    broken.release()
    assert not has_writer(layout)


def test_take_over_fences_the_connection_that_has_the_database_open(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as first:
        first.execute("CREATE TABLE t (a int)")
        with watersmeet.connect(path, runtime="inprocess", take_over=True) as second:
            second.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(Error) as fenced:
                first.execute("INSERT INTO t VALUES (2)")
            assert fenced.value.condition == "WRITER_FENCED"
            assert second.execute("SELECT a FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("address", ["nohost", "h:x", ":5", "h:70000"])
def test_addresses_are_checked(address):
    with pytest.raises(Error, match="is no address of a server"):
        other_server(address)
    assert other_server("[::1]:5433") == OtherServer("::1", 5433)


def test_a_silent_server_is_unknown():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert OtherServer("127.0.0.1", listening.getsockname()[1]).is_writer(0.05) is None


def test_options_that_do_not_fit():
    def said(*arguments):
        command = [sys.executable, "-m", "watersmeet", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, re.sub(r"\s+", " ", done.stderr)

    assert said("--path", "db", "--standby", "--read-only")[0] == 2
    assert "--other needs --standby" in said("--path", "db", "--other", "h:1")[1]
