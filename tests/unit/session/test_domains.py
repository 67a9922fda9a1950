"""Domains: rules of values, in columns and casts."""

from __future__ import annotations

import pytest

import watersmeet

_DOMAINS = """
    CREATE DOMAIN posint AS int CHECK (VALUE > 0);
    CREATE DOMAIN code AS varchar(5) DEFAULT 'abc' NOT NULL
        CONSTRAINT low CHECK (VALUE = lower(VALUE)) CHECK (length(value) > 1);
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN good AS mood CHECK (VALUE > 'sad');
    CREATE DOMAIN few AS int[] CHECK (cardinality(VALUE) < 3);
    CREATE TABLE t (id posint PRIMARY KEY, s code, g good, f few, n int);
"""  # fmt: skip

#: Statements that both systems run, and either refuse by the same SQLSTATE or not.
_STATEMENTS = """
INSERT INTO t VALUES (1, 'xy', 'ok', '{1,2}', 1)
INSERT INTO t (id) VALUES (2)
INSERT INTO t VALUES (0, 'xy', 'ok', NULL, 1)
INSERT INTO t VALUES (3, NULL, 'ok', NULL, 1)
INSERT INTO t VALUES (3, 'XY', 'ok', NULL, 1)
INSERT INTO t VALUES (3, 'x', 'ok', NULL, 1)
INSERT INTO t VALUES (3, 'toolong', 'ok', NULL, 1)
INSERT INTO t VALUES (3, 'xyz', 'sad', NULL, 1)
INSERT INTO t VALUES (3, 'xyz', 'none', NULL, 1)
INSERT INTO t VALUES (3, 'xyz', NULL, '{1,2,3}', 1)
INSERT INTO t (id, s) SELECT id - 2, 'zz' FROM t
UPDATE t SET id = -1 WHERE id = 1
UPDATE t SET s = DEFAULT WHERE id = 1
SELECT 0::posint
SELECT (-n)::posint FROM t WHERE id = 1
SELECT 'XY'::code
SELECT NULL::code
SELECT NULL::posint, 5::posint + 1, 'toolong'::code, '{1}'::few
SELECT 'sad'::good
SELECT s || '!', g, f[1], id + 1 FROM t WHERE g::mood > 'sad' ORDER BY id
ALTER DOMAIN posint ADD CONSTRAINT less CHECK (VALUE < 3)
ALTER DOMAIN posint ADD CONSTRAINT one CHECK (VALUE < 2)
INSERT INTO t VALUES (7, 'xy', 'ok', NULL, 1)
ALTER DOMAIN posint RENAME CONSTRAINT less TO lesser
ALTER DOMAIN posint DROP CONSTRAINT less
ALTER DOMAIN posint DROP CONSTRAINT IF EXISTS less
ALTER DOMAIN posint DROP CONSTRAINT lesser
INSERT INTO t VALUES (7, 'xy', NULL, NULL, 1)
ALTER DOMAIN good SET NOT NULL
ALTER DOMAIN code DROP NOT NULL
INSERT INTO t VALUES (8, NULL, NULL, NULL, 1)
ALTER DOMAIN code SET NOT NULL
ALTER DOMAIN code SET DEFAULT 'zz'
INSERT INTO t (id) VALUES (9)
ALTER DOMAIN code DROP DEFAULT
INSERT INTO t (id) VALUES (10)
ALTER DOMAIN posint ADD CONSTRAINT ten CHECK (VALUE < 10) NOT VALID
INSERT INTO t (id) VALUES (11)
ALTER DOMAIN posint VALIDATE CONSTRAINT ten
ALTER TABLE t ADD COLUMN p posint
UPDATE t SET p = 0 WHERE id = 1
DROP DOMAIN posint
SELECT * FROM t ORDER BY id
DROP TABLE t
DROP DOMAIN posint, code, few
DROP DOMAIN IF EXISTS posint
CREATE DOMAIN bad AS int CHECK (VALUE + 1)
CREATE DOMAIN bad AS nosuch
"""


@pytest.mark.postgres
def test_same_as_postgresql(connection, postgres):
    for _ in connection.execute_script(_DOMAINS):
        pass
    postgres.execute(_DOMAINS)
    with postgres.connect() as other:
        for sql in filter(None, _STATEMENTS.splitlines()):
            try:
                rows = other.execute(sql)
                wanted = rows.fetchall() if rows.description else None
            except Exception as refused:
                wanted = refused.sqlstate
            try:
                found = (
                    connection.execute(sql).fetchall() if isinstance(wanted, list) else connection.execute(sql) and None
                )
            except watersmeet.Error as refused:
                found = refused.sqlstate
            assert found == wanted, sql


def test_rules_hold_after_a_restart(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        for _ in connection.execute_script(_DOMAINS):
            pass
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        for sql, condition in (
            ("INSERT INTO t VALUES (0)", "CHECK_VIOLATION"),
            ("INSERT INTO t (id, s) VALUES (1, NULL)", "NOT_NULL_VIOLATION"),
        ):
            with pytest.raises(watersmeet.Error) as found:
                connection.execute(sql)
            assert found.value.condition == condition
        connection.execute("INSERT INTO t (id) VALUES (1)")
        assert connection.execute("SELECT id, s FROM t").fetchall() == [(1, "abc")]


def test_views_read_columns_of_domains(run):
    for sql in _DOMAINS.split(";")[:-1]:
        run(sql)
    run("CREATE MATERIALIZED VIEW v AS SELECT s, sum(id) AS n, (sum(id) * 2)::posint AS m FROM t GROUP BY s")
    run("INSERT INTO t (id) VALUES (1), (2); FLUSH")
    assert run("SELECT * FROM v") == [("abc", 3, 6)]


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("CREATE DOMAIN a AS posint", "FEATURE_NOT_SUPPORTED"),
        ("CREATE TABLE x (a posint[])", "FEATURE_NOT_SUPPORTED"),
        ('CREATE DOMAIN a AS varchar COLLATE "C"', "FEATURE_NOT_SUPPORTED"),
        ("ALTER TABLE t ADD COLUMN c code", "FEATURE_NOT_SUPPORTED"),
        ("ALTER DOMAIN posint RENAME TO other", "FEATURE_NOT_SUPPORTED"),
        ("ALTER DOMAIN t DROP DEFAULT", "CATALOG_TYPE_MISMATCH"),
        ("ALTER DOMAIN posint ADD PRIMARY KEY (id)", "SYNTAX_ERROR"),
        ("CREATE DOMAIN posint AS int", "DUPLICATE_TYPE"),
        ("CREATE DOMAIN short AS int", "INVALID_NAME"),
        ("CREATE TABLE x (a posint) WITH (connector = 'datagen')", "FEATURE_NOT_SUPPORTED"),
        ("DROP DOMAIN posint CASCADE", "DEPENDENT_OBJECTS"),
    ],
)
def test_refusals(run, fails, sql, condition):
    for text in _DOMAINS.split(";")[:-1]:
        run(text)
    assert fails(sql).condition == condition
