"""The order of jsonb documents: ORDER BY, comparisons, top rows and views."""

from __future__ import annotations

import json
import random

import pytest


def document(chance: random.Random, depth: int = 0) -> object:
    kind = chance.randrange(7 if depth < 3 else 5)
    if kind < 5:
        numbers = [0, 1, -1, 10, 2.5, -2.5, 1e20, -1e-5, 123456789012345678, 0.1]
        return [None, chance.random() < 0.5, chance.choice(numbers), chance.choice(["", "a", "B", "ab", "é", "10"]),
                chance.randint(-20, 20)][kind]  # fmt: skip
    members = [document(chance, depth + 1) for _ in range(chance.randrange(4))]
    return members if kind == 5 else {chance.choice("abc") * chance.randint(1, 2): m for m in members}


def test_order_of_types(run):
    texts = ["[]", "null", '""', "-1", "0", "false", "true", "[null]", "[1, 2]", "{}", '{"aa": 1}', '{"b": 1}']
    listed = ", ".join(f"('{text}'::jsonb)" for text in texts)
    rows = run(f"SELECT CAST(j AS varchar) FROM (VALUES {listed}) AS v (j) ORDER BY v.j")
    assert [json.loads(text) for (text,) in rows] == [json.loads(text) for text in texts]


@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(4))
def test_same_as_postgresql(run, postgres, seed):
    chance = random.Random(seed)
    listed = ", ".join(f"({i}, '{json.dumps(document(chance))}')" for i in range(60))
    script = f"CREATE TABLE t (id int PRIMARY KEY, j jsonb); INSERT INTO t VALUES {listed}"
    run(script)
    postgres.execute(script)
    run("CREATE MATERIALIZED VIEW least AS SELECT id, j FROM t ORDER BY j, id LIMIT 5")
    run("CREATE MATERIALIZED VIEW pairs AS SELECT a.id, b.id AS other FROM t AS a JOIN t AS b ON a.id = b.id + 1 "
        "AND a.j < b.j")  # fmt: skip
    with postgres.connect() as other:
        for sql in (
            "SELECT id FROM t ORDER BY j, id",
            "SELECT id FROM t ORDER BY j DESC, id LIMIT 7",
            "SELECT a.id, b.id FROM t AS a, t AS b WHERE a.j <= b.j ORDER BY 1, 2",
            "SELECT id FROM t WHERE j > '\"a\"' AND j <= '[1, 2]' ORDER BY id",
            "SELECT array_agg(id ORDER BY j DESC, id) FROM t",
        ):
            assert run(sql) == other.execute(sql).fetchall(), sql
        assert sorted(run("SELECT id FROM least")) == sorted(
            other.execute("SELECT id FROM t ORDER BY j, id LIMIT 5").fetchall()
        )
        pairs = "SELECT a.id, b.id AS other FROM t AS a JOIN t AS b ON a.id = b.id + 1 AND a.j < b.j ORDER BY 1"
        assert run("SELECT * FROM pairs ORDER BY 1") == other.execute(pairs).fetchall()
