"""SHOW, DESCRIBE, SET, EXPLAIN, status."""

from __future__ import annotations

import json
import os

import pytest
from tests.harness import Harness

import watersmeet


@pytest.fixture
def example(run):
    run("""CREATE TABLE t (a int, b varchar NOT NULL, PRIMARY KEY (a));
           CREATE TABLE log (x int) APPEND ONLY;
           CREATE INDEX i ON t (b, a);
           CREATE VIEW w AS SELECT a FROM t;
           CREATE MATERIALIZED VIEW v AS SELECT t.a, t.b, log.x FROM t JOIN log ON t.a = log.x""")


def test_lists(run, example):
    assert run("SHOW TABLES") == [("t",), ("log",)]
    assert run("SHOW TABLES LIKE '%o_'") == [("log",)]
    assert run("SHOW VIEWS") == [("w",)]
    assert run("SHOW MATERIALIZED VIEWS") == [("v",)]
    assert run("SHOW SOURCES") == []
    assert run("SHOW INDEXES") == [("i", "t", "b, a")]
    assert run("SHOW SCHEMAS") == [("public",)]
    assert run("SHOW DATABASES") == [("dev",)]
    assert run("SHOW SINKS") == []
    assert ("parallelism", "1") in run("SHOW PARAMETERS")
    assert ("sink_kept_commits", "131072") in run("SHOW PARAMETERS")


def test_describe(run, fails, example):
    assert run("DESCRIBE t") == [
        ("a", "integer", True),
        ("b", "character varying", True),
        ("primary key", "a", None),
        ("i", "index(b, a)", None),
        ("table description", "table", None),
    ]
    assert run("DESCRIBE log") == [
        ("x", "integer", False),
        ("append only", "true", None),
        ("table description", "table", None),
    ]
    run("CREATE TABLE timed (k int, at timestamp, WATERMARK FOR at AS at - INTERVAL '1 minute') APPEND ONLY")
    run(
        "CREATE MATERIALIZED VIEW minutes AS SELECT k, window_start AS since, window_end FROM TUMBLE(timed, "
        "at, INTERVAL '1 minute')"
    )
    assert ("watermark", "at", None) in run("DESCRIBE timed")
    assert ("watermark", "since, window_end", None) in run("DESCRIBE minutes")
    assert run("SHOW COLUMNS FROM v")[0] == ("a", "integer", True)
    err = fails("DESCRIBE lgo")
    assert (err.condition, err.hint) == ("UNDEFINED_RELATION", 'Did you mean "log"?')


def test_show_create(run, fails, example):
    assert run("SHOW CREATE TABLE log") == [("log", "CREATE TABLE log (x int) APPEND ONLY")]
    assert run("SHOW CREATE MATERIALIZED VIEW v")[0][1].startswith("CREATE MATERIALIZED VIEW v AS SELECT")
    assert fails("SHOW CREATE TABLE v").condition == "CATALOG_TYPE_MISMATCH"
    assert fails("SHOW CREATE VIEW nope").condition == "UNDEFINED_RELATION"


def test_jobs(connection, run, example):
    run("INSERT INTO t VALUES (1, 'x'), (2, 'y'); INSERT INTO log VALUES (1), (2)")
    cursor = connection.execute("SHOW JOBS")
    names = [d[0] for d in cursor.description]
    job = dict(zip(names, cursor.fetchone(), strict=True))
    assert (job["name"], job["rows"], job["transactions_behind"]) == ("v", 0, 2)
    run("FLUSH")
    job = dict(zip(names, run("SHOW JOBS LIKE 'v'")[0], strict=True))
    assert {
        k: job[k]
        for k in ("state", "rows", "rows_in", "rows_out", "state_rows", "transactions_behind", "lag_seconds", "errors")
    } == {
        "state": "running",
        "rows": 2,
        "rows_in": 4,
        "rows_out": 2,
        "state_rows": 4,
        "transactions_behind": 0,
        "lag_seconds": 0.0,
        "errors": 0,
    }
    assert job["state_bytes"] > 0
    assert job["merge_debt_bytes"] == 0
    assert Harness(connection).join_state("v") == {"left": 2, "right": 2}


