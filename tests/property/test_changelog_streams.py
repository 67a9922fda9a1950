"""Streams of mode changelog without a key: rows that are taken back, against a list; views over them follow."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet


def taken_back(content, written):
    """The rows that are left of `content` when (row, sign) are written, or None if a row finds none to take back.

    A row is (k, v, hour). First equal rows meet, then those of equal (k, v): each that goes meets the last that came.
    """
    line = [(row, 1) for row in sorted(content, key=lambda r: r[2])] + written
    for same in (lambda r: r, lambda r: r[:2]):
        met: set[int] = set()
        for i, (row, sign) in enumerate(line):
            if sign < 0:
                found = [j for j in range(i) if line[j][1] > 0 and j not in met and same(line[j][0]) == same(row)]
                met |= {i, found[-1]} if found else set()
        line = [entry for i, entry in enumerate(line) if i not in met]
    return None if any(sign < 0 for _, sign in line) else [row for row, _ in line]


def value(row, sign):
    k, v, hour = row
    return f"({'NULL' if k is None else repr(k)}, {v}, '2024-01-01 {hour:02}:00:00', {sign})"


@pytest.mark.parametrize(
    ("seed", "statements"), [(6, 6), *(pytest.param(n, 30, marks=pytest.mark.slow) for n in (2, 3))]
)
def test_the_content_and_the_views_are_those_of_a_list(seed, statements, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
    connection.execute("CREATE STREAM c(k nullable(string), v int) SETTINGS mode = 'changelog'")
    connection.execute("CREATE MATERIALIZED VIEW s AS SELECT k, count() AS n, sum(v) AS total FROM c GROUP BY k")
    content: list[tuple] = []
    refused = 0
    for number in range(statements):
        if number == statements // 2:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        some = [(rng.choice(["a", "b", None]), rng.randrange(2), rng.randrange(3)) for _ in range(rng.randint(1, 6))]
        written = [(row, rng.choice([1, 1, -1]) if rng.random() < 0.5 else 1) for row in some]
        if content and rng.random() < 0.7:
            written += [(row, -1) for row in rng.sample(content, min(len(content), 4))]
        left = taken_back(content, written)
        text = f"INSERT INTO c(k, v, _tp_time, _tp_delta) VALUES {', '.join(value(*w) for w in written)}"
        if left is None:
            refused += 1
            with pytest.raises(watersmeet.Error, match="to take back"):
                connection.execute(text)
        else:
            content = left
            connection.execute(text)
        connection.flush()
        rows = connection.execute("SELECT k, v, to_hour(_tp_time) AS h FROM table(c)").fetchall()
        assert Counter(rows) == Counter(content)
        sums = {k: (len(of), sum(of)) for k in {r[0] for r in content} for of in [[r[1] for r in content if r[0] == k]]}
        found = connection.execute("SELECT k, n, total FROM table(s)").fetchall()
        assert {k: (n, total) for k, n, total in found} == sums
    assert 0 < refused < statements - 2
    connection.close()
