"""The law of the binder: a view's tree, the batch query and DuckDB itself give the same rows.

Written queries, and random ones (`random_queries`).
"""

from __future__ import annotations

import random

import pytest
from tests.thorough import mostly_slow
from tests.unit.binder.helpers import Content, catalog_of, multiset
from tests.unit.binder.random_queries import Maker

CATALOG = catalog_of("""
    CREATE TABLE a (id int, k int, s varchar, n numeric(10,2), f double precision, d date);
    CREATE TABLE b (id int, k bigint, s varchar, bo boolean)""")
QUERIES = [
    "SELECT * FROM a NATURAL LEFT JOIN (SELECT id, bo FROM b) AS q",
    "SELECT k, a.s, b.s FROM a FULL JOIN b USING (k)",
    "SELECT s, a.k, b.k FROM a RIGHT JOIN b USING (s)",
    "SELECT a.id, c.id FROM a, b, a AS c WHERE a.k = b.k AND b.s = c.s AND a.id < 5",
    "SELECT a.id FROM a, b RIGHT JOIN a AS c ON b.k = c.k WHERE a.id = c.id",
    (
        "SELECT a.id, q.m FROM a LEFT JOIN (SELECT k, max(id) AS m, count(*) AS c FROM b GROUP BY k) AS q ON a.k "
        "= q.k AND q.c > 1"
    ),
    (
        "SELECT CASE WHEN n > 1 THEN 'big' WHEN n IS NULL THEN 'none' ELSE 'small' END AS c, count(*), sum(f) "
        "FROM a GROUP BY 1"
    ),
    "SELECT n, sum(n), min(d), max(f) FROM a GROUP BY n HAVING count(*) > 1 OR n IS NULL",
    "SELECT count(*) FILTER (WHERE bo), bool_and(bo), bool_or(bo), count(DISTINCT s) FROM b",
    "SELECT DISTINCT k, s FROM a UNION SELECT k, s FROM b",
    "SELECT id FROM a UNION ALL SELECT k FROM b UNION ALL SELECT NULL",
    "SELECT k, s FROM a INTERSECT SELECT k, s FROM b",
    "SELECT k FROM a EXCEPT ALL SELECT k FROM b EXCEPT SELECT 3",
    "SELECT k FROM a UNION SELECT id FROM b INTERSECT ALL SELECT k FROM b",
    "SELECT id FROM a EXCEPT SELECT NULL",
    (
        "SELECT s FROM ((SELECT s, k FROM a EXCEPT ALL SELECT s, id FROM b) UNION ALL SELECT s, 1.5 FROM b) AS q "
        "WHERE s > 'a'"
    ),
    "SELECT k, s, grouping(s, k), count(*), sum(id), max(n) FROM a GROUP BY ROLLUP (k, s)",
    "SELECT k, s, count(DISTINCT id) FROM a WHERE id > 100 GROUP BY CUBE (k, s)",
    "SELECT count(*), sum(1) FROM a GROUP BY ()",
    (
        "SELECT a.k, bo, count(*) FROM a JOIN b ON a.k = b.k GROUP BY GROUPING SETS ((a.k, bo), a.k, (), bo, ()) "
        "HAVING count(*) > 1"
    ),
    "SELECT k + 1, s, min(d) FILTER (WHERE id > 2) FROM a GROUP BY s, GROUPING SETS (ROLLUP (k + 1), (d, s), CUBE (d))",
    "SELECT * FROM (SELECT k, s, count(*) AS c FROM a GROUP BY ROLLUP (k, s)) AS q WHERE k > 1 AND s IS NULL",
    "SELECT id, (SELECT max(c) FROM (SELECT count(*) AS c FROM b WHERE b.k = a.k GROUP BY ROLLUP (s)) AS q) FROM a",
    (
        "WITH x AS (SELECT k, count(*) AS c FROM a GROUP BY k), y AS (SELECT * FROM x WHERE c > 1) SELECT * FROM "
        "x JOIN y USING (k)"
    ),
    "SELECT v.i, a.s FROM (VALUES (1, 'p'), (2, NULL)) AS v (i, t) JOIN a ON a.k = v.i AND (v.t = a.s OR v.t IS NULL)",
    (
        "SELECT id, k, rank() OVER w AS r, count(*) OVER w AS c, lag(id) OVER (PARTITION BY k ORDER BY id, s, n, "
        "f, d) AS l FROM a WINDOW w AS (PARTITION BY k ORDER BY s)"
    ),
    "SELECT k, sum(id), rank() OVER (ORDER BY sum(id) DESC NULLS LAST), sum(count(*)) OVER () FROM a GROUP BY k",
    (
        "SELECT k, m FROM (SELECT k, max(id) OVER (PARTITION BY s ORDER BY k GROUPS BETWEEN 1 PRECEDING AND "
        "CURRENT ROW EXCLUDE TIES) AS m FROM a) AS q WHERE k > 1"
    ),
    "SELECT id FROM a ORDER BY id DESC NULLS LAST LIMIT 3",
    "SELECT id FROM a ORDER BY 1 NULLS FIRST LIMIT 2 OFFSET 1",
    "SELECT s, count(*) AS c FROM a GROUP BY s ORDER BY c DESC, s LIMIT 2",
    "SELECT DISTINCT k FROM a ORDER BY k LIMIT 2",
    "SELECT id FROM a UNION ALL SELECT id FROM b ORDER BY id OFFSET 3",
    "SELECT DISTINCT ON (k) k, id FROM a ORDER BY k, id DESC NULLS LAST",
    (
        "SELECT k, id FROM (SELECT k, id, row_number() OVER (PARTITION BY k ORDER BY id DESC NULLS LAST) AS n "
        "FROM a) AS q WHERE n <= 2"
    ),
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b)",
    "SELECT id FROM a WHERE s NOT IN (SELECT s FROM b WHERE bo)",
    "SELECT id FROM a WHERE s NOT IN (SELECT s FROM b WHERE b.k = a.k AND b.id > a.id)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b) AND NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND bo)",
    "SELECT id FROM a WHERE (k, s) IN (SELECT k, s FROM b)",
    (
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k IS NOT DISTINCT FROM a.k AND b.s IS NOT "
        "DISTINCT FROM a.s)"
    ),
    "SELECT 1 AS one, 'x' AS two",
    "SELECT count(*) FROM (SELECT 1 WHERE false) AS q",
    "SELECT 1 AS x WHERE NULL",
    "SELECT coalesce(a.s, b.s, '-') AS s, count(*) FROM a FULL JOIN b ON a.k = b.k AND a.s = b.s GROUP BY 1",
    "SELECT lower(s) || '!' AS t, id % 3 AS r, -id AS m FROM a WHERE s LIKE 'a%' OR id BETWEEN 2 AND 4",
]


