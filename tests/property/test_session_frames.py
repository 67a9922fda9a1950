"""Frames SESSION WITH GAP: views and queries equal a model in plain Python after random histories, with restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

import watersmeet
from tests.thorough import mostly_slow

GAP = timedelta(minutes=5)
BEGIN = datetime(2024, 1, 1)
QUERIES = {
    "of_times": """SELECT id, sum(v) OVER w AS s, count(*) OVER w AS n, min(at) OVER w AS f,
        row_number() OVER (PARTITION BY k ORDER BY at, id) AS r FROM t
        WINDOW w AS (PARTITION BY k ORDER BY at SESSION WITH GAP INTERVAL '5 minutes')""",
    "of_numbers": """SELECT id, max(at) OVER (PARTITION BY k ORDER BY v SESSION WITH GAP 3) AS l,
        count(*) OVER (PARTITION BY k ORDER BY v SESSION WITH GAP 3 EXCLUDE CURRENT ROW) AS others FROM t""",
}
Row = tuple[str | None, int | None, datetime | None]


def sessions(rows: list[tuple[int, Row]], place: int, gap) -> Iterator[list[tuple[int, Row]]]:
    """The rows of one group in their sessions; those without a value are one."""
    without = [row for row in rows if row[1][place] is None]
    if without:
        yield without
    session: list[tuple[int, Row]] = []
    for row in sorted((r for r in rows if r[1][place] is not None), key=lambda r: r[1][place]):
        if session and row[1][place] >= session[-1][1][place] + gap:
            yield session
            session = []
        session.append(row)
    if session:
        yield session


def model(content: dict[int, Row]) -> dict[str, Counter]:
    found: dict[str, Counter] = {name: Counter() for name in QUERIES}
    for k in {row[0] for row in content.values()}:
        rows = sorted((i, row) for i, row in content.items() if row[0] == k)
        ranked = sorted(rows, key=lambda r: (r[1][2] is None, r[1][2] or BEGIN, r[0]))
        rank = {row[0]: n for n, row in enumerate(ranked, 1)}
        for session in sessions(rows, 2, GAP):
            values = [v for _, (_, v, _) in session if v is not None]
            times = [at for _, (_, _, at) in session if at is not None]
            total = sum(values) if values else None
            for i, _ in session:
                found["of_times"][i, total, len(session), min(times, default=None), rank[i]] += 1
        for session in sessions(rows, 1, 3):
            times = [at for _, (_, _, at) in session if at is not None]
            for i, _ in session:
                found["of_numbers"][i, max(times, default=None), len(session) - 1] += 1
    return found


def shown(value: object) -> str:
    return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"


@pytest.mark.parametrize("seed", mostly_slow(range(8), quick=1))
def test_views_equal_the_model(seed: int, tmp_path) -> None:
    rng = random.Random(seed)
    content: dict[int, Row] = {}
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY, k VARCHAR, v INT, at TIMESTAMP)")
    for name, query in QUERIES.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    try:
        for _ in range(8):
            for _ in range(rng.randrange(1, 8)):
                i = rng.randrange(14)
                connection.execute(f"DELETE FROM t WHERE id = {i}")
                content.pop(i, None)
                if rng.random() < 0.75:
                    at = None if rng.random() < 0.1 else BEGIN + timedelta(seconds=rng.randrange(40) * 60)
                    row = rng.choice(["a", "b", None]), rng.choice([None, *range(12)]), at
                    content[i] = row
                    connection.execute(f"INSERT INTO t VALUES ({i}, {', '.join(map(shown, row))})")
            connection.execute("FLUSH")
            for name, query in QUERIES.items():
                expected = model(content)[name]
                assert Counter(connection.execute(f"SELECT * FROM {name}").fetchall()) == expected
                assert Counter(connection.execute(query).fetchall()) == expected
            if rng.random() < 0.25:
                connection.close()
                connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=rng.random() < 0.5)
    finally:
        connection.close()
