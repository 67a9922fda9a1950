"""Another number of buckets: by ALTER DATABASE and where a database is opened, in one commit that reads nothing."""

from __future__ import annotations

import pytest
from tests import placed

import watersmeet
from watersmeet.planner.builder import Builder
from watersmeet.runtime.stages import stored_state
from watersmeet.store.segmentfiles import SegmentFiles

SETUP = """
CREATE TABLE t (k int, x int);
CREATE TABLE u (k int, y int);
CREATE MATERIALIZED VIEW joined AS SELECT t.k, t.x, u.y FROM t LEFT JOIN u ON t.k = u.k;
CREATE MATERIALIZED VIEW report AS SELECT x % 7 AS g, count(*) AS n, max(y) AS m, count(DISTINCT k) AS d
    FROM joined GROUP BY x % 7;
CREATE MATERIALIZED VIEW best AS SELECT k, x FROM (
    SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x) AS n FROM t) AS s WHERE n <= 2;
INSERT INTO t SELECT g % 97, g FROM generate_series(1, 2000) AS s(g);
INSERT INTO u SELECT g % 89, g FROM generate_series(1, 300) AS s(g);
FLUSH
"""
QUERIES = {
    "joined": "SELECT t.k, t.x, u.y FROM t LEFT JOIN u ON t.k = u.k",
    "report": "SELECT x % 7, count(*), max(y), count(DISTINCT k) FROM (SELECT t.k, t.x, u.y FROM t LEFT JOIN u "
    "ON t.k = u.k) AS j GROUP BY x % 7",
    "best": "SELECT k, x FROM (SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x) AS n FROM t) WHERE n <= 2",
}


@pytest.fixture(autouse=True)
def _placed():
    with placed.checked():
        yield


def connect(path, **options):
    return watersmeet.connect(path, runtime="inprocess", **options)


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=str)


def check(connection):
    for view, query in QUERIES.items():
        assert rows(connection, f"SELECT * FROM {view}") == rows(connection, query)


def number(connection):
    return rows(connection, "SHOW PARAMETERS LIKE 'parallelism'")


def change(connection, first):
    connection.execute(f"INSERT INTO t SELECT g % 83, g FROM generate_series({first}, {first + 60}) AS s(g)")
    connection.execute(f"DELETE FROM u WHERE y % 11 = {first % 11}")
    connection.execute("FLUSH")


@pytest.mark.slow
def test_the_number_changes_while_the_database_is_open(tmp_path):
    with connect(tmp_path / "db", parallelism=2) as connection, connect(tmp_path / "db", read_only=True) as reader:
        connection.execute(SETUP)
        for turn, buckets in enumerate((1, 3, 8, 2)):
            connection.execute(f"ALTER DATABASE SET parallelism {'TO' if turn % 2 else '='} {buckets}")
            assert number(connection) == number(reader) == [("parallelism", str(buckets))]
            plan = connection.execute("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT k FROM joined").fetchall()
            assert any(line.endswith(f"buckets: {buckets}") for (line,) in plan)
            check(connection)
            change(connection, 3000 + 100 * turn)
            check(connection)
        connection.execute("CREATE MATERIALIZED VIEW late AS SELECT joined.k, t.x FROM joined JOIN t ON joined.k = t.k")
        late = "SELECT j.k, t.x FROM (SELECT t.k FROM t LEFT JOIN u ON t.k = u.k) AS j JOIN t ON j.k = t.k"
        assert rows(connection, "SELECT * FROM late") == rows(connection, late)


def test_the_number_changes_where_a_database_is_opened(tmp_path):
    for buckets in (None, 4, 1, None):
        options = {} if buckets is None else {"parallelism": buckets}
        with connect(tmp_path / "db", **options) as connection:
            if not connection.execute("SHOW TABLES").fetchall():
                connection.execute(SETUP)
            assert number(connection) == [("parallelism", str(buckets or 1))]
            change(connection, 3000 + 100 * (buckets or 0))
            check(connection)


@pytest.mark.slow
def test_no_run_is_read_or_written(tmp_path, monkeypatch):
    with connect(tmp_path / "db", parallelism=2) as connection:
        connection.execute(SETUP)
        database = connection._session.database
        before = database.log.last_epoch()

        def refused(*args, **options):
            raise AssertionError("a run is read")

        with monkeypatch.context() as patch:
            patch.setattr(SegmentFiles, "read_blob", refused)
            connection.execute("ALTER DATABASE SET parallelism = 3")
        after = database.log.last_epoch()
        assert (after.number, after.epoch, after.relations) == (before.number + 1, before.epoch + 1, {})
        assert after.frontier == before.frontier
        assert after.progress == before.progress
        files = [{r.file for r in refs(database, commit)} for commit in (before, after)]
        assert files[0] == files[1]
        sizes = [sum(r.size_bytes for r in refs(database, commit)) for commit in (before, after)]
        assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
        for first in range(3000, 6000, 100):
            change(connection, first)
        shared = [r for r in refs(database, database.log.last_epoch()) if r.share is not None]
        check(connection)
        assert len(shared) < len(refs(database, after)) / 2, "merges do not make runs of shares"


