"""The sessions of rows in the order of arrival, on random rows, against a loop over the rows."""

from __future__ import annotations

import random

import numpy as np

from watersmeet.circuit.operators import WindowFrame, WindowSpec
from watersmeet.kernel.operators import sessions

Given = tuple[int, bool, bool]  # time, opens, closes


def by_rows(rows: list[Given], gap: int, most: int, kept: int) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """The rows of closed sessions as (first row, row, start, end), and the rows that wait."""
    found: list[tuple[int, int, int, int]] = []
    current: tuple[int, int, list[int]] | None = None
    for i, (time, opens, closes) in enumerate(rows):
        if current is not None:
            first, latest, members = current
            begun, end = rows[first][0], None
            if time >= begun + most or time >= latest + gap:
                end = min(latest + gap, begun + most)
            elif closes:
                end = max(latest, time)
                members += [i] if kept & 2 else []
            if end is None:
                members.append(i)
                current = (first, max(latest, time), members)
                continue
            found += [(first, m, rows[members[0]][0], end) for m in members]
            current = None
        if opens:
            current = (i, time, [i] if kept & 1 else [])
    return found, [] if current is None else list(range(current[0], len(rows)))


def random_rows(rng: random.Random, *, conditions: bool) -> list[Given]:
    time, rows = rng.randint(0, 10), []
    for _ in range(rng.randint(1, 14)):
        time = max(0, time + rng.choice([0, 1, 2, 3, 7, -1, -4]))
        opens, closes = (rng.random() < 0.5, rng.random() < 0.25) if conditions else (True, False)
        rows.append((time, opens, closes))
    return rows


def test_the_sessions_are_those_of_a_loop_over_the_rows():
    rng = random.Random(7)
    for _ in range(400):
        conditions = rng.random() < 0.6
        keys = [random_rows(rng, conditions=conditions) for _ in range(rng.randint(1, 4))]
        gap, most = rng.randint(1, 6), rng.randint(1, 15)
        kept = rng.randrange(4) if conditions else 3
        expected, waiting, before = [], [], 0
        for rows in keys:
            found, waits = by_rows(rows, gap, most, kept)
            expected += [(first + before, row + before, start, end) for first, row, start, end in found]
            waiting += [w + before for w in waits]
            before += len(rows)
        times, opens, closes = (np.array([r[i] for rows in keys for r in rows]) for i in range(3))
        groups = np.repeat(np.arange(len(keys)), [len(rows) for rows in keys])
        none = np.zeros(before, np.int64)
        ordered = sessions._Ordered(np.arange(before), groups, none.astype(np.bool_), none, none)
        spec = WindowSpec("session_start", (0, 1, 2), kept, None, (), WindowFrame("range", gap, most, "none"))
        released = sessions._sessions(ordered, times, opens, closes, spec)
        columns = (released.openers, released.rows, released.starts, released.ends)
        assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == sorted(expected)
        assert np.flatnonzero(released.waits).tolist() == waiting
