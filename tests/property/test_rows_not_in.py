"""IN and NOT IN of rows that can be NULL: views equal a model in plain Python after random histories, with restarts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from tests.thorough import mostly_slow

#: Columns of the rows, and the NOT IN of a view; `c` is never NULL in either table.
SHAPES = {
    "two": ("a, b", "x, y"),
    "reversed": ("b, a", "x, y"),
    "three": ("a, b, d", "x, y, w"),
    "sure": ("a, c", "x, z"),
}
PLACES = {"a": 1, "b": 2, "c": 3, "d": 4, "x": 1, "y": 2, "z": 3, "w": 4}
Row = tuple[int, int | None, int | None, int, int | None]


def is_in(left: tuple, rights: list[tuple]) -> bool | None:
    """`left IN rights` by SQL's rules."""
    found: bool | None = False
    for right in rights:
        parts = [None if one is None or other is None else one == other for one, other in zip(left, right, strict=True)]
        if all(p is True for p in parts):
            return True
        if all(p is not False for p in parts):
            found = None
    return found


def expected(name: str, left: list[Row], right: list[Row]) -> tuple[Counter, Counter]:
    """The rows of the filter, and those of the truth value."""
    lefts, rights = ([PLACES[c] for c in side.split(", ")] for side in SHAPES[name])
    values = [tuple(r[p] for p in rights) for r in right]
    truths = [(row[0], is_in(tuple(row[p] for p in lefts), values)) for row in left]
    return Counter((i,) for i, truth in truths if truth is False), Counter(truths)


def queries(name: str) -> tuple[str, str]:
    left, right = SHAPES[name]
    return (
        f"SELECT id FROM l WHERE ({left}) NOT IN (SELECT {right} FROM r)",
        f"SELECT id, ({left}) IN (SELECT {right} FROM r) AS found FROM l",
    )


def a_row(rng: random.Random, number: int, nulls: float) -> Row:
    a, b, d = (None if rng.random() < nulls else rng.randrange(2) for _ in range(3))
    return number, a, b, rng.randrange(2), d


def shown(row: Row) -> str:
    return ", ".join("NULL" if v is None else str(v) for v in row)


@pytest.mark.parametrize("seed", mostly_slow(range(8), quick=1))
def test_views_and_queries_equal_the_model(seed: int, tmp_path) -> None:
    rng = random.Random(seed)
    content: dict[str, dict[int, Row]] = {"l": {}, "r": {}}
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute("CREATE TABLE l (id INT PRIMARY KEY, a INT, b INT, c INT NOT NULL, d INT)")
    connection.execute("CREATE TABLE r (id INT PRIMARY KEY, x INT, y INT, z INT NOT NULL, w INT)")
    for name in SHAPES:
        for kind, query in zip("fm", queries(name), strict=True):
            connection.execute(f"CREATE MATERIALIZED VIEW {kind}_{name} AS {query}")
    try:
        for _ in range(6):
            nulls = rng.choice([0.0, 0.2, 0.5])
            for _ in range(rng.randrange(1, 6)):
                table, number = rng.choice("lr"), rng.randrange(5)
                connection.execute(f"DELETE FROM {table} WHERE id = {number}")
                content[table].pop(number, None)
                if rng.random() < (0.8 if table == "l" else 0.6):
                    row = content[table][number] = a_row(rng, number, nulls)
                    connection.execute(f"INSERT INTO {table} VALUES ({shown(row)})")
            connection.execute("FLUSH")
            for name in SHAPES:
                wanted = expected(name, list(content["l"].values()), list(content["r"].values()))
                for kind, query, rows in zip("fm", queries(name), wanted, strict=True):
                    assert Counter(connection.execute(f"SELECT * FROM {kind}_{name}").fetchall()) == rows
                    assert Counter(connection.execute(query).fetchall()) == rows
            if rng.random() < 0.2:
                connection.close()
                connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=rng.random() < 0.5)
    finally:
        connection.close()
