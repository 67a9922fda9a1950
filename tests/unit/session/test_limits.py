"""Views over a limit stop, the others go on.

What joins keep: Timeplus, "Multi-JOINs and ASOF JOINs", "Append JOIN Append" (TP-24). What they make in
one epoch: max_join_amplification_rows.
"""

from __future__ import annotations

import time

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet import Error
from watersmeet.runtime.coordinator import Coordinator, Flush
from watersmeet.runtime.workers import Budget

#: More than a few rows take, less than thousands.
LIMIT = 20_000
STREAMS = "CREATE STREAM l(i int, k string); CREATE STREAM r(j int, k string)"
JOIN = "SELECT i, j FROM l JOIN r ON l.k = r.k"


def connect(path=None, **options):
    return watersmeet.connect(path, "timeplus", runtime="inprocess", **options)


def insert(connection, relation, start, rows):
    Harness(connection).deliver(relation, [[str(i), f"key {i}"] for i in range(start, start + rows)], None)
    connection.execute("FLUSH")


def jobs(connection):
    cursor = connection.execute("SHOW JOBS")
    names = [d[0] for d in cursor.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


def content(connection, view):
    return sorted(connection.execute(f"SELECT * FROM table({view})").fetchall())


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_view_over_its_limit_stops_and_the_others_go_on(tmp_path, parallelism):
    with connect(tmp_path / "db", parallelism=parallelism) as connection:
        connection.execute(STREAMS)
        for name, limit in (("small", LIMIT), ("large", 10 * LIMIT)):
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {JOIN} SETTINGS join_max_buffered_bytes = {limit}")
        connection.execute(
            "CREATE VIEW plain AS SELECT i FROM small; "
            "CREATE MATERIALIZED VIEW above AS SELECT count(*) AS n FROM plain; "
            "CREATE MATERIALIZED VIEW counted AS SELECT k, count(*) AS n FROM l GROUP BY k"
        )
        insert(connection, "l", 0, 3)
        insert(connection, "r", 0, 3)
        assert content(connection, "small") == content(connection, "large") == [(0, 0), (1, 1), (2, 2)]
        assert content(connection, "above") == [(3,)]
        insert(connection, "l", 3, 2000)
        insert(connection, "r", 3, 2)
        assert len(content(connection, "large")) == 5
        assert len(content(connection, "counted")) == 2003
    with connect(tmp_path / "db") as connection:
        insert(connection, "r", 5, 1)
        assert len(content(connection, "large")) == 6
        with watersmeet.connect(tmp_path / "db", "timeplus", read_only=True) as reader:
            assert refused(reader, "SELECT * FROM table(small)").condition == "BUFFER_LIMIT"
        err = refused(connection, "SELECT * FROM table(small)")
        assert err.condition == "BUFFER_LIMIT"
        assert err.message.startswith(
            f'materialized view "small" was stopped: Streaming join\'s memory reaches max size: {LIMIT}, '
            f"current total: "
        )
        assert refused(connection, "SELECT * FROM table(plain)").condition == "BUFFER_LIMIT"
        assert refused(connection, "SELECT * FROM table(above)").condition == "VIEW_FAILED"
        assert refused(connection, "SELECT i FROM small").condition == "BUFFER_LIMIT"
        assert refused(connection, "CREATE MATERIALIZED VIEW more AS SELECT i FROM plain").condition == "BUFFER_LIMIT"
        shown = jobs(connection)
        assert {n: j["state"] for n, j in shown.items()} == {
            "small": "failed",
            "large": "running",
            "above": "failed",
            "counted": "running",
        }
        assert shown["small"]["detail"].startswith("BUFFER_LIMIT: Streaming join's memory")
        assert shown["small"]["rows"] == 3  # nothing of the epoch in which it was stopped
        assert (shown["small"]["state_bytes"], shown["large"]["state_bytes"] > LIMIT) == (0, True)
        assert [(r[0], r[1]) for r in connection.execute("SHOW ERRORS").fetchall()] == [
            ("small", "view failed"),
            ("above", "view failed"),
        ]
        connection.execute("DROP VIEW above; DROP VIEW plain; DROP VIEW small")
        insert(connection, "r", 6, 1)
        assert len(content(connection, "large")) == 7
        assert {n: j["state"] for n, j in jobs(connection).items()} == {"large": "running", "counted": "running"}
        connection.execute(f"CREATE MATERIALIZED VIEW small AS {JOIN}")
        insert(connection, "l", 9000, 1)
        insert(connection, "r", 9000, 1)
        assert content(connection, "small") == [(9000, 9000)]


def test_a_flush_waits_while_a_stopped_view_is_let_go_of():
    """A flush that came while epochs were planned ahead said that all was planned, when nothing could be."""
    with connect(parallelism=2) as connection:
        connection.execute(
            f"{STREAMS}; CREATE MATERIALIZED VIEW small AS {JOIN} SETTINGS join_max_buffered_bytes = {LIMIT}; "
            f"CREATE MATERIALIZED VIEW large AS {JOIN}"
        )
        insert(connection, "r", 0, 1)
        engine = connection._session.database.engine
        coordinator = engine._ready()
        planned = []
        for start in (0, 2000):  # two epochs are planned, the first of which will stop the view
            Harness(connection).deliver("l", [[str(i), f"key {i}"] for i in range(start, start + 2000)], None)
            planned.append(coordinator.plan(time.time_ns() // 1000))
        engine._run(coordinator, planned[0])
        Harness(connection).deliver("r", [["7", "key 3999"]], None)
        flush = Flush()
        assert flush.plan(coordinator) is None
        assert not flush.is_planned
        engine._run(coordinator, planned[1])
        while not flush.is_planned:
            engine._run(coordinator, flush.plan(coordinator))
        assert content(connection, "large") == [(0, 0), (3999, 7)]
        assert jobs(connection)["small"]["state"] == "failed"


def test_the_only_view_stops_and_the_database_goes_on(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute(STREAMS)
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {JOIN} SETTINGS join_max_buffered_bytes = 1")
        insert(connection, "l", 0, 1)
        insert(connection, "l", 1, 1)
        assert refused(connection, "SELECT * FROM table(v)").condition == "BUFFER_LIMIT"
        assert jobs(connection)["v"]["state"] == "failed"
    with connect(tmp_path / "db", parallelism=2, rebuild=True) as connection:
        insert(connection, "l", 2, 1)
        assert jobs(connection)["v"]["state"] == "failed"
        connection.execute("DROP VIEW v")
        assert jobs(connection) == {}
        insert(connection, "l", 3, 1)


def test_what_it_holds_at_its_limit_is_not_too_much():
    with connect() as connection:
        connection.execute(f"{STREAMS}; CREATE MATERIALIZED VIEW v AS {JOIN}")
        insert(connection, "l", 0, 5)
        insert(connection, "r", 0, 3)
        held = jobs(connection)["v"]["state_bytes"]
        assert held > 0
    for limit, condition in ((held, None), (held - 1, "BUFFER_LIMIT")):
        with connect() as connection:
            connection.execute(
                f"{STREAMS}; CREATE MATERIALIZED VIEW v AS {JOIN} SETTINGS join_max_buffered_bytes = {limit}"
            )
            insert(connection, "l", 0, 5)
            insert(connection, "r", 0, 3)
            if condition is None:
                assert len(content(connection, "v")) == 3
            else:
                err = refused(connection, "SELECT * FROM table(v)")
                assert err.condition == condition
                assert f"current total: {held}, " in err.message


def test_a_view_that_history_brings_over_its_limit_is_not_made():
    with connect() as connection:
        connection.execute(
            "CREATE MUTABLE STREAM a(i int, k string) PRIMARY KEY i; CREATE MUTABLE STREAM b(j int, k "
            "string) PRIMARY KEY j; "
            "CREATE MATERIALIZED VIEW other AS SELECT i FROM a"
        )
        insert(connection, "a", 0, 500)
        query = "SELECT i, j FROM a JOIN b ON a.k = b.k SETTINGS join_max_buffered_bytes = 1000"
        for sql in (f"CREATE MATERIALIZED VIEW v AS {query}", query):
            assert refused(connection, sql).condition == "BUFFER_LIMIT"
        assert list(jobs(connection)) == ["other"]
        insert(connection, "a", 500, 1)
        assert len(content(connection, "other")) == 501
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT i, j FROM a JOIN b ON a.k = b.k")
        assert content(connection, "v") == []


def test_a_running_query_gives_what_came_before_and_then_says_what_happened():
    with connect() as connection:
        connection.execute(STREAMS)
        running = connection.execute(f"{JOIN} SETTINGS join_max_buffered_bytes = {LIMIT}")
        insert(connection, "l", 0, 2)
        insert(connection, "r", 0, 2)
        insert(connection, "l", 2, 2000)
        assert sorted(running.fetchall()) == [(0, 0), (1, 1)]
        with pytest.raises(Error) as found:
            running.fetchall()
        assert found.value.condition == "BUFFER_LIMIT"
        assert found.value.detail.startswith("The query was stopped.")
        running.close()
        insert(connection, "l", 3000, 1)


def test_joins_of_a_view_below_count_for_that_view():
    with connect() as connection:
        connection.execute(f"{STREAMS}; CREATE MATERIALIZED VIEW v AS {JOIN}")
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT i FROM v SETTINGS join_max_buffered_bytes = 1")
        insert(connection, "l", 0, 50)
        insert(connection, "r", 0, 1)
        assert content(connection, "w") == [(0,)]


def test_a_query_without_settings_has_the_default_of_the_product():
    with connect() as connection:
        connection.execute(f"{STREAMS}; CREATE MATERIALIZED VIEW v AS {JOIN}")
        view = connection._session.catalog.by_name("v")
        assert view.max_buffered_bytes == 524_288_000
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t(a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        assert connection._session.catalog.by_name("v").max_buffered_bytes is None


def most_join_rows(connection, view):
    return connection._session.catalog.by_name(view).most_join_rows


def test_how_many_rows_joins_may_make_is_said_in_every_dialect():
    with connect() as connection:
        connection.execute(
            f"{STREAMS}; CREATE MATERIALIZED VIEW a AS {JOIN}; "
            f"CREATE MATERIALIZED VIEW b AS {JOIN} SETTINGS max_join_amplification_rows = 0; "
            f"CREATE MATERIALIZED VIEW c AS {JOIN} SETTINGS max_join_amplification_rows = 7; "
            f"SET max_join_amplification_rows = 8; CREATE MATERIALIZED VIEW d AS {JOIN}; "
            f"CREATE MATERIALIZED VIEW e AS {JOIN} SETTINGS max_join_amplification_rows = 9"
        )
        assert [most_join_rows(connection, v) for v in "abcde"] == [100_000_000, 0, 7, 8, 9]
        assert (
            refused(connection, f"{JOIN} SETTINGS max_join_amplification_rows = 'no'").condition == "INVALID_PARAMETER"
        )
        running = connection.execute(f"{JOIN} SETTINGS max_join_amplification_rows = 3")
        insert(connection, "l", 0, 4)
        Harness(connection).deliver("r", [["1", "key 0"], ["2", "key 1"], ["3", "key 2"], ["4", "key 3"]], None)
        connection.flush()
        with pytest.raises(Error) as found:
            running.fetchall()
        assert found.value.condition == "AMPLIFICATION_LIMIT"
        assert found.value.detail.startswith("Of the key r.k = key ")
        running.close()
    with watersmeet.connect(dialect="lenses", runtime="inprocess") as connection:
        connection.execute(
            "SET defaults.topic.autocreate = true; SET max_join_amplification_rows = 5; "
            "CREATE TABLE s (_key int, x string) FORMAT (INT, JSON); "
            "CREATE TABLE t (_key int, y string) FORMAT (INT, JSON); "
            "INSERT INTO o SELECT TABLE s.x, t.y FROM s JOIN t ON s._key = t._key"
        )
        assert most_join_rows(connection, "o") == 5
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess") as connection:
        connection.execute("SET max_join_amplification_rows = 6; SET dialect = risingwave")
        connection.execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        assert most_join_rows(connection, "v") == 6


@pytest.mark.parametrize("parallelism", [1, 3])
def test_all_keys_of_all_buckets_count(parallelism):
    """No key and no bucket makes too many rows; all together do, or just do not."""
    with connect(parallelism=parallelism) as connection:
        connection.execute(STREAMS)
        for name, limit in (("enough", 60), ("less", 59)):
            connection.execute(
                f"CREATE MATERIALIZED VIEW {name} AS {JOIN} SETTINGS max_join_amplification_rows = {limit}"
            )
        for relation, copies in (("l", 3), ("r", 2)):
            Harness(connection).deliver(
                relation, [[str(c), f"key {i}"] for i in range(10) for c in range(copies)], None
            )
        stopped = "a join would make 60 rows in one epoch, more than max_join_amplification_rows = 59"
        assert connection.execute("FLUSH").notices == (f'materialized view "less" was stopped: {stopped}',)
        assert connection.execute("FLUSH").notices == ()
        assert len(content(connection, "enough")) == 60
        assert refused(connection, "SELECT * FROM table(less)").condition == "AMPLIFICATION_LIMIT"


def test_epochs_that_were_planned_do_not_run_a_view_that_was_stopped(tmp_path):
    """Its state lacks what it did not make: rows that go would be taken from nothing."""
    with connect(parallelism=2) as connection:
        connection.execute(
            "CREATE MUTABLE STREAM l(i int, k string) PRIMARY KEY i; "
            "CREATE MUTABLE STREAM r(j int, k string) PRIMARY KEY j; "
            f"CREATE MATERIALIZED VIEW small AS SELECT j, count(*) AS n FROM ({JOIN}) GROUP BY j "
            "SETTINGS max_join_amplification_rows = 3; "
            f"CREATE MATERIALIZED VIEW large AS {JOIN}"
        )
        engine = connection._session.database.engine
        coordinator = engine._ready()
        planned = []
        for number in range(3):
            Harness(connection).deliver("l", [[str(number), "key"], [str(9 - number), "key"]], None)
            Harness(connection).deliver("r", [[str(number), "key"], ["9", f"key{number}"]], None)
            planned.append(coordinator.plan(time.time_ns() // 1000))
        for intent in planned:
            engine._run(coordinator, intent)
        connection.execute("FLUSH")
        assert {n: j["state"] for n, j in jobs(connection).items()} == {"small": "failed", "large": "running"}
        assert len(content(connection, "large")) == 18
        log = connection._session.database.log
        metrics = [log.read(n).metrics for n in range(1, log.head() + 1)]
        first, second, third = [set(m.operators) for m in metrics if m.rows][:3]
        assert third < second == first  # the second one stops it


def test_explain_shows_a_limit_of_the_view():
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE l(i int, k int); CREATE TABLE r(j int, k int)")

        def last(option):
            rows = connection.execute(f"EXPLAIN CREATE MATERIALIZED VIEW v {option} AS {JOIN}").fetchall()
            return rows[-1][0]

        shown = "Rows that each join may make in one epoch: "
        assert not last("").startswith(shown)
        assert last("WITH (max_join_amplification_rows = 5)") == f"{shown}5"
        assert last("WITH (max_join_amplification_rows = 0)") == f"{shown}any number"


@pytest.mark.parametrize("limit", [4000, 0])
def test_history_is_read_in_smaller_epochs_before_a_view_is_stopped(limit):
    """The rows of each later piece meet ten times as many as those of the first: pieces that only grew would make
    too many.
    """
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE l(i int, k int); CREATE TABLE r(j int, k int)")
        connection.execute("INSERT INTO r SELECT g, g % 10 FROM generate_series(1, 100) AS t(g)")
        for start in range(0, 1280, 40):  # fewer commits than a compaction, which would make them one piece
            connection.execute(f"INSERT INTO l SELECT g, g % 10 FROM generate_series({start}, {start + 39}) AS t(g)")
        connection.execute("FLUSH")
        engine = connection._session.database.engine
        engine.stop()
        budget = Budget(first_rows=100, max_rows=1600)
        engine._make = lambda db: Coordinator(db, budget=budget)
        option = f"WITH (max_join_amplification_rows = {limit})"
        connection.execute(f"CREATE MATERIALIZED VIEW v {option} AS SELECT i, j FROM l JOIN r ON l.k = r.k")
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(12_800,)]
        log = connection._session.database.log
        made = [sum(o.made_rows for o in log.read(n).metrics.operators.values()) for n in range(1, log.head() + 1)]
        assert sum(made) == 12_800
        assert (max(made) <= 2000) == (limit > 0)
