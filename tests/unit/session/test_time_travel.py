"""FOR SYSTEM_TIME AS OF a moment of the past, SHOW COMMITS, and for how long history is kept."""

from __future__ import annotations

import datetime as dt
import threading
import time
from unittest import mock

import pytest

import watersmeet
from watersmeet.store import retention, tables


def connect(path=None, **options):
    return watersmeet.connect(path, runtime="inprocess", parallelism=2, **options)


@pytest.fixture
def connection():
    with connect() as made:
        made.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
        made.execute("CREATE TABLE s (i int) APPEND ONLY")
        made.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
        yield made


def do(connection, *statements):
    """Runs statements; the commit whose moment shows what they did."""
    for statement in statements:
        connection.execute(statement)
    connection.flush()
    return connection.opened.log.head()


def rows(connection, query, parameters=()):
    return sorted(connection.execute(query, parameters).fetchall())


def refused(connection, query, parameters=()):
    with pytest.raises(watersmeet.Error) as caught:
        connection.execute(query, parameters)
    return caught.value


def committed_us(connection, number):
    return connection.opened.log.read(number).time_us


@pytest.fixture
def history(connection):
    """Three moments of t, s and m."""
    return [
        do(connection, "INSERT INTO t VALUES (1, 1), (2, 1), (3, 2)", "INSERT INTO s VALUES (1), (2)"),
        do(connection, "UPDATE t SET v = 2 WHERE k = 1", "INSERT INTO s VALUES (3)"),
        do(connection, "DELETE FROM t WHERE k <> 1", "INSERT INTO s VALUES (3), (4)"),
    ]


def test_relations_as_of_commits(connection, history):
    expected = {
        "t": [[(1, 1), (2, 1), (3, 2)], [(1, 2), (2, 1), (3, 2)], [(1, 2)]],
        "s": [[(1,), (2,)], [(1,), (2,), (3,)], [(1,), (2,), (3,), (3,), (4,)]],
        "m": [[(1, 2), (2, 1)], [(1, 1), (2, 2)], [(2, 1)]],
    }
    for name, contents in expected.items():
        for number, content in zip(history, contents):
            assert rows(connection, f"SELECT * FROM {name} FOR SYSTEM_TIME AS OF COMMIT {number}") == content
        assert rows(connection, f"SELECT * FROM {name}") == contents[-1]


def test_a_commit_without_an_epoch_shows_what_the_epoch_before_shows(connection, history):
    """A transaction commits before the epoch that reflects it: a SELECT then shows it nowhere."""
    for number in range(history[0], history[1]):
        assert rows(connection, f"SELECT * FROM t FOR SYSTEM_TIME AS OF COMMIT {number}") == [(1, 1), (2, 1), (3, 2)]
        assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {number}") == [(1, 2), (2, 1)]


