"""Aggregates of Timeplus over all values of a group, under changes of the rows, restarts and any cut into epochs.

The model is written from the documentation ("Aggregation") alone. Rows of a keyed stream are in no order: lists are in
the order of the values.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate

import pytest

import watersmeet

#: Each call with its value for the rows (x, y) of a group.
CALLS = {
    "group_array(x)": lambda rows: sorted(x for x, _ in rows),
    "array_sort(group_uniq_array(x))": lambda rows: sorted({x for x, _ in rows}),
    "group_array_sorted(2)(x)": lambda rows: sorted(x for x, _ in rows)[:2],
    "group_array_if(x, y > 1)": lambda rows: sorted(x for x, y in rows if y > 1),
    "max_k(x, 2)": lambda rows: sorted((x for x, _ in rows), reverse=True)[:2],
    "min_k(x, 2, y)": lambda rows: [{"1": x, "2": y} for x, y in sorted(rows)[:2]],
    "top_k(x, 2)": lambda rows: [{"1": x, "2": n} for x, n in ranked(rows)[:2]],
    "top_k(x, 2, false)": lambda rows: [x for x, _ in ranked(rows)[:2]],
    "moving_sum(x)": lambda rows: list(accumulate(sorted(x for x, _ in rows))),
    "quantile_exact(0.9)(x)": lambda rows: sorted(x for x, _ in rows)[min(int(len(rows) * 0.9), len(rows) - 1)],
    "quantiles(0, 1)(x)": lambda rows: [float(min(rows)[0]), float(max(rows)[0])],
    "unique(x, y)": lambda rows: len(set(rows)),
    "sum_distinct(x)": lambda rows: sum({x for x, _ in rows}),
    "arg_max(x, y)": lambda rows: min(x for x, y in rows if y == max(z for _, z in rows)),
    "array_map(v -> v + max(y), group_array(x))": lambda rows: sorted(x + max(z for _, z in rows) for x, _ in rows),
}


def ranked(rows):
    """The values with their counts: the most frequent first, then by value."""
    return sorted(Counter(x for x, _ in rows).items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize(("seed", "steps"), [(1, 4), *(pytest.param(n, 12, marks=pytest.mark.slow) for n in (2, 3))])
def test_lists_follow_changed_rows(seed, steps, tmp_path):
    rng = random.Random(seed)

    def open_database():
        connection = watersmeet.connect(
            tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 2])
        )
        connection.show_own_writes()
        return connection

    connection = open_database()
    connection.execute("CREATE MUTABLE STREAM s (id int, k string, x int, y int) PRIMARY KEY id")
    named = ", ".join(f"{call} AS c{i}" for i, call in enumerate(CALLS))
    connection.execute(f"CREATE MATERIALIZED VIEW v AS SELECT k, {named} FROM s GROUP BY k")
    content: dict[int, tuple] = {}
    for number in range(steps):
        if number == steps // 2:
            connection.close()
            connection = open_database()
        for _ in range(rng.randint(1, 3)):
            rows = {rng.randrange(12): (rng.choice("ab"), rng.randrange(4), rng.randrange(4)) for _ in range(4)}
            content |= rows
            values = ", ".join(f"({key}, '{k}', {x}, {y})" for key, (k, x, y) in rows.items())
            connection.execute(f"INSERT INTO s (id, k, x, y) VALUES {values}")
            if rng.random() < 0.3:
                gone = rng.randrange(12)
                content.pop(gone, None)
                connection.execute(f"DELETE FROM s WHERE id = {gone}")
            if rng.random() < 0.5:
                connection.flush()
        groups: dict[str, list] = {}
        for k, x, y in content.values():
            groups.setdefault(k, []).append((x, y))
        expected = sorted((k, *(model(rows) for model in CALLS.values())) for k, rows in groups.items())
        assert sorted(connection.execute("SELECT * FROM table(v)").fetchall()) == expected
        query = f"SELECT k, {named} FROM table(s) GROUP BY k"
        assert sorted(connection.execute(query).fetchall()) == expected
    connection.close()
