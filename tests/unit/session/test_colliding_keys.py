"""Keys whose hashes have the same top half, by which min, max and top-N find their rows: one in 4 billion pairs, some
among 200,000 keys.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import watersmeet
from watersmeet.kernel.arrays.hashing import hash_columns


@pytest.fixture(scope="module")
def keys() -> list[int]:
    """Four whole numbers, two and two alike."""
    tops = hash_columns([pa.array(np.arange(300_000))]) >> np.uint64(32)
    order = np.argsort(tops, kind="stable")
    first = np.flatnonzero(tops[order][1:] == tops[order][:-1])[:2]
    found = [int(order[i + more]) for i in first for more in (0, 1)]
    assert len(set(found)) == 4
    return found


@pytest.mark.slow
def test_top_n_and_extremes_of_keys_that_are_nearly_alike(keys):
    """Nothing of one key is taken for another's."""
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("""
            CREATE TABLE t (id int PRIMARY KEY, k bigint, x int); CREATE TABLE a (id int, k bigint, x int) APPEND ONLY;
            CREATE MATERIALIZED VIEW extremes AS SELECT k, min(x) AS low, max(x) AS high FROM t GROUP BY k;
            CREATE MATERIALIZED VIEW best AS SELECT k, x FROM (SELECT k, x, row_number() OVER (PARTITION BY k
                ORDER BY x, id) AS n FROM t) WHERE n <= 2;
            CREATE MATERIALIZED VIEW firsts AS SELECT k, x FROM (SELECT k, x, row_number() OVER (PARTITION BY k
                ORDER BY x, id) AS n FROM a) WHERE n <= 1""")
        rows: dict[int, tuple[int, int]] = {}
        came: dict[int, list[int]] = {k: [] for k in keys}
        rng = np.random.default_rng(5)
        for number in range(40):
            k, x = keys[number % 4], int(rng.integers(0, 50))
            rows[number] = (k, x)
            came[k].append(x)
            connection.execute(f"INSERT INTO t VALUES ({number}, {k}, {x}); INSERT INTO a VALUES ({number}, {k}, {x})")
            if number % 3 == 2:
                gone = int(rng.choice(list(rows)))
                del rows[gone]
                connection.execute(f"DELETE FROM t WHERE id = {gone}")
            connection.execute("FLUSH")
            values = {k: sorted(x for i, x in rows.values() if i == k) for k in keys}
            assert sorted(connection.execute("SELECT * FROM extremes").fetchall()) == sorted(
                (k, v[0], v[-1]) for k, v in values.items() if v
            )
            assert sorted(connection.execute("SELECT * FROM best").fetchall()) == sorted(
                (k, x) for k, v in values.items() for x in v[:2]
            )
            assert sorted(connection.execute("SELECT * FROM firsts").fetchall()) == sorted(
                (k, min(v)) for k, v in came.items() if v
            )
