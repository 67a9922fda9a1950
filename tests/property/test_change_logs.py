"""WITH … AS CHANGELOG FROM: the log of a view is that of a plain-Python model, epoch by epoch, through restarts.

RisingWave, "AS CHANGELOG".
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from tests.thorough import mostly_slow

SETUP = """
    CREATE TABLE t (k int PRIMARY KEY, v int);
    CREATE TABLE bag (k int, v int);
    INSERT INTO t VALUES (100, 1);
    INSERT INTO bag VALUES (100, 1), (100, 1);
    CREATE MATERIALIZED VIEW of_t AS
        WITH log AS CHANGELOG FROM t SELECT *, _changelog_row_id AS r FROM log WHERE v < 3;
    CREATE VIEW sums AS SELECT v, count(*) AS n FROM bag GROUP BY v;
    CREATE MATERIALIZED VIEW of_bag AS WITH log AS CHANGELOG FROM bag SELECT *, _changelog_row_id AS r FROM log;
    CREATE MATERIALIZED VIEW stored AS SELECT v, t.k AS id FROM t WHERE v < 4;
    CREATE MATERIALIZED VIEW keyless AS SELECT v FROM t;
    CREATE MATERIALIZED VIEW joined AS SELECT sums.v, t.k, sums.n FROM t JOIN sums ON t.v = sums.v;
    CREATE MATERIALIZED VIEW of_stored AS WITH log AS CHANGELOG FROM stored SELECT *, _changelog_row_id AS r FROM log;
    CREATE MATERIALIZED VIEW of_keyless AS WITH log AS CHANGELOG FROM keyless SELECT *, _changelog_row_id AS r FROM log;
    CREATE MATERIALIZED VIEW of_joined AS WITH log AS CHANGELOG FROM joined SELECT *, _changelog_row_id AS r FROM log;
    CREATE MATERIALIZED VIEW of_sums AS
        WITH log AS CHANGELOG FROM sums SELECT changelog_op AS op, count(*) AS c, sum(n) AS n FROM log GROUP BY 1"""


def changes(before: Counter, now: Counter, key) -> Counter:
    """The rows of the log of one epoch. key: that of a row, or None without one."""
    new, old = now - before, before - now
    both = set() if key is None else {key(r) for r in new} & {key(r) for r in old}
    ops = [(r, n, 3 if both and key(r) in both else 1) for r, n in new.items()]
    ops += [(r, n, 4 if both and key(r) in both else 2) for r, n in old.items()]
    made: Counter = Counter()
    for row, n, op in ops:
        made[(*row, op)] += n
    return made


#: The key of a row of each relation; None without one.
KEYS = {
    "t": lambda r: r[0],
    "bag": None,
    "sums": lambda r: r[0],
    "stored": lambda r: r[1],
    "keyless": None,
    "joined": lambda r: (r[0], r[1]),
}


class Model:
    def __init__(self) -> None:
        self.t, self.bag = Counter({(100, 1): 1}), Counter({(100, 1): 2})
        self.seen = {name: Counter() for name in KEYS}
        self.logs = {name: Counter() for name in self.seen}
        self.epoch()

    def epoch(self) -> None:
        sums = Counter()
        for (_, v), n in self.bag.items():
            sums[v] += n
        now = {"t": +self.t, "bag": +self.bag, "sums": Counter({(v, n): 1 for v, n in (+sums).items()})}
        now["stored"] = Counter({(v, k): 1 for k, v in now["t"] if v < 4})
        now["keyless"] = Counter(v for _, v in now["t"])
        now["keyless"] = Counter({(v,): n for v, n in now["keyless"].items()})
        now["joined"] = Counter({(v, k, sums[v]): 1 for k, v in now["t"] if sums[v] > 0})
        for name, key in KEYS.items():
            self.logs[name] += changes(self.seen[name], now[name], key)
            self.seen[name] = now[name]

    def shown(self, name: str) -> Counter:
        if name == "sums":
            found: dict[int, list[int]] = {}
            for (_, n, op), times in self.logs["sums"].items():
                one = found.setdefault(op, [0, 0])
                one[0] += times
                one[1] += n * times
            return Counter((op, *both) for op, both in found.items())
        return Counter({r: n for r, n in self.logs[name].items() if name != "t" or r[1] < 3})


def shown(connection, name):
    rows = connection.execute(f"SELECT * FROM of_{name}").fetchall()
    if name == "sums":
        return Counter((op, c, int(n)) for op, c, n in rows)
    numbers = [r[-1] for r in rows]
    assert len(set(numbers)) == len(numbers)
    return Counter(r[:-1] for r in rows)


def change(connection, model, rng):
    """A statement on one of the tables."""
    k, v = rng.randrange(5), rng.randrange(5)
    if rng.random() < 0.5:
        old = next((r for r in +model.t if r[0] == k), None)
        if rng.random() < 0.4:
            connection.execute(f"DELETE FROM t WHERE k = {k}")
        else:
            connection.execute(f"INSERT INTO t VALUES ({k}, {v})")
            model.t[k, v] += 1
        if old is not None:
            model.t[old] -= 1
    elif rng.random() < 0.4:
        connection.execute(f"DELETE FROM bag WHERE k = {k}")
        model.bag = Counter({r: n for r, n in model.bag.items() if r[0] != k})
    else:
        connection.execute(f"INSERT INTO bag VALUES ({k}, {v})")
        model.bag[k, v] += 1


@pytest.mark.parametrize("seed", mostly_slow(list(range(8)), 2))
def test_the_log_is_that_of_the_model(tmp_path, seed):
    rng = random.Random(seed)

    def connect():
        return watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=rng.choice([1, 3]))

    connection = connect()
    connection.execute(SETUP)
    model = Model()
    for _ in range(12):
        for _ in range(rng.randrange(5)):
            change(connection, model, rng)
        if rng.random() < 0.3:
            connection.execute("FLUSH")
            model.epoch()
            connection.close()
            connection = connect()
        connection.execute("FLUSH")
        model.epoch()
        for name in model.logs:
            assert shown(connection, name) == model.shown(name), name
    connection.close()
