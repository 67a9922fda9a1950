"""Columns of all types of Timeplus against Python's values: what is written is read back, also through a view and after
a restart; a statement with a value that a type does not have is refused and writes nothing.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal

import pytest

import watersmeet

_EPOCH = dt.datetime(1970, 1, 1)


def whole(low, high):
    """Numbers of a type, its bounds among them; those next to the bounds are refused."""

    def make(rng):
        value = rng.choice([low, high, 0, rng.randint(low, high)])
        return str(value), value

    return make, lambda rng: str(rng.choice([low - 1, high + 1]))


def times(digits):
    """Times to the microsecond, of which a column keeps some digits."""

    def make(rng):
        at = _EPOCH + dt.timedelta(microseconds=rng.randint(0, 4 * 10**15))
        step = 10 ** (6 - digits)
        return f"'{at}'", at.replace(microsecond=at.microsecond // step * step)

    return make, None


def texts(rng):
    value = "".join(rng.choice("aä'\\ \n,") for _ in range(rng.randint(0, 4)))
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'", value


def decimals(digits, scale):
    def make(rng):
        value = Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)
        return str(value), value

    return make, None


def maybe(make):
    """Values of a nullable type."""
    return lambda rng: ("NULL", None) if rng.random() < 0.3 else make(rng)


def many(make):
    def made(rng):
        values = [make(rng) for _ in range(rng.randint(0, 3))]
        return f"[{', '.join(text for text, _ in values)}]", [value for _, value in values]

    return made


def chosen(*choices):
    def make(rng):
        value = rng.choice(choices)
        return f"'{value}'", value

    return make, lambda _: "'neither'"


def both(rng):
    (a, first), (b, second) = whole(-5, 5)[0](rng), texts(rng)
    return f"({a}, {b})", {"a": first, "b": second}


#: The values of each type: a function that makes a literal and its value, and one that makes a refused literal.
TYPES = {
    **{f"int{bits}": whole(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": whole(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "int128": whole(-(10**38) + 1, 10**38 - 1),
    "float64": (lambda rng: (str(v := rng.choice([0.5, -1.25, 1e10, rng.random()])), v), None),
    "bool": (lambda rng: (str(v := rng.random() < 0.5).lower(), v), None),
    "string": (texts, None),
    "low_cardinality(string)": (texts, None),
    "nullable(string)": (maybe(texts), None),
    "decimal(10, 2)": decimals(10, 2),
    "decimal64(6)": decimals(18, 6),
    "date": (
        lambda rng: (f"'{v}'", v) if (v := (_EPOCH + dt.timedelta(days=rng.randint(0, 40000))).date()) else None,
        None,
    ),
    "datetime": times(0),
    "datetime64": times(3),
    "datetime64(1, 'UTC')": times(1),
    "datetime64(6)": times(6),
    "enum8('x' = 2, 'y' = -1)": chosen("x", "y"),
    "nullable(enum16('x' = 2, 'y' = -1))": (maybe(chosen("x", "y")[0]), chosen("x")[1]),
    "array(string)": (many(texts), None),
    "array(array(int))": (many(many(whole(-9, 9)[0])), None),
    "tuple(a int, b string)": (both, None),
    "array(nullable(int))": (many(maybe(whole(-9, 9)[0])), None),
    "nullable(uint8)": (maybe(whole(0, 255)[0]), whole(0, 255)[1]),
}


def same(row):
    """A row in a form that can be counted; whole decimals of wide types are numbers."""
    return repr([int(v) if isinstance(v, Decimal) and v == v.to_integral_value() else v for v in row])


def numbered(lines):
    """The rows of VALUES: a number, and the literals of each line."""
    return ", ".join(f"({i}, {', '.join(line)})" for i, line in enumerate(lines))


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 5))])
def test_what_is_written_is_read_back(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(TYPES))
    names = ", ".join(f"c{i}" for i in range(len(TYPES)))
    connection.execute(f"CREATE STREAM s (n int, {columns})")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS SELECT {names} FROM s WHERE n >= 0")
    content: list[tuple] = []
    refused = 0
    for number in range(2):
        if number == 1:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        rows = [[make(rng) for make, _ in TYPES.values()] for _ in range(rng.randint(4, 12))]
        listed = [[text for text, _ in row] for row in rows]
        place = rng.randrange(len(TYPES))
        wrong = [*TYPES.values()][place][1]
        if number % 2 and wrong is None:
            place, wrong = next((i, bad) for i, (_, bad) in enumerate(TYPES.values()) if bad is not None)
        if number % 2:
            spoiled = [line.copy() for line in listed]
            spoiled[-1][place] = wrong(rng)
            with pytest.raises(watersmeet.Error) as error:
                connection.execute(f"INSERT INTO s (n, {names}) VALUES {numbered(spoiled)}")
            assert error.value.condition in ("INVALID_VALUE", "NUMERIC_VALUE_OUT_OF_RANGE"), error.value
            refused += 1
        connection.execute(f"INSERT INTO s (n, {names}) VALUES {numbered(listed)}")
        content += [tuple(value for _, value in row) for row in rows]
        connection.flush()
        for relation in ("s", "v"):
            found = connection.execute(f"SELECT {names} FROM table({relation})").fetchall()
            assert Counter(map(same, found)) == Counter(map(same, content))
    assert refused == 1
    connection.close()
