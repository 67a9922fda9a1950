"""EXPLAIN, SHOW, SET, transactions and DML."""

from __future__ import annotations

import pytest
from tests.unit.binder.helpers import refusal

from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.explaining import ExplainAnalyze
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st


def one(text):
    (statement,) = parse(text)
    return statement


@pytest.mark.parametrize(
    ("text", "what", "name", "like"),
    [
        ("SHOW TABLES", "tables", None, None),
        ("SHOW MATERIALIZED VIEWS LIKE 'a%'", "materialized views", None, "a%"),
        ("show jobs", "jobs", None, None),
        ("show memory", "memory", None, None),
        ("SHOW WORKERS", "workers", None, None),
        ("SHOW COLUMNS FROM t", "columns", "t", None),
        ("SHOW CREATE MATERIALIZED VIEW v", "create materialized view", "v", None),
        ("SHOW INDEXES FROM t", "indexes", "t", None),
        ("SHOW ALL", "all", None, None),
    ],
)
def test_show(text, what, name, like):
    shown = one(text)
    assert (shown.what, shown.name.name if shown.name else None, shown.like) == (what, name, like)


def test_variables():
    assert (one("SHOW Timezone").name, one("SHOW TIME ZONE").name) == ("timezone", "timezone")
    assert [
        (s.name, s.value)
        for s in parse(
            "SET RW_IMPLICIT_FLUSH TO true; SET a = 'B c'; SET n = -1; SET SESSION s = x, y; SET q TO "
            "DEFAULT; RESET q; "
            "SET TIME ZONE 'UTC'"
        )
    ] == [
        ("rw_implicit_flush", "true"),
        ("a", "B c"),
        ("n", "-1"),
        ("s", "x, y"),
        ("q", None),
        ("q", None),
        ("timezone", "UTC"),
    ]


def test_transactions_and_flush():
    text = "BEGIN; START TRANSACTION READ ONLY; COMMIT WORK; END; ROLLBACK; ABORT; FLUSH; WAIT; DESCRIBE t"
    found = parse(text)
    assert [type(s) for s in found] == [
        st.Begin,
        st.Begin,
        st.Commit,
        st.Commit,
        st.Rollback,
        st.Rollback,
        st.Flush,
        st.Flush,
        st.Describe,
    ]
    assert [found[0].read_only, found[1].read_only] == [False, True]


def test_explain():
    plain = one("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT 1 AS a")
    assert (plain.verbose, plain.level, plain.format, type(plain.statement)) == (
        False,
        "physical",
        "text",
        df.CreateMaterializedView,
    )
    assert plain.statement.sql == "CREATE MATERIALIZED VIEW v AS SELECT 1 AS a"
    explained = one("EXPLAIN (VERBOSE, DISTSQL, FORMAT JSON) SELECT 1")
    assert (explained.verbose, explained.level, explained.format) == (True, "distsql", "json")
    assert one("EXPLAIN (LOGICAL) (SELECT 1)").level == "logical"
    assert one("EXPLAIN (TRACE, FORMAT DOT) SELECT 1").trace
    assert not one("EXPLAIN (TRACE FALSE) SELECT 1").trace
    assert one("EXPLAIN (FORMAT DOT) SELECT 1").format == "dot"
    assert isinstance(one("EXPLAIN (SELECT 1)").statement, st.Select)


def test_explain_analyze():
    named = one("EXPLAIN ANALYZE MATERIALIZED VIEW s.v")
    assert isinstance(named, ExplainAnalyze)
    assert (named.kind, named.name.shown, named.format, named.seconds) == ("materialized view", "s.v", "text", None)
    assert (one("EXPLAIN ANALYZE v").kind, one("EXPLAIN ANALYZE VERBOSE v").verbose) == ("", True)
    # A view that is called as a kind is.
    assert (one("EXPLAIN ANALYZE sink").kind, one("EXPLAIN ANALYZE sink").name.name) == ("", "sink")
    options = one("EXPLAIN ANALYZE (VERBOSE, DURATION_SECS 5, FORMAT JSON) SINK s")
    assert (options.kind, options.verbose, options.seconds, options.format) == ("sink", True, 5, "json")
    assert one("EXPLAIN (ANALYZE, FORMAT JSON) v").format == "json"
    assert one("EXPLAIN ANALYZE WITH a AS (SELECT 1) SELECT * FROM a").analyze
    assert one("EXPLAIN (ANALYZE) (SELECT 1)").analyze
    assert not one("EXPLAIN (ANALYZE FALSE) SELECT 1").analyze
    for text in ("EXPLAIN (DURATION_SECS 5) SELECT 1", "EXPLAIN ANALYZE (LOGICAL) v", "EXPLAIN ANALYZE v w"):
        assert "SYNTAX_ERROR" in refusal(one, text)


def test_insert():
    insert = one("INSERT INTO t (a, \"B\") VALUES (1, 'x'), (2, NULL) RETURNING *, a + 1 AS c")
    assert (
        insert.table.name,
        [c.name for c in insert.columns],
        len(insert.query.expressions),
        len(insert.returning),
    ) == ("t", ["a", "B"], 2, 2)
    assert one("INSERT INTO t SELECT * FROM s").returning is None


def test_update_and_delete():
    update = one("UPDATE public.t AS q SET a = a + 1, b = 'x' WHERE a = 3 RETURNING a")
    assert (update.table.name, update.alias, [n.name for n, _ in update.assignments], update.where.sql()) == (
        "t",
        "q",
        ["a", "b"],
        "a = 3",
    )
    delete = one("DELETE FROM t")
    assert (delete.table.name, delete.alias, delete.where, delete.returning) == ("t", None, None, None)


# Errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO t (a) DEFAULT VALUES", "DEFAULT VALUES fills all columns"),
        (
            "MERGE INTO t USING b ON true WHEN MATCHED THEN INSERT VALUES (1)",
            "INSERT is not possible in this WHEN clause",
        ),
        ("INSERT INTO t VALUES (1) ON CONFLICT (lower(a)) DO NOTHING", "ON CONFLICT of an expression is not supported"),
        ("EXPLAIN (FORMAT XML) SELECT 1", "EXPLAIN (FORMAT XML) is not supported"),
        ("EXPLAIN (FORMAT YAML) SELECT 1", "EXPLAIN (FORMAT YAML) is not supported"),
        ("EXPLAIN (FOO) SELECT 1", 'syntax error at or near "FOO"'),
        ("EXPLAIN", "syntax error at end of input"),
        ("SHOW TABLES x", 'syntax error at or near "x"'),
    ],
)
def test_refused(text, message):
    assert refusal(parse, text).splitlines()[0].split(": ", 1)[1] == message
