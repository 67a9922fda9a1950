"""Windowed aggregates of SQLstream on random histories, against the rules in plain Python: s-Server, "WINDOW clause",
"Analytic Functions", "EXP_AVG", "LAG" (`SW-01` to `SW-12` of docs/rules/sqlstream.md).

Rows are inserted in random transactions, cut into random epochs, with restarts; some are earlier than a row before
them and are rejected. After each FLUSH the content is that of the rows so far: the cuts into epochs change nothing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import random
from collections import Counter
from fractions import Fraction

import pytest

import watersmeet
from tests.property.small import small
from tests.thorough import mostly_slow

SEEDS = range(16)
_START = dt.datetime(2019, 3, 30, 5, 0)
_FLOATS = [None, 0.1, 0.25, -3.5, 1e6, 7.0, 1e-3]
_WIDE = [None, 0.1, 1e16, -1e16, 3.0, 1e-9, 1e200]


def _exact(values):
    return sum(map(Fraction, values))


def _deviation(values, less):
    if len(values) <= less:
        return None
    mean = _exact(values) / len(values)
    return math.sqrt(_exact((Fraction(v) - mean) ** 2 for v in values) / (len(values) - less))


def _decayed(rows, now):
    weighted = [(x, 2.0 ** ((t - now) / 10)) for t, _, _, x in rows if x is not None]
    return sum(x * w for x, w in weighted) / sum(w for _, w in weighted) if weighted else None


def _at(values, number):
    return values[number] if -len(values) <= number < len(values) else None


def _of(column, function):
    """A function of the values that are not NULL; NULL without any."""

    def value(rows, _row):
        values = [v for v in (row[column] for row in rows) if v is not None]
        return function(values) if values else None

    return value


#: SQL of a function, and its value given the rows of the window, in order, and the row itself: (time, k, n, x).
FUNCTIONS = {
    "COUNT(*)": lambda rows, row: len(rows),
    "COUNT(x)": lambda rows, row: sum(r[3] is not None for r in rows),
    "COUNT(*) FILTER (WHERE n > 3)": lambda rows, row: sum(r[2] > 3 for r in rows),
    "COUNT(DISTINCT n)": lambda rows, row: len({r[2] for r in rows}),
    "COUNT(DISTINCT x)": lambda rows, row: len({r[3] for r in rows} - {None}),
    "SUM(n)": _of(2, sum),
    "SUM(x)": _of(3, math.fsum),
    "AVG(x)": _of(3, lambda v: math.fsum(v) / len(v)),
    "MIN(n)": _of(2, min),
    "MAX(x)": _of(3, max),
    "STDDEV_POP(x)": _of(3, lambda v: _deviation(v, 0)),
    "STDDEV(x)": _of(3, lambda v: _deviation(v, 1)),
    "FIRST_VALUE(x)": lambda rows, row: _at([r[3] for r in rows], 0),
    "FIRST_VALUE(x) IGNORE NULLS": lambda rows, row: _at([r[3] for r in rows if r[3] is not None], 0),
    "LAST_VALUE(n)": lambda rows, row: _at([r[2] for r in rows], -1),
    "NTH_VALUE(n, 2)": lambda rows, row: _at([r[2] for r in rows], 1),
    "NTH_VALUE(x, 2) FROM FIRST IGNORE NULLS": lambda rows, row: _at([r[3] for r in rows if r[3] is not None], 1),
    "NTH_VALUE(x, 2) FROM LAST": lambda rows, row: _at([r[3] for r in rows], -2),
    "NTH_VALUE(x, 3) FROM LAST RESPECT NULLS": lambda rows, row: _at([r[3] for r in rows], -3),
    "NTH_VALUE(x, 2) FROM LAST IGNORE NULLS": lambda rows, row: _at([r[3] for r in rows if r[3] is not None], -2),
    "EXP_AVG(x, INTERVAL '10' SECOND)": lambda rows, row: _decayed(rows, row[0]),
}
#: LAG reads the rows of the window before the row.
LAGS = {
    "LAG(n)": lambda rows, row: _at([r[2] for r in rows], -1),
    "LAG(x, 2, -9.5)": lambda rows, row: rows[-2][3] if len(rows) >= 2 else -9.5,
    "LAG(x) IGNORE NULLS": lambda rows, row: _at([r[3] for r in rows if r[3] is not None], -1),
}


def _window(rng):
    """SQL of a frame, whether it ends with the row itself, and which of the earlier rows it has."""
    begin, end = rng.choice([(0, 0), (5, 0), (20, 0), (60, 0), (20, 5), (60, 20), (300, 1)])
    kind = rng.choice(["range", "range", "rows", "unit", "all"])
    if kind == "range" and end:
        sql = f"RANGE BETWEEN INTERVAL '{begin}' SECOND PRECEDING AND INTERVAL '{end}' SECOND PRECEDING"
        return sql, False, lambda rows, t: [r for r in rows if t - begin <= r[0] <= t - end]
    if kind == "range":
        sql = f"RANGE INTERVAL '{begin}' SECOND PRECEDING" if begin else "RANGE CURRENT ROW"
        return sql, True, lambda rows, t: [r for r in rows if r[0] >= t - begin]
    if kind == "rows":
        first = rng.choice([0, 1, 3, 7])
        last = rng.choice([0, 0, 1]) if first else 0
        sql = f"ROWS BETWEEN {first} PRECEDING AND {last} PRECEDING" if last else f"ROWS {first} PRECEDING"
        return sql, not last, lambda rows, t: rows[max(0, len(rows) - first) :]  # the last one is 1 preceding
    if kind == "unit":
        sql = "ORDER BY FLOOR(s.ROWTIME TO MINUTE) RANGE CURRENT ROW"
        return sql, True, lambda rows, t: [r for r in rows if r[0] // 60 == t // 60]
    return "", True, lambda rows, t: rows


class Case:
    """A view with a few functions over one window, and what the rules say of it."""

    def __init__(self, rng, name, *, values):
        self.name = name
        partition = rng.choice(["PARTITION BY k", "PARTITION BY k", ""])
        self.by_key = bool(partition)
        frame, self.whole, self.earlier = _window(rng)
        chosen = rng.sample(sorted(FUNCTIONS), 5)
        if values is _WIDE:  # doubles lose digits there
            chosen = [c for c in chosen if not c.startswith(("STDDEV", "EXP"))]
        self.functions = [(c, FUNCTIONS[c]) for c in chosen]
        self.lags = [(c, LAGS[c]) for c in rng.sample(sorted(LAGS), 1)] if self.whole else []
        self.where = rng.choice(["", "", " WHERE n <> 2"])
        texts = [c for c, _ in [*self.functions, *self.lags]]
        items = ", ".join(f"{text} OVER w AS c{i}" for i, text in enumerate(texts))
        self.sql = f"SELECT STREAM s.ROWTIME, k, n, x, {items} FROM s{self.where} WINDOW w AS ({partition} {frame})"
        self.columns = ", ".join(f"c{i}" for i in range(len(texts)))

    def expected(self, rows):
        found, before = [], []
        for row in rows:
            if self.where and row[2] == 2:
                continue
            mine = [r for r in before if not self.by_key or r[1] == row[1]]
            earlier = self.earlier(mine, row[0])
            window = [*earlier, row] if self.whole else earlier
            values = [f(window, row) for _, f in self.functions] + [f(earlier, row) for _, f in self.lags]
            found.append((*row, *values))
            before.append(row)
        return found


def _rounded(row):
    return tuple(float(f"{v:.9g}") if i > 3 and isinstance(v, float) else v for i, v in enumerate(row))


def _sql(value):
    return "NULL" if value is None else f"CAST('{value}' AS DOUBLE)" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 3))
def test_windows(seed, tmp_path):
    rng = random.Random(seed)
    values = _WIDE if seed % 4 == 3 else _FLOATS
    connection = watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess", parallelism=rng.choice([1, 3]))
    try:
        connection.execute("CREATE STREAM s (k INTEGER, n INTEGER, x DOUBLE)")
        cases = [Case(rng, f"v{i}", values=values) for i in range(5)]
        for case in cases:
            connection.execute(f"CREATE MATERIALIZED VIEW {case.name} AS {case.sql}")
        rows, now = [], 0
        with small() if seed % 3 == 2 else contextlib.nullcontext():
            for _ in range(rng.randint(8, 16)):
                batch = []
                for _ in range(rng.randint(1, 5)):
                    now += rng.choice((0, 0, 1, 3, 7, 40))
                    late = rng.randint(1, 5) if rng.random() < 0.08 else 0
                    k = None if rng.random() < 0.1 else rng.randrange(3)
                    batch.append((now - late, k, rng.randrange(9), rng.choice(values)))
                texts = [
                    f"(TIMESTAMP '{_START + dt.timedelta(seconds=t)}', {_sql(k)}, {n}, {_sql(x)})"
                    for t, k, n, x in batch
                ]
                connection.execute(f"INSERT INTO s (ROWTIME, k, n, x) VALUES {', '.join(texts)}")
                for row in batch:
                    if not rows or row[0] >= rows[-1][0]:
                        rows.append(row)
                if rng.random() < 0.6:
                    connection.execute("FLUSH")
                if rng.random() < 0.2:
                    _check(connection, cases, rows)
                if rng.random() < 0.1:
                    connection.close()
                    connection = watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess")
            _check(connection, cases, rows)
    finally:
        connection.close()


def _check(connection, cases, rows):
    connection.execute("FLUSH")
    for case in cases:
        found = connection.execute(f"SELECT ROWTIME, k, n, x, {case.columns} FROM {case.name}").fetchall()
        ours = Counter(_rounded((int((t - _START).total_seconds()), *rest)) for t, *rest in found)
        theirs = Counter(map(_rounded, case.expected(rows)))
        assert ours == theirs, f"{case.sql}\nmissing {theirs - ours}\nsurplus {ours - theirs}"
