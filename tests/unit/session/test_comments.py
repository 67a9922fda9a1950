"""COMMENT ON: texts that the catalog keeps through renames and restarts."""

from __future__ import annotations

import pytest

import watersmeet


def comments(connection):
    return connection.execute("SELECT objsubid, description FROM pg_description ORDER BY objsubid").fetchall()


def test_comments_stay_with_their_columns(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY, b int, c int); COMMENT ON TABLE t IS 'all of it'")
        connection.execute("COMMENT ON COLUMN t.b IS 'second'; COMMENT ON COLUMN public.t.c IS 'it''s third'")
        connection.execute("ALTER TABLE t RENAME COLUMN c TO d; ALTER TABLE t DROP COLUMN b; ALTER TABLE t RENAME TO u")
        assert comments(connection) == [(0, "all of it"), (2, "it's third")]
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert comments(connection) == [(0, "all of it"), (2, "it's third")]
        described = connection.execute("DESCRIBE u").fetchall()
        assert described[-2:] == [("comment", "all of it", None), ("comment on d", "it's third", None)]
        connection.execute("BEGIN; COMMENT ON TABLE u IS 'other'; ROLLBACK; COMMENT ON COLUMN u.d IS NULL")
        assert comments(connection) == [(0, "all of it")]


def test_every_kind_has_one(run):
    run("CREATE TABLE t (a int PRIMARY KEY); CREATE VIEW v AS SELECT a FROM t")
    run("CREATE MATERIALIZED VIEW m AS SELECT a FROM t; CREATE INDEX i ON t (a)")
    run("CREATE SINK s FROM t WITH (connector = 'blackhole', type = 'upsert')")
    run("COMMENT ON VIEW v IS '1'; COMMENT ON MATERIALIZED VIEW m IS '2'; COMMENT ON INDEX i IS '3'")
    run("COMMENT ON SINK s IS '4'; COMMENT ON COLUMN m.a IS '5'")
    assert run("SELECT description FROM rw_catalog.rw_description ORDER BY 1") == [(str(n),) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("COMMENT ON VIEW t IS 'x'", "CATALOG_TYPE_MISMATCH"),
        ("COMMENT ON TABLE nothing IS 'x'", "UNDEFINED_RELATION"),
        ("COMMENT ON COLUMN t.b IS 'x'", "UNDEFINED_COLUMN"),
        ("COMMENT ON COLUMN a IS 'x'", "SYNTAX_ERROR"),
        ("COMMENT ON TABLE t 'x'", "SYNTAX_ERROR"),
    ],
)
def test_wrong_comments_are_refused(run, fails, statement, condition):
    run("CREATE TABLE t (a int)")
    assert fails(statement).condition == condition