def test_errors_of_expressions_and_sources(run, tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    run(f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path}') FORMAT PLAIN ENCODE JSON")
    run("CREATE MATERIALIZED VIEW v AS SELECT 10 / (a - 1) AS q FROM s; FLUSH")
    assert sorted(run("SELECT * FROM v"), key=str) == [(10,), (None,)]
    found = {row[1]: row for row in run("SHOW ERRORS")}
    assert found["dead letter"][0] == "s"
    assert found["dead letter"][2].endswith("x.json")
    assert found["dead letter"][3] == 2
    jobs = {row[0]: row for row in run("SHOW JOBS")}
    assert jobs["s"][10] == 1
    (tmp_path / "x.json").write_text("something else\n")
    run("FLUSH")
    assert (
        "s",
        "replaced",
        "x.json",
        None,
        "the file was replaced under its name, its new content is not read",
    ) in run("SHOW ERRORS")
    assert {row[0]: row for row in run("SHOW JOBS")}["s"][10] == 2


def test_sources_have_their_states(run):
    for name, more in {"a": "", "b": ", source_rate_limit = 0", "unread": ""}.items():
        run(f"CREATE SOURCE {name} (n int) WITH (connector = 'datagen', datagen.rows.per.second = 1{more})")
    run("CREATE MATERIALIZED VIEW va AS SELECT n FROM a; CREATE MATERIALIZED VIEW vb AS SELECT n FROM b; FLUSH")
    assert [row[:2] for row in run("SHOW SOURCES")] == [("a", "running"), ("b", "paused"), ("unread", None)]


def test_status(connection, run, example):
    run("INSERT INTO t VALUES (1, 'x'); FLUSH")
    status = connection.status()
    json.dumps(status)
    assert (status["state"], status["behind"], status["error"]) == ("running", 0, None)
    view = status["views"][0]
    assert (view["name"], view["ready"], view["rows"]) == ("v", True, 0)
    assert {t["name"]: t["rows"] for t in status["tables"]} == {"t": 1, "log": 0}
    assert status["sources"] == []


def test_join_state_of_what_has_none(connection, run, example):
    run("CREATE MATERIALIZED VIEW plain AS SELECT a FROM t")
    for name in ("nope", "t", "plain"):
        with pytest.raises(watersmeet.Error):
            Harness(connection).join_state(name)


def test_variables(connection, run, fails):
    assert run("SHOW rw_implicit_flush") == [("false",)]
    run("SET implicit_flush TO on")
    assert run("SHOW RW_IMPLICIT_FLUSH") == [("true",)]
    run("RESET rw_implicit_flush")
    assert run("SHOW implicit_flush") == [("false",)]
    assert run("SHOW TIME ZONE") == [("UTC",)]
    run("SET TIME ZONE 'UTC'; SET extra_float_digits = 3")
    cursor = connection.execute("SET streaming_enable_delta_join = true")
    assert "has no effect" in cursor.notices[0]
    rows = {name: value for name, value, _ in run("SHOW ALL")}
    assert rows["streaming_enable_delta_join"] == "true"
    assert rows["batch_enable_lookup_join"] == "true"
    assert list(rows) == sorted(rows)
    assert [r[0] for r in run("SHOW ALL LIKE 'time%'")] == ["timezone"]


@pytest.mark.parametrize(
    ("sql", "condition", "hint"),
    [
        ("SET rw_implicit_flash = true", "UNDEFINED_OBJECT", 'Did you mean "implicit_flush"?'),
        ("SHOW nothing_of_the_kind", "UNDEFINED_OBJECT", "SHOW ALL lists the variables."),
        ("SET implicit_flush = maybe", "INVALID_PARAMETER", None),
        ("SET extra_float_digits = 'many'", "INVALID_PARAMETER", None),
        ("SET query_mode = fast", "INVALID_PARAMETER", "Choose one of auto, local, distributed."),
        ("SET TIME ZONE 'Europe/Berlinn'", "INVALID_PARAMETER", None),
        ("SHOW SUBSCRIPTIONS FROM x", "UNDEFINED_OBJECT", "CREATE SCHEMA x makes it."),
    ],
)
def test_wrong_variables(run, fails, sql, condition, hint):
    err = fails(sql)
    assert err.condition == condition
    assert err.span is not None
    if hint is not None:
        assert err.hint == hint


def test_explain(run, fails, example):
    lines = [row[0] for row in run("EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT t.b FROM t JOIN log ON t.a = log.x")]
    assert lines[0].startswith("StreamMaterialize { columns: [b")
    assert any("StreamHashJoin { type: Inner" in line for line in lines)
    assert any(line.startswith("Stages:") for line in lines)
    json.loads("\n".join(r[0] for r in run("EXPLAIN (FORMAT JSON) CREATE MATERIALIZED VIEW x AS SELECT a FROM v")))
    assert run("EXPLAIN (FORMAT DOT) CREATE MATERIALIZED VIEW x AS SELECT a FROM v")[0] == ('digraph "plan" {',)
    assert "LogicalApply" in str(
        run(
            "EXPLAIN (LOGICAL, TRACE) CREATE MATERIALIZED VIEW x AS SELECT a FROM v WHERE EXISTS (SELECT 1 "
            "FROM t WHERE t.a = v.a)"
        )
    )
    plan = "".join(r[0] for r in run("EXPLAIN (FORMAT JSON) SELECT b FROM t"))
    (node,) = json.loads(plan)
    while node["children"]:
        (node,) = node["children"]
    assert (node["extra_info"]["Table"], node["extra_info"]["Projections"]) == ("t", "b"), "as the catalog calls them"
    assert "digraph" in str(run("EXPLAIN (FORMAT DOT) SELECT a FROM v"))
    assert run("EXPLAIN SELECT a FROM v")[0] == ("BatchQuery { engine: DuckDB }",)
    assert run("EXPLAIN (LOGICAL) CREATE MATERIALIZED VIEW x AS SELECT a FROM v WHERE a > 1")
    assert run("EXPLAIN SELECT count(*) FROM v")[0] == ("BatchQuery { engine: DuckDB }",)
    assert fails("EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT nope FROM v").condition == "UNDEFINED_COLUMN"
    assert fails("EXPLAIN DROP TABLE t").condition == "FEATURE_NOT_SUPPORTED"
    assert run("SHOW MATERIALIZED VIEWS") == [("v",)]


def test_explain_script(connection):
    plans = Harness(connection).explain_script("""
        CREATE SOURCE s (a int, b int) WITH (connector = 'datagen');
        CREATE TABLE t (a int PRIMARY KEY, c int); INSERT INTO t VALUES (1, 1);
        CREATE MATERIALIZED VIEW x AS SELECT s.a, t.c FROM s LEFT JOIN t ON s.a = t.a;
        CREATE MATERIALIZED VIEW y AS SELECT c, count(*) AS n FROM x GROUP BY c;
        SELECT * FROM y""")
    assert [name for name, _ in plans] == ["x", "y"]
    assert "StreamHashJoin" in "".join(plans[0][1])
    assert "StreamHashAgg" in "".join(plans[1][1])


def test_explain_script_contacts_no_target(connection):
    plans = Harness(connection).explain_script("""
        CREATE TABLE t (a int PRIMARY KEY);
        CREATE MATERIALIZED VIEW v AS SELECT a FROM t;
        CREATE SINK s FROM v WITH (connector = 'kafka', topic = 'o', primary_key = 'a',
            properties.bootstrap.server = 'localhost:1') FORMAT UPSERT ENCODE JSON""")
    assert [name for name, _ in plans] == ["v"]


def test_explain_script_of_other_dialects(connection):
    plans = Harness(connection).explain_script("""
        -- dialect: lenses
        CREATE TABLE a (_key int, x int) FORMAT (int, avro);
        SET defaults.topic.autocreate=true;
        INSERT INTO b SELECT STREAM x FROM a;
        INSERT INTO c SELECT STREAM x + 1 AS y FROM b;
        -- dialect: sqlstream
        CREATE STREAM s (x INTEGER); CREATE STREAM u (x INTEGER);
        CREATE PUMP p STARTED AS INSERT INTO u (x) SELECT STREAM x FROM s;
        SELECT STREAM x FROM u;
        -- dialect: timeplus
        CREATE STREAM e (a int);
        SELECT a FROM e; SELECT a FROM table(e)""")
    assert [name for name, _ in plans] == ["b", "c", "P", "query 1", "query 2"]
    assert all(lines[0].startswith("Stream") for _, lines in plans)


def test_select_is_anything_that_duckdb_can(run, example):
    run("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'y'); INSERT INTO log VALUES (1), (3); FLUSH")
    assert run("""WITH q AS (SELECT b, count(*) AS n, row_number() OVER (ORDER BY b) AS r FROM t GROUP BY b)
                  SELECT q.*, (SELECT max(x) FROM log) AS m FROM q ORDER BY r LIMIT 1""") == [("x", 1, 1, 3)]
    assert run("SELECT a FROM t EXCEPT SELECT x FROM log") == [(2,)]
    assert run("SELECT * FROM v, w WHERE v.a = w.a ORDER BY 1") == [(1, "x", 1, 1), (3, "y", 3, 3)]
    assert run("VALUES (1, 'a'), (2, 'b')") == [(1, "a"), (2, "b")]
    assert run("SELECT a, a FROM t WHERE a = 1") == [(1, 1)]


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("SELECT * FROM nope", "UNDEFINED_RELATION"),
        ("SELECT nope FROM t", "UNDEFINED_COLUMN"),
        ("SELECT nope(a) FROM t", "UNDEFINED_FUNCTION"),
        ("SELECT b::int FROM t", "INVALID_VALUE"),
        ("SELECT a, count(*) FROM t", "COLUMN_NOT_GROUPED"),
        ("SELECT (SELECT a FROM t)", "SCALAR_SUBQUERY_ROWS"),
        ("SELECT a FROM t, w", "AMBIGUOUS_COLUMN"),
        ("SELECT a + b FROM t", "DATATYPE_MISMATCH"),
        ("SELECT * FROM t WHERE", "SYNTAX_ERROR"),
    ],
)
def test_errors_of_select(run, fails, example, sql, condition):
    run("INSERT INTO t VALUES (1, 'x'), (2, 'y'); FLUSH")
    err = fails(sql)
    assert err.condition == condition
    assert err.sql == sql