@pytest.fixture(scope="module")
def content():
    made = Content(CATALOG)
    made.execute(
        "INSERT INTO a SELECT i % 9, CASE WHEN i % 4 > 0 THEN i % 5 END, CASE WHEN i % 7 > 0 THEN chr((97 + "
        "i % 3)::int) END, "
        "CASE WHEN i % 5 > 0 THEN i % 3 + 0.5 END, i / 4.0, DATE '2024-01-01' + (i % 6)::int FROM range(16) r(i)"
    )
    made.execute(
        "INSERT INTO b SELECT i % 8, CASE WHEN i % 3 > 0 THEN i % 7 END, CASE WHEN i % 5 > 0 THEN chr((97 + "
        "i % 4)::int) END, "
        "CASE WHEN i % 4 > 0 THEN i % 2 = 0 END FROM range(12) r(i)"
    )
    return made


@pytest.mark.parametrize("sql", QUERIES)
def test_written_queries(content, sql):
    expected = multiset(content.rows(sql))
    assert multiset(content.view(sql)) == expected
    assert multiset(content.batch(sql)) == expected


@pytest.mark.parametrize(
    ("sql", "duckdb"),
    [
        (("SELECT k, string_agg(s, ', ' ORDER BY id DESC), array_agg(id ORDER BY s DESC, id), "
          "array_agg(DISTINCT s ORDER BY s) "
         "FROM a GROUP BY k"),
         ("SELECT k, string_agg(s, ', ' ORDER BY id DESC, s), list(id ORDER BY s DESC NULLS FIRST, id), "
         "list(DISTINCT s ORDER BY s) FROM a GROUP BY k")),
        (("SELECT first_value(id ORDER BY s, id), last_value(s ORDER BY id), bit_and(id), bit_or(k), "
          "bit_xor(DISTINCT k) FROM a"),
         "SELECT first(id ORDER BY s, id), last(s ORDER BY id, s), bit_and(id), bit_or(k), bit_xor(DISTINCT k) FROM a"),
        (("SELECT s, percentile_cont(0.25) WITHIN GROUP (ORDER BY f), percentile_disc(0.5) WITHIN GROUP (ORDER "
          "BY id DESC), "
         "mode() WITHIN GROUP (ORDER BY k) FILTER (WHERE id > 2) FROM a GROUP BY s"),
         ("SELECT s, quantile_cont(f, 0.25), list(id ORDER BY id DESC)[ceil(count(id) * 0.5)::int], "
         "mode(k ORDER BY k) FILTER (WHERE id > 2) FROM a GROUP BY s")),
        ("SELECT s, round(var_pop(f)::numeric, 6), round(stddev(id), 6), round(var_samp(n), 6) FROM a GROUP BY s",
         ("SELECT s, round(var_pop(f)::decimal(38,10), 6), round(stddev(id)::decimal(38,10), 6), "
         "round(var_samp(n)::decimal(38,10), 6) FROM a GROUP BY s")),
        ("SELECT k, jsonb_agg(s ORDER BY id, s), approx_count_distinct(s) FROM a GROUP BY k",
         "SELECT k, to_json(list(s ORDER BY id, s)), count(DISTINCT s) FROM a GROUP BY k"),
    ],
)  # fmt: skip
def test_aggregates_that_duckdb_calls_otherwise(content, sql, duckdb):
    expected = multiset(content.rows(duckdb))
    assert multiset(content.view(sql)) == expected
    assert multiset(content.batch(sql)) == expected


