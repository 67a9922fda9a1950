"""The Timeplus dialect on a connection: streaming SELECT, restart, views of one dialect read in another.

Timeplus, "Multi-JOINs and ASOF JOINs".
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.harness import Harness

import watersmeet
from watersmeet import Error
from watersmeet.store.layout import Layout
from watersmeet.store.readers import read_leases


def connect(path=None, dialect="timeplus", **options):
    return watersmeet.connect(path, dialect, runtime="inprocess", **options)


def batch_query(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=str)


def test_a_streaming_select_gives_rows_as_they_come():
    with connect() as connection:
        connection.execute(
            "CREATE STREAM s(i int); CREATE MUTABLE STREAM m(k int, v int) PRIMARY KEY k; INSERT INTO m VALUES (1, 10)"
        )
        appended = connection.execute("SELECT i FROM s")
        changed = connection.execute("SELECT k, v FROM m")
        assert [d[0] for d in appended.description] == ["i"]
        assert [d[0] for d in changed.description] == ["k", "v", "_tp_delta"]
        assert appended.fetchall() == []
        assert changed.fetchall() == [(1, 10, 1)]
        connection.execute("INSERT INTO s VALUES (1), (2); INSERT INTO m VALUES (1, 11); FLUSH")
        assert sorted(appended.fetchall()) == [(1,), (2,)]
        assert sorted(changed.fetchall()) == [(1, 10, -1), (1, 11, 1)]
        assert appended.fetchone() is None
        connection.execute("INSERT INTO s VALUES (3); FLUSH")
        assert appended.fetchone() == (3,)
        appended.close()
        changed.execute("SELECT v FROM table(m)")  # another statement ends what ran in the cursor
        assert changed.fetchall() == [(11,)]
        assert batch_query(connection, "SHOW MATERIALIZED VIEWS") == []
        connection.execute("DROP STREAM s; DROP STREAM m")


@pytest.mark.slow
def test_a_running_query_holds_its_commits_until_the_database_is_closed(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute("CREATE STREAM s(i int)")
        running = connection.start("SELECT i FROM s")
        for start in (0, 260):  # past a compaction
            connection.execute("; ".join(f"INSERT INTO s VALUES ({i})" for i in range(start, start + 260)))
            connection.execute("FLUSH")
        assert sorted(running.take()[0].column(0).to_pylist()) == list(range(520))
        assert read_leases(Layout(tmp_path / "db", create=False))
    assert read_leases(Layout(tmp_path / "db", create=False)) == []


def test_a_running_query_ends_with_its_process(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute("CREATE STREAM s(i int); CREATE MATERIALIZED VIEW v AS SELECT i + 1 AS j FROM s")
        connection.execute("SELECT i FROM s")
        connection.execute("INSERT INTO s VALUES (1); FLUSH")
    with connect(tmp_path / "db") as connection:
        connection.execute("INSERT INTO s VALUES (2); FLUSH")
        assert batch_query(connection, "SELECT j FROM table(v)") == [(2,), (3,)]
        connection.execute("DROP VIEW v; DROP STREAM s")


def test_views_keep_the_dialect_that_made_them(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute("CREATE STREAM Clicks(Id int, `at day` string)")
        connection.execute("CREATE VIEW named AS SELECT Id / 2 AS Half, `at day` AS Day FROM Clicks WHERE Id > 0")
    with connect(tmp_path / "db", "risingwave") as connection:
        connection.execute('CREATE MATERIALIZED VIEW days AS SELECT "Day", sum("Half") AS s FROM named GROUP BY "Day"')
        connection.execute("CREATE TABLE t (k varchar PRIMARY KEY, v int); INSERT INTO t VALUES ('mon', 1)")
        connection.execute("""INSERT INTO "Clicks" VALUES (1, 'mon'), (2, 'mon'), (-1, 'tue'); FLUSH""")
        assert batch_query(connection, "SELECT * FROM days") == [("mon", 1.5)]
        assert batch_query(connection, "SELECT * FROM named") == [(0.5, "mon"), (1.0, "mon")]
    with connect(tmp_path / "db") as connection:
        assert batch_query(connection, "SELECT Half, Day FROM table(named)") == [(0.5, "mon"), (1.0, "mon")]
        running = connection.execute("SELECT n.Half, t.v FROM named AS n JOIN t ON n.Day = t.k")
        connection.execute("INSERT INTO t VALUES ('mon', 5); INSERT INTO Clicks VALUES (4, 'mon'); FLUSH")
        assert running.fetchall() == [(2.0, 5)]


def test_the_dialect_of_the_reader_says_where_it_begins():
    with connect() as connection:
        connection.execute("CREATE STREAM s(i int, k string); CREATE STREAM t(j int, k string)")
        connection.execute("CREATE VIEW named AS SELECT i + 1 AS n, * FROM s JOIN t ON s.k = t.k")
        assert [d[0] for d in connection.execute("SELECT * FROM table(named)").description] == [
            "n",
            "i",
            "k",
            "_tp_time",
            "j",
            "t.k",
            "t._tp_time",
        ]
        connection.execute("INSERT INTO s VALUES (1, 'a'); INSERT INTO t VALUES (2, 'a')")
        running = connection.execute("SELECT n, j FROM named")
        still = connection.execute("SELECT u.n, s.i FROM s JOIN table(named) AS u ON s.k = u.k")
        connection.execute("INSERT INTO s VALUES (5, 'a'); INSERT INTO t VALUES (7, 'a'); FLUSH")
        assert running.fetchall() == [(6, 7)]
        assert still.fetchall() == [(2, 5)]
        assert batch_query(connection, "SELECT n, j FROM table(named)") == [(2, 2), (2, 7), (6, 2), (6, 7)]
        connection.execute("SET dialect = 'risingwave'")
        connection.execute("CREATE MATERIALIZED VIEW whole AS SELECT n, j FROM named")
        assert batch_query(connection, "SELECT * FROM whole") == [(2, 2), (2, 7), (6, 2), (6, 7)]


def test_explain_of_a_query_that_runs():
    with connect() as connection:
        connection.execute("CREATE STREAM s(i int, k string); CREATE STREAM t(j int, k string)")
        plan = "\n".join(
            r[0] for r in connection.execute("EXPLAIN SELECT i, j FROM s LEFT LATEST JOIN t ON s.k = t.k").fetchall()
        )
        for part in ("StreamTemporalJoin", "StreamCut { keeps: after", "StreamArrivals", "StreamUpsert"):
            assert part in plan, plan


def test_what_begins_at_a_moment_goes_on_after_a_restart_and_is_not_made_anew(tmp_path):
    with connect(tmp_path / "db", parallelism=2) as connection:
        connection.execute("CREATE STREAM s(i int, k string); CREATE MUTABLE STREAM m(k string, v int) PRIMARY KEY k")
        connection.execute("INSERT INTO s VALUES (1, 'a'); INSERT INTO m VALUES ('a', 7)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT s.i, t.v FROM s JOIN table(m) AS t ON s.k = t.k")
        connection.execute("INSERT INTO m VALUES ('a', 8); INSERT INTO s VALUES (2, 'a'); FLUSH")
    with connect(tmp_path / "db") as connection:
        connection.execute("INSERT INTO s VALUES (3, 'a'); FLUSH")
        assert batch_query(connection, "SELECT i, v FROM table(v)") == [(2, 7), (3, 7)]
        # of the same moment or a later one, with rows in between: each begins where it was made
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT s.i, t.v FROM s JOIN table(m) AS t ON s.k = t.k")
        connection.execute("CREATE MATERIALIZED VIEW x AS SELECT i, v FROM v WHERE i > 2")
        connection.execute("INSERT INTO s VALUES (4, 'a'); FLUSH")
        assert batch_query(connection, "SELECT i, v FROM table(w)") == [(4, 8)]
        assert batch_query(connection, "SELECT i, v FROM table(x)") == [(4, 7)]
    with pytest.raises(Error, match=r"begins at a moment|temporal join") as refused:
        connect(tmp_path / "db", parallelism=3, rebuild=True)
    assert refused.value.condition == "FEATURE_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("SELECT * FROM a CROSS JOIN b", "JOIN_KIND"),
        ("SELECT * FROM a LEFT SEMI JOIN b ON a.k = b.k", "SYNTAX_ERROR"),
        ("SELECT * FROM a JOIN b ON a.k = b.k SETTINGS join_algorithm = 'direct'", "DIRECT_RIGHT_SIDE"),
        ("SELECT * FROM a JOIN b ON a.k = b.k SETTINGS join_max_buffered_bytes = 0", "INVALID_PARAMETER"),
        ("SELECT * FROM changelog(a) AS x", "FEATURE_NOT_SUPPORTED"),
        ("SELECT DISTINCT i FROM a LIMIT 1 BY k", "FEATURE_NOT_SUPPORTED"),
        ("SELECT i FROM a FINAL", "FEATURE_NOT_SUPPORTED"),
        ("CREATE MATERIALIZED VIEW v INTO b AS SELECT i, k FROM a", "UNDEFINED_COLUMN"),
        ("INSERT INTO a(i, k) SELECT j, k FROM b", "FEATURE_NOT_SUPPORTED"),
        ("WITH x AS (SELECT * FROM a) SELECT * FROM table(x)", "FEATURE_NOT_SUPPORTED"),
        ("SELECT * FROM other.a", "UNDEFINED_RELATION"),
        ("SELECT * FROM a JOIN b ON date_diff_within(2m, a.k)", "SYNTAX_ERROR"),
    ],
)
def test_refusals_leave_nothing_behind(sql, condition):
    with connect() as connection:
        connection.execute("CREATE STREAM a(i int, k string); CREATE STREAM b(j int, k string)")
        with pytest.raises(Error) as refused:
            connection.execute(sql)
        assert refused.value.condition == condition
        assert refused.value.span is not None
        assert [r.name for r in connection._session.catalog.relations.values()] == ["a", "b"]
        connection.execute("DROP STREAM a; DROP STREAM b")


def test_a_limit_ends_a_query_that_runs():
    with connect() as connection:
        connection.execute("CREATE STREAM s(i int, k string); CREATE MUTABLE STREAM m(k string, v int) PRIMARY KEY k")
        before = set(connection._session.catalog.relations)
        rows = connection.execute("SELECT i FROM s LIMIT 3")
        changes = connection.execute("SELECT k, v FROM m LIMIT 2 OFFSET 1")
        assert not rows._result.running.ended
        connection.execute("INSERT INTO s(i) VALUES (1), (2); INSERT INTO m VALUES ('a', 1); FLUSH")
        assert len(rows.fetchall()) == 2
        connection.execute("INSERT INTO s(i) VALUES (3), (4); INSERT INTO m VALUES ('a', 2); FLUSH")
        assert len(rows.fetchall()) == 1
        assert rows._result.running.ended
        assert rows.fetchall() == []
        assert sorted(changes.fetchall()) == [("a", 1, -1), ("a", 2, 1)]
        assert set(connection._session.catalog.relations) == before  # they are gone with their last row
        rows.close()
        connection.execute("DROP STREAM s; DROP STREAM m")


def test_columns_that_say_how_rows_come():
    with connect() as connection:
        connection.execute("CREATE STREAM s(i int, k string); CREATE MUTABLE STREAM m(k string, v int) PRIMARY KEY k")
        shown = {
            sql: connection.execute(sql)
            for sql in (
                "SELECT emit_version(), k, count(), _tp_delta AS sign FROM s GROUP BY k",
                "SELECT k, count() AS n FROM s GROUP BY k EMIT ON UPDATE",
                "SELECT *, _tp_delta, 1 AS one FROM m",
                "SELECT _tp_delta, i FROM s EMIT CHANGELOG",
                "SELECT to_string( i ), max(i) + 1 FROM s GROUP BY i",
            )
        }
        names = [[d[0] for d in cursor.description] for cursor in shown.values()]
        assert names == [
            ["emit_version()", "k", "count()", "sign"],
            ["k", "n"],
            ["k", "v", "_tp_time", "_tp_delta", "one"],
            ["_tp_delta", "i"],
            ["to_string( i )", "max(i) + 1", "_tp_delta"],
        ]
        for values in ("(1, 'a')", "(2, 'a')"):
            connection.execute(f"INSERT INTO s(i, k) VALUES {values}; FLUSH")
        connection.execute("INSERT INTO m(k, v, _tp_time) VALUES ('x', 1, '2024-01-01 00:00:00'); FLUSH")
        found = [sorted(cursor.fetchall(), key=str) for cursor in shown.values()]
        assert found[0] == [(1, "a", 1, 1), (2, "a", 1, -1), (2, "a", 2, 1)]
        assert found[1] == [("a", 1), ("a", 2)]
        assert [(r[0], r[3], r[4]) for r in found[2]] == [("x", 1, 1)]
        assert found[3] == [(1, 1), (1, 2)]
        assert [d[0] for d in connection.execute("SELECT to_int32( 1.5 ), if(1 > 2, 3, 4)").description] == [
            "to_int32( 1.5 )",
            "if(1 > 2, 3, 4)",
        ]


def test_a_join_that_keeps_everything_says_so():
    with connect() as connection:
        connection.execute(
            "CREATE STREAM a(i int, k string); CREATE STREAM b(j int, k string); CREATE MUTABLE STREAM m(k "
            "string) PRIMARY KEY k"
        )
        joins = ["a JOIN b ON a.k = b.k", "a JOIN b ON a.k = b.k AND date_diff_within(2m)", "a JOIN m ON a.k = m.k"]
        notices = []
        for n, join in enumerate(joins):
            cursor = connection.execute(f"CREATE MATERIALIZED VIEW v{n} AS SELECT a.i FROM {join}")
            notices.append(cursor.notices)
            assert connection.execute(f"SELECT a.i FROM {join}").notices == cursor.notices
        assert [len(n) for n in notices] == [1, 0, 0]
        assert "keeps all rows of both: it is for exploration" in notices[0][0]


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_replaced_before_a_query_started_has_not_come(tmp_path, monkeypatch, compacted):
    """LATEST and ASOF count the content at the start and what is written later, whatever is kept of history."""
    if compacted:
        monkeypatch.setattr("watersmeet.database.opened._INPROCESS_COMPACTION", 1)
    with connect(tmp_path / "db") as connection:
        connection.execute(
            "CREATE STREAM l(n int, k int, x int); CREATE MUTABLE STREAM m(id int, k int, y int) PRIMARY KEY id"
        )
        for number in range(3):  # each view begins with another content; none has what another one saw before
            for kind in ("LATEST", "ASOF"):
                more = " AND l.x >= m.y" if kind == "ASOF" else ""
                connection.execute(
                    f"CREATE MATERIALIZED VIEW {kind}{number} AS SELECT l.n, m.y FROM l {kind} JOIN m ON l.k "
                    f"= m.k{more}"
                )
            connection.execute(f"INSERT INTO m VALUES (5, {number}, {number}); FLUSH")
        connection.execute("DELETE FROM m WHERE id = 5; INSERT INTO m VALUES (6, 3, 3); FLUSH")
        connection.execute("CREATE MATERIALIZED VIEW last AS SELECT l.n, m.y FROM l LATEST JOIN m ON l.k = m.k")
        connection.execute("INSERT INTO l VALUES (0, 0, 9), (1, 1, 9), (2, 2, 9), (3, 3, 9); FLUSH")
        for kind in ("LATEST", "ASOF"):
            found = [batch_query(connection, f"SELECT * FROM table({kind}{number})") for number in range(3)]
            assert found == [
                [(0, 0), (1, 1), (2, 2), (3, 3)],
                [(0, 0), (1, 1), (2, 2), (3, 3)],
                [(1, 1), (2, 2), (3, 3)],
            ]
        assert batch_query(connection, "SELECT * FROM table(last)") == [(3, 3)]


@pytest.mark.slow
def test_a_view_writes_each_row_once_whenever_it_is_interrupted(tmp_path):
    made = (
        "CREATE STREAM s(i int); CREATE STREAM t(i int, u uint8); CREATE MATERIALIZED VIEW v INTO t AS SELECT i FROM s"
    )
    with connect(tmp_path / "db") as connection:
        connection.execute(made)
        connection.execute("INSERT INTO s(i) VALUES (1), (2)")
        connection._session.database.engine.flush()  # the view has its rows, the stream not yet
    with connect(tmp_path / "db") as connection:
        connection.execute("FLUSH")
        assert batch_query(connection, "SELECT i FROM table(t)") == [(1,), (2,)]
        connection.execute("INSERT INTO s(i) VALUES (3); FLUSH; INSERT INTO s(i) VALUES (4)")
    with connect(tmp_path / "db") as connection:
        connection.execute("INSERT INTO s(i) VALUES (5)")
        connection._session.database.engine.flush()
    with connect(tmp_path / "db") as connection:
        for i in range(6, 300):  # past a compaction
            connection.execute(f"INSERT INTO s(i) VALUES ({i})")
        connection.execute("FLUSH")
    with connect(tmp_path / "db") as connection:
        connection.execute("FLUSH")
        assert sorted(r[0] for r in connection.execute("SELECT i FROM table(t)").fetchall()) == list(range(1, 300))
        connection.execute("DROP VIEW v; DROP STREAM t; DROP STREAM s")


def test_rows_that_a_stream_does_not_take_are_told_until_they_are_gone():
    with connect() as connection:
        connection.execute(
            "CREATE STREAM s(i int); CREATE STREAM t(u uint8); CREATE MATERIALIZED VIEW v INTO t AS SELECT i "
            "AS u FROM s"
        )
        connection.execute("INSERT INTO s(i) VALUES (1); FLUSH; INSERT INTO s(i) VALUES (-1), (2)")
        for _ in range(2):
            with pytest.raises(Error, match='value -1 is out of range for column "u"'):
                connection.execute("FLUSH")
        assert batch_query(connection, "SELECT u FROM table(t)") == [(1,)]
        connection.execute("DROP VIEW v; FLUSH")


def test_a_direct_join_reads_what_a_row_needs():
    """TP-43: the right side is not gone through, neither for a left row nor for a second query."""
    with connect() as connection:
        connection.execute(
            "CREATE STREAM l(n int, k int); CREATE MUTABLE STREAM r(k int, v string, w string) PRIMARY KEY k"
        )
        Harness(connection).inject(
            "r",
            pa.table(
                {"k": pa.array(range(50_000), pa.int32()), "v": [f"v{i}" for i in range(50_000)], "w": ["w"] * 50_000}
            ),
        )
        direct = "SELECT l.n, r.v FROM l LEFT JOIN r ON l.k = r.k SETTINGS join_algorithm = 'direct'"
        first = connection.execute(direct)
        connection.execute("INSERT INTO l(n, k) VALUES (1, 17), (2, -1); FLUSH")
        assert sorted(first.fetchall()) == [(1, "v17"), (2, None)]
        operators = connection.status()["operators"]
        read = {o["kind"]: o["rows_in"] for o in operators.values() if o["kind"] in ("arrange", "temporal")}
        assert read == {"arrange": 0, "temporal": 2}
        second = connection.execute(direct + ", keep_versions = 2")
        kept = [o for o, v in connection.status()["operators"].items() if v["kind"] == "arrange"]
        assert kept == [o for o, v in operators.items() if v["kind"] == "arrange"]  # it reads the same rows, kept once
        connection.execute("INSERT INTO l(n, k) VALUES (3, 18); FLUSH")
        assert first.fetchall() == second.fetchall() == [(3, "v18")]


def test_the_error_of_a_clock_has_the_name_that_was_written():
    with connect() as connection:
        connection.execute("CREATE STREAM s(i int)")
        with pytest.raises(Error, match=r"`NOW64\(\)` function is only allowed"):
            connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count() AS c FROM s GROUP BY now64()")
