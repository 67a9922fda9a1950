"""ROWTIMEs that a query computes, and streams sorted by time, against the rules in plain Python: s-Server, "Late Rows",
"T-sorting Stream Input", "UNION ALL"; and "TOP_K_ITEMS_TUMBLING".

Rows of two streams arrive in random transactions, cut into random epochs, with restarts; each epoch runs again with its
input in another order and in other tasks (`test_replay.Again`). A time may be missing, no time at all, earlier than
those before it, or centuries ahead. After each FLUSH the content follows from the rows so far, in the order of arrival.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

import watersmeet
from tests.property.test_replay import Again
from tests.thorough import mostly_slow
from watersmeet.runtime import inprocess

SEEDS = range(16)
_AHEAD = 10**9  # a second of the year 2055: it moves no clock


@pytest.fixture(autouse=True)
def replays(monkeypatch):
    again = Again(1)
    monkeypatch.setattr(inprocess, "run_epoch", again.run_epoch)
    yield
    assert again.epochs


@dataclass
class Timed:
    """The rows of a stream with the time that becomes their ROWTIME, in the order of arrival."""

    rows: list[tuple[int, int]]  # the rows that are not late: time and value
    late: int
    greatest: int | None
    within: int

    @property
    def bound(self) -> int | None:
        """No later row is earlier than this time."""
        return None if self.greatest is None else self.greatest - self.within

    def reached(self, bound: int | None) -> list[tuple[int, int]]:
        return [] if bound is None else [r for r in self.rows if r[0] <= bound]


def timed(rows, within=0) -> Timed:
    """rows: time (None: unknown) and value of each row that passes WHERE."""
    found = Timed([], 0, None, within)
    for time, value in rows:
        if time is None or (found.greatest is not None and time < found.greatest - within):
            found.late += 1
            continue
        found.rows.append((time, value))
        if time < _AHEAD:
            found.greatest = time if found.greatest is None else max(found.greatest, time)
    return found


SETUP = """
CREATE STREAM a (ts TIMESTAMP, v INTEGER, at_text VARCHAR(30));
CREATE STREAM b (ts TIMESTAMP, v INTEGER, at_text VARCHAR(30));
CREATE VIEW sorted_a AS SELECT STREAM ts AS ROWTIME, v FROM a ORDER BY a.ts WITHIN INTERVAL '4' SECOND;
CREATE VIEW sorted_b AS SELECT STREAM CAST(at_text AS TIMESTAMP) + INTERVAL '1' SECOND AS ROWTIME, v FROM b
    WHERE v <> 2 ORDER BY ROWTIME WITHIN INTERVAL '2' SECOND;
CREATE STREAM pumped (v INTEGER);
CREATE PUMP pu STARTED AS INSERT INTO pumped (v, ROWTIME)
    SELECT STREAM v, CASE WHEN v = 1 THEN ts ELSE ts - INTERVAL '2' SECOND END FROM a
    WHERE ts < TIMESTAMP '2050-01-01 00:00:00';