def test_moments_by_time(connection, history):
    first = dt.datetime.fromtimestamp(committed_us(connection, history[0]) / 1e6, dt.UTC)
    just_before = first - dt.timedelta(microseconds=1)
    for written in (
        f"TIMESTAMP '{first:%Y-%m-%d %H:%M:%S.%f}'",
        f"TIMESTAMPTZ '{first:%Y-%m-%d %H:%M:%S.%f}+00:00'",
        f"'{first.isoformat()}'",
        f"'{first.astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat()}'",
    ):
        assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF {written}") == [(1, 2), (2, 1)]
    assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF '{just_before.isoformat()}'") == []
    assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF {int(first.timestamp()) + 3600}") == [(2, 1)]
    assert rows(connection, "SELECT * FROM m FOR SYSTEM_TIME AS OF now()") == [(2, 1)]
    assert rows(connection, "SELECT * FROM m FOR SYSTEM_TIME AS OF NOW() - INTERVAL '1 microsecond'") == [(2, 1)]
    for past in ("NOW() - INTERVAL '1 day'", "NOW() - '1' DAY", "NOW() - '24' HOURS", "DATE '2020-01-01'"):
        problem = refused(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF {past}")
        assert (problem.condition, problem.message[:31]) == ("HISTORY_GONE", "the database had no commits at ")


def test_a_length_of_time_without_interval_is_no_alias(connection):
    """RisingWave writes NOW() - '10' MINUTE: the unit counts."""
    do(connection, "INSERT INTO t VALUES (1, 1)")
    assert rows(connection, "SELECT x.n FROM m FOR SYSTEM_TIME AS OF NOW() - '0' MINUTE AS x") == [(1,)]
    assert rows(connection, "SELECT m.n FROM m FOR SYSTEM_TIME AS OF NOW() - '0' MINUTE") == [(1,)]


def test_two_moments_in_one_query(connection, history):
    then, now = f"m FOR SYSTEM_TIME AS OF COMMIT {history[0]}", "m"
    assert rows(connection, f"SELECT * FROM {now} EXCEPT SELECT * FROM {then}") == []
    assert rows(connection, f"SELECT * FROM {then} EXCEPT SELECT * FROM {now}") == [(1, 2)]
    middle = f"m FOR SYSTEM_TIME AS OF COMMIT {history[1]}"
    joined = (
        f"SELECT a.v, a.n, b.n, c.n FROM {then} AS a JOIN {middle} AS b ON a.v = b.v LEFT JOIN {now} AS c ON a.v = c.v"
    )
    assert rows(connection, joined) == [(1, 2, 1, None), (2, 1, 2, 1)]
    again = f"SELECT count(*) FROM {then} AS a, {then} AS b"
    assert rows(connection, again) == [(4,)]


def test_in_every_kind_of_query(connection, history):
    then = f"t FOR SYSTEM_TIME AS OF COMMIT {history[0]}"
    assert rows(connection, f"WITH old AS (SELECT * FROM {then}) SELECT count(*) FROM old") == [(3,)]
    assert rows(connection, f"SELECT (SELECT max(k) FROM {then}) FROM t") == [(3,)]
    assert rows(connection, f"SELECT k FROM {then} AS o WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.k = o.k)") == [
        (2,),
        (3,),
    ]
    connection.execute("CREATE VIEW twice AS SELECT m.v, t.k FROM m JOIN t ON m.v = t.v")
    assert rows(connection, f"SELECT * FROM twice FOR SYSTEM_TIME AS OF COMMIT {history[1]}") == [
        (1, 2),
        (2, 1),
        (2, 3),
    ]
    assert rows(connection, "SELECT * FROM t FOR SYSTEM_TIME AS OF COMMIT ? WHERE k = ?", (history[0], 1)) == [(1, 1)]
    connection.execute("CREATE INDEX i ON t (v)")
    assert connection.execute(f"EXPLAIN SELECT * FROM {then}").fetchall()


def test_what_was_lost_is_put_back(connection, history):
    do(connection, f"INSERT INTO t SELECT * FROM t FOR SYSTEM_TIME AS OF COMMIT {history[0]} WHERE k > 1")
    assert rows(connection, "SELECT * FROM t") == [(1, 2), (2, 1), (3, 2)]
    do(connection, f"DELETE FROM t WHERE k IN (SELECT k FROM t FOR SYSTEM_TIME AS OF COMMIT {history[2]})")
    assert rows(connection, "SELECT * FROM t") == [(2, 1), (3, 2)]


def test_in_a_transaction(connection, history):
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (9, 9)")
    assert rows(connection, "SELECT k FROM t") == [(1,), (9,)]
    assert rows(connection, f"SELECT k FROM t FOR SYSTEM_TIME AS OF COMMIT {history[0]}") == [(1,), (2,), (3,)]
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("dialect", ["risingwave", "timeplus", "sqlstream", "lenses"])
def test_in_every_dialect(connection, history, dialect):
    connection.execute(f"SET dialect = '{dialect}'")
    m, t = ("table(m)", "table(t)") if dialect == "timeplus" else ("m", "t")
    assert rows(connection, f"SELECT * FROM {m} FOR SYSTEM_TIME AS OF COMMIT {history[0]}") == [(1, 2), (2, 1)]
    past = dt.datetime.fromtimestamp(committed_us(connection, history[1]) / 1e6, dt.UTC)
    by_time = (
        f"SELECT * FROM {t} FOR SYSTEM_TIME AS OF TIMESTAMP '{past:%Y-%m-%d %H:%M:%S.%f}' EXCEPT SELECT * FROM {t}"
    )
    assert rows(connection, by_time) == [(2, 1), (3, 2)]
    commits = connection.execute("SHOW COMMITS LIMIT 1").fetchall()
    assert commits[0][0] == connection.opened.log.head()


@pytest.mark.parametrize("small_rows", [1 << 16, 10])
def test_of_many_rows(connection, monkeypatch, small_rows):
    monkeypatch.setattr(tables, "_SMALL_ROWS", small_rows)
    first = do(connection, "INSERT INTO t SELECT g, g % 10 FROM generate_series(1, 2000) AS g(g)")
    second = do(connection, "UPDATE t SET v = v + 1 WHERE k % 3 = 0", "DELETE FROM t WHERE k > 1500")
    do(connection, "INSERT INTO t VALUES (1, 100), (5000, 1)")
    query = "SELECT count(*), sum(k), sum(v) FROM t FOR SYSTEM_TIME AS OF COMMIT {}"
    assert rows(connection, query.format(first)) == [(2000, 2001000, 9000)]
    assert rows(connection, query.format(second)) == [(1500, 1125750, 6750 + 500)]


def test_many_equal_rows(connection):
    connection.execute("CREATE TABLE bag (i int)")
    numbers = [do(connection, "INSERT INTO bag VALUES (1), (1), (2)")]
    numbers += [do(connection, "DELETE FROM bag WHERE i = 1"), do(connection, "INSERT INTO bag VALUES (1), (2)")]
    found = [rows(connection, f"SELECT i FROM bag FOR SYSTEM_TIME AS OF COMMIT {n}") for n in numbers]
    assert found == [[(1,), (1,), (2,)], [(2,)], [(1,), (2,), (2,)]]


def test_a_column_that_was_added_later(connection, history):
    do(connection, "ALTER TABLE t ADD COLUMN w int", "INSERT INTO t VALUES (7, 7, 7)")
    found = rows(connection, f"SELECT k, w FROM t FOR SYSTEM_TIME AS OF COMMIT {history[0]}")
    assert found == [(1, None), (2, None), (3, None)]
    connection.execute("ALTER TABLE t RENAME COLUMN v TO value")
    assert rows(connection, f"SELECT value FROM t FOR SYSTEM_TIME AS OF COMMIT {history[0]}") == [(1,), (1,), (2,)]


def test_what_was_not_there_yet(connection, history):
    connection.execute("CREATE MATERIALIZED VIEW later AS SELECT k FROM t")
    query = f"SELECT * FROM later FOR SYSTEM_TIME AS OF COMMIT {history[1]}"
    problem = refused(connection, query)
    assert problem.condition == "HISTORY_GONE"
    assert problem.message == f'materialized view "later" was not there yet at commit {history[1]}'
    assert query[problem.span.start : problem.span.end].startswith("later FOR SYSTEM_TIME")


@pytest.mark.parametrize(
    ("past", "condition"),
    [
        ("COMMIT 100000", "INVALID_PARAMETER"),
        ("COMMIT -1", "INVALID_PARAMETER"),
        ("COMMIT NULL", "INVALID_PARAMETER"),
        ("COMMIT", "SYNTAX_ERROR"),
        ("COMMIT 'x'", "INVALID_VALUE"),
        ("'no time'", "INVALID_VALUE"),
        ("true", "DATATYPE_MISMATCH"),
        ("PROCTIME()", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_what_is_no_moment(connection, history, past, condition):
    assert refused(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF {past}").condition == condition


def test_where_there_is_no_past(connection, history):
    past = f"FOR SYSTEM_TIME AS OF COMMIT {history[0]}"
    assert "name of a query" in refused(connection, f"WITH q AS (SELECT 1) SELECT * FROM q {past}").message
    problem = refused(connection, f"CREATE MATERIALIZED VIEW q AS SELECT * FROM m {past}")
    assert (problem.condition, problem.hint) == (
        "FEATURE_NOT_SUPPORTED",
        "A SELECT that ends reads moments of the past.",
    )
    assert refused(connection, f"SELECT * FROM m FOR VERSION AS OF {history[0]}").condition == "FEATURE_NOT_SUPPORTED"


def test_history_outlives_checkpoints(connection, history):
    for _ in range(3):
        do(connection, "INSERT INTO t VALUES (1, 1)", "DELETE FROM t WHERE k = 1")
        connection.opened._compactor.run()
    assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {history[0]}") == [(1, 2), (2, 1)]


def test_without_history_only_what_readers_need_is_kept(connection, history):
    connection.execute("ALTER SYSTEM SET retention = 0")
    do(connection, "INSERT INTO t VALUES (1, 1)")
    connection.opened._compactor.run()
    problem = refused(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {history[0]}")
    assert problem.condition == "HISTORY_GONE"
    assert problem.message == f"the history since commit {history[0]} is no longer kept"
    oldest = int(problem.detail.removeprefix("The oldest commit: ").split(",")[0])
    assert oldest == min(row[0] for row in connection.execute("SHOW COMMITS").fetchall())
    assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {oldest}") == rows(
        connection, "SELECT * FROM m"
    )
    past = dt.datetime.fromtimestamp(committed_us(connection, oldest) / 1e6 - 1, dt.UTC)
    assert (
        refused(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF '{past.isoformat()}'").condition == "HISTORY_GONE"
    )


def test_history_is_kept_for_a_time(connection, history, monkeypatch):
    connection.execute("ALTER SYSTEM SET retention = '1 hour'")
    monkeypatch.setattr(retention, "IDLE_COMMITS", 1)  # limits of the default alone
    do(connection, "INSERT INTO t VALUES (8, 8)")
    connection.opened._compactor.run()
    assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {history[0]}") == [(1, 2), (2, 1)]
    # An hour after the second moment, what came before it goes.
    an_hour_later = lambda: (committed_us(connection, history[1]) + 3_600_000_000) * 1000
    clock = mock.Mock(time_ns=an_hour_later, monotonic=time.monotonic)
    monkeypatch.setattr(retention, "time", clock)
    do(connection, "INSERT INTO t VALUES (9, 9)")
    connection.opened._compactor.run()
    assert refused(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {history[0]}").condition == "HISTORY_GONE"
    assert rows(connection, f"SELECT * FROM t FOR SYSTEM_TIME AS OF COMMIT {history[1]}") == [(1, 2), (2, 1), (3, 2)]


def test_by_default_history_has_limits(connection, history, monkeypatch):
    assert ("retention", "10 minutes (default)") in connection.execute("SHOW PARAMETERS").fetchall()
    monkeypatch.setattr(retention, "IDLE_COMMITS", 5)
    for number in range(6):
        do(connection, f"INSERT INTO t VALUES ({number}, 1)")
    connection.opened._compactor.run()
    assert refused(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {history[0]}").condition == "HISTORY_GONE"
    head = connection.opened.log.head()
    assert rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {head - 3}")


def test_the_setting_stays(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute("ALTER SYSTEM SET retention TO '36 hours'")
        assert ("retention", "36 hours") in connection.execute("SHOW PARAMETERS").fetchall()
    with connect(tmp_path / "db") as connection:
        assert ("retention", "36 hours") in connection.execute("SHOW PARAMETERS").fetchall()
        connection.execute("ALTER SYSTEM SET time_travel_retention_ms = 60000")
        assert ("retention", "1 minute") in connection.execute("SHOW PARAMETERS").fetchall()
        connection.execute("ALTER SYSTEM RESET retention")
        assert ("retention", "10 minutes (default)") in connection.execute("SHOW PARAMETERS").fetchall()
        for wrong in ("'a day'", "'-1 day'", "many"):
            assert refused(connection, f"ALTER SYSTEM SET retention = {wrong}").condition == "INVALID_PARAMETER"
        assert refused(connection, "ALTER SYSTEM SET retentoin = 1").hint == 'Did you mean "retention"?'
        connection.execute("BEGIN")
        assert refused(connection, "ALTER SYSTEM SET retention = 0").condition == "TRANSACTION_STATE"


def test_commits_are_shown(connection, history):
    found = connection.execute("SHOW COMMITS").fetchall()
    assert [row[0] for row in found] == sorted((row[0] for row in found), reverse=True)
    by_number = {row[0]: row for row in found}
    number, committed, kind, relations, inserted, deleted, recomputed = by_number[history[1]]
    assert (kind, relations, inserted, deleted, recomputed) == ("epoch", "m", 2, 2, None)
    assert committed.timestamp() == committed_us(connection, number) / 1e6
    of_t = connection.execute("SHOW COMMITS FROM t LIMIT 2").fetchall()
    assert [row[2:] for row in of_t] == [("transaction", "t", 0, 2, None), ("transaction", "t", 1, 1, None)]
    assert refused(connection, "SHOW COMMITS FROM nothing").condition == "UNDEFINED_RELATION"


def test_a_process_that_only_reads(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute(
            "CREATE TABLE t (k int PRIMARY KEY); CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t"
        )
        numbers = [do(connection, f"INSERT INTO t VALUES ({k})") for k in range(3)]
        with connect(tmp_path / "db", read_only=True) as reader:
            found = [rows(reader, f"SELECT n FROM m FOR SYSTEM_TIME AS OF COMMIT {n}") for n in numbers]
            assert found == [[(1,)], [(2,)], [(3,)]]


@pytest.mark.slow
def test_beside_writers(connection):
    """Content that a query reads as of a commit is the same, whatever is committed meanwhile."""
    numbers = [do(connection, f"INSERT INTO t VALUES ({k}, {k % 3})") for k in range(5)]
    expected = [rows(connection, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {n}") for n in numbers]
    done = threading.Event()

    def write():
        for k in range(5, 40):
            do(connection, f"INSERT INTO t VALUES ({k}, {k % 3})", f"DELETE FROM t WHERE k = {k - 5}")
        done.set()

    other = watersmeet.Connection(type(connection._session)(connection.opened, connection._session.variables))
    writer = threading.Thread(target=write)
    writer.start()
    rounds = 0
    while not done.is_set() or not rounds:
        for number, content in zip(numbers, expected):
            assert rows(other, f"SELECT * FROM m FOR SYSTEM_TIME AS OF COMMIT {number}") == content
        rounds += 1
    writer.join()
