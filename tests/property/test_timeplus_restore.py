"""LEFT JOIN of keyed streams with `join_restore_nulls` = 1 and 0 on random histories, against the rules in plain
Python; Proton.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_restored_nulls(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    mode = rng.choice(["versioned_kv", "changelog_kv"])
    connection.execute(f"CREATE STREAM l(id int, k nullable(int), n int) PRIMARY KEY id SETTINGS mode='{mode}'")
    connection.execute(f"CREATE STREAM r(id int, k int, v int) PRIMARY KEY id SETTINGS mode='{mode}'")
    for restore in (0, 1):
        connection.execute(
            f"CREATE MATERIALIZED VIEW v{restore} AS SELECT l.id, l.n, r.id AS rid, r.v FROM l LEFT JOIN r "
            f"ON l.k = r.k AND l.n <> r.v "
            f"SETTINGS join_restore_nulls = {restore}"
        )
    lefts: dict[int, tuple] = {}
    rights: dict[int, tuple] = {}
    met: set[tuple] = set()
    number = 0
    for _ in range(rng.randint(20, 50)):
        if rng.random() < 0.07:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        name, rows = ("l", lefts) if rng.random() < 0.4 else ("r", rights)
        if rows and rng.random() < 0.4:
            key = rng.choice(list(rows))
            del rows[key]
            connection.execute(f"DELETE FROM {name} WHERE id = {key}; FLUSH")
        else:
            number += 1
            row = (
                rng.randrange(4),
                rng.choice([1, 2, None] if name == "l" else [1, 2]),
                number if name == "l" else rng.randrange(3),
            )
            rows[row[0]] = row
            values = ", ".join("NULL" if v is None else str(v) for v in row)
            connection.execute(
                f"INSERT INTO {name}({'id, k, n' if name == 'l' else 'id, k, v'}) VALUES ({values}); FLUSH"
            )
        pairs = [
            (a, b)
            for a in lefts.values()
            for b in rights.values()
            if a[1] is not None and a[1] == b[1] and a[2] != b[2]
        ]
        met |= {a for a, _ in pairs}
        shown = Counter((a[0], a[2], b[0], b[2]) for a, b in pairs)
        for restore, alone in ((1, {a for a, _ in pairs}), (0, met)):
            expected = shown + Counter((a[0], a[2], None, None) for a in lefts.values() if a not in alone)
            assert Counter(connection.execute(f"SELECT * FROM table(v{restore})").fetchall()) == expected, restore
    connection.close()
