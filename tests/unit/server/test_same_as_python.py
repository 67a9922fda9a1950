"""Random statements: what comes over the wire equals what Python's own connection gives, in text and in binary."""

from __future__ import annotations

import math
import random
import struct
from decimal import Decimal

import psycopg
import pytest
from tests.thorough import mostly_slow

from watersmeet import Error
from watersmeet.database.sessions.result import Interval
from watersmeet.session.connections.texts import interval_text

TYPES = {
    "i": "int",
    "l": "bigint",
    "s": "smallint",
    "d": "double precision",
    "r": "real",
    "n": "numeric",
    "m": "numeric(20, 4)",
    "v": "varchar",
    "b": "bytea",
    "o": "boolean",
    "e": "date",
    "h": "time",
    "t": "timestamp",
    "z": "timestamptz",
    "y": "interval",
    "j": "jsonb",
    "a": "int[]",
    "w": "varchar[]",
}
NUMBERS, WORDS, TIMES = "ilsdrnm", "v", "tz"


def value(rng: random.Random, kind: str) -> str:
    if rng.random() < 0.15:
        return "NULL"
    number = rng.choice((0, 1, -1, 7, 30000, -32768, rng.randint(-9999, 9999)))
    moment = f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}" + rng.choice(
        ("", ".5", ".000001")
    )
    word = rng.choice(("", "a", "ü b", '"', "\\", "{x}", "NULL", "a,b", "\n"))
    written = {
        "d": f"{number / 7!r}",
        "r": f"{number}",
        "n": f"{number}.{rng.randint(0, 10**8)}",
        "m": f"{number}.{rng.randint(0, 9999):04}",
        "v": f"'{word}'",
        "b": f"'\\x{rng.randbytes(rng.randint(0, 4)).hex()}'",
        "o": rng.choice(("true", "false")),
        "e": f"DATE '{moment}'",
        "h": f"TIME '{clock}'",
        "t": f"TIMESTAMP '{moment} {clock}'",
        "z": f"TIMESTAMPTZ '{moment} {clock}Z'",
        "y": f"INTERVAL '{rng.randint(-30, 30)} months {number % 100} days {rng.randint(-9999, 9999)} seconds'",
        "j": rng.choice(("'{\"k\": [1, null]}'", "'[]'", "'\"x\"'", "'1.50'")),
        "a": f"ARRAY[{number}, NULL, 2]",
        "w": f"ARRAY['{word}', NULL]",
    }
    return written.get(kind, str(number))


def expression(rng: random.Random, depth: int = 0) -> str:
    column = rng.choice(list(TYPES))
    number = rng.choice(NUMBERS)
    if depth > 2:
        return column
    inner = expression(rng, depth + 1)
    return rng.choice(
        (
            column,
            f"{number} + {rng.randint(1, 9)}",
            f"{number} * 2",
            f"CASE WHEN o THEN {column} END",
            f"coalesce({column}, {column})",
            f"({inner})::varchar",
            "upper(v)",
            "v || '-' || v",
            f"{inner} IS NULL",
            "extract(year FROM t)",
            "z - z",
            f"ARRAY[{number}, {number}]",
            "t + INTERVAL '1 day'",
            "abs(l)",
        )
    )


def query(rng: random.Random) -> str:
    items = ", ".join(f"{expression(rng)} AS c{i}" for i in range(rng.randint(1, 5)))
    where = rng.choice(("", " WHERE o", f" WHERE i > {rng.randint(-9, 9)}", " WHERE v IS NOT NULL"))
    kind = rng.random()
    if kind < 0.2:
        number = rng.choice(NUMBERS)
        return f"SELECT v, count(*) AS n, sum({number}) AS s, max(t) AS m FROM t{where} GROUP BY v ORDER BY v, n"
    if kind < 0.3:
        joined = "SELECT x.k, y.v, x.n + y.m AS s FROM t x LEFT JOIN t y ON x.i = y.i ORDER BY x.k, y.k"
        return joined + rng.choice(("", " LIMIT 5"))
    return f"SELECT k, {items} FROM t{where} ORDER BY k{rng.choice(('', ' LIMIT 3', ' OFFSET 2'))}"


def change(rng: random.Random) -> str:
    """A statement that changes rows, and gives some of what it changed."""
    column, items = rng.choice(list(TYPES)), ", ".join(f"{expression(rng)} AS c{i}" for i in range(rng.randint(1, 3)))
    where = rng.choice(("", f" WHERE k < {rng.randint(0, 25)}", f" WHERE {rng.choice('ilsv')} IS NOT NULL"))
    kind = rng.random()
    if kind < 0.4:
        row = ", ".join(value(rng, kind) for kind in TYPES)
        return f"INSERT INTO t VALUES ({rng.randint(20, 30)}, {row}) RETURNING k, {items}"
    if kind < 0.8:
        return f"UPDATE t SET {column} = {value(rng, column)}{where} RETURNING k, {items}"
    return f"DELETE FROM t{where} RETURNING k, {items}"


def plain(found: object, *, binary: bool) -> object:
    """A value in the form in which both sides can be compared."""
    if isinstance(found, float):
        return "NaN" if math.isnan(found) else found
    if isinstance(found, Decimal):
        return found.normalize() if found.is_finite() else str(found)
    if isinstance(found, Interval):
        parts = (found.months, found.month_days, found.microseconds_of_day)
        return parts if binary else interval_text(found)
    if isinstance(found, list):
        return [plain(v, binary=binary) for v in found]
    return found


def key_first(rows: list) -> list:
    """Rows that come in no order."""
    return sorted(rows, key=lambda row: row[0])


class IntervalBytes(psycopg.adapt.Loader):
    """An interval by its parts: psycopg's own loader counts a month as 30 days."""

    format = psycopg.pq.Format.BINARY

    def load(self, data):
        microseconds, days, months = struct.unpack(">qii", data)
        return (months, days, microseconds)


class IntervalText(psycopg.adapt.Loader):
    def load(self, data):
        return bytes(data).decode()


@pytest.mark.parametrize("seed", mostly_slow(range(170), 1, 1))
def test_random_statements(serving, seed):
    rng = random.Random(seed)
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    rows = ", ".join(f"({k}, {', '.join(value(rng, kind) for kind in TYPES)})" for k in range(25))
    served = serving(f"CREATE TABLE t (k int PRIMARY KEY, {columns}); INSERT INTO t VALUES {rows}; FLUSH")
    with served.connect(autocommit=True) as client:
        client.adapters.register_loader("interval", IntervalText)
        client.adapters.register_loader("interval", IntervalBytes)
        done = 0
        for _ in range(60):
            changes = rng.random() < 0.2
            sql = change(rng) if changes else query(rng)
            served.python.execute("BEGIN")
            try:
                rows = served.python.execute(sql).fetchall()
            except Error as err:
                with pytest.raises(psycopg.Error) as found:
                    client.execute(sql)
                assert found.value.sqlstate == err.sqlstate, sql
                continue
            finally:
                served.python.execute("ROLLBACK")
            for binary in (False, True):
                client.execute("BEGIN")
                got = client.cursor(binary=binary).execute(sql).fetchall()
                client.execute("ROLLBACK")
                wanted, got = ([[plain(v, binary=binary) for v in row] for row in found] for found in (rows, got))
                same = key_first if changes else list
                assert same(got) == same(wanted), (sql, binary)
            done += 1
        assert done > 30
