"""Random histories of dictionaries in direct joins against the rules, row by row, in plain Python.

Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary". The
rules: what is in the cache (stream) answers; a key
that is not there, or whose time is over, is asked of the source as it is now; what is found is remembered (written to
the cache stream with UPDATE_FROM_SOURCE true); nothing found is not remembered.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.harness import Harness, connect_without_connectors
from tests.thorough import mostly_slow

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
KEYS = ["a", "b", "c", "d"]
LAYOUTS = {
    "ttl": "HYBRID_HASH_CACHE(TTL 60 PATH 'x')",
    "forever": "HASHED_ARRAY()",
    "direct": "DIRECT()",
    "filled": "MUTABLE_CACHE(STREAM 'cache' UPDATE_FROM_SOURCE true)",
    "asked": "MUTABLE_CACHE(STREAM 'cache')",
}
TTL_S = {"ttl": 60, "forever": 10**9}


class Model:
    """What each layout answers.

    source: as it is now; cached: of each layout, by key, (name, the second it was found).
    """

    def __init__(self) -> None:
        self.now_s = 0
        self.source: dict[str, str] = {}
        self.cached: dict[str, dict[str, tuple[str, int]]] = {n: {} for n in LAYOUTS}

    def ask(self, layout, key):
        cache = self.cached[layout]
        if key in cache and self.now_s - cache[key][1] < TTL_S.get(layout, 10**9):
            return cache[key][0]
        found = self.source.get(key)
        if found is not None and layout in ("ttl", "forever", "filled"):
            cache[key] = (found, self.now_s)
        return found


def run(seed, tmp_path, runtime="inprocess"):
    rng = random.Random(seed)
    model = Model()
    expected = {n: [] for n in LAYOUTS}
    outer = {n: rng.random() < 0.5 for n in LAYOUTS}
    streams = {n: f"cache_{n}" for n in ("filled", "asked")}
    open_ = partial(connect_without_connectors, tmp_path / "db", "timeplus", runtime=runtime)
    connection = open_(parallelism=rng.choice([1, 2, 3]))

    def give():
        Harness(connection).set_external(
            "mysql", "shop.products", "id string, name string", [[k, v] for k, v in model.source.items()]
        )
        connection.execute("FLUSH")

    try:
        Harness(connection).set_clock(START_US)
        give()
        connection.execute("CREATE STREAM orders(n int, product string)")
        for name, layout in LAYOUTS.items():
            if name in streams:
                connection.execute(f"CREATE MUTABLE STREAM {streams[name]}(id string, name string) PRIMARY KEY id")
            connection.execute(
                f"CREATE DICTIONARY d_{name}(id string, name string) PRIMARY KEY id SOURCE(MYSQL(DB 'shop' "
                f"TABLE 'products')) "
                f"LAYOUT({layout.replace('cache', streams.get(name, 'cache')) if name in streams else layout})"
            )
            connection.execute(
                f"CREATE MATERIALIZED VIEW v_{name} AS SELECT n, d.name AS name FROM orders "
                f"{'LEFT ' * outer[name]}JOIN d_{name} AS d "
                f"ON orders.product = d.id SETTINGS join_algorithm = 'direct'"
            )
        number = 0
        for _ in range(rng.randrange(5, 14)):
            step = rng.random()
            if step < 0.25:
                model.source = {k: f"{k}{rng.randrange(100)}" for k in KEYS if rng.random() < 0.6}
                give()
            elif step < 0.45:
                model.now_s += rng.choice([1, 29, 30, 31, 60])
                Harness(connection).set_clock(START_US + model.now_s * SECOND_US)
            elif step < 0.55:
                name, key = rng.choice(list(streams)), rng.choice(KEYS)
                if rng.random() < 0.5:
                    connection.execute(f"INSERT INTO {streams[name]}(id, name) VALUES ('{key}', 'mine')")
                    model.cached[name][key] = ("mine", 0)
                else:
                    connection.execute(f"DELETE FROM {streams[name]} WHERE id = '{key}'")
                    model.cached[name].pop(key, None)
            elif step < 0.6:
                connection.execute("FLUSH")
                connection.close()
                connection = open_()
                Harness(connection).set_clock(START_US + model.now_s * SECOND_US)
                give()
            else:
                rows = [[str(number + i), rng.choice(KEYS)] for i in range(rng.randrange(1, 5))]
                number += len(rows)
                for n, key in rows:
                    for name, kept in expected.items():
                        found = model.ask(name, key)
                        if found is not None or outer[name]:
                            kept.append((int(n), found))
                Harness(connection).deliver("orders", rows, ["n", "product"])
                connection.execute("FLUSH")
        connection.execute("FLUSH")
        for name, rows in expected.items():
            assert sorted(connection.execute(f"SELECT n, name FROM table(v_{name})").fetchall(), key=str) == sorted(
                rows, key=str
            ), (seed, name)
        for name, stream in streams.items():
            kept = dict(connection.execute(f"SELECT id, name FROM table({stream})").fetchall())
            assert kept == {k: v for k, (v, _) in model.cached[name].items()}, (seed, name)
    finally:
        connection.close()


@pytest.mark.parametrize("seed", mostly_slow([*range(4), *range(1000, 1012)], 2))
def test_dictionaries_answer_as_the_rules_say(seed, tmp_path):
    run(seed, tmp_path)
