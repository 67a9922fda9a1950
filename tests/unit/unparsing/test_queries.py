"""Batch queries: any SQL over the current content, with the dialect's names, types and order of NULLs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal as D

import duckdb
import pytest
from tests.unit.binder.helpers import Content, catalog_of, refusal

from watersmeet.dialects.parsing import parse
from watersmeet.unparsing import map_duckdb_error, to_duckdb

CATALOG = catalog_of("""
    CREATE TABLE a (id int PRIMARY KEY, k int, x varchar, n numeric); CREATE TABLE b (id int, k int, y varchar,
    big bigint);
    CREATE TABLE "~1" (q int); CREATE SOURCE s (id int) WITH (connector = 'datagen');
    CREATE VIEW v AS SELECT id, k + 1 AS k1 FROM a WHERE k > 1; CREATE INDEX ai ON a (k);
    CREATE MATERIALIZED VIEW m AS SELECT k, count(*) AS c FROM a GROUP BY k""")


@pytest.fixture(scope="module")
def content():
    made = Content(CATALOG)
    made.execute("INSERT INTO a VALUES (1, 10, 'x', 1.5), (2, 20, 'y', 2.5), (3, NULL, NULL, NULL), (4, 10, 'z', 0)")
    made.execute("INSERT INTO b VALUES (1, 10, 'p', 5), (2, 30, 'q', 6), (5, NULL, 'r', 7)")
    made.execute("INSERT INTO m VALUES (10, 2), (20, 1)")
    made.execute('INSERT INTO "~1" VALUES (42)')
    return made


def translated(sql):
    return to_duckdb(parse(sql)[0].query, CATALOG, sql)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        # order: NULL is larger than everything, LIMIT keeps the order
        ("SELECT k FROM a ORDER BY k, id", [(10,), (10,), (20,), (None,)]),
        ("SELECT id FROM a ORDER BY k DESC, id", [(3,), (2,), (1,), (4,)]),
        ("SELECT id FROM a ORDER BY k NULLS FIRST, 1 DESC LIMIT 2", [(3,), (4,)]),
        ("SELECT id + 1 AS id FROM a ORDER BY id LIMIT 1 OFFSET 1", [(3,)]),
        ("SELECT id AS z FROM a ORDER BY id % 2, z", [(2,), (4,), (1,), (3,)]),
        ("SELECT id FROM a ORDER BY id FETCH FIRST 2 ROWS ONLY", [(1,), (2,)]),
        ("SELECT x FROM a ORDER BY lower(x) LIMIT 1", [("x",)]),
        ("SELECT k, id FROM a ORDER BY k FETCH FIRST 1 ROWS WITH TIES", [(10, 1), (10, 4)]),
        ("SELECT id FROM a ORDER BY id LIMIT ALL OFFSET 3", [(4,)]),
        ("SELECT DISTINCT k FROM a ORDER BY k", [(10,), (20,), (None,)]),
        ("SELECT DISTINCT ON (k) k, id FROM a ORDER BY k, id DESC", [(10, 4), (20, 2), (None, 3)]),
        (
            "(SELECT id FROM a ORDER BY id DESC LIMIT 1) UNION ALL (SELECT id FROM b ORDER BY id LIMIT 1) ORDER BY id",
            [(1,), (4,)],
        ),
        # set operations
        ("SELECT id FROM a INTERSECT SELECT id FROM b ORDER BY 1", [(1,), (2,)]),
        ("SELECT id FROM a EXCEPT ALL SELECT id FROM b ORDER BY id", [(3,), (4,)]),
        ("SELECT id FROM a WHERE id = 1 UNION SELECT 1 UNION ALL SELECT 1.5 ORDER BY 1", [(1,), (D("1.5"),)]),
        ("SELECT id FROM b UNION SELECT NULL ORDER BY id DESC LIMIT 2", [(None,), (5,)]),
        # joins
        ("SELECT * FROM a NATURAL JOIN b", [(1, 10, "x", D("1.5"), "p", 5)]),
        (
            "SELECT k, a.id, b.id FROM a FULL JOIN b USING (k) ORDER BY 1, 2, 3",
            [(10, 1, 1), (10, 4, 1), (20, 2, None), (30, None, 2), (None, 3, None), (None, None, 5)],
        ),
        ("SELECT x, y FROM a JOIN b ON a.k > b.k", [("y", "p")]),
        ("SELECT count(*) FROM a, b AS c JOIN b AS d ON c.id = d.id", [(12,)]),
        (
            "SELECT a.id FROM a LEFT JOIN (b JOIN m ON b.k = m.k) ON a.k = b.k WHERE b.id IS NULL ORDER BY 1",
            [(2,), (3,)],
        ),
        ("SELECT a.id, q.y FROM a, LATERAL (SELECT y FROM b WHERE b.k = a.k) AS q ORDER BY 1", [(1, "p"), (4, "p")]),
        (
            "SELECT a.id, y FROM a LEFT JOIN LATERAL (SELECT y FROM b WHERE b.id = a.id) q ON true ORDER BY 1",
            [(1, "p"), (2, "q"), (3, None), (4, None)],
        ),
        # subqueries anywhere
        (
            "SELECT id, (SELECT y FROM b WHERE b.id = a.id) FROM a ORDER BY id",
            [(1, "p"), (2, "q"), (3, None), (4, None)],
        ),
        ("SELECT id FROM a WHERE k IN (SELECT k FROM b) OR id = 3 ORDER BY id", [(1,), (3,), (4,)]),
        ("SELECT id FROM a WHERE n > (SELECT avg(n) FROM a) ORDER BY id", [(1,), (2,)]),
        ("SELECT id FROM a WHERE (id, k) IN (SELECT id, k FROM b)", [(1,)]),
        ("SELECT id FROM a WHERE id <= ALL (SELECT id FROM b)", [(1,)]),
        ("SELECT ARRAY(SELECT id FROM a ORDER BY id)", [([1, 2, 3, 4],)]),
        ("SELECT EXISTS (SELECT 1 FROM a), NOT EXISTS (SELECT 1 FROM b)", [(True, False)]),
        ("SELECT k, count(*) FROM a GROUP BY k HAVING count(*) > (SELECT min(c) FROM m)", [(10, 2)]),
        # aggregates and windows of all kinds
        ("SELECT string_agg(x, ',' ORDER BY id DESC), array_agg(id ORDER BY id) FROM a", [("z,y,x", [1, 2, 3, 4])]),
        (
            "SELECT avg(id), avg(n), sum(id), sum(big) FILTER (WHERE big > 5) FROM a JOIN b USING (id)",
            [(D("1.5"), D(2), 3, 6)],
        ),
        ("SELECT avg(x) FROM (VALUES (1), (1), (0)) AS q (x)", [(D("0.6666666667"),)]),
        (
            "SELECT k, x, count(*) FROM a GROUP BY ROLLUP (k, x) ORDER BY 1, 2, 3 LIMIT 3",
            [(10, "x", 1), (10, "z", 1), (10, None, 2)],
        ),
        ("SELECT k + 1 AS kk, k + 1 + 2 FROM a GROUP BY k + 1 ORDER BY k + 1", [(11, 13), (21, 23), (None, None)]),
        (
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id), mode() WITHIN GROUP (ORDER BY k) FROM a",
            [(2.5, 10)],
        ),
        (
            (
                "SELECT id, row_number() OVER (PARTITION BY k ORDER BY id DESC), sum(id) OVER (ORDER BY id), "
                "lag(id) OVER (ORDER BY id) FROM a ORDER BY id LIMIT 2"
            ),
            [(1, 2, 1, None), (2, 1, 3, 1)],
        ),
        (
            (
                "SELECT id, sum(id) OVER w, count(*) OVER (w ROWS 1 PRECEDING) FROM a WINDOW p AS (PARTITION BY "
                "k), w AS (p ORDER BY id) ORDER BY id LIMIT 4"
            ),
            [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 5, 2)],
        ),
        # windows that no view can have
        ("SELECT id, lag(id, k / 10) OVER (ORDER BY id) FROM a ORDER BY id", [(1, None), (2, None), (3, None), (4, 3)]),
        ("SELECT id, nth_value(id, id) OVER (ORDER BY id) FROM a ORDER BY id LIMIT 2", [(1, 1), (2, 2)]),
        ("SELECT id, count(DISTINCT k) OVER () FROM a ORDER BY id LIMIT 1", [(1, 2)]),
        (
            "SELECT id, array_agg(x) OVER (ORDER BY id DESC) FROM a ORDER BY id",
            [(1, ["z", None, "y", "x"]), (2, ["z", None, "y"]), (3, ["z", None]), (4, ["z"])],
        ),
        (
            "SELECT id, sum(id) OVER (ORDER BY k RANGE BETWEEN 5 PRECEDING AND 5 FOLLOWING) FROM a ORDER BY id",
            [(1, 5), (2, 2), (3, 3), (4, 5)],
        ),
        (
            "SELECT id, sum(id) OVER (ORDER BY id ROWS BETWEEN id - 1 PRECEDING AND CURRENT ROW) FROM a ORDER BY id",
            [(1, 1), (2, 3), (3, 6), (4, 10)],
        ),
        ("SELECT id, arg_min(x, n) OVER (ORDER BY id) FROM a ORDER BY id DESC LIMIT 1", [(4, "z")]),
        ("SELECT median(id), arg_max(x, id), count_if(k > 10) FROM a", [(2.5, "z", 1)]),
        # subqueries of both sides of an outer join
        (
            "SELECT a.id, b.id FROM a LEFT JOIN b ON a.id = b.id AND b.k IN (SELECT k FROM m WHERE k = a.k) ORDER BY 1",
            [(1, 1), (2, None), (3, None), (4, None)],
        ),
        # a constant is no place of the select list
        ("SELECT id FROM a ORDER BY -1, id DESC LIMIT 2", [(4,), (3,)]),
        ("SELECT count(*) FROM (SELECT DISTINCT ON ('p') id FROM a) AS q", [(1,)]),
        # names that look like those of the writer
        ('SELECT k AS "#1", id AS "#2" FROM a ORDER BY id LIMIT 1', [(10, 1)]),
        # WITH, VALUES, functions in FROM
        (
            "WITH q (z) AS (SELECT id FROM a), r AS (SELECT max(z) AS w FROM q) SELECT q.z FROM q JOIN r ON z = w",
            [(4,)],
        ),
        ("WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT sum(n) FROM t", [(15,)]),
        ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT 7 AS x", [(7,)]),
        ("VALUES (1, 'a'), (2, NULL)", [(1, "a"), (2, None)]),
        (
            "WITH q AS (SELECT random() r) SELECT count(DISTINCT r) FROM (SELECT r FROM q UNION ALL SELECT r FROM q) s",
            [(1,)],
        ),
        (
            "SELECT (WITH q AS (SELECT a.id + 1 AS z) SELECT max(q.z + r.z) FROM q, q AS r) FROM a ORDER BY 1",
            [(4,), (6,), (8,), (10,)],
        ),
        (
            (
                "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL (WITH u AS (SELECT n + 1 AS m FROM t) SELECT u.m FROM u, "
                "u AS w WHERE u.m < 4)) SELECT x.n, y.n FROM t AS x JOIN t AS y USING (n) ORDER BY 1"
            ),
            [(1, 1), (2, 2), (3, 3)],
        ),
        ("SELECT * FROM (VALUES (1, 2)) AS q (p)", [(1, 2)]),
        (
            "SELECT g, h FROM generate_series(1, 2) AS g, generate_series(1, g) AS h ORDER BY 1, 2",
            [(1, 1), (2, 1), (2, 2)],
        ),
        ("SELECT id, u FROM a, unnest(ARRAY[7, 8]) AS u WHERE id = 1 ORDER BY u", [(1, 7), (1, 8)]),
        # relations of all kinds
        ("SELECT id FROM v WHERE k1 = 11 ORDER BY id", [(1,), (4,)]),
        ("SELECT c FROM m WHERE k = 10", [(2,)]),
        ("SELECT id FROM ai WHERE k = 20", [(2,)]),
        ('SELECT q FROM "~1"', [(42,)]),
        # expressions compute as in views
        ("SELECT 7 / 2, 1 / 0, 5 % 0, 10 / 4.0", [(3, None, None, D("2.5"))]),
        ("SELECT DATE '2024-01-02' - DATE '2024-01-01'", [(1,)]),
        ("SELECT date_trunc('day', TIMESTAMP '2024-01-02 03:04:05')", [(dt.datetime(2024, 1, 2),)]),
    ],
)
def test_rows(content, sql, rows):
    """RA-01"""
    assert content.rows(translated(sql).sql) == rows


#: Of the rows that are joined, what stands below a join takes some before. `big` is large, so that DuckDB leaves it as
#: it is; `s` has to be read first, so that DuckDB knows the keys of `r` before it reads `b`.
_TAKEN = "SELECT b.k, b.big, b.id FROM b JOIN s ON b.y = s.y"
_BEFORE_JOINS = {
    f"SELECT d.id FROM r JOIN (SELECT DISTINCT ON (q.k) q.* FROM ({_TAKEN}) q ORDER BY k, id DESC) d USING (big)": [7],
    f"SELECT d.id FROM r JOIN (SELECT * FROM ({_TAKEN}) q ORDER BY big DESC LIMIT 4000) d USING (big)": [],
    f"SELECT d.id FROM (SELECT * FROM ({_TAKEN}) q ORDER BY id OFFSET 5001) d JOIN r USING (big)": [10],
    f"WITH d AS (SELECT * FROM ({_TAKEN}) q ORDER BY big DESC LIMIT 4000) SELECT d.id FROM r JOIN d USING (big)": [],
}


@pytest.mark.parametrize("sql", _BEFORE_JOINS)
def test_a_join_does_not_change_what_is_taken_below_it(sql):
    """DuckDB filters rows below LIMIT and DISTINCT ON by the keys of the other side of a join, once it knows them."""
    catalog = catalog_of(
        "CREATE TABLE b (k bigint, big bigint, id bigint, y bigint); CREATE TABLE s (y bigint); "
        "CREATE TABLE r (big bigint)"
    )
    made = Content(catalog)
    made.execute("INSERT INTO b VALUES (1, 1, 10, 5), (1, 222222222222, 11, 5), (2, 1, 7, 5)")
    made.execute("INSERT INTO b SELECT 10 + i, 333333333333, -i, 5 FROM range(5000) t(i)")
    made.execute("INSERT INTO s VALUES (5); INSERT INTO r VALUES (1)")
    found = made.rows(to_duckdb(parse(sql)[0].query, catalog, sql).sql)
    assert sorted(i for (i,) in found) == _BEFORE_JOINS[sql]


def test_a_volatile_key_is_evaluated_once(content):
    rows = content.rows(translated("SELECT random() AS r FROM generate_series(1, 50) ORDER BY r").sql)
    assert rows == sorted(rows)


def test_a_name_of_with_costs_the_same_however_often_it_is_read(content):
    steps = [f"q{i} AS (SELECT x.id FROM q{i - 1} AS x JOIN q{i - 1} AS y USING (id))" for i in range(1, 30)]
    sql = f"WITH q0 AS (SELECT id FROM a), {', '.join(steps)} SELECT count(*) FROM q29"
    found = translated(sql).sql
    assert found.count('FROM "a"') == 1
    assert content.rows(found) == [(4,)]


def test_long_unions_are_flat(content):
    sql = " UNION ALL ".join(["SELECT id FROM a"] * 500)
    assert len(content.rows(translated(sql).sql)) == 2000


def test_columns_have_the_dialects_names_and_types(content):
    found = translated('SELECT id, count(*), id AS "Id", 1 + 1, sum(id) AS s, x FROM a GROUP BY id, x ORDER BY id')
    assert [(c.name, c.type.sql) for c in found.columns] == [
        ("id", "integer"),
        ("count", "bigint"),
        ("Id", "integer"),
        ("?column?", "integer"),
        ("s", "bigint"),
        ("x", "character varying"),
    ]
    table = content.connection.execute(found.sql).to_arrow_table()
    assert table.schema.names == [c.name for c in found.columns]
    assert [f.type for f in table.schema] == [c.type.arrow for c in found.columns]


def test_it_tells_which_content_is_read():
    ids = {r.name: r.id for r in CATALOG.relations.values()}
    assert translated("SELECT 1 FROM v JOIN m ON true WHERE id IN (SELECT k FROM b)").depends_on == (
        ids["a"],
        ids["m"],
        ids["b"],
    )


def test_relations_may_have_other_names_in_duckdb():
    sql = "SELECT id FROM ai"
    assert to_duckdb(parse(sql)[0].query, CATALOG, sql, relation_name=lambda r: f"r!{r.id}").sql == (
        'SELECT "#1" AS "id" FROM "r!t1" AS "~#1"("#1", "#2", "#3", "#4") ORDER BY "#2" NULLS LAST, 1 NULLS LAST'
    )


def test_files(content, tmp_path):
    (tmp_path / "x.csv").write_text("A,b c\n1,x\nNA,NA\n")
    sql = f"SELECT a, \"b c\" FROM read_csv('{tmp_path}/x.csv', nullstr = ['NA']) AS f ORDER BY a"
    assert content.rows(translated(sql).sql) == [(1, "x"), (None, None)]


# Errors


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (
            "SELECT count(*), k FROM a",
            (
                'error[COLUMN_NOT_GROUPED] 42803: column "k" must appear in the GROUP BY clause or be '
                "used in an aggregate function\nLINE 1: SELECT count(*), k FROM a\n                         ^"
            ),
        ),
        (
            "SELECT x FROM a GROUP BY k",
            (
                'error[COLUMN_NOT_GROUPED] 42803: column "x" must appear in the GROUP BY clause or be '
                "used in an aggregate function\nLINE 1: SELECT x FROM a GROUP BY k\n               ^"
            ),
        ),
        (
            "SELECT id AS z FROM a ORDER BY z + 1",
            (
                'error[UNDEFINED_COLUMN] 42703: column "z" does not exist\n'
                "LINE 1: SELECT id AS z FROM a ORDER BY z + 1\n                                       ^"
            ),
        ),
        (
            "SELECT id FROM a ORDER BY 2",
            (
                "error[SYNTAX_ERROR] 42601: ORDER BY position 2 is not in select list\n"
                "LINE 1: SELECT id FROM a ORDER BY 2\n                                  ^"
            ),
        ),
        (
            "SELECT DISTINCT k FROM a ORDER BY id",
            (
                "error[SYNTAX_ERROR] 42601: for SELECT DISTINCT, ORDER BY expressions must appear in select list\n"
                "LINE 1: SELECT DISTINCT k FROM a ORDER BY id\n"
                "                                          ^^"
            ),
        ),
        (
            "SELECT first_value(DISTINCT k) OVER () FROM a",
            (
                "error[FEATURE_NOT_SUPPORTED] 0A000: DISTINCT in a window function is not supported\n"
                "LINE 1: SELECT first_value(DISTINCT k) OVER () FROM a\n"
                "               ^^^^^^^^^^^^^^^^^^^^^^^"
            ),
        ),
        (
            "SELECT id FROM a LIMIT 'x'",
            (
                'error[INVALID_VALUE] 22P02: invalid input syntax for type bigint: "x"\n'
                "LINE 1: SELECT id FROM a LIMIT 'x'\n                               ^^^"
            ),
        ),
        (
            "SELECT id FROM a WHERE rank() OVER () = 1",
            (
                "error[COLUMN_NOT_GROUPED] 42803: window functions are not allowed in "
                "WHERE\nLINE 1: SELECT id FROM a WHERE rank() OVER () = 1\n                               "
                "^^^^^^^^^^^^^^\nhint: Compute it in a query in FROM: "
                "SELECT … FROM (SELECT …, lag(x) AS y FROM t) AS q WHERE y > 1."
            ),
        ),
        (
            "SELECT (SELECT id, k FROM a)",
            (
                "error[SYNTAX_ERROR] 42601: subquery must return only one column\n"
                "LINE 1: SELECT (SELECT id, k FROM a)\n                       ^^^^^^^^^^^^"
            ),
        ),
        (
            "SELECT id FROM a WHERE x IN (SELECT id FROM b)",
            (
                "error[DATATYPE_MISMATCH] 42804: operator does not exist: "
                "character varying = integer\nLINE 1: SELECT id FROM a WHERE x IN (SELECT id FROM b)\n"
                "                               ^\nhint: Cast one side, for example: (…)::character varying."
            ),
        ),
        (
            "SELECT * FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.id = b.id",
            (
                "error[FEATURE_NOT_SUPPORTED] 0A000: do not "
                "support temporal join for batch queries\n"
                "LINE 1: SELECT * FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.id = b.id\n"
                "                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nhint: Please use temporal "
                "join in streaming queries."
            ),
        ),
        (
            "SELECT * FROM a ASOF JOIN b ON a.id = b.id AND a.k < b.k",
            (
                "error[FEATURE_NOT_SUPPORTED] 0A000: do not support asof "
                "join for batch queries\nLINE 1: SELECT * FROM a ASOF JOIN b ON a.id = b.id AND a.k < b.k\n"
                "                                  ^\nhint: Use an ASOF join in a materialized view."
            ),
        ),
        (
            "SELECT row_number() FROM a",
            (
                "error[SYNTAX_ERROR] 42601: window function row_number requires an OVER clause\n"
                "LINE 1: SELECT row_number() FROM a\n               ^^^^^^^^^^^^"
            ),
        ),
        (
            "SELECT * FROM read_text('/etc/passwd')",
            (
                "error[UNDEFINED_FUNCTION] 42883: table function read_text does not exist\n"
                "LINE 1: SELECT * FROM read_text('/etc/passwd')\n                      ^^^^^^^^^^^^^^^^^^^^^^^^\n"
                'hint: Did you mean "read_parquet"?'
            ),
        ),
        (
            "SELECT * FROM read_csv('/no/such.csv')",
            (
                "error[INVALID_VALUE] 22P02: No files found that match the pattern "
                "\"/no/such.csv\"\nLINE 1: SELECT * FROM read_csv('/no/such.csv')\n                      "
                "^^^^^^^^^^^^^^^^^^^^^^^^"
            ),
        ),
    ],
)
def test_refused(sql, error):
    assert refusal(translated, sql) == error


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT k FROM a GROUP BY k WITH ROLLUP", "WITH ROLLUP after GROUP BY is not supported"),
        ("SELECT k FROM a GROUP BY k WITH TOTALS", "WITH TOTALS in GROUP BY is not supported"),
        ("SELECT k FROM a GROUP BY ALL", "ALL in GROUP BY is not supported"),
        ("SELECT k FROM a FETCH FIRST 10 PERCENT ROWS ONLY", "FETCH … PERCENT is not supported"),
        ("SELECT k FROM a UNION BY NAME SELECT k FROM a", "BY NAME in a query is not supported"),
        ("SELECT k FROM a TABLESAMPLE SYSTEM (5)", "TABLESAMPLE in FROM is not supported"),
        ("SELECT k FROM a FOR UPDATE", "FOR UPDATE or FOR SHARE in a query is not supported"),
        (
            "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t LIMIT 3) SELECT n FROM t",
            "LIMIT of a recursive query is not supported",
        ),
    ],
)
def test_parts_are_named_in_sql(sql, message):
    assert f"error[FEATURE_NOT_SUPPORTED] 0A000: {message}\n" in refusal(translated, sql)


@pytest.mark.parametrize(
    ("sql", "condition", "message"),
    [
        ("SELECT CAST(x AS int) FROM a", "INVALID_VALUE", 'invalid input syntax for type integer: "x"'),
        (
            "SELECT (SELECT id FROM a)",
            "SCALAR_SUBQUERY_ROWS",
            "more than one row returned by a subquery used as an expression",
        ),
        ("SELECT pow(id::float8 * 10, 400) FROM a", "INVALID_VALUE", "value out of range: overflow"),
        ("SELECT exp(id::float8 * -1000) FROM a", "INVALID_VALUE", "value out of range: underflow"),
        ("SELECT 0::float8 ^ (-id) FROM a", "INVALID_VALUE", "zero raised to a negative power is undefined"),
        ("SELECT now() AT TIME ZONE x FROM a", "INVALID_PARAMETER", 'time zone "x" not recognized'),
        ("SELECT 2147483647 + id FROM a", "INVALID_VALUE", "overflow in addition of integer"),
    ],
)
def test_errors_while_it_runs(content, sql, condition, message):
    with pytest.raises(duckdb.Error) as found:
        content.batch(sql)
    mapped = map_duckdb_error(found.value, sql)
    assert mapped.condition == condition
    assert mapped.message.startswith(message)
