"""Functions that go by the order in which rows came, on random histories, against a list of rows in plain Python.

Rows are cut into INSERTs, transactions and FLUSHes, with checkpoints and restarts between; each epoch is run again with
its input in another order and in other tasks (`test_replay.Again`), and has to give the same. Views that are made later
see the history in the same order, and so do queries that end. Timeplus goes by arrival, SQLstream by ROWTIME and then
by arrival.
"""

from __future__ import annotations

import random

import pytest

import watersmeet
from tests.property.test_replay import Again
from tests.thorough import mostly_slow
from watersmeet.runtime import inprocess

SEEDS = range(12)


def rounds(seed: int, rng: random.Random) -> int:
    """How many times rows come: few for the seed that is always tried."""
    return 3 if seed == SEEDS[0] else rng.randint(5, 9)


@pytest.fixture(autouse=True)
def replays(monkeypatch):
    again = Again(1)
    monkeypatch.setattr(inprocess, "run_epoch", again.run_epoch)
    yield
    assert again.epochs


TIMEPLUS = {
    "ends": "SELECT k, earliest(v) AS a, latest(v) AS b, group_array(v) AS c FROM s GROUP BY k",
    "lags": "SELECT n, lag(v) OVER (PARTITION BY k) AS p, lag(v, 2, -1) OVER (PARTITION BY k) AS pp FROM s",
    "filtered": "SELECT n, lag(v) AS p FROM s WHERE v > 2",
    "numbers": "SELECT n, row_number() OVER (PARTITION BY k) AS p, "
    "sum(v) OVER (PARTITION BY k ROWS 1 PRECEDING) AS q FROM s",
    "twice": "SELECT n, lag(p) AS q FROM (SELECT n, k, lag(v) AS p FROM s WHERE v > 1 PARTITION BY k) PARTITION BY k",
    "across": "SELECT n, lag(p) AS q FROM (SELECT n, lag(v) AS p FROM s PARTITION BY k)",
}


