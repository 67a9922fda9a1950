"""Fills of new views that are limited, paused, and canceled by statements of other sessions."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console
from tests.waiting import until

import watersmeet
from watersmeet.cli.progress import status_of, status_table
from watersmeet.errors import Error
from watersmeet.runtime.inputs import epochs_since

TABLE = """
CREATE TABLE t (k int PRIMARY KEY, n int);
CREATE MATERIALIZED VIEW live AS SELECT n, count(*) AS c FROM t GROUP BY n;
INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 300) AS g;
FLUSH
"""
SUMS = "SELECT n, sum(k) AS s FROM t GROUP BY n"


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="risingwave") as connection:
        connection.execute(TABLE)
        yield connection


def jobs(connection):
    cursor = connection.execute("SHOW JOBS")
    names = [c[0] for c in cursor.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


def begun(connection, other, sql):
    """A thread that runs a statement, once the fill of a view has begun."""
    made = other.submit(connection.cursor().execute, sql)
    until(lambda: made.done() or any(job["job"] is not None for job in jobs(connection).values()))
    assert not made.done(), made.result()
    return made


def test_a_paused_fill_holds_up_no_other_view_and_resumes(connection):
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) AS {SUMS}")
        job = jobs(connection)["v"]
        assert (job["state"], job["detail"], job["progress"]) == ("filling", "paused: backfill_rate_limit is 0", 0.0)
        assert jobs(connection)["live"]["job"] is None
        connection.execute("INSERT INTO t VALUES (1000, 7); DELETE FROM t WHERE k < 10; FLUSH")
        assert connection.execute("SELECT c FROM live WHERE n = 7").fetchall() == [(1,)]
        with pytest.raises(Error, match="v") as caught:
            connection.execute("SELECT * FROM v")
        assert caught.value.condition == "UNDEFINED_RELATION"
        assert caught.value.hint == "It is being filled. SHOW JOBS shows its progress."
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO 1000000")
        made.result(60)
    connection.execute("FLUSH")
    assert connection.execute(f"(TABLE v EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE v)").fetchall() == []
    assert (jobs(connection)["v"]["job"], jobs(connection)["v"]["progress"]) == (None, None)


def test_a_limit_below_the_rows_of_a_part_of_an_arrangement_ends(connection):
    """A fill that replays the arrangement of a live view reads at least one part of it at a time."""
    connection.execute("CREATE TABLE u (k int, x int); INSERT INTO u SELECT g, g FROM generate_series(1, 300) AS g")
    connection.execute("CREATE MATERIALIZED VIEW pairs AS SELECT t.k FROM t JOIN u ON t.k = u.k")
    joined = "SELECT t.n, u.x FROM t JOIN u ON t.k = u.k"
    before = connection.opened.log.head()
    connection.execute(f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 400) AS {joined}")
    assert connection.opened.log.head() - before < 20
    connection.execute("SET background_ddl = true")
    connection.execute(f"CREATE MATERIALIZED VIEW w WITH (backfill_rate_limit = 0) AS {joined} WHERE x > 1")
    connection.execute("ALTER MATERIALIZED VIEW w SET BACKFILL_RATE_LIMIT = 250; WAIT")
    for name, query in (("v", joined), ("w", f"{joined} WHERE x > 1")):
        assert sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) == sorted(
            connection.execute(query).fetchall()
        )


def test_a_limit_changes_while_a_view_gets_another_query(connection):
    """Views over it have limits of their own, which are those of the hidden views that are filled in their place."""
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}; CREATE MATERIALIZED VIEW above AS SELECT s FROM v")
    connection.execute("ALTER MATERIALIZED VIEW above SET BACKFILL_RATE_LIMIT = 0")
    with ThreadPoolExecutor(1) as other:
        changed = other.submit(connection.cursor().execute, f"ALTER MATERIALIZED VIEW v AS {SUMS} HAVING n > 0")
        until(lambda: changed.done() or any(r.name == "?above" for r in connection.opened.catalog.relations.values()))
        connection.execute("ALTER MATERIALIZED VIEW above SET BACKFILL_RATE_LIMIT = DEFAULT")
        changed.result(60)
    assert connection.execute("SELECT count(*) FROM above").fetchall() == [(2,)]


def test_the_variable_is_for_views_created_later(connection):
    connection.execute("SET backfill_rate_limit = 0")
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v AS {SUMS}")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT = DEFAULT")
        made.result(60)
    connection.execute(f"CREATE MATERIALIZED VIEW own WITH (backfill_rate_limit = default) AS {SUMS}")
    assert connection.execute("SELECT count(*) FROM own").fetchall() == [(3,)]


def test_a_canceled_fill_leaves_no_view(connection):
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) AS {SUMS}")
        job = jobs(connection)["v"]["job"]
        cursor = connection.execute(f"CANCEL JOBS {job}, 999999")
        assert cursor.fetchall() == [(str(job),)]
        assert cursor.notices == ("no view with id 999999 is being filled",)
        with pytest.raises(Error) as caught:
            made.result(60)
        assert caught.value.condition == "QUERY_CANCELED"
    assert sorted(jobs(connection)) == ["live"]
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    assert connection.execute("SELECT count(*) FROM v").fetchall() == [(3,)]


def test_views_of_a_script_are_canceled_together(connection):
    with ThreadPoolExecutor(1) as other:
        limit = "WITH (backfill_rate_limit = 0)"
        script = f"CREATE MATERIALIZED VIEW a {limit} AS {SUMS}; CREATE MATERIALIZED VIEW b AS SELECT s FROM a"
        made = begun(connection, other, script)
        shown = jobs(connection)
        assert sorted(n for n in shown if shown[n]["job"] is not None) == ["a", "b"]
        connection.execute(f"CANCEL JOB {shown['b']['job']}")
        with pytest.raises(Error, match="canceled"):
            made.result(60)
    assert sorted(jobs(connection)) == ["live"]


def test_a_wrong_limit_is_refused_where_it_stands(connection):
    with pytest.raises(Error, match='backfill_rate_limit can\'t be "fast"') as caught:
        connection.execute("ALTER MATERIALIZED VIEW live SET BACKFILL_RATE_LIMIT TO fast")
    assert caught.value.sql[caught.value.span.start : caught.value.span.end] == "BACKFILL_RATE_LIMIT TO fast"
    with pytest.raises(Error, match='backfill_rate_limit can\'t be "-5"'):
        connection.execute(f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = -5) AS {SUMS}")
    with pytest.raises(Error) as caught:
        connection.execute("ALTER MATERIALIZED VIEW t SET BACKFILL_RATE_LIMIT TO 5")
    assert caught.value.condition == "CATALOG_TYPE_MISMATCH"
    with pytest.raises(Error) as caught:
        connection.execute("ALTER MATERIALIZED VIEW lives SET BACKFILL_RATE_LIMIT TO 5")
    assert (caught.value.condition, caught.value.hint) == ("UNDEFINED_RELATION", 'Did you mean "live"?')
    connection.execute("ALTER MATERIALIZED VIEW IF EXISTS lives SET BACKFILL_RATE_LIMIT TO 5")


def test_statements_go_on_while_views_are_filled_in_the_background(connection):
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    assert jobs(connection)["v"]["state"] == "filling"
    with pytest.raises(Error, match="exists"):
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    connection.execute("SET backfill_rate_limit = default")
    connection.execute(
        "CREATE TABLE other (a int); CREATE VIEW plain AS SELECT n FROM live; DROP MATERIALIZED VIEW live CASCADE"
    )
    connection.execute("INSERT INTO t VALUES (1000, 7); DELETE FROM t WHERE k < 10; FLUSH")
    assert sorted(jobs(connection)) == ["v"]
    connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
    assert connection.execute(f"(TABLE v EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE v)").fetchall() == []
    assert jobs(connection)["v"]["job"] is None


def test_views_that_wait_are_filled_together(connection):
    """The second one waits for the fill of the first one, and then shares the scan with the third one."""
    connection.execute("SET background_ddl = true")
    connection.execute(f"CREATE MATERIALIZED VIEW a WITH (backfill_rate_limit = 0) AS {SUMS}")
    until(lambda: connection.opened.engine._coordinator.backfill)
    connection.execute("CREATE MATERIALIZED VIEW b AS SELECT k FROM t WHERE n = 1")
    connection.execute("CREATE MATERIALIZED VIEW c AS SELECT k FROM t WHERE n = 2")
    connection.execute("INSERT INTO t VALUES (1000, 1); FLUSH")
    assert [jobs(connection)[v]["progress"] for v in "abc"] == [0.0, 0.0, 0.0]
    assert [jobs(connection)[v]["detail"] for v in "bc"] == ["waits for the fill of a"] * 2
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(status_table(status_of(connection), console.width))
    assert "│ a (filling, 0%) │" in console.export_text()
    connection.execute("ALTER MATERIALIZED VIEW a SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT MATERIALIZED VIEW c")
    assert [connection.execute(f"SELECT count(*) FROM {v}").fetchone()[0] for v in "abc"] == [3, 101, 100]
    filled = [c.frontier.backfill for c in epochs_since(connection.opened.log, 0)]
    assert {len(b.purpose.views) for b in filled if b is not None} <= {1, 2}


def test_a_view_that_is_being_filled_has_no_subscription(connection):
    """It would remain without its view if the fill is canceled."""
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    with pytest.raises(Error) as caught:
        connection.execute("CREATE SUBSCRIPTION s FROM v WITH (retention = '1D')")
    assert (caught.value.condition, caught.value.hint) == (
        "UNDEFINED_RELATION",
        "It is being filled. SHOW JOBS shows its progress.",
    )


def test_a_sink_from_a_view_that_is_being_filled_is_refused_at_its_name(connection):
    connection.execute("CREATE TABLE target (n int PRIMARY KEY, s bigint)")
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW filled AS {SUMS}")
    for options in ("", " WITH (on_conflict = 's')"):
        with pytest.raises(Error) as caught:
            connection.execute(f"CREATE SINK s INTO target FROM filled{options}")
        assert caught.value.condition == "UNDEFINED_RELATION"
        assert caught.value.hint == "It is being filled. SHOW JOBS shows its progress."
        assert caught.value.sql[caught.value.span.start : caught.value.span.end] == "filled"


def test_wait_tells_which_view_is_paused(connection, caplog):
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    connection.execute("SET backfill_rate_limit = default")
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k FROM t")
    told = (
        'waits for materialized view "v", whose fill is paused: '
        "ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT = DEFAULT resumes it"
    )
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(connection.cursor().execute, "WAIT")
        until(lambda: waits.done() or caplog.messages)
        connection.execute(told.partition(": ")[2].removesuffix(" resumes it"))
        waits.result(60)
    assert [m for m in caplog.messages if m.startswith("waits")] == [told]


def test_wait_ends_when_the_database_is_closed(connection):
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(connection.cursor().execute, "WAIT")
        time.sleep(0.1)
        connection.close()
        with pytest.raises(Error) as caught:
            waits.result(60)
    assert caught.value.condition == "CONNECTION_CLOSED"


def test_parallelism_changes_while_views_wait_for_a_fill_in_the_background(connection):
    connection.execute("SET background_ddl = true")
    connection.execute(f"CREATE MATERIALIZED VIEW a WITH (backfill_rate_limit = 0) AS {SUMS}")
    until(lambda: connection.opened.engine._coordinator.backfill)
    connection.execute("CREATE MATERIALIZED VIEW b AS SELECT k % 7 AS g, sum(n) AS s FROM t GROUP BY k % 7")
    connection.execute("ALTER MATERIALIZED VIEW a SET BACKFILL_RATE_LIMIT = 250")
    connection.execute("ALTER DATABASE SET parallelism = 3; WAIT; INSERT INTO t VALUES (1000, 7); FLUSH")
    assert [connection.execute(f"SELECT sum(s) FROM {v}").fetchone()[0] for v in "ab"] == [46150, 307]


def test_dropped_and_canceled_fills_of_the_background(connection):
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(
        f"CREATE MATERIALIZED VIEW a AS {SUMS}; CREATE MATERIALIZED VIEW b AS SELECT s FROM a; "
        "CREATE MATERIALIZED VIEW c AS SELECT n FROM t"
    )
    until(lambda: connection.opened.engine._coordinator.backfill)
    connection.execute("DROP MATERIALIZED VIEW c")
    assert sorted(jobs(connection)) == ["a", "b", "live"]
    assert connection.execute(f"CANCEL JOBS {jobs(connection)['b']['job']}").rowcount == 1
    assert sorted(jobs(connection)) == ["a", "live"]
    connection.execute("INSERT INTO t VALUES (1000, 7); FLUSH")
    assert connection.execute("SELECT c FROM live WHERE n = 7").fetchall() == [(1,)]
    connection.execute("ALTER MATERIALIZED VIEW a SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
    assert connection.execute(f"(TABLE a EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE a)").fetchall() == []


def test_a_fill_that_fails_in_the_background_is_reported_by_wait(connection):
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW a AS {SUMS}")
    until(lambda: connection.opened.engine._coordinator.backfill)
    coordinator = connection.opened.engine._coordinator
    plan = coordinator.plan

    def fails(*_, **__):
        coordinator.plan = plan
        raise watersmeet.errors.error("DISK_FULL", "no space")

    coordinator.plan = fails
    with pytest.raises(Error) as caught:
        connection.execute("WAIT")
    assert caught.value.condition == "DISK_FULL"
    assert sorted(jobs(connection)) == ["live"]


def test_a_transaction_fills_its_views(connection):
    connection.execute("SET background_ddl = true")
    cursor = connection.execute(f"BEGIN; CREATE MATERIALIZED VIEW v AS {SUMS}")
    assert cursor.notices == ("background_ddl has no effect in a transaction: the views are filled before it ends",)
    connection.execute("COMMIT")
    assert connection.execute("SELECT count(*) FROM v").fetchall() == [(3,)]


def test_a_paused_fill_goes_on_after_a_restart(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess", dialect="risingwave") as connection:
        connection.execute(TABLE)
        connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
        until(lambda: connection.opened.engine._coordinator.backfill)
    with watersmeet.connect(path, runtime="inprocess", dialect="risingwave") as connection:
        connection.execute("INSERT INTO t VALUES (1000, 7); DELETE FROM t WHERE k < 10; FLUSH")
        assert connection.execute("SELECT c FROM live WHERE n = 7").fetchall() == [(1,)]
        assert jobs(connection)["v"]["detail"] == "paused: backfill_rate_limit is 0"
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
        assert connection.execute(f"(TABLE v EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE v)").fetchall() == []


def test_a_paused_fill_shares_a_join_on_arrival_with_a_live_view(connection):
    """Rows that arrive meanwhile match for both views what is present at their moment."""
    connection.execute("CREATE TABLE a (k int, x int) APPEND ONLY; CREATE TABLE b (k int, y int) APPEND ONLY")
    joined = "AS SELECT x + {} AS x FROM a LEFT JOIN b ON a.k = b.k EMIT ON ARRIVAL"
    connection.execute("CREATE MATERIALIZED VIEW first " + joined.format(1))
    connection.execute("INSERT INTO a VALUES (1, 10), (2, 20); INSERT INTO b VALUES (1, 0); FLUSH")
    with ThreadPoolExecutor(1) as other:
        made = begun(connection, other, "CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) " + joined.format(2))
        connection.execute("INSERT INTO b VALUES (2, 0); FLUSH; INSERT INTO a VALUES (3, 30), (1, 40); FLUSH")
        connection.execute("INSERT INTO b VALUES (3, 0); FLUSH")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT")
        assert made.result(60).notices == ()
    connection.execute("INSERT INTO a VALUES (2, 50); FLUSH")
    rows = [(i,) for (i,) in connection.execute("SELECT x + 1 FROM first ORDER BY 1").fetchall()]
    assert connection.execute("SELECT x FROM v ORDER BY 1").fetchall() == rows


def test_a_paused_fill_with_look_ups_replays_what_happened_meanwhile(connection):
    """Each row is joined with the rows of its moment, also those that were present before the pause."""
    connection.execute(
        "CREATE TABLE names (n int PRIMARY KEY, name varchar); INSERT INTO names VALUES (0, 'a'), (1, 'b')"
    )
    connection.execute("CREATE TABLE s (i int, n int) APPEND ONLY; INSERT INTO s VALUES (1, 0), (2, 2); FLUSH")
    with ThreadPoolExecutor(1) as other:
        made = begun(
            connection,
            other,
            "CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) AS SELECT s.i, name FROM s "
            "LEFT JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON s.n = names.n",
        )
        assert jobs(connection)["v"]["detail"] == "paused: backfill_rate_limit is 0"
        for number, name in enumerate(["c", "d", "e"], 3):
            connection.execute(
                f"UPDATE names SET name = '{name}' WHERE n = 0; INSERT INTO s VALUES ({number}, 0); FLUSH"
            )
        connection.execute("DELETE FROM names; FLUSH; INSERT INTO s VALUES (6, 1); FLUSH")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT")
        made.result(60)
    connection.execute("INSERT INTO names VALUES (1, 'f'); INSERT INTO s VALUES (7, 1); FLUSH")
    assert connection.execute("SELECT * FROM v ORDER BY i").fetchall() == [
        (1, "a"), (2, None), (3, "c"), (4, "d"), (5, "e"), (6, None), (7, "f"),
    ]  # fmt: skip


@pytest.mark.parametrize("parallelism", [1, 2])
def test_pumps_stop_and_drop_late_rows_while_a_view_is_filled(tmp_path, parallelism):
    """STOP does not wait for the fill, and pumps write what they write without it."""

    def written(name, *, fills):
        path = tmp_path / name
        with watersmeet.connect(path, "sqlstream", runtime="inprocess", parallelism=parallelism) as connection:

            def run(text, dialect="sqlstream"):
                connection.execute(f"SET dialect = '{dialect}'")
                return connection.execute(text)

            def insert(at, k):
                run(f"INSERT INTO a (ROWTIME, k) VALUES (TIMESTAMP '2026-01-01 00:{at}', {k})")
                run("FLUSH", "risingwave")

            run("CREATE SCHEMA s")
            run("SET SCHEMA 's'; CREATE STREAM a (k INTEGER); CREATE STREAM b (k INTEGER, n BIGINT)")
            pump = "AS INSERT INTO b SELECT STREAM k, count(*) AS n FROM a GROUP BY FLOOR(a.ROWTIME TO MINUTE), k"
            run(f"CREATE PUMP p STARTED {pump}; CREATE PUMP q STARTED {pump}")
            run("CREATE TABLE public.t (n int); INSERT INTO public.t SELECT generate_series(1, 1000)", "risingwave")
            insert("01:00", 1)
            if fills:
                run("SET background_ddl = true", "risingwave")
                view = "CREATE MATERIALIZED VIEW public.v WITH (backfill_rate_limit = 0) AS SELECT sum(n) FROM public.t"
                run(view, "risingwave")
            insert("02:30", 1)
            insert("00:10", 1)
            run("ALTER PUMP p STOP")
            insert("00:20", 1)
            insert("03:10", 2)
            if fills:
                run("ALTER MATERIALIZED VIEW public.v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT", "risingwave")
                assert run("SELECT * FROM public.v", "risingwave").fetchall() == [(500500,)]
            run("ALTER PUMP p START")
            insert("02:40", 1)
            insert("05:10", 1)
            insert("06:10", 3)
            return [sorted(map(str, run(f"SELECT * FROM {r}", "risingwave").fetchall())) for r in ("s.a", "s.b")]

    found = written("beside", fills=True)
    assert found == written("plain", fills=False)
    assert len(found[1]) > 4


KILLED = """
    import sys
    import time

    import watersmeet

    connection = watersmeet.connect(sys.argv[1], runtime="inprocess", dialect="risingwave")
    connection.execute(sys.argv[2])
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 5")
    connection.execute("CREATE MATERIALIZED VIEW v AS " + sys.argv[3])
    while not connection.execute("SHOW JOBS LIKE 'v'").fetchone()[-1]:
        time.sleep(0.01)
    print("begun", flush=True)
    time.sleep(600)
