"""Topics that several processors write, on random histories, against plain Python.

Processors are created and stopped at any time, over inputs with or without records, by one script or by several.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow

REGRESSIONS: list[int] = []
SEEDS = mostly_slow([*REGRESSIONS, *range(8)], 0, len(REGRESSIONS) + 2)

INPUTS = """
SET defaults.topic.autocreate=true;
CREATE TABLE a (_key int, x int null) FORMAT (INT, AVRO);
CREATE TABLE b (_key int, x int null) FORMAT (INT, AVRO);
"""
#: For each query of a processor, the topic that it reads and its records for a record (key, x).
QUERIES = {
    "SELECT STREAM x FROM a": ("a", lambda key, x: [(key, x)]),
    "SELECT STREAM x FROM b WHERE x > 4": ("b", lambda key, x: [(key, x)] if x > 4 else []),
    "SELECT STREAM x + 100 AS x FROM b": ("b", lambda key, x: [(key, x + 100)]),
    "SELECT STREAM y AS x FROM a LATERAL [x, x + 1] AS y": ("a", lambda key, x: [(key, x), (key, x + 1)]),
}


@dataclass
class Model:
    """The records of the inputs, of the topic, and the running processors: their names with their queries."""

    inputs: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {"a": [], "b": []})
    records: Counter = field(default_factory=Counter)
    running: dict[str, str] = field(default_factory=dict)

    def start(self, query):
        """The name of a new processor, which writes the records over all existing input."""
        taken = {name for name in self.running}
        name = next(n for n in ("c", *(f"c_{i}" for i in range(2, 99))) if n not in taken)
        self.running[name] = query
        source, made = QUERIES[query]
        self.records.update(r for record in self.inputs[source] for r in made(*record))
        return name

    def arrive(self, source, record):
        self.inputs[source].append(record)
        for query in self.running.values():
            if QUERIES[query][0] == source:
                self.records.update(QUERIES[query][1](*record))


def act(rng, connection, model):
    """One random statement, or a script of several processors."""
    action = rng.choice(["records", "records", "records", "start", "start", "stop"])
    if action == "records":
        source = rng.choice("ab")
        rows = [(rng.randrange(4), rng.randrange(9)) for _ in range(rng.randint(1, 4))]
        Harness(connection).deliver(source, [[str(k), str(x)] for k, x in rows], ["_key", "x"])
        for row in rows:
            model.arrive(source, row)
    elif action == "start" and len(model.running) < 4:
        queries = [rng.choice(list(QUERIES)) for _ in range(rng.choice([1, 1, 2]))]
        connection.execute(";".join(f"INSERT INTO c {q}" for q in queries))
        for query in queries:
            model.start(query)
    elif action == "stop" and model.running:
        name = rng.choice(list(model.running))
        connection.execute(f"STOP PROCESSOR {name}")
        del model.running[name]


@pytest.mark.parametrize("seed", SEEDS)
def test_writers_that_come_and_go(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute(INPUTS)
    if rng.random() < 0.3:
        connection.execute("CREATE TABLE c (_key int, x int null) FORMAT (INT, AVRO)")
    model, counted = Model(), False
    for _ in range(rng.randint(8, 20)):
        act(rng, connection, model)
        if rng.random() < 0.15:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess")
            connection.execute("SET defaults.topic.autocreate=true")
        if not counted and len(model.running) > 1:
            connection.execute("INSERT INTO counted SELECT STREAM COUNT(*) AS n FROM c GROUP BY x")
            counted = True
        if rng.random() < 0.5 and model.running:
            connection.execute("FLUSH")
            check(connection, model, counted)
    connection.execute("FLUSH")
    if model.running or model.records:
        check(connection, model, counted)
    connection.close()


def check(connection, model, counted):
    rows = connection.execute("SELECT _key, x FROM c").fetchall()
    assert Counter(rows) == model.records
    named = [r[0] for r in connection.execute("SHOW PROCESSORS").fetchall() if r[0] != "counted"]
    assert sorted(named) == sorted(model.running)
    if counted:
        groups = Counter()
        for (_, x), times in model.records.items():
            groups[x] += times
        assert dict(connection.execute("SELECT _key, n FROM counted").fetchall()) == groups
