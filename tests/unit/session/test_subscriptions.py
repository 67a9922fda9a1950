"""SUBSCRIBE TO and RECOVER FROM: what was handed out does not come again, what was not handed out comes."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from tests.unit.store.faults import FaultyOs, Killed

import watersmeet
from watersmeet.runtime import coordinator
from watersmeet.runtime.workers import Budget
from watersmeet.store import retention
from watersmeet.system import files

ROOT = Path(__file__).parents[3]


def connect(path, **options):
    return watersmeet.connect(path, runtime="inprocess", dialect="timeplus", parallelism=2, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "db"


@pytest.fixture
def connection(path):
    with connect(path) as made:
        made.execute("CREATE STREAM s(i int)")
        yield made


def insert(connection, *values):
    connection.execute("INSERT INTO s(i) VALUES " + ", ".join(f"({v})" for v in values))
    connection.flush()


def subscribe(connection, query="SELECT i FROM s", name="q"):
    return connection.execute(f"SUBSCRIBE TO {query} SETTINGS query_id = '{name}'")


def recover(connection, name="q"):
    return connection.execute(f"RECOVER FROM '{name}'")


def values(cursor):
    return [row[0] for row in cursor.fetchall()]


def shown(connection):
    return {row[0]: row[3] for row in connection.execute("SHOW QUERIES").fetchall()}


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_id_is_told(connection):
    cursor = connection.execute("SUBSCRIBE TO SELECT i FROM s")
    (name,) = shown(connection)
    assert cursor.notices == (f"RECOVER FROM '{name}' continues this query, UNSUBSCRIBE TO ends it",)
    assert cursor.statusmessage == "SUBSCRIBE"


def test_rows_that_were_not_fetched_come_after_recovery(connection):
    cursor = subscribe(connection)
    insert(connection, 1, 2, 3)
    assert cursor.fetchone() == (1,)
    cursor.close()
    insert(connection, 4)
    cursor = recover(connection)
    assert cursor.fetchmany(2) == [(2,), (3,)]
    insert(connection, 5)
    cursor.close()
    assert values(recover(connection)) == [4, 5]


@pytest.mark.parametrize("fetch", ["fetchone", "fetchmany", "fetchall", "fetch_arrow_table", "__next__"])
def test_each_way_to_fetch_hands_out_what_it_gives(connection, fetch):
    cursor = subscribe(connection)
    insert(connection, 1, 2, 3)
    given = next(iter(cursor)) if fetch == "__next__" else getattr(cursor, fetch)()
    rows = given.column(0).to_pylist() if fetch == "fetch_arrow_table" else [1, 2, 3][: 3 if len(given) == 3 else 1]
    cursor.close()
    assert rows + values(recover(connection)) == [1, 2, 3]


def test_looking_at_all_rows_hands_out_none(connection):
    cursor = subscribe(connection)
    insert(connection, 1, 2)
    assert cursor.arrow().num_rows == 2
    cursor.close()
    assert values(recover(connection)) == [1, 2]


def test_changes_are_cut_within_equal_rows(connection):
    """A change of three equal rows is one row that comes three times."""
    connection.execute("CREATE STREAM kv(k int, v int, PRIMARY KEY (k)) SETTINGS mode = 'versioned_kv'")
    cursor = subscribe(connection, "SELECT v FROM kv")
    connection.execute("INSERT INTO kv(k, v) VALUES (1, 7), (2, 7), (3, 7)")
    connection.flush()
    assert cursor.fetchmany(2) == [(7, 1), (7, 1)]
    cursor.close()
    connection.execute("INSERT INTO kv(k, v) VALUES (1, 8)")
    connection.flush()
    assert recover(connection).fetchall() == [(7, 1), (7, -1), (8, 1)]


def test_a_running_query_object_hands_out_what_it_takes(connection):
    query = connection.start("SUBSCRIBE TO SELECT i FROM s SETTINGS query_id = 'q'")
    insert(connection, 1)
    assert query.take()[0].column(0).to_pylist() == [1]
    insert(connection, 2)
    query.close()
    assert connection.start("RECOVER FROM 'q'").take()[0].column(0).to_pylist() == [2]


def test_a_forgotten_cursor_waits_to_be_recovered(connection):
    cursor = subscribe(connection)
    insert(connection, 1, 2)
    assert cursor.fetchone() == (1,)
    del cursor
    gc.collect()
    assert values(recover(connection)) == [2]
    gc.collect()
    until(lambda: not [t for t in list(connection._session.stopping) if t.is_alive()])
    insert(connection, 3)
    assert values(recover(connection)) == [3]


def test_a_cursor_that_goes_on_to_another_statement_waits_to_be_recovered(connection):
    cursor = subscribe(connection)
    insert(connection, 1)
    cursor.execute("SELECT 1 AS one")
    assert shown(connection) == {"q": "waits"}
    assert values(recover(connection)) == [1]


def test_a_killed_reader_gets_no_row_that_comes_again(connection):
    cursor = subscribe(connection)
    insert(connection, 1, 2)
    assert cursor.fetchone() == (1,)
    connection.execute("KILL QUERY 'q'")
    for fetch in (cursor.fetchone, cursor.fetchall, cursor.fetchmany):
        with pytest.raises(watersmeet.Error) as found:
            fetch()
        assert found.value.condition == "QUERY_CANCELED"
    assert values(recover(connection)) == [2]


@pytest.mark.parametrize("ended", ["closed", "left open"])
def test_it_goes_on_after_a_restart(path, ended):
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
        cursor = subscribe(connection, "SELECT count() AS n, sum(i) AS total FROM s")
        insert(connection, 1, 2)
        assert cursor.fetchall()[-1] == (2, 3, 1)
        if ended == "closed":
            cursor.close()
    with connect(path) as connection:
        assert shown(connection) == {"q": "waits"}
        insert(connection, 3)
        assert recover(connection).fetchall() == [(2, 3, -1), (3, 6, 1)]


def test_a_connection_that_was_forgotten_saves_what_was_handed_out(path):
    connection = connect(path)
    connection.execute("CREATE STREAM s(i int)")
    query = subscribe(connection)
    insert(connection, 1, 2)
    assert query.fetchone() == (1,)
    connection._finalizer()
    with connect(path) as connection:
        assert values(recover(connection)) == [2]


def rows_of(connection):
    """All rows of the stream, which are numbered as they were written; the subscriptions have them, too."""
    connection.flush()
    return sorted(values(connection.execute("SELECT i FROM table(s)")))


class Client:
    """Who reads a subscription and is killed at step `at` of the file system.

    handed: how many rows it got; acknowledged: how many of these can't come again.
    """

    def __init__(self, path, at):
        self.path = path
        self.faulty = FaultyOs(at, torn=bool(at and at % 3 == 0))
        self.handed = self.acknowledged = 0
        self.numbers = itertools.count()
        self.seen = []

    def run(self):
        """Whether it came to its end."""
        self.connection = None
        with mock.patch.object(files, "os", self.faulty):
            try:
                self.connection = connect(self.path)
                self.work()
            except Killed:
                return False
            finally:
                if self.connection is not None:
                    with contextlib.suppress(Killed, watersmeet.Error):  # lets go of the lock, and can do nothing else
                        self.connection.close()
        return True

    def work(self):
        self.cursor = subscribe(self.connection)
        self.insert(3)
        self.fetch(2)
        self.fetch(None)
        self.insert(2)
        self.fetch(None)
        self.close()
        self.insert(1)
        self.cursor = recover(self.connection)
        self.connection._session.database._compactor.run()
        self.fetch(None)
        self.insert(3)
        self.fetch(1)
        self.close()
        self.cursor = recover(self.connection)
        self.insert(1)
        self.fetch(None)
        self.connection._session.database._compactor.run()

    def insert(self, rows):
        insert(self.connection, *itertools.islice(self.numbers, rows))

    def fetch(self, rows):
        found = self.cursor.fetchall() if rows is None else self.cursor.fetchmany(rows)
        if rows is None:  # what was fetched before was acknowledged by asking for more
            self.acknowledged = self.handed
        self.seen += [row[0] for row in found]
        self.handed += len(found)

    def close(self):
        self.cursor.close()
        self.acknowledged = self.handed


def killed(path, at):
    """Whether the client came to its end before step `at`; what follows a kill is as the law says."""
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
    client = Client(path, at)
    ended = client.run()
    with connect(path) as connection:
        written = rows_of(connection)
        assert written == list(range(len(written)))
        assert client.seen == written[: client.handed]
        if "q" not in shown(connection):
            assert not client.handed
            assert not written, "the subscription was there before the first row"
            return ended
        rest = values(recover(connection))
        first = len(written) - len(rest)
        assert rest == written[first:]
        assert client.acknowledged <= first <= client.handed
        insert(connection, len(written))
    with connect(path) as connection:
        assert values(recover(connection)) == [len(written)]
    return ended


@pytest.mark.parametrize(
    ("begin", "stride"),
    [(20, 41), *(pytest.param(b, 12, marks=pytest.mark.slow) for b in range(2))],
)
def test_a_kill_at_any_step_repeats_the_rows_of_the_last_fetch_at_most(tmp_path, begin, stride):
    for number in itertools.count():
        if killed(tmp_path / f"db{number}", at=3 + begin + stride * number):
            break
    assert number > 5


def test_history_that_is_read_in_pieces_comes_once(path, monkeypatch):
    monkeypatch.setattr(coordinator, "Budget", functools.partial(Budget, first_rows=2, max_rows=2))
    with connect(path) as connection:
        connection.execute("CREATE MUTABLE STREAM m (k int, v int) PRIMARY KEY k")
        for k in range(10):
            connection.execute(f"INSERT INTO m (k, v) VALUES ({k}, {k % 3})")
        connection.flush()
        subscribe(connection, "SELECT v, count() AS n FROM m GROUP BY v").close()
    with connect(path) as connection:
        cursor = recover(connection)
        first = cursor.fetchmany(2)
        cursor.close()
        assert sorted([*first, *recover(connection).fetchall()]) == [(0, 4, 1), (1, 3, 1), (2, 3, 1)]


def test_what_a_subscription_needs_is_kept(path):
    with connect(path) as connection:
        connection.execute("ALTER SYSTEM SET retention = 0; CREATE STREAM s(i int)")
        subscribe(connection).close()
        for number in range(20):
            insert(connection, number)
        connection._session.database._compactor.run()
        kept = {row[0]: row[4] for row in connection.execute("SHOW QUERIES").fetchall()}
        assert kept["q"] >= 40
    with connect(path) as connection:
        connection._session.database._compactor.run()
        before = len(list((path / "commits").iterdir()))
        cursor = recover(connection)
        assert values(cursor) == list(range(20))
        assert values(cursor) == []
        insert(connection, 20)
        connection._session.database._compactor.run()
        assert len(list((path / "commits").iterdir())) < before - 20


@pytest.mark.parametrize("limit", ["KEPT_COMMITS", "KEPT_BYTES"])
def test_a_subscription_that_needs_too_much_is_lost_by_name(path, monkeypatch, limit):
    monkeypatch.setattr(retention, limit, 10)
    monkeypatch.setattr(retention, "IDLE_COMMITS", 10)  # the idle reader of sizes keeps commits as well
    with connect(path) as connection:
        connection.execute("ALTER SYSTEM SET retention = 0; CREATE STREAM s(i int)")
        subscribe(connection).close()
        for number in range(20):
            insert(connection, number)
        connection._session.database._compactor.run()
        insert(connection, 20)
        connection._session.database._compactor.run()
    for _ in range(2):
        with connect(path) as connection:
            assert connection.execute("SHOW QUERIES").fetchall()[0][3:] == ("lost", None, None)
            with pytest.raises(watersmeet.Error, match="can't go on") as found:
                recover(connection)
            assert found.value.condition == "SUBSCRIPTION_LOST"
            connection._session.database._compactor.run()
    with connect(path) as connection:
        connection.execute("UNSUBSCRIBE TO 'q'")
        assert shown(connection) == {}
        assert not list((path / "subscriptions").iterdir())


def test_nothing_is_left_of_a_subscription_that_could_not_be_made(path):
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
        with pytest.raises(watersmeet.Error):
            subscribe(connection, "SELECT j FROM s")
        with (
            mock.patch("watersmeet.maintenance.views.fill", side_effect=watersmeet.errors.error("DISK_FULL", "full")),
            pytest.raises(watersmeet.Error, match="full"),
        ):
            subscribe(connection)
        assert not list((path / "subscriptions").iterdir())
        assert values(subscribe(connection)) == []


def test_a_transaction_that_does_not_commit_leaves_no_subscription(path):
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
        connection.execute("BEGIN")
        cursor = subscribe(connection)
        connection.rollback()
        assert shown(connection) == {}
        with pytest.raises(watersmeet.Error):
            cursor.fetchall()
        connection.execute("BEGIN; CREATE STREAM n(i int)")
        cursor = subscribe(connection, "SELECT i FROM n", "of n")
        reader = subscribe(connection)
    with connect(path) as connection:
        assert shown(connection) == {}
        assert not list((path / "subscriptions").iterdir())
        for closed in (cursor, reader):
            with pytest.raises(watersmeet.Error, match="closed"):
                closed.fetchall()
        connection.execute("BEGIN; CREATE STREAM n(i int)")
        cursor = subscribe(connection, "SELECT i FROM n", "of n")
        subscribe(connection, name="closed").close()
        connection.commit()
        connection.execute("INSERT INTO n(i) VALUES (1); FLUSH")
        assert values(cursor) == [1]
    with connect(path) as connection:
        assert shown(connection) == {"of n": "waits"}
        connection.execute("INSERT INTO n(i) VALUES (2); FLUSH")
        assert values(recover(connection, "of n")) == [2]


def test_what_a_transaction_drops_and_takes_back_is_still_subscribed(connection):
    subscribe(connection).close()
    for statement in ("DROP STREAM s CASCADE", "UNSUBSCRIBE TO 'q'"):
        connection.execute(f"BEGIN; {statement}")
        assert shown(connection) == {}
        connection.rollback()
        insert(connection, 1)
        cursor = recover(connection)
        assert values(cursor) == [1]
        cursor.close()
    connection.execute("BEGIN; UNSUBSCRIBE TO 'q'; COMMIT")
    assert shown(connection) == {}


def test_dropping_a_stream_ends_who_reads_it(connection):
    cursors = [subscribe(connection), connection.execute("SELECT i FROM s")]
    connection.execute("DROP STREAM s CASCADE")
    for cursor in cursors:
        with pytest.raises(watersmeet.Error) as found:
            cursor.fetchall()
        assert found.value.condition == "QUERY_CANCELED"
    assert shown(connection) == {}


def test_a_position_that_is_damaged_is_told_when_it_is_asked_for(path):
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
        subscribe(connection).close()
    (file,) = (path / "subscriptions").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    for _ in range(2):
        with connect(path) as connection, pytest.raises(watersmeet.Error) as found:
            recover(connection)
        assert found.value.condition == "DATABASE_DAMAGED"
    with connect(path) as connection:
        connection.execute("UNSUBSCRIBE TO 'q'")
    connect(path).close()
    assert not list((path / "subscriptions").iterdir())


def test_what_a_writer_that_was_overtaken_reads_acknowledges_nothing(path):
    class NoLock:
        def __init__(self, layout, **_):
            pass

        def release(self):
            pass

    with mock.patch("watersmeet.database.opened.WriterLock", NoLock):
        before = connect(path)
        before.execute("CREATE STREAM s(i int)")
        cursor = subscribe(before)
        insert(before, 1)
        assert values(cursor) == [1]
        with connect(path) as connection:
            with pytest.raises(watersmeet.Error) as found:
                cursor.fetchall()
            assert found.value.condition == "WRITER_FENCED"
            with contextlib.suppress(watersmeet.Error):
                before.close()
            assert values(recover(connection)) == [1]


def test_a_rebuild_makes_the_state_of_a_subscription_anew(path):
    with connect(path) as connection:
        connection.execute("CREATE STREAM kv(k int, v int, PRIMARY KEY (k)) SETTINGS mode = 'versioned_kv'")
        cursor = subscribe(connection, "SELECT v, count() AS n FROM kv GROUP BY v EMIT CHANGELOG")
        connection.execute("INSERT INTO kv(k, v) VALUES (1, 7), (2, 7); FLUSH")
        assert cursor.fetchall() == [(7, 2, 1)]
    with watersmeet.connect(path, runtime="inprocess", dialect="timeplus", parallelism=3, rebuild=True) as connection:
        cursor = recover(connection)
        assert cursor.fetchall() == []
        connection.execute("INSERT INTO kv(k, v) VALUES (1, 8); FLUSH")
        assert sorted(cursor.fetchall()) == [(7, 1, 1), (7, 2, -1), (8, 1, 1)]


def test_parameters_and_readers_are_refused(path):
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
        subscribe(connection).close()
        with pytest.raises(watersmeet.Error, match="takes no parameters"):
            connection.execute("SUBSCRIBE TO SELECT i FROM s WHERE i > ?", (1,))
    with connect(path, read_only=True) as connection:
        for statement in ("SUBSCRIBE TO SELECT i FROM s", "RECOVER FROM 'q'", "UNSUBSCRIBE TO 'q'"):
            with pytest.raises(watersmeet.Error) as found:
                connection.execute(statement)
            assert found.value.condition == "READ_ONLY_SESSION"


@pytest.mark.parametrize("dialect", ["risingwave", "sqlstream", "lenses"])
def test_other_dialects_refuse_it_by_name(dialect):
    with watersmeet.connect(runtime="inprocess", dialect=dialect) as connection:
        for statement in ("SUBSCRIBE TO SELECT 1", "RECOVER FROM 'q'", "UNSUBSCRIBE TO 'q'"):
            with pytest.raises(watersmeet.Error) as found:
                connection.execute(statement)
            assert found.value.condition == "FEATURE_NOT_SUPPORTED"


READER = """
import sys, watersmeet
connection = watersmeet.connect(sys.argv[1], runtime="inprocess", dialect="timeplus", parallelism=2)
numbers = iter(range(int(sys.argv[2]), 1 << 30))
cursor = connection.execute("RECOVER FROM 'q'")
while True:
    connection.execute(f"INSERT INTO s(i) VALUES ({next(numbers)}), ({next(numbers)}); FLUSH")
    for row in cursor.fetchall():
        print("got", row[0], flush=True)
    print("asks", flush=True)
"""


def read_until_killed(path, first, lines):
    """Runs a process that reads the subscription, kills it after so many lines; these, by their words."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(path), str(first)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = list(itertools.islice(process.stdout, lines))
    process.send_signal(signal.SIGKILL)
    found += process.stdout.read().splitlines(keepends=True)
    process.wait()
    return [line.split() for line in found if line.endswith("\n")]


@pytest.mark.slow
def test_a_process_that_is_killed_repeats_the_rows_of_its_last_fetch_at_most(path):
    with connect(path) as connection:
        connection.execute("CREATE STREAM s(i int)")
        subscribe(connection).close()
    seen: list[int] = []
    for lines in (7, 20):
        with connect(path) as connection:
            written = len(rows_of(connection))
        for word, *number in read_until_killed(path, written, lines):
            if word == "got":
                row = int(number[0])
                # Only the first ones after a kill may have come before, and those of one fetch at most.
                assert row == len(seen) or len(seen) - 4 <= row < len(seen)
                seen[row:] = [row]
    with connect(path) as connection:
        rest = values(recover(connection))
        assert seen[: rest[0]] + rest == rows_of(connection)
        assert len(seen) - rest[0] <= 4