CREATE STREAM pumped_sorted (v INTEGER);
CREATE PUMP ps STARTED AS INSERT INTO pumped_sorted SELECT STREAM v FROM sorted_b;
"""

VIEWS = {
    "promoted": "SELECT STREAM ts AS ROWTIME, v FROM a WHERE v <> 2",
    "computed": "SELECT STREAM CAST(x.at_text AS TIMESTAMP) AS ROWTIME, v + 1 AS v "
    "FROM (SELECT STREAM at_text, v FROM a WHERE v <> 3) AS x WHERE v < 4",
    "by_column": "SELECT STREAM ROWTIME, v FROM sorted_a",
    "by_expression": "SELECT STREAM * FROM sorted_b",
    "by_alias": "SELECT STREAM v, ts AS ROWTIME FROM a ORDER BY ts WITHIN INTERVAL '0' SECOND, v",
    "delayed": "SELECT STREAM v FROM b ORDER BY b.ROWTIME WITHIN INTERVAL '3' SECOND",
    "grouped": "SELECT STREAM ROWTIME, SUM(v) AS v FROM sorted_a AS s GROUP BY STEP(s.ROWTIME BY INTERVAL '5' SECOND)",
    "windowed": "SELECT STREAM ROWTIME, SUM(v) OVER (ROWS 1 PRECEDING) AS v FROM sorted_a",
    "joined": "SELECT STREAM ROWTIME, x.v FROM sorted_a OVER (RANGE INTERVAL '2' SECOND PRECEDING) AS x "
    "JOIN sorted_b OVER (RANGE INTERVAL '1' SECOND PRECEDING) AS y ON x.v = y.v",
    "merged": "SELECT STREAM ROWTIME, v FROM sorted_a UNION ALL SELECT STREAM ts AS ROWTIME, v FROM b",
    "top_items": "SELECT STREAM t.ROWTIME, CAST(t.ITEM AS INTEGER) * 100 + t.ITEM_COUNT AS v FROM TABLE("
    "TOP_K_ITEMS_TUMBLING(CURSOR(SELECT STREAM v, 1 AS one FROM sorted_a WHERE v <> 5), 'V', 2, 5)) AS t",
    "merged_streams": "SELECT STREAM v FROM a UNION ALL SELECT STREAM v FROM b",
}


def expected(a, b):
    """The rows of each view, and the number of late rows where it is told. a, b: the rows (rowtime, ts, v, time of the
    text) of the streams."""
    promoted = timed((ts, v) for _, ts, v, _ in a if v != 2)
    computed = timed((at, v + 1) for _, _, v, at in a if v < 4 and v != 3)
    sorted_a = timed(((ts, v) for _, ts, v, _ in a), 4)
    sorted_b = timed(((None if at is None else at + 1, v) for _, _, v, at in b if v != 2), 2)
    by_alias = timed((ts, v) for _, ts, v, _ in a)
    ts_b = timed((ts, v) for _, ts, v, _ in b)
    pumped = timed((ts - 2 * (v != 1), v) for _, ts, v, _ in a if ts is not None and ts < _AHEAD)
    of_a, of_b = sorted_a.reached(sorted_a.bound), sorted_b.reached(sorted_b.bound)
    groups: dict[int, int] = {}
    counts: dict[int, Counter] = {}
    for time, value in sorted_a.rows:
        end = time - time % 5 + 5
        if sorted_a.bound is not None and end <= sorted_a.bound:
            groups[end] = groups.get(end, 0) + value
            counts.setdefault(end, Counter()).update([value] if value != 5 else [])
    most = [(end, sorted(of.items(), key=lambda item: (-item[1], str(item[0])))[:2]) for end, of in counts.items()]
    in_order = sorted(sorted_a.rows, key=lambda r: r[0])  # equal times stay in the order of arrival
    sums = [(t, v + (in_order[i - 1][1] if i else 0)) for i, (t, v) in enumerate(in_order)]
    known = sorted_a.bound is not None and sorted_b.bound is not None
    clock = min(sorted_a.bound, sorted_b.bound) if known else None
    pairs = [(max(t, u), v) for t, v in sorted_a.rows for u, w in sorted_b.rows if v == w and u - t <= 2 and t - u <= 1]
    both = sorted_a.bound is not None and ts_b.bound is not None
    merged = min(sorted_a.bound, ts_b.bound) if both else None
    last_a, last_b = max((r[0] for r in a), default=None), max((r[0] for r in b), default=None)
    reached = None if last_a is None or last_b is None else min(last_a, last_b)
    found = {
        "promoted": promoted.rows,
        "computed": computed.rows,
        "by_column": of_a,
        "by_expression": of_b,
        "by_alias": by_alias.reached(by_alias.bound),
        "delayed": [(t, v) for t, _, v, _ in b if t <= last_b - 3],
        "grouped": list(groups.items()),
        "windowed": [r for r in sums if sorted_a.bound is not None and r[0] < sorted_a.bound],
        "joined": [p for p in pairs if clock is not None and p[0] <= clock],
        "top_items": [(end, value * 100 + count) for end, items in most for value, count in items],
        "merged": sorted_a.reached(merged) + ts_b.reached(merged),
        "merged_streams": [(t, v) for t, _, v, _ in (*a, *b) if reached is not None and t <= reached],
        "pumped": pumped.rows,
        "pumped_sorted": of_b,
    }
    late = {
        "PROMOTED": promoted, "COMPUTED": computed, "BY_COLUMN": sorted_a, "BY_EXPRESSION": sorted_b,
        "BY_ALIAS": by_alias, "PU": pumped, "PS": sorted_b,
    }  # fmt: skip
    return found, {name: part.late for name, part in late.items()}


def _time(seconds: int) -> str:
    return f"2024-01-01 00:{seconds // 60:02d}:{seconds % 60:02d}" if seconds < _AHEAD else "2055-01-01 00:00:00"


def _row(row) -> str:
    rowtime, ts, v, at = row
    time = "NULL" if ts is None else f"TIMESTAMP '{_time(ts)}'"
    text = "NULL" if at is None and v % 2 else "'no time'" if at is None else f"'{_time(at)}'"
    return f"(TIMESTAMP '{_time(rowtime)}', {time}, {v}, {text})"


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 1))
def test_rowtimes(tmp_path, seed):
    rng = random.Random(seed)

    def connect():
        return watersmeet.connect(tmp_path, "sqlstream", runtime="inprocess", parallelism=rng.choice([1, 3]))

    def some_time():
        if rng.random() < 0.05:
            return rng.choice([None, _AHEAD])
        return max(0, moment * 2 + rng.randint(-6, 4))

    connection = connect()
    connection.execute(SETUP)
    chosen = sorted(VIEWS) if seed % 4 == 3 else rng.sample(sorted(VIEWS), 6)
    for name in chosen:
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]}")
    rows: dict[str, list] = {"a": [], "b": []}
    moment = 0
    for _ in range(rng.randint(6, 10)):
        stream = rng.choice("ab")
        batch = []
        for _ in range(rng.randint(1, 6)):
            moment += rng.choice([0, 0, 1, 2])
            batch.append((moment, some_time(), rng.randrange(6), some_time()))
        rows[stream] += batch
        connection.execute(f"INSERT INTO {stream} (ROWTIME, ts, v, at_text) VALUES {', '.join(map(_row, batch))}")
        if rng.random() < 0.5:
            connection.execute("FLUSH")
        if rng.random() < 0.15:
            connection.close()
            connection = connect()
        if rng.random() < 0.2:
            _check(connection, chosen, rows)
    _check(connection, chosen, rows)
    connection.close()


def _check(connection, chosen, rows):
    connection.execute("FLUSH")
    content, late = expected(rows["a"], rows["b"])
    for name in (*chosen, "pumped", "pumped_sorted"):
        found = connection.execute(
            "SELECT CAST(TSDIFF(TIMESTAMP '2024-01-01 00:00:00', ROWTIME) / 1000 AS INTEGER), v FROM " + name
        ).fetchall()
        ours, theirs = (sorted((min(t, 10**6), v) for t, v in rows) for rows in (found, content[name]))
        assert ours == theirs, VIEWS.get(name, name)
    for job in connection.execute("SHOW JOBS").fetchall():
        if job[0] in late:
            wanted = f"{late[job[0]]} rows were late and were dropped" if late[job[0]] else None
            assert (job[11] or "").split(";")[0] == (wanted or ""), job
