"""INSERT, UPDATE, DELETE, RETURNING. RA-03."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.harness import Harness, connect_without_connectors
from tests.thorough import mostly_slow

import watersmeet


@pytest.fixture
def t(run):
    run("CREATE TABLE t (a int PRIMARY KEY, b varchar, c numeric(6,2))")


def test_insert_forms(connection, run, t):
    assert connection.execute("INSERT INTO t VALUES (1, 'x', 1.005), (2, NULL, NULL)").rowcount == 2
    run("INSERT INTO t (c, a) VALUES (2, 3)")
    run("INSERT INTO t VALUES (4)")
    run("INSERT INTO t SELECT a + 10, b FROM t WHERE a < 3")
    assert run("SELECT * FROM t ORDER BY a") == [
        (1, "x", Decimal("1.01")),
        (2, None, None),
        (3, None, Decimal("2.00")),
        (4, None, None),
        (11, "x", None),
        (12, None, None),
    ]


def test_insert_over_files(run, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,x\n2,NA\n")
    run("CREATE TABLE t (a int, b varchar)")
    run(f"INSERT INTO t SELECT a, b FROM read_csv('{tmp_path}/x.csv', nullstr = 'NA')")
    assert run("SELECT * FROM t ORDER BY a") == [(1, "x"), (2, None)]


def test_literals_are_read_as_the_columns_types(run):
    run("""CREATE TABLE t (b boolean, y bytea, da date, ti time, tz timestamptz, iv interval, j jsonb, a int[],
                           s struct<x int, y varchar>, r real)""")
    run("""INSERT INTO t VALUES ('yes', '\\x0aff', '2024-02-29', '10:11', '2024-01-01 00:00:00+01', '1 month 2 days',
                                 '{"k" : [1, 2]}', '{1,NULL,3}', NULL, 'NaN')""")
    row = run("SELECT * FROM t")[0]
    assert row[:5] == (
        True,
        b"\x0a\xff",
        dt.date(2024, 2, 29),
        dt.time(10, 11),
        dt.datetime(2023, 12, 31, 23, tzinfo=dt.UTC),
    )
    assert (row[5].months, row[5].month_days) == (1, 2)
    assert row[6:9] == ({"k": [1, 2]}, [1, None, 3], None)
    assert row[9] != row[9]
    run("INSERT INTO t (s, j) SELECT row(7, 'seven'), NULL")
    assert run("SELECT (s).x, (s).y FROM t WHERE s IS NOT NULL") == [(7, "seven")]


def test_numbers_keep_the_digits_that_their_column_has(run):
    run("CREATE TABLE t (id int, d double precision, a double precision[], n numeric(38, 20), w numeric(38, 0))")
    run("INSERT INTO t VALUES (1, 0.123456789012345, ARRAY[-1.5e-12, 2], -0.12345678901234567890, 5)")
    run("INSERT INTO t VALUES (2, -1e300, NULL, 0.5, 12345678901234567890123456789012345678)")
    run("INSERT INTO t VALUES (3, 5e-324, NULL, 1, 1e30), (5, 0.5, NULL, 0.5, 0.5)")
    run("INSERT INTO t SELECT 4, CASE WHEN true THEN 1.000000000001 END, NULL, (0.00000000000000000001), 0")
    run("UPDATE t SET d = 0.987654321098765, w = -99999999999999999999999999999999999999 WHERE id = 4")
    d = Decimal
    assert run("SELECT * FROM t ORDER BY id") == [
        (1, 0.123456789012345, [-1.5e-12, 2.0], d("-0.12345678901234567890"), 5),
        (2, -1e300, None, d("0.5"), 12345678901234567890123456789012345678),
        (3, 5e-324, None, 1, 10**30),
        (4, 0.987654321098765, None, d("0.00000000000000000001"), -99999999999999999999999999999999999999),
        (5, 0.5, None, d("0.5"), 1),
    ]


def test_numbers_written_in_a_query_are_what_they_say(run):
    run("CREATE TABLE t (d double precision, n numeric)")
    run("INSERT INTO t VALUES ('0.09128119185626349', 0.1234567891)")
    assert run("SELECT count(*) FROM t WHERE d = 0.09128119185626349") == [(1,)]
    assert run("SELECT count(*) FROM t WHERE n = 0.12345678909") == [(0,)], "not rounded to the digits of numeric"
    assert run("SELECT 1e-20, 1e30, 12345678901234567890123456789012345678") == [
        (Decimal("1e-20"), 10**30, 12345678901234567890123456789012345678)
    ]


def test_a_wide_numeric_meets_an_integer(run):
    run("CREATE TABLE a (id int, k numeric(38, 0))")
    run("CREATE TABLE b (id int, k bigint)")
    run("CREATE MATERIALIZED VIEW greater AS SELECT a.id FROM a JOIN b ON a.id = b.id AND a.k > b.k")
    run("CREATE MATERIALIZED VIEW merged AS SELECT k FROM a FULL JOIN b USING (k)")
    run("INSERT INTO a VALUES (1, 99999999999999999999999999999999999999), (2, 7)")
    run("INSERT INTO b VALUES (1, 7), (2, 7)")
    run("FLUSH")
    assert run("SELECT * FROM greater") == [(1,)]
    assert sorted(run("SELECT * FROM merged")) == [(7,), (7,), (99999999999999999999999999999999999999,)]


def test_equal_documents_are_equal_values(run):
    run("CREATE TABLE t (j jsonb); INSERT INTO t VALUES ('{\"a\": 1}'), ('{\"a\":1}')")
    assert run("SELECT count(DISTINCT j) FROM t") == [(1,)]


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("INSERT INTO nope VALUES (1)", "UNDEFINED_RELATION"),
        ("INSERT INTO t (a, nope) VALUES (1, 2)", "UNDEFINED_COLUMN"),
        ("INSERT INTO t (a, a) VALUES (1, 2)", "DUPLICATE_COLUMN"),
        ("INSERT INTO t VALUES (1, 'x', 1, 1)", "SYNTAX_ERROR"),
        ("INSERT INTO t (a, b) VALUES (1)", "SYNTAX_ERROR"),
        ("INSERT INTO t VALUES (1, 'x'), (2)", "SYNTAX_ERROR"),
        ("INSERT INTO t VALUES (NULL, 'x')", "NOT_NULL_VIOLATION"),
        ("INSERT INTO t (b) VALUES ('x')", "NOT_NULL_VIOLATION"),
        ("INSERT INTO t VALUES ('abc')", "INVALID_VALUE"),
        ("INSERT INTO t VALUES (3000000000)", "INVALID_VALUE"),
        ("INSERT INTO t VALUES (1, 'x', 99999.5)", "INVALID_VALUE"),
        ("INSERT INTO t VALUES (true)", "DATATYPE_MISMATCH"),
        ("INSERT INTO t SELECT b FROM t", "DATATYPE_MISMATCH"),
        ("INSERT INTO t SELECT nope FROM t", "UNDEFINED_COLUMN"),
        ("UPDATE t SET nope = 1", "UNDEFINED_COLUMN"),
        ("UPDATE t SET b = 'x', b = 'y'", "DUPLICATE_COLUMN"),
        ("UPDATE t SET a = NULL", "NOT_NULL_VIOLATION"),
        ("UPDATE t SET a = b", "DATATYPE_MISMATCH"),
        ("UPDATE t SET a = 3000000000", "INVALID_VALUE"),
        ("UPDATE t SET b = 'x' WHERE nope", "UNDEFINED_COLUMN"),
        ("UPDATE t SET b = 'x' WHERE a", "DATATYPE_MISMATCH"),
        ("UPDATE nope SET b = 'x'", "UNDEFINED_RELATION"),
        ("DELETE FROM nope", "UNDEFINED_RELATION"),
        ("DELETE FROM t WHERE nope = 1", "UNDEFINED_COLUMN"),
        ("DELETE FROM t RETURNING nope", "UNDEFINED_COLUMN"),
    ],
)
def test_errors_change_nothing(run, fails, t, sql, condition):
    run("INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)")
    assert fails(sql).condition == condition
    assert run("SELECT * FROM t ORDER BY a") == [(1, "one", Decimal("1.00")), (2, "two", Decimal("2.00"))]


def test_errors_have_places_and_suggestions(fails, t):
    err = fails("INSERT INTO t (a, bb) VALUES (1, 2)")
    assert err.hint == 'Did you mean "b"?'
    assert err.sql[err.span.start : err.span.end] == "bb"
    err = fails("INSERT INTO t VALUES (NULL, 'x', 7)")
    assert err.message == 'null value in column "a" of relation "t" violates not-null constraint'
    assert err.detail == "Failing row contains (null, x, 7.00)."
    err = fails("INSERT INTO t VALUES ('abc')")
    assert err.sql[err.span.start : err.span.end] == "'abc'"


def test_last_write_wins(connection, run, t):
    run("CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b")
    run("INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2), (1, 'z', 3); FLUSH")
    assert sorted(run("SELECT * FROM v")) == [("y", 1), ("z", 1)]
    assert connection.execute("INSERT INTO t VALUES (1, 'y', 4), (2, 'y', 2)").rowcount == 2
    run("FLUSH")
    assert run("SELECT * FROM v") == [("y", 2)]
    head = connection._session.database.log.head()
    run("INSERT INTO t VALUES (2, 'y', 2)")
    assert connection._session.database.log.head() == head, "no change, no commit"


def test_composite_keys(run):
    run("CREATE TABLE t (a int, b varchar, v int, PRIMARY KEY (b, a))")
    run("INSERT INTO t VALUES (1, 'x', 1), (1, 'y', 2), (2, 'x', 3), (1, 'x', 4)")
    assert run("SELECT * FROM t ORDER BY a, b") == [(1, "x", 4), (1, "y", 2), (2, "x", 3)]


def test_keys_of_awkward_types(run):
    run("CREATE TABLE t (f double precision, d numeric, j jsonb, i interval, v int, PRIMARY KEY (f, d, j, i))")
    row = "('NaN', 1.50, '[1]', '1 day', {})"
    run("INSERT INTO t VALUES " + row.format(1))
    run("INSERT INTO t VALUES " + row.format(2).replace("1.50", "1.5").replace("[1]", "[ 1 ]"))
    assert run("SELECT v FROM t") == [(2,)]
    run("INSERT INTO t VALUES ('-0.0', 0, '1', '0', 3), ('0.0', 0, '1', '0', 4)")
    assert sorted(run("SELECT v FROM t")) == [(2,), (4,)]


def test_duplicates_without_a_key(connection, run):
    run("CREATE TABLE t (a int, b varchar); INSERT INTO t VALUES (1, 'x'), (1, 'x'), (1, NULL), (2, NULL)")
    assert connection.execute("UPDATE t SET b = 'y' WHERE b = 'x'").rowcount == 2
    assert sorted(run("SELECT * FROM t"), key=str) == [(1, "y"), (1, "y"), (1, None), (2, None)]
    assert connection.execute("DELETE FROM t WHERE b IS NULL").rowcount == 2
    assert run("SELECT * FROM t") == [(1, "y"), (1, "y")]
    run("DELETE FROM t")
    assert run("SELECT count(*) FROM t") == [(0,)]


def test_update(connection, run, t):
    run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', NULL)")
    assert connection.execute("UPDATE t AS x SET c = x.c * 2, b = b || x.a WHERE x.a <> 2").rowcount == 2
    assert run("SELECT * FROM t ORDER BY a") == [(1, "a1", Decimal(2)), (2, "b", Decimal(2)), (3, "c3", None)]
    run("UPDATE t SET b = (SELECT max(b) FROM t), c = NULL WHERE a IN (SELECT a FROM t WHERE a > 1)")
    assert run("SELECT * FROM t ORDER BY a") == [(1, "a1", Decimal(2)), (2, "c3", None), (3, "c3", None)]
    assert connection.execute("UPDATE t SET b = 'q' WHERE false").rowcount == 0


def test_update_of_the_key(run, t):
    run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (9, 'i', 9)")
    run("UPDATE t SET a = a + 1 WHERE a < 9")
    assert run("SELECT a, b FROM t ORDER BY a") == [(2, "a"), (3, "b"), (4, "c"), (9, "i")]
    run("UPDATE t SET a = 13 - a")
    assert run("SELECT a, b FROM t ORDER BY a") == [(4, "i"), (9, "c"), (10, "b"), (11, "a")]


@pytest.mark.parametrize("change", ["a = 5", "a = 9 WHERE a = 2", "a = 9, b = 'x' WHERE a < 9"])
def test_update_never_merges_rows(run, fails, t, change):
    run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (9, 'i', 9)")
    found = fails(f"UPDATE t SET {change} RETURNING a")
    assert (found.condition, found.sqlstate) == ("UNIQUE_VIOLATION", "23505")
    assert run("SELECT a, b FROM t ORDER BY a") == [(1, "a"), (2, "b"), (9, "i")]


def test_returning(run, t):
    assert run("INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2) RETURNING a, upper(b) AS u, t.c + 1") == [
        (1, "X", Decimal("2.00")),
        (2, "Y", Decimal("3.00")),
    ]
    assert run("UPDATE t AS q SET b = 'z' WHERE a = 1 RETURNING *") == [(1, "z", Decimal("1.00"))]
    assert run("UPDATE t AS q SET b = 'w' WHERE a = 1 RETURNING q.b") == [("w",)]
    assert run("DELETE FROM t WHERE a = 2 RETURNING b, a") == [("y", 2)]
    assert run("DELETE FROM t WHERE a = 2 RETURNING b, a") == []


def test_returning_takes_no_subquery(run, fails, t):
    assert fails("INSERT INTO t VALUES (1) RETURNING (SELECT count(*) FROM t)").condition == "FEATURE_NOT_SUPPORTED"
    assert run("SELECT * FROM t") == []


def test_append_only(run, fails):
    run("CREATE TABLE t (a int) APPEND ONLY; INSERT INTO t VALUES (1), (1)")
    assert fails("DELETE FROM t").condition == "READ_ONLY_RELATION"
    assert fails("UPDATE t SET a = 2").condition == "READ_ONLY_RELATION"
    assert run("SELECT * FROM t") == [(1,), (1,)]


def test_views_are_not_written(run, fails):
    run("CREATE TABLE t (a int); CREATE VIEW w AS SELECT a FROM t; CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    for name, kind in (("w", "view"), ("v", "materialized view")):
        err = fails(f"INSERT INTO {name} VALUES (1)")
        assert (err.condition, err.message) == ("READ_ONLY_RELATION", f'can\'t insert into {kind} "{name}"')
        assert fails(f"DELETE FROM {name}").condition == "READ_ONLY_RELATION"


def test_not_null(run, fails):
    run("CREATE TABLE t (a int, b varchar NOT NULL)")
    assert fails("INSERT INTO t SELECT 1, NULL").condition == "NOT_NULL_VIOLATION"
    run("INSERT INTO t VALUES (1, 'x')")
    assert fails("UPDATE t SET b = NULL").condition == "NOT_NULL_VIOLATION"


def test_a_million_rows(connection, run):
    run("CREATE TABLE t (a int PRIMARY KEY, b varchar)")
    assert (
        connection.execute("INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 1000000) AS g(i)").rowcount
        == 10**6
    )
    assert (
        connection.execute("INSERT INTO t SELECT i, 'new' FROM generate_series(999001, 1001000) AS g(i)").rowcount
        == 2000
    )
    assert run("SELECT count(*), count(*) FILTER (WHERE b = 'new') FROM t") == [(1_001_000, 2000)]


def test_implicit_flush(run):
    run("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t; SET rw_implicit_flush = true")
    run("INSERT INTO t VALUES (1), (2)")
    assert run("SELECT * FROM v") == [(3,)]
    run("BEGIN; UPDATE t SET a = 10 WHERE a = 1; COMMIT")
    assert run("SELECT * FROM v") == [(12,)]
    run("SET rw_implicit_flush TO DEFAULT; DELETE FROM t")
    assert run("SELECT * FROM v") == [(12,)]


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1))
def test_random_statements_against_a_dictionary(run, seed):
    """A table with a key is a dictionary, whatever statements and transactions change it."""
    r = random.Random(seed)
    run("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE MATERIALIZED VIEW v AS SELECT a, b FROM t")
    content, saved, open_ = {}, {}, False
    for _ in range(60):
        choice = r.randrange(8)
        if choice < 3:
            rows = [(r.randrange(20), r.randrange(5)) for _ in range(r.randint(1, 5))]
            run("INSERT INTO t VALUES " + ", ".join(map(str, rows)))
            content |= dict(rows)
        elif choice == 3:
            run(f"DELETE FROM t WHERE b = {(b := r.randrange(5))}")
            content = {k: v for k, v in content.items() if v != b}
        elif choice == 4:
            run(f"UPDATE t SET b = b + 1 WHERE a < {(a := r.randrange(20))}")
            content = {k: v + (k < a) for k, v in content.items()}
        elif choice == 5 and not open_:
            run("BEGIN")
            saved, open_ = dict(content), True
        elif choice == 6 and open_:
            run(end := r.choice(["COMMIT", "ROLLBACK"]))
            content, open_ = content if end == "COMMIT" else saved, False
        if open_:
            assert dict(run("SELECT * FROM t")) == content
        else:
            run("FLUSH")
            assert dict(run("SELECT * FROM t")) == dict(run("SELECT * FROM v")) == content


def test_inject(connection, run):
    run("CREATE TABLE t (a int PRIMARY KEY, b varchar NOT NULL)")
    Harness(connection).inject("t", pa.table({"b": ["x", "y"], "a": [1, 1]}))
    Harness(connection).deliver("t", [["2", "z"], ["3", "w"]])
    assert run("SELECT * FROM t ORDER BY a") == [(1, "y"), (2, "z"), (3, "w")]
    for call in (
        lambda: Harness(connection).inject("t", pa.table({"a": [1]})),
        lambda: Harness(connection).deliver("t", [["x", "y"]]),
        lambda: Harness(connection).inject("nope", pa.table({"a": [1]})),
        lambda: Harness(connection).deliver("t", [["1"]]),
        lambda: Harness(connection).inject("t", pa.table({"nope": [1]})),
    ):
        with pytest.raises(watersmeet.Error):
            call()
    assert len(run("SELECT * FROM t")) == 3


def test_sources_without_their_connector():
    with connect_without_connectors(runtime="inprocess") as connection:
        connection.execute(
            "CREATE SOURCE s (a int, b timestamp) WITH (connector = 'kafka', topic = 'x') FORMAT PLAIN ENCODE JSON"
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a, b FROM s")
        Harness(connection).deliver("s", [["1", "2024-01-01 00:00:00"], ["1", None]], ["a", "b"])
        connection.execute("FLUSH")
        found = connection.execute("SELECT * FROM v ORDER BY b").fetchall()
        assert found == [(1, dt.datetime(2024, 1, 1)), (1, None)]


def test_queries_before_the_statement(connection, run, fails):
    run("CREATE TABLE a (id int PRIMARY KEY, d varchar); INSERT INTO a VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    run("CREATE TABLE b (id int PRIMARY KEY, d varchar); FLUSH")
    assert (
        connection.execute("WITH c AS (SELECT * FROM a WHERE id < 3) INSERT INTO b SELECT id, d FROM c").rowcount == 2
    )
    run(
        "WITH c AS (SELECT * FROM a WHERE id = 1), e AS (SELECT id, 'n' || d AS d FROM c) UPDATE b SET d = e.d FROM e "
        "WHERE b.id = e.id"
    )
    assert run("SELECT * FROM b ORDER BY id") == [(1, "nx"), (2, "y")]
    assert run("WITH c (k) AS (SELECT 2) DELETE FROM b WHERE id = (SELECT k FROM c) RETURNING d") == [("y",)]
    run("WITH RECURSIVE r (n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM r WHERE n < 12) INSERT INTO b SELECT n FROM r")
    assert connection.execute("WITH c AS (SELECT 11 AS x) DELETE FROM b USING c AS z WHERE z.x = b.id").rowcount == 1
    run("WITH a AS (SELECT 7 AS id) INSERT INTO b WITH a AS (SELECT 8 AS id) SELECT id, 'inner' FROM a")
    run("WITH b AS (SELECT 9 AS id) INSERT INTO b SELECT id, 'named like the table' FROM b")
    assert run("SELECT id FROM b ORDER BY id") == [(1,), (8,), (9,), (10,), (12,)]
    error = fails("WITH c AS (WITH d AS (DELETE FROM b RETURNING *) DELETE FROM a) SELECT 1")
    assert error.message == "DELETE in WITH below another statement is not supported"


def test_a_primary_key_determines_the_columns_of_its_table(run, fails):
    run("""
        CREATE TABLE a (id int PRIMARY KEY, d varchar, w int); CREATE TABLE b (id int PRIMARY KEY, a int, n int);
        INSERT INTO a VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3);
        INSERT INTO b VALUES (1, 1, 10), (2, 1, 20), (3, 2, 5);
        CREATE MATERIALIZED VIEW v AS
        SELECT a.d, sum(b.n) AS s, w + 1 AS w FROM a LEFT JOIN b ON a.id = b.a GROUP BY a.id; FLUSH""")
    assert run("SELECT * FROM v ORDER BY d") == [("x", 30, 2), ("y", 5, 3), ("z", None, 4)]
    run("UPDATE a SET d = 'xx' WHERE id = 1; DELETE FROM b WHERE id = 1; DELETE FROM a WHERE id = 3; FLUSH")
    assert run("SELECT * FROM v ORDER BY d") == [("xx", 20, 2), ("y", 5, 3)]
    counted = "SELECT a.d, count(b.id) FROM a LEFT JOIN b ON a.id = b.a GROUP BY a.id HAVING length(d) < 9 ORDER BY a.w"
    assert run(counted) == [("xx", 1), ("y", 1)]
    assert run("SELECT d, (SELECT count(*) FROM b WHERE b.n > a.w) FROM a GROUP BY id ORDER BY d") == [
        ("xx", 2),
        ("y", 2),
    ]
    for query in (
        "SELECT d FROM a GROUP BY w",
        "SELECT b.n FROM a JOIN b ON a.id = b.a GROUP BY a.id",
        "SELECT d, count(*) FROM a GROUP BY ROLLUP (id)",
        "SELECT a.d FROM a JOIN a AS c ON a.w = c.w GROUP BY c.id",
    ):
        assert fails(query).condition == "COLUMN_NOT_GROUPED"
