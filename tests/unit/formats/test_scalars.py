"""The short way by Arrow and the long way by DuckDB give the same values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from watersmeet.formats import valuetexts
from watersmeet.values import types as t
from watersmeet.values.types import SqlType

NUMBER = st.one_of(
    st.text(alphabet="0123456789.-", min_size=1, max_size=45),
    st.floats(width=64).map(repr),
    st.integers(-(2**70), 2**70).map(str),
)
WIDE = SqlType("numeric", 38, 30)
MOMENT = (
    st.datetimes().map(str)
    | st.datetimes().map(lambda d: d.isoformat(timespec="minutes"))
    | st.text(alphabet="0123456789-: .T", min_size=8, max_size=26)
    | st.dates().map(str)
)


@examples(400)
@given(
    st.sampled_from([t.DOUBLE, t.REAL, t.INTEGER, t.BIGINT, t.SMALLINT, t.NUMERIC, SqlType("numeric", 10, 2), WIDE]),
    st.lists(NUMBER, min_size=1, max_size=3),
)
def test_numbers(kind: SqlType, texts: list[str]) -> None:
    same(kind, texts)


@pytest.mark.parametrize("kind", [t.NUMERIC, SqlType("numeric", 38, 2), SqlType("numeric", 38, 20), WIDE])
@pytest.mark.parametrize("digits", range(20, 39))
def test_numbers_of_many_digits(kind: SqlType, digits: int) -> None:
    for text in ("9" * digits, "1234567890" * 4):
        same(kind, [text[:digits], f"-{text[: digits - 1]}"])


@examples(400)
@given(st.sampled_from([t.TIMESTAMP, t.DATE]), st.lists(MOMENT, min_size=1, max_size=3))
def test_times(kind: SqlType, texts: list[str]) -> None:
    same(kind, texts)


@pytest.mark.parametrize("text", ["true", "false", "1", "0", "t", "F", "TRUE", "tRue", "yes", "no", "2", ""])
def test_booleans(text: str) -> None:
    same(t.BOOLEAN, [text])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (t.DATE, ["2024-02-29", " 2024-2-1 ", "2024-02-29 12:00:00"], ["0044-03-15 BC", "2024-02-29 x", "infinity"]),
        (t.TIME, ["12:00", "12:00:00.5", "2024-02-29 12:00:00"], ["12:00:00 BC", "24:00:00", "12:00 pm x"]),
        (t.TIMESTAMP, ["2024-02-29 12:00:00"], ["0044-03-15 12:00:00 BC", "infinity"]),
        (t.INTERVAL, ["1 mon -1 days +02:00:00", "-2562047:00:00"], ["2562048:00:00", "-2562048:00:00", "infinity"]),
    ],
)
def test_a_text_is_read_to_its_end_or_is_no_value(kind: SqlType, good: list[str], bad: list[str]) -> None:
    (found,) = valuetexts.convert_scalars([pa.array([*good, *bad, None])], [kind])
    assert found.bad is not None
    assert found.bad.tolist() == [*[False] * len(good), *[True] * len(bad), False]
    assert found.column.is_valid().to_pylist() == [*[True] * len(good), *[False] * len(bad), False]


def test_a_text_without_a_zone_is_in_utc_whatever_stands_before_it() -> None:
    texts = {
        "2020-07-01 12:00:00 Europe/Berlin": "2020-07-01 10:00:00Z",
        "2020-07-01 12:00:00": "2020-07-01 12:00:00Z",
        "2020-07-01": "2020-07-01 00:00:00Z",
        "2020-07-01 12:00:00 PST": "2020-07-01 20:00:00Z",
        "2020-07-01T12:00": "2020-07-01 12:00:00Z",
        "2020-07-01 12:00:00-03": "2020-07-01 15:00:00Z",
        "2020-07-01 12:00:00 EST5EDT": "2020-07-01 16:00:00Z",
        "2020-07-01 12:00:00 UTC+3": None,
    }
    (found,) = valuetexts.convert_scalars([pa.array(texts)], [t.TIMESTAMPTZ])
    assert found.column.cast(pa.timestamp("s", "UTC")).cast(pa.string()).to_pylist() == list(texts.values())
    assert found.bad is not None
    assert found.bad.tolist() == [v is None for v in texts.values()]


def same(kind: SqlType, texts: list[str]) -> None:
    array = pa.array([*texts, None])
    short = valuetexts._without_duckdb(array, kind)
    if short is None:
        return
    (column,) = valuetexts.evaluate([array], [valuetexts._expression(kind, "t0", array)])
    long = valuetexts._checked(array, column, kind)
    assert long.bad is None
    assert raw(short.column) == raw(long.column)


def raw(array: pa.Array) -> list[Any]:
    return [str(getattr(v, "value", v)) if v.is_valid else None for v in array]