"""


def test_a_fill_whose_process_is_killed_goes_on_where_it_was(tmp_path):
    path = tmp_path / "db"
    program = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), TABLE.replace("300", "3000"), SUMS]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.kill()
    with watersmeet.connect(path, runtime="inprocess", dialect="risingwave") as connection:
        job = jobs(connection)["v"]
        assert job["state"] == "filling"
        assert 0 < job["progress"] < 1
        with pytest.raises(Error):
            connection.execute("SELECT * FROM v")
        connection.execute("INSERT INTO t VALUES (10000, 7); DELETE FROM t WHERE k < 10; FLUSH")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
        assert connection.execute(f"(TABLE v EXCEPT {SUMS}) UNION ALL ({SUMS} EXCEPT TABLE v)").fetchall() == []


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("parallelism", [None, 3])
def test_a_rebuild_keeps_the_views_that_are_filled_in_the_background(tmp_path, caplog, live, parallelism):
    path = tmp_path / "db"
    # joined on arrival: each row has the names of its moment
    pairs = "SELECT t.k, name FROM t JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON t.n = names.n"
    with watersmeet.connect(path, runtime="inprocess", dialect="risingwave", parallelism=2) as connection:
        connection.execute(
            "CREATE TABLE t (k int, n int) APPEND ONLY; CREATE TABLE names (n int PRIMARY KEY, name varchar);"
            "INSERT INTO names VALUES (0, 'a'), (1, 'b'); INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 9) AS g"
        )
        if live:
            connection.execute("CREATE MATERIALIZED VIEW live AS SELECT n, count(*) AS c FROM t GROUP BY n; FLUSH")
        connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
        until(lambda: connection.opened.engine._coordinator.backfill)
        connection.execute(f"SET backfill_rate_limit = default; CREATE MATERIALIZED VIEW w AS {pairs}")
    options = {"runtime": "inprocess", "dialect": "risingwave", "parallelism": parallelism, "rebuild": True}
    with watersmeet.connect(path, **options) as connection:
        assert [r.message for r in caplog.records if "filled" in r.message] == [
            'materialized view "v" is filled again from the beginning',
            'materialized view "w" is filled again from the beginning',
        ]
        assert jobs(connection)["v"]["detail"] == "paused: backfill_rate_limit is 0"
        connection.execute("UPDATE names SET name = 'c' WHERE n = 0; INSERT INTO t VALUES (10, 0); FLUSH")
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
        assert connection.execute("SELECT n, s FROM v ORDER BY n").fetchall() == [(0, 28), (1, 12), (2, 15)]
        assert [name for (_, name) in connection.execute("SELECT * FROM w ORDER BY k").fetchall()].count("b") == 3
        if live:
            assert connection.execute("SELECT c FROM live ORDER BY n").fetchall() == [(4,), (3,), (3,)]


def test_a_rebuild_names_the_views_whose_statement_had_not_ended(connection, tmp_path, caplog):
    connection.execute("SET background_ddl = true; SET backfill_rate_limit = 0")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    connection.execute("SET background_ddl = false; SET backfill_rate_limit = default")
    with ThreadPoolExecutor(1) as other:
        made = other.submit(connection.cursor().execute, f"CREATE MATERIALIZED VIEW w AS {SUMS}")
        until(lambda: made.done() or "w" in jobs(connection))
        shutil.copytree(tmp_path / "db", tmp_path / "copy")  # as if the process was killed
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT TO DEFAULT; WAIT")
        made.result(60)
    with watersmeet.connect(tmp_path / "copy", runtime="inprocess", dialect="risingwave", rebuild=True) as copy:
        assert sorted(jobs(copy)) == ["live", "v"]
    assert 'materialized view "w" is removed: the statement that creates it has not ended' in caplog.messages


DIMENSIONS = """
CREATE TABLE a (k int PRIMARY KEY, x int);
CREATE TABLE b (k int PRIMARY KEY, y int);
CREATE VIEW plain AS SELECT * FROM b;
INSERT INTO a SELECT g, g FROM generate_series(1, 20) AS g;
INSERT INTO b SELECT g, g FROM generate_series(1, 10) AS g;
FLUSH
"""
ALL = "SELECT t.k, a.x, b.y FROM t LEFT JOIN a ON t.n = a.k LEFT JOIN b ON a.x = b.k"


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("AUTO", ["b", "a", "t"]),
        ("NONE", ["b", "a", "t"]),
        ("FIXED(a -> b)", ["a", "b", "t"]),
        ("FIXED a -> b, t -> b", ["a", "t", "b"]),
        ('FIXED(t -> public."a", a -> b)', ["t", "a", "b"]),
    ],
)
def test_the_history_of_inputs_is_read_in_the_order_of_the_option(connection, order, names):
    connection.execute(DIMENSIONS)
    with ThreadPoolExecutor(1) as other:
        options = f"WITH (backfill_rate_limit = 0, backfill_order = {order})"
        made = begun(connection, other, f"CREATE MATERIALIZED VIEW v {options} AS {ALL}")
        known = connection.opened.catalog.relations
        assert [known[i].name for i in connection.opened.engine._coordinator.backfill.relations] == names
        connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT = DEFAULT")
        made.result(60)
    connection.execute("FLUSH")
    assert connection.execute(f"(TABLE v EXCEPT ALL {ALL}) UNION ALL ({ALL} EXCEPT ALL TABLE v)").fetchall() == []


def test_an_order_names_an_input_with_a_space(connection):
    connection.execute('CREATE TABLE "a b" (k int); INSERT INTO "a b" VALUES (7); FLUSH')
    order = 'backfill_order = FIXED(public."a b" -> public . t)'
    connection.execute(f'CREATE MATERIALIZED VIEW v WITH ({order}) AS SELECT n FROM t JOIN "a b" AS a ON t.k = a.k')
    assert connection.execute("SELECT n FROM v").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("FIXED(a -> b, b -> t, t -> a)", "has a cycle"),
        ("FIXED(a -> a)", "has a cycle"),
        ("FIXED(a -> live)", "names live, which the view does not read"),
        ("FIXED(plain -> a)", "names plain, which the view does not read"),
        ("FIXED(a -> nix)", "names nix, which the view does not read"),
        ("FIXED", "can't be FIXED"),
        ("FIRST(a -> b)", "can't be FIRST"),
    ],
)
def test_an_order_of_inputs_that_cannot_be(connection, order, message):
    connection.execute(DIMENSIONS)
    with pytest.raises(Error, match=message) as found:
        connection.execute(f"CREATE MATERIALIZED VIEW v WITH (backfill_order = {order}) AS {ALL}")
    assert found.value.condition == "INVALID_PARAMETER"
    assert "v" not in jobs(connection)


def test_relations_of_the_catalog_show_the_progress_of_fills(connection):
    connection.execute(DIMENSIONS)
    ddl = "SELECT ddl_id, ddl_statement, create_type, progress FROM rw_catalog.rw_ddl_progress"
    parts = "SELECT job_id, job_name, upstream_table_name, progress FROM rw_fragment_backfill_progress"
    assert connection.execute(ddl).fetchall() == connection.execute(parts).fetchall() == []
    connection.execute("SET background_ddl = true")
    sql = f"CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 15) AS {ALL}"
    connection.execute(sql)
    until(lambda: jobs(connection)["v"]["progress"])
    connection.execute("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMIT = 0")
    job = int(jobs(connection)["v"]["job"])
    (shown,) = connection.execute(ddl).fetchall()
    assert shown[:3] == (job, sql, "BACKGROUND")
    assert 0 < float(shown[3].removesuffix("%")) < 100
    found = connection.execute(parts).fetchall()
    assert {row[:2] for row in found} == {(job, "v")}
    progress = {row[2]: row[3] for row in found}
    assert progress["b"] == "100.00% (10/10)"
    assert progress["t"].endswith("/300)")
    assert not progress["t"].startswith("100")
    assert connection.execute(f"CANCEL JOBS {job}").fetchall() == [(str(job),)]
    until(lambda: connection.execute(ddl).fetchall() == [])
    assert connection.execute(parts).fetchall() == []
