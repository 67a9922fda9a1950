"""Random histories of `dict_get` and the like against the rules, in plain Python, in streams and in queries that end.

ClickHouse, "Functions for Working with Dictionaries". The rules of streams are those of direct joins: what a key was
answered with serves until its lifetime is over; nothing found is not remembered; no answer is taken back.
"""

from __future__ import annotations

import os
import random
from functools import partial

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
FOREVER_S = 10**9
LAYOUTS = {
    "flat": ("FLAT()", "LIFETIME(0)", FOREVER_S),
    "hashed": ("HASHED()", "LIFETIME(60)", 60),
    "cache": ("CACHE(SIZE_IN_CELLS 2)", "LIFETIME(MIN 30 MAX 30)", 30),
    "direct": ("DIRECT()", "", 0),
    "complex": ("COMPLEX_KEY_DIRECT()", "", 0),
    "complex_cache": ("COMPLEX_KEY_CACHE(SIZE_IN_CELLS 5)", "LIFETIME(60)", 60),
    "range": ("RANGE_HASHED()", "LIFETIME(60)", 60),
    "complex_range": ("COMPLEX_KEY_RANGE_HASHED()", "LIFETIME(0)", FOREVER_S),
}


class Model:
    """One dictionary. rows: by key, (first, last or None, name or None). cached: by key, its rows and when."""

    def __init__(self, layout):
        self.is_complex = "complex" in layout
        self.is_ranged = "range" in layout
        self.ttl_s = LAYOUTS[layout][2]
        self.rows = {}
        self.cached = {}

    def change(self, rng):
        self.rows = {}
        for key in range(5):
            if rng.random() < 0.4:
                continue
            name = rng.choice([None, f"n{rng.randrange(100)}"])
            found, first = [], rng.randrange(3)
            for _ in range(rng.randrange(1, 4) if self.is_ranged else 1):
                last = rng.choice([None, first, first + 2])
                found.append((first, last, name))
                if last is None:
                    break
                first, name = last + rng.randrange(1, 3), f"n{rng.randrange(100)}"
            self.rows[key] = found

    def text(self):
        lines = []
        for key, rows in self.rows.items():
            for first, last, name in rows:
                parts = [str(key), *(["x"] if self.is_complex else [])]
                parts += [str(first), "" if last is None else str(last)] if self.is_ranged else []
                lines.append(",".join([*parts, name or ""]))
        return "\n".join(lines) + "\n"

    def of(self, rows, moment):
        """The name, whether there is a row."""
        for first, last, name in rows:
            if not self.is_ranged or (first <= moment and (last is None or moment <= last)):
                return name or "none", True
        return "none", False

    def ask(self, key, moment, now_s):
        """In a stream."""
        if key in self.cached and now_s - self.cached[key][1] < self.ttl_s:
            return self.of(self.cached[key][0], moment)
        rows = self.rows.get(key, [])
        if rows:
            self.cached[key] = rows, now_s
        return self.of(rows, moment)


def calls(layout):
    """The items of a select list over columns k and m."""
    key = "(k, 'x')" if "complex" in layout else "k"
    at = ", m" if "range" in layout else ""
    name = f"'d_{layout}'"
    return (
        f"dict_get({name}, 'name', {key}{at}) AS got, dict_has({name}, {key}{at}) AS has, "
        f"dict_get_or_default({name}, 'name', {key}{at}, concat('k', to_string(k))) AS given, "
        f"dict_get_or_null({name}, 'name', {key}{at}) AS nothing"
    )


def answer(name, has, key):
    return name, has, name if has else f"k{key}", name if has else None


def run(seed, tmp_path, runtime="inprocess"):
    rng = random.Random(seed)
    models = {n: Model(n) for n in rng.sample(list(LAYOUTS), 4)}
    expected = {n: [] for n in models}
    now_s = number = 0
    sent = []

    def write(name):
        path = tmp_path / f"{name}.csv"
        other = path.with_suffix(".new")
        other.write_text(models[name].text())
        os.replace(other, path)

    open_ = partial(watersmeet.connect, tmp_path / "db", "timeplus", runtime=runtime)
    connection = open_(parallelism=rng.choice([1, 3]))
    try:
        Harness(connection).set_clock(START_US)
        connection.execute("CREATE STREAM s(n int, k int, m int)")
        for name, model in models.items():
            model.change(rng)
            write(name)
            layout, lifetime, _ = LAYOUTS[name]
            columns = ["k int", *(["l string"] if model.is_complex else [])]
            columns += ["first int", "last nullable(int)"] if model.is_ranged else []
            connection.execute(
                f"CREATE DICTIONARY d_{name}({', '.join(columns)}, name string DEFAULT 'none') PRIMARY KEY k"
                f"{', l' if model.is_complex else ''} SOURCE(FILE(path '{tmp_path}/{name}.csv' format 'CSV')) "
                f"LAYOUT({layout}) {lifetime} {'RANGE(MIN first MAX last)' if model.is_ranged else ''}"
            )
            connection.execute(f"CREATE MATERIALIZED VIEW v_{name} AS SELECT n, {calls(name)} FROM s")
        for _ in range(rng.randrange(6, 14)):
            step = rng.random()
            if step < 0.3:
                name = rng.choice(list(models))
                models[name].change(rng)
                write(name)
            elif step < 0.5:
                now_s += rng.choice([1, 29, 30, 31, 60])
                Harness(connection).set_clock(START_US + now_s * SECOND_US)
            elif step < 0.6:
                connection.execute("FLUSH")
                connection.close()
                connection = open_()
                Harness(connection).set_clock(START_US + now_s * SECOND_US)
            else:
                rows = [(number + i, rng.randrange(6), rng.randrange(8)) for i in range(rng.randrange(1, 6))]
                number += len(rows)
                sent += rows
                for n, key, moment in rows:
                    for name, model in models.items():
                        expected[name].append((n, *answer(*model.ask(key, moment, now_s), key)))
                values = ", ".join(map(str, rows))
                connection.execute(f"INSERT INTO s(n, k, m) VALUES {values}; FLUSH")
        for name, model in models.items():
            view = connection.execute(f"SELECT n, got, has, given, nothing FROM table(v_{name})").fetchall()
            assert sorted(view) == sorted(expected[name]), (seed, name)
            now = connection.execute(f"SELECT n, {calls(name)} FROM table(s)").fetchall()
            wanted = [(n, *answer(*model.of(model.rows.get(k, []), m), k)) for n, k, m in sent]
            assert sorted(now) == sorted(wanted), (seed, name, "now")
    finally:
        connection.close()


@pytest.mark.parametrize("seed", mostly_slow([*range(4), *range(1000, 1012)], 2))
def test_calls_answer_as_the_rules_say(seed, tmp_path):
    run(seed, tmp_path)