@pytest.mark.parametrize("start", mostly_slow(range(0, 200, 20), 2))
def test_random_queries(content, start):
    for seed in range(start, start + 20):
        sql = Maker(seed).query()
        expected = multiset(content.rows(sql))
        assert multiset(content.view(sql)) == expected, (seed, sql)
        assert multiset(content.batch(sql)) == expected, (seed, sql)


def _set_operations(source: random.Random, depth: int) -> str:
    if depth == 0 or source.random() < 0.2:
        table, column = source.choice(["a", "b"]), source.choice(["id", "k", "k"])
        where = source.choice(["", f" WHERE {column} > 2", f" WHERE {column} IS NULL OR id < 4"])
        return f"SELECT {column} AS x FROM {table}{where}"
    parts = [_set_operations(source, depth - 1) for _ in range(source.choice([2, 2, 3]))]
    signs = [f"{source.choice(['UNION', 'INTERSECT', 'EXCEPT'])}{source.choice(['', ' ALL'])}" for _ in parts[1:]]
    text = "".join(f" {s} {p}" if source.random() < 0.5 else f" {s} ({p})" for s, p in zip(signs, parts[1:]))
    return (f"({parts[0]})" if source.random() < 0.6 else parts[0]) + text


@pytest.mark.parametrize("start", mostly_slow(range(0, 120, 20), 1))
def test_random_set_operations(content, start):
    for seed in range(start, start + 20):
        sql = _set_operations(random.Random(seed), 3)
        expected = multiset(content.rows(sql))
        assert multiset(content.view(sql)) == expected, sql
        assert multiset(content.batch(sql)) == expected, sql