def test_explain_keeps_a_line_whole_that_holds_what_unicode_calls_the_end_of_one(run):
    run("CREATE TABLE lines (s varchar)")
    query = "SELECT s FROM lines WHERE s <> 'a\u2028b'"
    text = "\n".join(r[0] for r in run(f"EXPLAIN (FORMAT JSON) CREATE MATERIALIZED VIEW x AS {query}"))
    assert "a\u2028b" in text
    json.loads(text)


def test_memory(connection, run, example):
    """Each part is told apart; what a machine does not say is NULL, never 0."""
    run("INSERT INTO t VALUES (1, 'x'); FLUSH; SELECT * FROM v")
    memory = connection.status()["memory"]
    assert memory["segments_bytes"] > 0
    assert memory["commits_bytes"] > 0
    shown = {part: found for part, *found in run("SHOW MEMORY")}
    assert list(shown) == ["main", "workers", "java", "segments", "commits"]
    assert shown["segments"] == [memory["segments_bytes"], None]
    if os.path.exists("/proc/self/smaps_rollup"):
        assert shown["main"][0] > 10_000_000
        assert shown["main"][1] > 1_000_000
        assert memory["main_bytes"] > 10_000_000
    else:
        assert shown["main"] == [None, None]
    assert run("SHOW MEMORY LIKE 'j%'") == [("java", shown["java"][0], None)]


