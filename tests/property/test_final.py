"""EMIT ON WINDOW CLOSE, end to end: what is final equals the batch answer over the rows that were not late.

Random rows, out of order and late, in random deliveries, with restarts. Nothing that came out is ever taken back; at
the end, when the watermarks have passed everything, all has come out and no state is left.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from tests.harness import connect_without_connectors
from tests.thorough import mostly_slow

SEEDS = range(12)
START = dt.datetime(2024, 1, 1)
DELAYS = {"a": 10, "b": 4}
END = 1_000_000

#: Rows with k = 99 only move the watermarks.
A, B = "(SELECT * FROM a WHERE k < 90) AS a", "(SELECT * FROM b WHERE k < 90) AS b"
NEAR = "a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '5 seconds' AND a.ts + INTERVAL '8 seconds'"
TEN = "INTERVAL '10 seconds'"
WINDOW = f"time_bucket({TEN}, ts)"

#: The view, and the batch query for DuckDB. A group or partition without time never ends, so there is none in those
#: that keep it.
QUERIES = {
    "plain": (f"SELECT k, x, ts FROM {A}", f"SELECT k, x, ts FROM {A} WHERE ts IS NOT NULL"),
    "moved": (
        f"SELECT x, ts + INTERVAL '1 minute' AS later FROM {A} WHERE x > 0",
        f"SELECT x, ts + INTERVAL '1 minute' FROM {A} WHERE x > 0 AND ts IS NOT NULL",
    ),
    "tumbled": (
        f"""SELECT window_start, k, count(*) AS n, sum(x) AS s, min(x) AS m FROM TUMBLE(a, ts, {TEN}) WHERE k < 90
        AND ts IS NOT NULL
                GROUP BY window_start, k""",
        f"SELECT {WINDOW} AS w, k, count(*), sum(x), min(x) FROM {A} WHERE ts IS NOT NULL GROUP BY ALL",
    ),
    "hopped": (
        (
            f"SELECT count(DISTINCT x) AS n, window_end FROM HOP(a, ts, INTERVAL '5 seconds', {TEN}) WHERE k < "
            f"90 GROUP BY window_end"
        ),
        f"""SELECT count(DISTINCT x), w + {TEN} FROM (SELECT x, unnest([time_bucket(INTERVAL '5 seconds', ts),
               time_bucket(INTERVAL '5 seconds', ts) - INTERVAL '5 seconds']) AS w FROM {A} WHERE ts IS NOT NULL) GROUP
               BY w""",
    ),
    "near": (
        f"SELECT a.k, x, y, a.ts, b.ts AS bts FROM {A} JOIN {B} ON {NEAR}",
        f"SELECT a.k, x, y, a.ts, b.ts FROM {A} JOIN {B} ON {NEAR}",
    ),
    "near_left": (
        f"SELECT a.k, x, y, a.ts FROM {A} LEFT JOIN {B} ON {NEAR} AND x <> y",
        f"SELECT a.k, x, y, a.ts FROM {A} LEFT JOIN {B} ON {NEAR} AND x <> y WHERE a.ts IS NOT NULL",
    ),
    "near_full": (
        f"SELECT x, y, a.ts, b.ts AS bts FROM {A} FULL JOIN {B} ON {NEAR}",
        f"SELECT x, y, a.ts, b.ts FROM {A} FULL JOIN {B} ON {NEAR} WHERE a.ts IS NOT NULL OR b.ts IS NOT NULL",
    ),
    "near_semi": (
        f"SELECT k, x, ts FROM {A} WHERE EXISTS (SELECT 1 FROM {B} WHERE {NEAR})",
        f"SELECT k, x, ts FROM {A} WHERE EXISTS (SELECT 1 FROM {B} WHERE {NEAR})",
    ),
    "near_anti": (
        f"SELECT k, x, ts FROM {A} WHERE NOT EXISTS (SELECT 1 FROM {B} WHERE {NEAR})",
        f"SELECT k, x, ts FROM {A} WHERE ts IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {B} WHERE {NEAR})",
    ),
    "windows": (
        f"""SELECT a.k, x, y, a.window_start FROM TUMBLE(a, ts, {TEN}) AS a JOIN TUMBLE(b, ts, {TEN}) AS b
                ON a.window_start = b.window_start AND a.k = b.k WHERE a.k < 90""",
        f"""SELECT a.k, x, y, a.w FROM (SELECT *, {WINDOW} AS w FROM {A}) AS a JOIN (SELECT *, {WINDOW} AS w
        FROM {B}) AS b
                ON a.w = b.w AND a.k = b.k""",
    ),
    "best": (
        f"""SELECT window_start, x, row_number() OVER (PARTITION BY window_start ORDER BY x DESC) AS n
             FROM TUMBLE(a, ts, {TEN}) WHERE k < 90 AND ts IS NOT NULL""",
        (
            f"SELECT {WINDOW} AS w, x, row_number() OVER (PARTITION BY {WINDOW} ORDER BY x DESC) FROM {A} WHERE "
            f"ts IS NOT NULL"
        ),
    ),
    "two_best": (
        f"""SELECT window_start, x FROM (SELECT window_start, x, row_number() OVER (PARTITION BY window_start ORDER
        BY x DESC) AS n
                 FROM TUMBLE(a, ts, {TEN}) WHERE k < 90 AND ts IS NOT NULL) AS ranked WHERE n <= 2""",
        f"""SELECT w, x FROM (SELECT {WINDOW} AS w, x, row_number() OVER (PARTITION BY {WINDOW} ORDER BY x DESC) AS n
                 FROM {A} WHERE ts IS NOT NULL) WHERE n <= 2""",
    ),
    "above": (
        "SELECT window_start, sum(n) AS n, count(*) AS k FROM tumbled GROUP BY window_start",
        f"SELECT {WINDOW} AS w, count(*), count(DISTINCT k) FROM {A} WHERE ts IS NOT NULL GROUP BY w",
    ),
}

#: Rows that look back are final too, but what they look at is kept.
BACK = {
    "numbered": (
        f"SELECT k, x, ts, row_number() OVER (PARTITION BY k ORDER BY ts, x) AS n FROM {A}",
        f"SELECT k, x, ts, row_number() OVER (PARTITION BY k ORDER BY ts, x) FROM {A} WHERE ts IS NOT NULL",
    ),
    "before": (
        f"SELECT k, x, ts, lag(x) OVER w AS l, sum(x) OVER w AS s FROM {A} WINDOW w AS (PARTITION BY k ORDER BY ts, x)",
        (
            f"SELECT k, x, ts, lag(x) OVER w, sum(x) OVER w FROM {A} WHERE ts IS NOT NULL WINDOW w AS (PARTITION "
            f"BY k ORDER BY ts, x)"
        ),
    ),
}


class Rule:
    """Which rows are late, in plain Python (RW-37)."""

    def __init__(self):
        self.number = dict.fromkeys(DELAYS)
        self.kept = {name: [] for name in DELAYS}

    def epoch(self, rows):
        """rows: (table, k, value, seconds or None)."""
        for table, number in list(self.number.items()):
            mine = [r[1:] for r in rows if r[0] == table]
            self.kept[table] += [r for r in mine if r[2] is None or number is None or r[2] >= number]
            times = [r[2] for r in mine if r[2] is not None]
            if times:
                self.number[table] = max([max(times) - DELAYS[table], *([] if number is None else [number])])

    def batch(self, query):
        connection = duckdb.connect(config={"threads": 1})
        for table, value in (("a", "x"), ("b", "y")):
            rows = [(k, v, moment(s)) for k, v, s in self.kept[table]]
            connection.register(
                table,
                pa.table(
                    {
                        n: pa.array([r[i] for r in rows], t)
                        for i, (n, t) in enumerate((("k", pa.int32()), (value, pa.int32()), ("ts", pa.timestamp("us"))))
                    }
                ),
            )
        return Counter(connection.execute(query).fetchall())


def moment(seconds):
    return None if seconds is None else START + dt.timedelta(seconds=seconds)


class Database:
    """A database with the views `queries`."""

    def __init__(self, path, parallelism, queries=QUERIES):
        self._connect = lambda: connect_without_connectors(path, runtime="inprocess", parallelism=parallelism)
        self.connection = self._connect()
        for table, value in (("a", "x"), ("b", "y")):
            self.run(
                f"CREATE TABLE {table} (k INT, {value} INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - "
                f"INTERVAL '{DELAYS[table]}' SECOND) APPEND ONLY WITH (watermark_max_ahead = '1000 days')"
            )
        for name, (view, _) in queries.items():
            self.run(f"CREATE MATERIALIZED VIEW {name} AS {view} EMIT ON WINDOW CLOSE")

    def run(self, sql, values=()):
        cursor = self.connection.cursor()
        cursor.execute(sql, values)
        return cursor

    def restart(self):
        self.connection.close()
        self.connection = self._connect()

    def epoch(self, rows):
        for table, k, value, seconds in rows:
            self.run(f"INSERT INTO {table} VALUES (?, ?, ?)", (k, value, moment(seconds)))
        self.flush()

    def flush(self):
        self.run("FLUSH")

    def content(self, name):
        return Counter(self.run(f"SELECT * FROM {name}").fetchall())

    def state(self):
        """(kind, rows, bytes) of what operators keep."""
        found = self.connection.status()["operators"].values()
        return [(o["kind"], o["state_rows"], o["state_bytes"]) for o in found if o["state_rows"] or o["state_bytes"]]


def history(rng):
    """Deliveries of rows around a time that goes on."""
    made, now = [], 0
    for _ in range(rng.choice([4, 8])):
        now += rng.choice([0, 3, 9, 25])
        made.append(
            [
                (
                    rng.choice("aab"),
                    rng.randrange(3),
                    rng.randrange(4),
                    rng.choice([None, *range(now - 12, now + 4), *range(now - 12, now + 4)]),
                )
                for _ in range(rng.choice([0, 2, 6]))
            ]
        )
    return made


def closing():
    return [("a", 99, 0, END), ("b", 99, 0, END)]


def show(database, shown):
    """Brings what each view has shown up to date. No row is ever taken back."""
    for name in shown:
        content = database.content(name)
        assert not shown[name] - content, f"{name} took rows back"
        shown[name] = content


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 0))
def test_final_rows(tmp_path, seed):
    rng, parallelism = random.Random(seed), 1 if seed % 2 else 3
    database, rule = Database(tmp_path / "db", parallelism), Rule()
    shown = {name: Counter() for name in QUERIES}
    for rows in [*history(rng), closing()]:
        database.epoch(rows)
        rule.epoch(rows)
        if rng.random() < 0.3:
            database.restart()
        show(database, shown)
        past = rule.number["a"]
        final = [
            (k, v, moment(s))
            for k, v, s in rule.kept["a"]
            if s is not None and past is not None and s < past and k < 90
        ]
        assert shown["plain"] == Counter(final), "rows come as soon as the watermark has passed them, and not before"
    for name, (_, batch) in QUERIES.items():
        assert shown[name] == rule.batch(batch), name
    assert database.state() == []
    database.connection.close()
    # The same rows, none of them late, cut in another way give the same.
    other = Database(tmp_path / "other", parallelism)
    kept = [(table, *row) for table, rows in rule.kept.items() for row in rows if row[0] < 90]
    kept.sort(key=lambda r: (r[3] is None, r[3] or 0))
    while kept:
        size = rng.choice([1, 5, 50])
        other.epoch(rng.sample(kept[:size], len(kept[:size])))
        kept = kept[size:]
    other.epoch(closing())
    for name in QUERIES:
        assert other.content(name) == shown[name], name
    assert other.state() == []
    other.connection.close()


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 1))
def test_rows_that_look_back_are_final(tmp_path, seed):
    rng, parallelism = random.Random(1000 + seed), 1 if seed % 2 else 3
    database, rule = Database(tmp_path, parallelism, BACK), Rule()
    shown = {name: Counter() for name in BACK}
    for rows in [*history(rng), closing()]:
        database.epoch(rows)
        rule.epoch(rows)
        show(database, shown)
    for name, (_, batch) in BACK.items():
        assert shown[name] == rule.batch(batch), name
    database.connection.close()
