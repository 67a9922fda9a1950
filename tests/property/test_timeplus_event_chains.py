"""`window_funnel`, `sequence_match` and `sequence_count` in views over changing rows, against plain Python."""

from __future__ import annotations

import random

import pytest

import watersmeet

CONDITIONS = {"a": lambda e: e == 0, "b": lambda e: e in (1, 2), "c": lambda e: e >= 2}


def funnel(rows, window):
    """The most conditions that a chain of rows meets, by trying each row as the first one."""
    events = sorted((t, i) for t, e in rows for i, met in enumerate(CONDITIONS.values()) if met(e))
    best = 0
    for begin, (start, first) in enumerate(events):
        if first != 0:
            continue
        reached = 1
        for t, i in events[begin + 1 :]:
            if i == reached and t <= start + window:
                reached += 1
        best = max(best, reached)
    return best


def matched(rows, *, neighbors):
    """Whether a row that meets a is followed by one that meets c: at once, or at any later place."""
    tests = [(CONDITIONS["a"](e), CONDITIONS["c"](e)) for _, e in sorted(rows) if e != 9]
    pairs = [(i, j) for i, one in enumerate(tests) for j, other in enumerate(tests) if i < j and one[0] and other[1]]
    return any(j == i + 1 for i, j in pairs) if neighbors else bool(pairs)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5))])
def test_chains_of_events_follow_their_rows(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
    connection.execute("CREATE MUTABLE STREAM s(id int, u int, t int, e int) PRIMARY KEY id")
    connection.execute("""
        CREATE MATERIALIZED VIEW v AS SELECT u, window_funnel(10)(t, e = 0, e IN (1, 2), e >= 2 AND e != 9) AS funnel,
            sequence_match('(?1)(?2)')(t, e = 0, e >= 2 AND e != 9, e = 1) AS near,
            sequence_match('(?1).*(?2)')(t, e = 0, e >= 2 AND e != 9, e = 1) AS far,
            sequence_count('(?1)')(t, e = 0, e = 1) AS zeros
        FROM s GROUP BY u
    """)
    content = {}
    times = rng.sample(range(60), 60)  # no two rows have the same time: their order would be open
    for number in range(6):
        if number == 3:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        written = {}
        for _ in range(rng.randint(1, 6)):
            key = rng.randrange(12)
            written[key] = (rng.randrange(2), times.pop(), rng.choice((0, 0, 1, 2, 3, 9)))
        content |= written
        connection.execute("INSERT INTO s(id, u, t, e) VALUES " + ", ".join(str((k, *r)) for k, r in written.items()))
        connection.flush()
        expected = set()
        for user in {row[0] for row in content.values()}:
            rows = [(t, e) for u, t, e in content.values() if u == user]
            shown = [(t, e) for t, e in rows if e != 9]
            zeros = sum(e == 0 for _, e in rows)
            near, far = matched(rows, neighbors=True), matched(rows, neighbors=False)
            expected.add((user, funnel(shown, 10), near, far, zeros))
        assert set(connection.execute("SELECT u, funnel, near, far, zeros FROM table(v)").fetchall()) == expected
    connection.close()