def test_workers(run):
    """Background threads, with what each works for and what keeps it from working."""
    run("CREATE TABLE t (a int); CREATE SINK s FROM t WITH (connector = 'blackhole', type = 'append-only', "
        "force_append_only = true)")  # fmt: skip
    shown = {(name, title): (detail, pause) for name, title, _, detail, pause in run("SHOW WORKERS")}
    assert shown["sink-writer", 'sink "s"'] == (None, None)
    assert {row[0] for row in run("SHOW WORKERS LIKE 'sink%'")} == {"sink-writer"}
    run("DROP SINK s")
    assert ("sink-writer", 'sink "s"') not in [row[:2] for row in run("SHOW WORKERS")]


def test_a_list_with_another_name_is_suggested(fails):
    for word, suggested in {"JOB": "jobs", "FORK": "forks", "COMMIT": "commits", "SINK": "sinks"}.items():
        assert f'"{suggested}"' in fails(f"SHOW {word}").hint


def test_options_of_a_view_are_among_the_clauses_of_its_alter(fails):
    shown = fails("ALTER MATERIALIZED VIEW v SET BACKFILL_RATE_LIMT = 5").hint
    assert shown.endswith(", SET BACKFILL_RATE_LIMIT and SET RECOMPUTE are supported.")
    assert "RECOMPUTE" not in fails("ALTER TABLE t SET RECOMPUTE = always").hint
