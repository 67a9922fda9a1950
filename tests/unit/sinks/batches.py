"""Batches, and histories of them, as tests of all targets deliver them."""

import datetime as dt
import decimal
import random

import numpy as np
import pyarrow as pa

from watersmeet.connectors.base.targets import SinkBatch, SinkOffset
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
    arrow_schema,
)

#: All types, and rows with values at their limits.
EVERYTHING = (
    Field("id", BIGINT),
    Field("b", BOOLEAN),
    Field("f", DOUBLE),
    Field("n", SqlType("numeric", 38, 10)),
    Field("t", VARCHAR),
    Field("y", BYTEA),
    Field("d", DATE),
    Field("c", TIME),
    Field("s", TIMESTAMP),
    Field("z", TIMESTAMPTZ),
    Field("i", INTERVAL),
    Field("j", JSONB),
    Field("a", SqlType("array", element=VARCHAR)),
    Field("r", SqlType("struct", fields=(("x", INTEGER), ("y", SqlType("numeric", 20, 5))))),
)
VALUES = [
    (
        1,
        True,
        0.1,
        decimal.Decimal("9999999999999999999999999999.9999999999"),
        'a,"b"\n\t\\é',
        b"\x00\xff",
        dt.date(2024, 2, 29),
        dt.time(1, 2, 3, 4),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(2024, 1, 1, 0, 0, 0, 1, dt.UTC),
        pa.MonthDayNano([13, 2, 1_000_000_000]),
        '{"a":[1,12345678901234567890.12]}',
        ["x", None, 'q"'],
        {"x": 1, "y": decimal.Decimal("123456789012345.67891")},
    ),
    (2, *[None] * 13),
    (3, False, -1e300, decimal.Decimal("-0.5"), "", b"", *[None] * 6, [], {"x": None, "y": None}),
]

TWO = (Field("id", INTEGER), Field("name", VARCHAR))


class Killed(BaseException):
    """The process ends here: nothing of a target's code catches it."""


def batch(commit, *rows, columns=TWO, diff=None, part=0, last=True, generation=1):
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    return SinkBatch(
        SinkOffset(generation, commit, part, last),
        pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False)),
        np.array(diff or [1] * len(rows), np.int64),
        commit * 1_000_000,
    )


def history(seed):
    """Batches of commits, and the content behind each commit."""
    r = random.Random(seed)
    now, found = {}, []
    for commit in range(2, 9):
        rows, diff = [], []
        for key in r.sample(range(8), r.randint(0, 5)):
            before, after = now.get(key), r.choice([None, *"abc"])
            if before is not None:
                rows.append((key, before))
                diff.append(-1)
            if after is not None:
                rows.append((key, after))
                diff.append(1)
            now[key] = after
        found.append((batch(commit, *rows, diff=diff), sorted((k, v) for k, v in now.items() if v is not None)))
    return found


def additions(seed):
    """As `history`, of rows that are only added."""
    r, found, rows = random.Random(seed), [], []
    for commit in range(2, 9):
        new = [(len(rows) + i, r.choice("ab")) for i in range(r.randint(0, 4))]
        rows += new
        found.append((batch(commit, *new), list(rows)))
    return found
