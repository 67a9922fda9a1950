"""EXPLAIN ROW and EXPLAIN MISSING ROW of views in which expressions fail for some rows (docs/SEMANTICS.md, "Errors in
data"): there the innermost part that fails is NULL.
"""

from __future__ import annotations

import random

import pytest

import watersmeet
from tests.property.test_lineage import check_origins
from tests.thorough import mostly_slow

#: Views of a (rid, k, s) and b (rid, k), with their rows in Python: `n` is the number in s, None where there is none.
VIEWS = {
    "SELECT rid AS c0, CAST(s AS INT) AS c1 FROM a": lambda a, b: [((r, n), {("a", r)}) for r, k, n in a],
    "SELECT rid AS c0 FROM a WHERE CAST(s AS INT) > 1 OR k = 2": lambda a, b: [
        ((r,), {("a", r)}) for r, k, n in a if (n is not None and n > 1) or k == 2
    ],
    "SELECT rid AS c0 FROM a WHERE NOT (CAST(s AS INT) > 1 AND k > 1)": lambda a, b: [
        ((r,), {("a", r)}) for r, k, n in a if (n is not None and n <= 1) or k <= 1
    ],
    "SELECT rid AS c0, CASE WHEN CAST(s AS INT) > 1 THEN 7 ELSE 8 END AS c1 FROM a": lambda a, b: [
        ((r, 7 if n is not None and n > 1 else 8), {("a", r)}) for r, k, n in a
    ],
    "SELECT k + coalesce(CAST(s AS INT), 5) AS c0 FROM a": lambda a, b: [
        ((k + (5 if n is None else n),), {("a", r)}) for r, k, n in a
    ],
    "SELECT rid AS c0 FROM a WHERE CAST(s AS INT) IS NULL OR upper(s || CAST(CAST(s AS INT) + k AS VARCHAR)) = 'X'": (
        lambda a, b: [((r,), {("a", r)}) for r, k, n in a if n is None]
    ),
    "SELECT a.rid AS c0, b.rid AS c1 FROM a JOIN b ON coalesce(CAST(a.s AS INT), 3) = b.k": lambda a, b: [
        ((r, o), {("a", r), ("b", o)}) for r, k, n in a for o, m in b if (3 if n is None else n) == m
    ],
    "SELECT a.rid AS c0, b.rid AS c1 FROM a JOIN b ON CAST(a.s AS INT) = b.k": lambda a, b: [
        ((r, o), {("a", r), ("b", o)}) for r, k, n in a for o, m in b if n is not None and n == m
    ],
    "SELECT a.rid AS c0, b.rid AS c1 FROM a LEFT JOIN b ON a.k = b.k AND CAST(a.s AS INT) > 1": lambda a, b: [
        found
        for r, k, n in a
        for found in [((r, o), {("a", r), ("b", o)}) for o, m in b if k == m and n is not None and n > 1]
        or [((r, None), {("a", r)})]
    ],
    "SELECT CAST(s AS INT) AS c0, count(*) AS c1, sum(k) AS c2 FROM a GROUP BY CAST(s AS INT)": lambda a, b: [
        ((n, len(g), sum(k for _, k in g)), {("a", r) for r, _ in g})
        for n in {n for *_, n in a}
        for g in [[(r, k) for r, k, m in a if m == n]]
    ],
    "SELECT k AS c0, max(CAST(s AS INT)) AS c1 FROM a GROUP BY k": lambda a, b: [
        ((k, max((n for _, n in g if n is not None), default=None)), {("a", r) for r, _ in g})
        for k in {k for _, k, _ in a}
        for g in [[(r, n) for r, m, n in a if m == k]]
    ],
    "SELECT rid AS c0, CAST(s AS INT) AS c1 FROM a ORDER BY CAST(s AS INT) NULLS FIRST, rid LIMIT 2": lambda a, b: [
        ((r, n), {("a", r)}) for r, k, n in sorted(a, key=lambda r: (r[2] is not None, r[2] or 0, r[0]))[:2]
    ],
}


def number(s):
    return int(s) if s.isdecimal() else None


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 3))
def test_rows_of_expressions_that_fail(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT PRIMARY KEY, k INT, s VARCHAR)")
        connection.execute("CREATE TABLE b (rid INT PRIMARY KEY, k INT)")
        rows = [(r, rng.randint(1, 3), rng.choice(["1", "2", "3", "x", "y"])) for r in range(1, 7)]
        others = [(r, rng.randint(1, 3)) for r in range(1, 4)]
        connection.execute(f"INSERT INTO a VALUES {', '.join(map(str, rows))}")
        connection.execute(f"INSERT INTO b VALUES {', '.join(map(str, others))}")
        for n, (sql, of) in enumerate(rng.sample(list(VIEWS.items()), 4)):
            connection.execute(f"CREATE MATERIALIZED VIEW v{n} AS {sql}")
            connection.flush()
            wanted = of([(r, k, number(s)) for r, k, s in rows], others)
            check_origins(connection, f"v{n}", wanted, said=sql, read=lambda name, row: (name, row["rid"]))
            for value in {1, 2, 3, 4, 5, 6, 9} - {v[0] for v, _ in wanted}:
                lines = connection.execute(f"EXPLAIN MISSING ROW v{n} WHERE c0 = {value}").fetchall()
                assert len(lines) > 1
                if "WHERE" in sql and value < 7:  # the filter is where it ended
                    assert [row["rid"] for _, name, row, _ in lines if name == "a"] == [value], (sql, lines)


def test_equal_rows_are_taken_as_the_view_takes_them():
    """Where ORDER BY leaves rows equal, the columns that the view reads break the tie: `rid` is none of them."""
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT PRIMARY KEY, k INT, s VARCHAR)")
        connection.execute("INSERT INTO a VALUES (1, 3, 'x'), (2, 1, 'y'), (3, 2, 'z'), (4, 1, '5')")
        sql = "SELECT k AS c0 FROM a ORDER BY CAST(s AS INT) NULLS FIRST LIMIT 2"
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {sql}")
        connection.flush()
        wanted = [((1,), {("a", 2)}), ((2,), {("a", 3)})]
        check_origins(connection, "v", wanted, said=sql, read=lambda name, row: (name, row["rid"]))
