"""lag and lead over all rows of a stream by its time: rows that no function asks for any more do not stay."""

from __future__ import annotations

import contextlib
import datetime as dt
import random

import pytest

import watersmeet
from tests.property.small import small
from tests.thorough import mostly_slow

DELAY = dt.timedelta(seconds=20)
VIEW = (
    "SELECT id, lead(id, {ahead}) OVER (ORDER BY ts, id) AS later, lag(id, {back}, -1) OVER (ORDER BY ts, "
    "id) AS earlier, "
    "lead(ts, {ahead}, TIMESTAMP 'infinity') OVER (ORDER BY ts, id) AS left_at FROM t"
)


def expected(rows, ahead, back):
    rows = sorted(rows, key=lambda r: r[::-1])
    found = []
    for i, (number, _) in enumerate(rows):
        later = rows[i + ahead] if i + ahead < len(rows) else (None, None)
        found.append((number, later[0], rows[i - back][0] if i >= back else -1, later[1]))
    return sorted(found)


def content(connection):
    rows = connection.execute(
        "SELECT id, later, earlier, CASE WHEN left_at < TIMESTAMP '9999-01-01' THEN left_at END FROM v"
    ).fetchall()
    return sorted(rows)


@pytest.mark.parametrize("seed", mostly_slow(range(12), 2))
def test_rows_that_nobody_asks_for_go(seed):
    rng = random.Random(seed)
    ahead, back = rng.randint(0, 6), rng.randint(0, 4)
    with contextlib.ExitStack() as stack:
        if seed % 2:
            stack.enter_context(small())
        connection = stack.enter_context(watersmeet.connect(runtime="inprocess", parallelism=1 + seed % 3))
        connection.execute(
            "CREATE TABLE t (id INT, ts TIMESTAMP NOT NULL, WATERMARK FOR ts AS ts - INTERVAL '20 seconds') APPEND ONLY"
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS " + VIEW.format(ahead=ahead, back=back))
        rows, now, mark = [], dt.datetime(2024, 1, 1), dt.datetime(2023, 1, 1)
        for _ in range(12):
            now += dt.timedelta(seconds=rng.choice([0, 5, 30, 300]))
            new = []
            for _ in range(rng.randint(1, 8)):
                new.append((len(rows) + len(new), max(mark, now - dt.timedelta(seconds=rng.randint(0, 30)))))
            connection.execute("INSERT INTO t VALUES " + ", ".join(f"({i}, '{ts}')" for i, ts in new))
            connection.execute("FLUSH")
            rows += new
            mark = max(mark, max(ts for _, ts in new) - DELAY)
            assert content(connection) == expected(rows, ahead, back)
        connection.execute(f"INSERT INTO t VALUES (1000, '{now + dt.timedelta(days=1)}')")
        connection.execute("FLUSH")
        (view,) = connection.status()["views"]
        assert view["state_rows"] <= max(1, ahead + back) + 8 + 1, view  # of one time there may be more
