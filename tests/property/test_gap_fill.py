"""GAP_FILL: views and queries equal a model in plain Python after random histories, with restarts."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise

import pytest

import watersmeet
from tests.thorough import mostly_slow

BEGIN = datetime(2024, 1, 1)
STEP = timedelta(minutes=1)
COLUMNS = "id, k, at, i, d, n, s"
FILLED = "GAP_FILL({}, at, INTERVAL '1' MINUTE, INTERPOLATE(i), INTERPOLATE(d), INTERPOLATE(n), KEEPNULL(s){})"
Row = tuple[int, str | None, datetime | None, int | None, float | None, Decimal | None, str]


def between(kind: type, first, last, steps: int, place: int):
    if first is None or last is None:
        return first
    if kind is int:
        whole = abs(last - first) // steps
        return first + (whole if last >= first else -whole) * place
    if kind is float:
        return first + (last - first) / steps * place
    part = Decimal(float(last - first) / steps).quantize(Decimal("1e-10"), ROUND_HALF_UP)
    return first + part * place


def filled(rows: list[Row]) -> Counter:
    """The rows of one partition and those between them."""
    ordered = sorted(rows, key=lambda r: (r[2] is None, r[2] or BEGIN, r[0]))
    found: Counter = Counter(ordered)
    for one, other in pairwise(ordered):
        if one[2] is None or other[2] is None:
            continue
        times = []
        while one[2] + STEP * (len(times) + 1) < other[2]:
            times.append(one[2] + STEP * (len(times) + 1))
        for place, at in enumerate(times, 1):
            values = [
                between(kind, one[c], other[c], len(times) + 1, place)
                for c, kind in ((3, int), (4, float), (5, Decimal))
            ]
            found[one[0], one[1], at, *values, None] += 1
    return found


def by_key(rows: list[Row]) -> Counter:
    return sum((filled([r for r in rows if r[1] == k]) for k in {r[1] for r in rows}), Counter())


def shown(value: object) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str | datetime) else str(value)


def a_row(rng: random.Random, number: int, at: datetime | None) -> Row:
    decimal = rng.choice([None, Decimal(rng.randrange(-500, 500)) / 4])
    double = rng.choice([None, rng.randrange(64) / 8])
    return number, rng.choice(["a", "b", None]), at, rng.choice([None, rng.randrange(-9, 9)]), double, decimal, "s"


def written(table: str, row: Row) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join(map(shown, row))})"


@pytest.mark.parametrize("seed", mostly_slow(range(8), quick=1))
def test_views_and_queries_equal_the_model(seed: int, tmp_path) -> None:
    rng = random.Random(seed)
    content: dict[int, Row] = {}
    queries = {"whole": f"SELECT {COLUMNS} FROM {FILLED.format('t', '')}"}
    queries["parts"] = f"SELECT {COLUMNS} FROM {FILLED.format('t', ', PARTITION_BY(k)')} AS g"
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=rng.choice([1, 3]))
    columns = "k VARCHAR, at TIMESTAMP, i INT, d DOUBLE, n NUMERIC, s VARCHAR"
    connection.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    for name, query in queries.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    try:
        for _ in range(8):
            for _ in range(rng.randrange(1, 6)):
                number = rng.randrange(10)
                connection.execute(f"DELETE FROM t WHERE id = {number}")
                content.pop(number, None)
                if rng.random() < 0.8:
                    at = None if rng.random() < 0.1 else BEGIN + timedelta(seconds=rng.randrange(60) * 30)
                    content[number] = a_row(rng, number, at)
                    connection.execute(written("t", content[number]))
            connection.execute("FLUSH")
            rows = list(content.values())
            for name, expected in (("whole", filled(rows)), ("parts", by_key(rows))):
                assert Counter(connection.execute(f"SELECT * FROM {name}").fetchall()) == expected
                assert Counter(connection.execute(queries[name]).fetchall()) == expected
            if rng.random() < 0.25:
                connection.close()
                connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=rng.random() < 0.5)
    finally:
        connection.close()


@pytest.mark.parametrize("seed", mostly_slow(range(4), quick=1))
def test_final_rows_are_filled_once(seed: int, tmp_path) -> None:
    """EMIT ON WINDOW CLOSE: gaps between rows below the watermark are filled, and no row changes."""
    rng = random.Random(seed)
    rows: list[Row] = []
    before: Counter = Counter()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=rng.choice([1, 3])) as connection:
        connection.execute(
            "CREATE TABLE a (id INT, k VARCHAR, at TIMESTAMP, i INT, d DOUBLE, n NUMERIC, s VARCHAR, "
            "WATERMARK FOR at AS at - INTERVAL '5 minutes') APPEND ONLY"
        )
        query = f"SELECT {COLUMNS} FROM {FILLED.format('a', ', PARTITION_BY(k)')}"
        connection.execute(f"CREATE MATERIALIZED VIEW m AS {query} EMIT ON WINDOW CLOSE")
        for number in range(12):
            newest = max((r[2] for r in rows), default=BEGIN)
            for part in range(rng.randrange(1, 4)):
                at = newest + timedelta(seconds=rng.randrange(-10, 20) * 30)
                rows.append(a_row(rng, number * 10 + part, at))
                connection.execute(written("a", rows[-1]))
            connection.execute("FLUSH")
            watermark = max(r[2] for r in rows) - timedelta(minutes=5)
            found = Counter(connection.execute("SELECT * FROM m").fetchall())
            assert found == by_key([r for r in rows if r[2] < watermark])
            assert not before - found
            before = found


@pytest.mark.parametrize("seed", mostly_slow(range(4), quick=1))
def test_windows_that_look_ahead_wait_for_final_rows(seed: int, tmp_path) -> None:
    """EMIT ON WINDOW CLOSE: a row is output once its frame is complete in final rows, and never changes."""
    rng = random.Random(seed)
    rows: list[tuple[int, str, datetime]] = []
    before: Counter = Counter()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=rng.choice([1, 3])) as connection:
        connection.execute(
            "CREATE TABLE a (id INT, k VARCHAR, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5 minutes') "
            "APPEND ONLY"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW m AS SELECT id, lead(id, 2) OVER w AS l, lag(id) OVER w AS b, "
            "sum(id) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s FROM a "
            "WINDOW w AS (PARTITION BY k ORDER BY at, id) EMIT ON WINDOW CLOSE"
        )
        for number in range(12):
            newest = max((r[2] for r in rows), default=BEGIN)
            for part in range(rng.randrange(1, 5)):
                at = newest + timedelta(seconds=rng.randrange(-10, 20) * 30)
                rows.append((number * 10 + part, rng.choice("ab"), at))
                connection.execute(f"INSERT INTO a VALUES ({', '.join(map(shown, rows[-1]))})")
            connection.execute("FLUSH")
            watermark = max(r[2] for r in rows) - timedelta(minutes=5)
            expected: Counter = Counter()
            for k in "ab":
                ids = [r[0] for r in sorted(rows, key=lambda r: (r[2], r[0])) if r[1] == k and r[2] < watermark]
                for i in range(len(ids) - 2):
                    expected[ids[i], ids[i + 2], ids[i - 1] if i else None, sum(ids[max(0, i - 1) : i + 2])] += 1
            found = Counter(connection.execute("SELECT * FROM m").fetchall())
            assert found == expected
            assert not before - found
            before = found
