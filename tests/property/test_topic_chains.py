"""Chains of queries over topics on random histories, against plain Python: through WITH, and through topics in between.

LS-05, LS-10, LS-38 to LS-41. Records are cut into transactions and FLUSHes as they come.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow

REGRESSIONS: list[int] = []
SEEDS = mostly_slow([*REGRESSIONS, *range(6)], 0, len(REGRESSIONS) + 1)

TOPICS = """
SET defaults.topic.autocreate=true;
CREATE TABLE a (_key int, c int, x int) FORMAT (INT, AVRO) PROPERTIES (partitions=1);
CREATE TABLE b (_key int, c int, y int) FORMAT (INT, AVRO) PROPERTIES (partitions=1);
CREATE TABLE d (_key int, c int, z int) FORMAT (INT, AVRO) PROPERTIES (partitions=1);
"""
#: The same queries, one in the next one's WITH, or each over the topic of the one before.
CHAINED = """
WITH ab AS (SELECT TABLE a.c AS ac, a.x, b.y FROM a {kind} JOIN b ON a.c = b.c);
WITH abd AS (SELECT TABLE ab.ac, ab.x, ab.y, d.z FROM ab {second} JOIN d ON ab.ac = d.c);
INSERT INTO chained SELECT TABLE * FROM abd;
INSERT INTO counted SELECT TABLE z, COUNT(*) AS n, sum(y) AS s FROM abd GROUP BY z;
"""
THROUGH_TOPICS = """
INSERT INTO ab SELECT TABLE a.c AS ac, a.x, b.y FROM a {kind} JOIN b ON a.c = b.c;
INSERT INTO abd SELECT TABLE ab.ac, ab.x, ab.y, d.z FROM ab {second} JOIN d ON ab.ac = d.c;
INSERT INTO counts SELECT TABLE z, COUNT(*) AS n, sum(y) AS s FROM abd GROUP BY z;
"""
KINDS = {"INNER": (False, False), "LEFT": (True, False), "RIGHT": (False, True), "OUTER": (True, True)}


def joined(kind, left, right, fits, widths):
    """The multiset of pairs; rows without partner with None where their side is kept."""
    keeps_left, keeps_right = KINDS[kind]
    found = [(*x, *y) for x in left for y in right if fits(x, y)]
    found += [(*x, *[None] * widths[1]) for x in left if keeps_left and not any(fits(x, y) for y in right)]
    found += [(*[None] * widths[0], *y) for y in right if keeps_right and not any(fits(x, y) for x in left)]
    return found


def as_table(connection, topic):
    query = connection.start(f"SELECT TABLE * FROM {topic}")
    table, diff = query.take()
    query.close()
    assert (diff > 0).all()
    rows = Counter()
    for values, times in zip(table.to_pylist(), diff.tolist(), strict=True):
        rows[tuple(values.values())] += times
    return rows


@pytest.mark.parametrize("seed", SEEDS)
def test_tables(seed, tmp_path):
    rng = random.Random(seed)
    kind, second = rng.choice(list(KINDS)), rng.choice(list(KINDS))
    connection = watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute(TOPICS + CHAINED.format(kind=kind, second=second))
    connection.execute(THROUGH_TOPICS.format(kind=kind, second=second))
    tables: dict[str, dict[int, tuple]] = {"a": {}, "b": {}, "d": {}}
    number = 0
    for _ in range(rng.randint(6, 14)):
        if rng.random() < 0.1:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess")
        for _ in range(rng.choice([1, 1, 3])):
            name = rng.choice("abd")
            rows = []
            for _ in range(rng.randint(1, 4)):
                number += 1
                key, row = rng.randrange(4), (rng.randrange(3), number)
                if rng.random() < 0.25:
                    tables[name].pop(key, None)
                    rows.append([str(key), None, None, "true"])
                else:
                    tables[name][key] = row
                    rows.append([str(key), *map(str, row), "false"])
            Harness(connection).deliver(name, rows, ["_key", "c", {"a": "x", "b": "y", "d": "z"}[name], "@deleted"])
        connection.execute("FLUSH")
        a, b, d = ([r for _, r in sorted(tables[n].items())] for n in "abd")
        ab = [(r[0], r[1], r[3]) for r in joined(kind, a, b, lambda x, y: x[0] == y[0], (2, 2))]
        abd = [
            (r[0], r[1], r[2], r[4])
            for r in joined(second, ab, d, lambda x, y: x[0] is not None and x[0] == y[0], (3, 2))
        ]
        groups = Counter()
        for z in {r[3] for r in abd} - {None}:  # LS-54
            ys = [r[2] for r in abd if r[3] == z]
            groups[(z, len(ys), sum(y for y in ys if y is not None) if any(y is not None for y in ys) else None)] += 1
        assert as_table(connection, "ab") == Counter(ab), (kind, second)
        assert as_table(connection, "chained") == as_table(connection, "abd") == Counter(abd), (kind, second)
        assert as_table(connection, "counted") == as_table(connection, "counts") == groups, (kind, second)
    connection.close()


STREAMS = """
WITH ab AS (SELECT STREAM a.x, b.y, b.c FROM a {kind} JOIN b ON a.c = b.c WITHIN 3s);
INSERT INTO chained SELECT STREAM ab.x, ab.y, d.z FROM ab {second} JOIN d ON ab.c = d.c WITHIN 2s;
INSERT INTO ab SELECT STREAM a.x, b.y, b.c FROM a {kind} JOIN b ON a.c = b.c WITHIN 3s;
INSERT INTO abd SELECT STREAM ab.x, ab.y, d.z FROM ab {second} JOIN d ON ab.c = d.c WITHIN 2s;
INSERT INTO counted SELECT STREAM c, COUNT(*) AS n FROM ab GROUP BY c;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_streams(seed, tmp_path):
    """Records in the order of their times: when all windows have passed, each chain is the join of all of them."""
    rng = random.Random(seed)
    kind, second = rng.choice(list(KINDS)), rng.choice(list(KINDS))
    connection = watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute(TOPICS)
    connection.execute(STREAMS.format(kind=kind, second=second))
    came: dict[str, list[tuple]] = {"a": [], "b": [], "d": []}
    now = number = 0
    for _ in range(rng.randint(8, 16)):
        if rng.random() < 0.1:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess")
        for name in rng.sample("abd", rng.randint(1, 3)):
            number += 1
            row = (rng.randrange(3), number, now)
            came[name].append(row)
            Harness(connection).deliver(
                name,
                [["1", str(row[0]), str(row[1]), f"2021-01-01 00:00:{now:02}"]],
                ["_key", "c", {"a": "x", "b": "y", "d": "z"}[name], "@time"],
            )
        now += rng.choice([0, 1, 1, 2])
        connection.execute("FLUSH")
    for name in "abd":
        Harness(connection).set_watermark(name, 1_609_462_800_000_000 + 3_600_000_000)
    connection.execute("FLUSH")
    times = [lambda r: max(t for t in (r[2], r[5]) if t is not None), lambda r: r[3]]
    ab = [
        (r[1], r[4], r[3], times[0](r))
        for r in joined(kind, came["a"], came["b"], lambda x, y: x[0] == y[0] and abs(x[2] - y[2]) <= 3, (3, 3))
    ]
    abd = [
        (r[0], r[1], r[5])
        for r in joined(
            second, ab, came["d"], lambda x, y: x[2] is not None and x[2] == y[0] and abs(x[3] - y[2]) <= 2, (4, 3)
        )
    ]
    assert Counter(connection.execute("SELECT x, y, c FROM ab").fetchall()) == Counter(r[:3] for r in ab), (
        kind,
        second,
    )
    assert Counter(connection.execute("SELECT * FROM chained").fetchall()) == Counter(abd), (kind, second)
    assert Counter(connection.execute("SELECT * FROM abd").fetchall()) == Counter(abd), (kind, second)
    assert as_table(connection, "counted") == Counter(Counter(r[2] for r in ab if r[2] is not None).items()), (
        kind,
        second,
    )
    connection.close()