def refs(database, commit):
    found = []
    for place, segment in commit.segments.items():
        manifest = stored_state(database.segments, segment, place)
        found += [r for o in manifest.operators for r in manifest.refs_of(o)]
    return found


@pytest.mark.parametrize("dialect", ["risingwave", "sqlstream", "timeplus", "lenses"])
def test_all_dialects_have_it(dialect):
    with watersmeet.connect(runtime="inprocess", dialect=dialect) as connection:
        connection.execute("ALTER DATABASE SET parallelism = 5")
        assert number(connection) == [("parallelism", "5")]


@pytest.mark.parametrize(("statement", "condition", "said"), [
    ("ALTER DATABASE SET parallelism = 0", "INVALID_PARAMETER", "parallelism can't be 0"),
    ("ALTER DATABASE SET parallelism = 257", "INVALID_PARAMETER", "between 1 and 256"),
    ("ALTER DATABASE SET parallelism = -1", "INVALID_PARAMETER", 'not "-1"'),
    ("ALTER DATABASE SET parallelism = many", "INVALID_PARAMETER", 'not "many"'),
    ("ALTER DATABASE SET parallelism = 2 3", "SYNTAX_ERROR", "3"),
    ("ALTER DATABASE SET x = 1", "FEATURE_NOT_SUPPORTED", "ALTER DATABASE SET parallelism = N"),
    ("ALTER DATABASE", "SYNTAX_ERROR", "A name was expected here"),
    ("BEGIN; ALTER DATABASE SET parallelism = 2", "TRANSACTION_STATE", "inside a transaction"),
])  # fmt: skip
def test_what_is_refused(statement, condition, said):
    with watersmeet.connect(runtime="inprocess") as connection:
        with pytest.raises(watersmeet.Error, match=said) as caught:
            connection.execute(statement)
        assert caught.value.condition == condition


def test_readers_and_other_roles_may_not(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute("CREATE ROLE ann; GRANT writer TO ann; SET ROLE ann")
        with pytest.raises(watersmeet.Error, match="takes the role admin"):
            connection.execute("ALTER DATABASE SET parallelism = 2")
        with connect(tmp_path / "db", read_only=True) as reader, pytest.raises(watersmeet.Error, match="read-only"):
            reader.execute("ALTER DATABASE SET parallelism = 2")


def test_a_plan_for_one_bucket_alone_is_named(tmp_path, monkeypatch):
    with connect(tmp_path / "db", parallelism=1) as connection:
        with monkeypatch.context() as patch:  # as plans were before there were exchanges in all of them
            patch.setattr(Builder, "exchange", lambda self, op, keys, mode="hash": op)
            connection.execute(SETUP)
        with pytest.raises(watersmeet.Error, match='the state of materialized view "joined"') as caught:
            connection.execute("ALTER DATABASE SET parallelism = 2")
        assert caught.value.condition == "PARALLELISM_MISMATCH"
        assert "--rebuild" in caught.value.hint
        change(connection, 3000)
        check(connection)
    with pytest.raises(watersmeet.Error, match="can't be split"):
        connect(tmp_path / "db", parallelism=2)
    with connect(tmp_path / "db", parallelism=2, rebuild=True) as connection:
        check(connection)
    with connect(tmp_path / "db", parallelism=3) as connection:
        change(connection, 3100)
        check(connection)
        assert number(connection) == [("parallelism", "3")]


def test_a_failed_change_leaves_the_number_as_it_is(tmp_path, monkeypatch):
    with connect(tmp_path / "db", parallelism=2) as connection:
        connection.execute(SETUP)
        log = connection._session.database.log
        with monkeypatch.context() as patch:
            patch.setattr(log, "append", lambda commit: (_ for _ in ()).throw(OSError("no")))
            with pytest.raises(watersmeet.Error):
                connection.execute("ALTER DATABASE SET parallelism = 3")
        assert number(connection) == [("parallelism", "2")]
        change(connection, 3000)
        check(connection)
        connection.execute("ALTER DATABASE SET parallelism = 3")
        change(connection, 3100)
        check(connection)
