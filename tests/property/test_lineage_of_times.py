"""EXPLAIN ROW and EXPLAIN MISSING ROW of what depends on time, as of now and as of each earlier commit, and of look-ups
in it: against plain Python with a clock.
"""

from __future__ import annotations

import datetime as dt
import random

import pytest

import watersmeet
from tests.harness import Harness
from tests.property.test_lineage import check_origins
from tests.thorough import mostly_slow

START = dt.datetime(2024, 5, 1, 12)
RECENT = "ts > now() - INTERVAL '1 hour'"
CONTENT = {
    "recent": f"SELECT rid AS c0, k AS c1, x AS c2 FROM b WHERE {RECENT}",
    "groups": f"SELECT k AS c0, count(*) AS c1 FROM b WHERE {RECENT} GROUP BY k",
    "later": "SELECT rid AS c0 FROM b WHERE ts <= now() - INTERVAL '1 hour'",
}
LOOK_UPS = {
    "of_view": "SELECT a.rid AS c0, v.c2 AS c1 FROM a LEFT JOIN recent FOR SYSTEM_TIME AS OF PROCTIME() v "
    "ON a.k = v.c1",
    "semi": f"SELECT a.rid AS c0 FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND {RECENT}) EMIT ON ARRIVAL",
}


#: Groups that come out once, when their time is over.
CLOSED = (
    "SELECT k AS c0, count(*) AS c1 FROM TUMBLE(s, ts, INTERVAL '30 minutes') GROUP BY window_start, k "
    "EMIT ON WINDOW CLOSE"
)


def closed(s):
    """The groups of half an hour that are behind the watermark."""
    groups = {}
    for row in s:
        start = row[2].replace(minute=row[2].minute // 30 * 30)
        if start + dt.timedelta(minutes=30) <= max(r[2] for r in s) - dt.timedelta(minutes=10):
            groups.setdefault((start, row[1]), []).append(row)
    return [((k, len(group)), frozenset(group)) for (_, k), group in groups.items()]


def content(name, b, now):
    """The rows of a view over b, each with those of b that it comes from."""
    recent = [r for r in b if r[3] > now - dt.timedelta(hours=1)]
    if name == "recent":
        return [(r[:3], frozenset([r])) for r in recent]
    if name == "later":
        return [((r[0],), frozenset([r])) for r in b if r not in recent]
    return [
        ((k, len(group)), frozenset(group)) for k in {r[1] for r in b} if (group := [r for r in recent if r[1] == k])
    ]


def looked_up(name, left, b, now):
    found = [r for r in b if r[1] == left[1] and r[3] > now - dt.timedelta(hours=1)]
    if name == "semi":
        return [((left[0],), frozenset([left, *found]))] if found else []
    return [((left[0], r[2]), frozenset([left, r])) for r in found] or [((left[0], None), frozenset([left]))]


def of(_, row):
    """A row of a table as it is in Python."""
    return tuple(dt.datetime.fromisoformat(v) if c == "ts" else v for c, v in row.items())


@pytest.mark.parametrize("seed", mostly_slow([1, *range(2, 30)], 1, 3))
def test_what_depends_on_time(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        harness, now = Harness(connection), START
        harness.set_clock(round(now.replace(tzinfo=dt.UTC).timestamp() * 1e6))
        connection.execute("CREATE TABLE a (rid INT, k INT) APPEND ONLY")
        connection.execute("CREATE TABLE b (rid INT PRIMARY KEY, k INT, x INT, ts TIMESTAMP)")
        connection.execute("CREATE INDEX b_k ON b (k)")
        for name, sql in {**CONTENT, **LOOK_UPS}.items():
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
        connection.execute(
            "CREATE TABLE s (rid INT, k INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '10 minutes') APPEND ONLY"
        )
        connection.execute(f"CREATE MATERIALIZED VIEW closed AS {CLOSED}")
        b, s, out, past = [], [], {name: [] for name in LOOK_UPS}, []
        numbers = iter(range(1, 100))
        for _ in range(5):
            now += dt.timedelta(minutes=rng.choice([0, 10, 30, 50]))
            harness.set_clock(round(now.replace(tzinfo=dt.UTC).timestamp() * 1e6))
            came = []
            for _ in range(rng.choice([1, 2, 3])):
                if rng.random() < 0.4:
                    came.append((next(numbers), rng.randint(1, 3)))
                    connection.execute(f"INSERT INTO a VALUES {came[-1]}")
                    s.append((*came[-1], now - dt.timedelta(minutes=rng.choice([0, 5]))))
                    connection.execute(f"INSERT INTO s VALUES ({s[-1][0]}, {s[-1][1]}, '{s[-1][2]}')")
                    continue
                row = (
                    rng.randint(1, 4),
                    rng.randint(1, 3),
                    rng.randint(1, 9),
                    now - dt.timedelta(minutes=rng.choice([0, 40, 60])),
                )
                b = [*(r for r in b if r[0] != row[0]), row]
                connection.execute(f"DELETE FROM b WHERE rid = {row[0]}")
                connection.execute(f"INSERT INTO b VALUES ({row[0]}, {row[1]}, {row[2]}, '{row[3]}')")
            connection.flush()
            for name in out:
                out[name] += [row for left in came for row in looked_up(name, left, b, now)]
            ((number, *_), *_) = connection.execute("SHOW COMMITS").fetchall()
            past.append(
                (
                    number,
                    {name: content(name, b, now) for name in CONTENT}
                    | {n: list(r) for n, r in out.items()}
                    | {"closed": closed(s)},
                )
            )
        for name, rows in past[-1][1].items():
            check_origins(connection, name, rows, read=of)
        for number, views in rng.sample(past[:-1], 1):
            for name, rows in views.items():
                check_origins(connection, name, rows, f"FOR SYSTEM_TIME AS OF COMMIT {number}", read=of)
            for rid in range(1, 5):
                if all(v[0] != rid for v, _ in views["recent"]):
                    sql = f"EXPLAIN MISSING ROW recent FOR SYSTEM_TIME AS OF COMMIT {number} WHERE c0 = {rid}"
                    assert len(connection.execute(sql).fetchall()) > 1