def expected_timeplus(rows: list[tuple[int, int, int]]) -> dict[str, list[tuple]]:
    """rows: (n, k, v) as they came."""
    of: dict[int, list[int]] = {}
    lags, numbers = [], []
    for n, k, v in rows:
        before = of.setdefault(k, [])
        lags.append((n, before[-1] if before else 0, before[-2] if len(before) > 1 else -1))
        numbers.append((n, len(before) + 1, v + (before[-1] if before else 0)))
        before.append(v)
    kept = [(n, v) for n, _, v in rows if v > 2]
    twice, lists = [], {}
    for n, k, v in rows:
        if v > 1:
            before = lists.setdefault(k, [])
            twice.append((n, before[-2] if len(before) > 1 else 0))
            before.append(v)
    return {
        "twice": sorted(twice),
        "across": [(n, lags[i - 1][1] if i else 0) for i, (n, _, _) in enumerate(rows)],
        "ends": sorted((k, vs[0], vs[-1], vs) for k, vs in of.items()),
        "lags": sorted(lags),
        "filtered": [(n, kept[i - 1][1] if i else 0) for i, (n, _) in enumerate(kept)],
        "numbers": sorted(numbers),
    }


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 1))
def test_by_arrival(tmp_path, seed):
    rng, parallelism = random.Random(seed), 3 if seed % 2 == 0 else 1

    def connect():
        return watersmeet.connect(tmp_path, "timeplus", runtime="inprocess", parallelism=parallelism)

    def late(name: str) -> str:
        return f"CREATE MATERIALIZED VIEW late_{name} AS {TIMEPLUS[name]} SETTINGS seek_to = 'earliest'"

    connection = connect()
    connection.execute("CREATE STREAM s (n int, k int, v int)")
    for name, query in TIMEPLUS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    rows: list[tuple[int, int, int]] = []
    made: list[str] = []
    for _ in range(rounds(seed, rng)):
        # equal rows, too, which a stored change may hold as one
        new = [(len(rows) + i, rng.randrange(3), rng.randrange(5)) for i in range(rng.randint(1, 7))]
        rows += new
        explicit = rng.random() < 0.4
        if explicit:
            connection.execute("BEGIN")
        cuts = sorted(rng.sample(range(1, len(new)), rng.randint(0, len(new) - 1)))
        for start, end in zip([0, *cuts], [*cuts, len(new)], strict=True):
            connection.execute("INSERT INTO s(n, k, v) VALUES " + ", ".join(map(str, new[start:end])))
        flushed = not explicit and rng.random() < 0.6
        if flushed:
            connection.execute("FLUSH")
        if explicit or flushed:  # else the query may not see them yet
            read = rng.choice(sorted(TIMEPLUS))
            bounded = TIMEPLUS[read].replace("FROM s", "FROM table(s)")
            assert sorted(connection.execute(bounded).fetchall()) == expected_timeplus(rows)[read], read
        if explicit:
            connection.execute("COMMIT")
        if rng.random() < 0.2:
            connection._session.database._compactor.run()
        if rng.random() < 0.2:
            connection.close()
            connection = connect()
        if rng.random() < 0.3 and len(made) < len(TIMEPLUS):
            made.append(sorted(TIMEPLUS)[len(made)])
            connection.execute(late(made[-1]))
    connection.execute("FLUSH")
    check = expected_timeplus(rows)
    for name in [*TIMEPLUS, *(f"late_{n}" for n in made)]:
        found = sorted(connection.execute(f"SELECT * EXCEPT (_tp_time) FROM table({name})").fetchall())
        assert found == check[name.removeprefix("late_")], name
    connection.close()


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 1))
def test_by_rowtime(tmp_path, seed):
    rng, parallelism = random.Random(seed), 3 if seed % 2 == 0 else 1
    connection = watersmeet.connect(tmp_path, "sqlstream", runtime="inprocess", parallelism=parallelism)
    connection.execute("CREATE STREAM st (k INTEGER, v INTEGER)")
    connection.execute(
        "CREATE MATERIALIZED VIEW ends AS SELECT STREAM FLOOR(st.ROWTIME TO SECOND) AS s, k, FIRST_VALUE(v) AS a, "
        "LAST_VALUE(v) AS b FROM st GROUP BY FLOOR(st.ROWTIME TO SECOND), k"
    )
    groups: dict[tuple[int, int], list[int]] = {}
    moment_ms = 0
    for _ in range(rounds(seed, rng)):
        parts = []
        for _ in range(rng.randint(1, 6)):
            moment_ms += rng.choice([0, 0, 300, 900])
            k, v = rng.randrange(2), rng.randrange(50)
            groups.setdefault((moment_ms // 1000, k), []).append(v)
            parts.append(f"(TIMESTAMP '2024-01-01 00:00:{moment_ms // 1000:02d}.{moment_ms % 1000:03d}', {k}, {v})")
        connection.execute("INSERT INTO st (ROWTIME, k, v) VALUES " + ", ".join(parts))
        if rng.random() < 0.6:
            connection.execute("FLUSH")
    connection.execute("FLUSH")
    wanted = sorted((s, k, vs[0], vs[-1]) for (s, k), vs in groups.items())
    bounded = (
        "SELECT EXTRACT(SECOND FROM FLOOR(ROWTIME TO SECOND)), k, FIRST_VALUE(v), LAST_VALUE(v) FROM st "
        "GROUP BY FLOOR(ROWTIME TO SECOND), k"
    )
    assert sorted(tuple(map(int, r)) for r in connection.execute(bounded).fetchall()) == wanted
    connection.execute("INSERT INTO st (ROWTIME, k, v) VALUES (TIMESTAMP '2024-01-01 01:00:00', 9, 9)")
    connection.execute("FLUSH")
    found = connection.execute("SELECT EXTRACT(SECOND FROM s), k, a, b FROM ends").fetchall()
    assert sorted(tuple(map(int, r)) for r in found) == wanted
    connection.close()
