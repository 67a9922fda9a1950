"""Columns to the bytes that PostgreSQL's protocol has for them, in text and in binary."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from watersmeet.server import results, valuebytes
from watersmeet.server.results import data_rows
from watersmeet.server.wire import Wire
from watersmeet.values.types import (
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    NUMERIC,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
)

ROW = SqlType("struct", fields=(("a", INTEGER), ("b", VARCHAR)))
WORDS = SqlType("array", element=VARCHAR)


def texts(values, kind):
    return valuebytes.texts(pa.array(values, kind.arrow), kind).to_pylist()


def binary(values, kind):
    return valuebytes.encoded(pa.array(values, kind.arrow), kind).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (DOUBLE, 1.0, "1"),
        (DOUBLE, 1e-7, "1e-07"),
        (DOUBLE, float("nan"), "NaN"),
        (DOUBLE, float("-inf"), "-Infinity"),
        (NUMERIC, Decimal("0.0000000001"), "0.0000000001"),
        (NUMERIC, Decimal("-0.00000002"), "-0.00000002"),
        (NUMERIC, Decimal("12.50"), "12.5"),
        (NUMERIC, Decimal(0), "0"),
        (SqlType("numeric", 20, 8), Decimal("0.00000001"), "0.00000001"),
        (SqlType("numeric", 20, 8), Decimal("12.5"), "12.50000000"),
        (BYTEA, b"\x00\xff", "\\x00ff"),
        (BYTEA, b"", "\\x"),
        (DATE, dt.date(2020, 1, 2), "2020-01-02"),
        (TIME, dt.time(1, 2, 3, 450000), "01:02:03.45"),
        (TIMESTAMP, dt.datetime(2020, 1, 1), "2020-01-01 00:00:00"),
        (TIMESTAMP, dt.datetime(2020, 1, 1, 0, 0, 0, 1), "2020-01-01 00:00:00.000001"),
        (TIMESTAMPTZ, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "2020-01-01 00:00:00+00"),
        (INTERVAL, (14, 0, 1_500_000), "1 year 2 mons 00:00:00.0015"),
        (INTERVAL, (-1, 3, 0), "-1 mons +3 days"),
        (INTERVAL, (-1, 0, 1_000_000_000), "-1 mons +00:00:01"),
        (INTERVAL, (-14, -1, -3_600_000_000_000), "-1 years -2 mons -1 days -01:00:00"),
        (INTERVAL, (0, -1, 1_000_000_000), "-1 days +00:00:01"),
        (INTERVAL, (0, 0, 0), "00:00:00"),
        (WORDS, ["a", "b c", None, "NULL", "", 'x"y\\'], '{a,"b c",NULL,"NULL","","x\\"y\\\\"}'),
        (WORDS, [], "{}"),
        (SqlType("array", element=WORDS), [["a"], ["b"]], "{{a},{b}}"),
        (ROW, {"a": 1, "b": "x y"}, '(1,"x y")'),
        (ROW, {"a": None, "b": ""}, '(,"")'),
    ],
)
def test_text(kind, value, text):
    assert texts([value, None], kind) == [text, None]


def test_moments_before_christ_and_infinite_ones():
    moments = pa.array([-62_135_596_800_000_001, 1 - 2**63, 2**63 - 1]).cast(pa.timestamp("us"))
    shown = valuebytes.texts(moments, TIMESTAMP).to_pylist()
    assert shown == ["0001-12-31 23:59:59.999999 BC", "-infinity", "infinity"]
    assert [struct.unpack(">q", b)[0] for b in valuebytes.encoded(moments, TIMESTAMP).to_pylist()[1:]] == [
        -(2**63),
        2**63 - 1,
    ]


def number(data: bytes) -> Decimal:
    count, weight, sign, _ = struct.unpack(">hhHh", data[:8])
    digits = struct.unpack(f">{count}h", data[8:])
    exact = Context(prec=80)
    total = Decimal(0)
    for i, digit in enumerate(digits):
        total = exact.add(total, Decimal(digit).scaleb(4 * (weight - i), exact))
    assert not digits or (digits[0] and digits[-1]), "PostgreSQL leaves zeros at both ends out"
    return total.copy_negate() if sign else total


@given(scale=some.integers(0, 38), unscaled=some.lists(some.integers(1 - 10**38, 10**38 - 1), max_size=20))
def test_numbers_in_text_and_binary(scale, unscaled):
    kind = SqlType("numeric", 38, scale)
    values = [Decimal(n).scaleb(-scale, Context(prec=80)) for n in unscaled]
    assert [number(b) for b in binary(values, kind)] == values
    assert texts(values, kind) == [format(v, f".{scale}f") for v in values]


def test_digits_behind_the_point_of_a_number_without_a_scale():
    shown = [
        struct.unpack(">hhHh", b[:8])[3] for b in binary([Decimal("2.50"), Decimal(100), Decimal("0.00001")], NUMERIC)
    ]
    assert shown == [1, 0, 5]


def test_arrays_in_binary():
    empty, full = binary([[], ["a", None]], WORDS)
    assert struct.unpack(">iii", empty) == (0, 0, 1043)
    assert full == struct.pack(">iiiiii", 1, 1, 1043, 2, 1, 1) + b"a" + struct.pack(">i", -1)


def test_rows():
    table = pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", "yz"]})
    columns = (Field("a", INTEGER), Field("b", VARCHAR))
    (sent,) = data_rows(table, columns, (1, 0))
    first = b"D" + struct.pack(">ihii", 19, 2, 4, 1) + struct.pack(">i", 1) + b"x"
    assert sent == first + b"D" + struct.pack(">ihii", 16, 2, -1, 2) + b"yz"
    assert list(data_rows(table.slice(0, 0), columns, (0, 0))) == []


def test_a_batch_of_rows_is_sent_before_the_next_is_encoded(serving, monkeypatch):
    happened = []
    encode, send = valuebytes.texts, Wire.send

    def encoding(values, kind):
        happened.append("encoded")
        return encode(values, kind)

    async def sending(self, batch):
        happened.append("sent")
        await send(self, batch)

    served = serving("CREATE TABLE t (i int); INSERT INTO t SELECT i FROM generate_series(1, 30) AS g(i)")
    with served.connect(autocommit=True) as client:
        monkeypatch.setattr(results, "BATCH_ROWS", 10)
        monkeypatch.setattr(valuebytes, "texts", encoding)
        monkeypatch.setattr(Wire, "send", sending)
        assert len(client.execute("SELECT i FROM t").fetchall()) == 30
    assert happened == ["encoded", "sent"] * 3


def test_numbers_with_more_digits_than_numeric(serving):
    served = serving("CREATE TABLE t (id int PRIMARY KEY, n numeric(18, 12))")
    value = Decimal("54.234246451650")
    with served.connect(autocommit=True) as client:
        for number, cast in enumerate(("%s", "%b", "%t::numeric(18, 12)", "%b::numeric(18, 12)")):
            client.execute(f"INSERT INTO t VALUES ({number}, {cast})", (value,))
        found = client.execute("SELECT n FROM t ORDER BY id").fetchall()
        assert found == [(value,)] * 4
        assert client.execute("SELECT %s::numeric", (value,)).fetchone() == (Decimal("54.2342464517"),)
