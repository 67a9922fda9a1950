"""From text to columns of types that hold no others: one meaning for every format, whatever else the slice holds.

A value that can't be converted is NULL in the result and true in the mask `bad`. Numbers are exact: text becomes
a decimal without a detour by floats.
"""

from __future__ import annotations

import decimal
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.system import duckdbs
from watersmeet.values.times import DAY_US, with_offset_sql
from watersmeet.values.types import SqlType

Mask = npt.NDArray[np.bool_]

#: The days and microseconds since 1970 of the years 1 to 9999, which Python's dates and times have.
FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
FIRST_US: Final = FIRST_DAY * DAY_US
LAST_US: Final = (LAST_DAY + 1) * DAY_US - 1

#: Texts that DuckDB reads to their end as a date, or as a time of a day: of others it takes the first part.
DATE_FORM: Final = r"(?i)\s*([+-]?\d+[-/. \\]\d{1,2}[-/. \\]\d{1,2}( \(BC\))?|[+-]?infinity|epoch)\s*"
TIME_FORM: Final = r"\s*\d{1,2}:\d{1,2}(:\d{1,2}(\.\d+)?)?([+-]\d{1,2}(:?\d{2})?)?\s*"
#: A sign of PostgreSQL's intervals (`-1 days +02:00:00`), which changes nothing and which DuckDB does not read.
PLUS_SIGN: Final = r"(^|\s)\+(\d)"
#: Arrow has the time of an interval in nanoseconds.
MOST_HOURS: Final = 2**63 // (3600 * 10**9)
#: A zone that is no offset.
_ZONE: Final = r"[0-9]\s*([A-SU-Ya-su-y]|[TtZz][A-Za-z])"

#: ISO 8601's intervals, with a sign for each part, and at most microseconds.
_ISO: Final = (
    r"(?i)\s*P([+-]?\d+Y)?([+-]?\d+M)?([+-]?\d+W)?([+-]?\d+D)?"
    r"(T([+-]?\d+H)?([+-]?\d+M)?([+-]?\d+([.]\d{1,6}0*)?S)?)?\s*"
)

_local = threading.local()

_UNSIGNED: Final = f"regexp_replace({{c}}, '{PLUS_SIGN}', '\\1\\2', 'g')"


def _words(part: int, letters: str) -> str:
    """A part of ISO 8601's interval `{c}` in words. letters: L1:word1 L2:word2 …"""
    found = f"split_part(upper({{c}}), 'T', {part})"
    for letter, word in (pair.split(":") for pair in letters.split()):
        found = f"replace({found}, '{letter}', ' {word} ')"
    return found


#: The text of an interval as DuckDB reads it.
_INTERVAL: Final = _UNSIGNED.replace(
    "{c}",
    f"CASE WHEN regexp_full_match({{c}}, '{_ISO}') THEN {_words(1, 'Y:years M:months W:weeks D:days P:')} || "
    f"{_words(2, 'H:hours M:minutes S:seconds')} ELSE {{c}} END",
)

#: Conversion of text `{c}` to each type, where plain TRY_CAST takes what SQL would not.
_EXPRESSIONS: Final[dict[str, str]] = {
    "smallint": "CASE WHEN regexp_full_match({c}, '\\s*[+-]?[0-9]+\\s*') THEN TRY_CAST({c} AS SMALLINT) END",
    "integer": "CASE WHEN regexp_full_match({c}, '\\s*[+-]?[0-9]+\\s*') THEN TRY_CAST({c} AS INTEGER) END",
    "bigint": "CASE WHEN regexp_full_match({c}, '\\s*[+-]?[0-9]+\\s*') THEN TRY_CAST({c} AS BIGINT) END",
    "real": "CASE WHEN NOT contains({c}, '_') AND (isfinite(TRY_CAST({c} AS FLOAT)) "
    "OR regexp_full_match({c}, '(?i)\\s*([+-]?inf(inity)?|nan)\\s*')) THEN TRY_CAST({c} AS FLOAT) END",
    "double precision": "CASE WHEN NOT contains({c}, '_') AND (isfinite(TRY_CAST({c} AS DOUBLE)) "
    "OR regexp_full_match({c}, '(?i)\\s*([+-]?inf(inity)?|nan)\\s*')) THEN TRY_CAST({c} AS DOUBLE) END",
    "numeric": "CASE WHEN NOT regexp_matches({c}, '[_eE]') THEN TRY_CAST({c} AS {type}) END",
    "date": f"CASE WHEN isfinite(TRY_CAST({{c}} AS DATE)) AND (regexp_full_match({{c}}, '{DATE_FORM}') "
    "OR TRY_CAST(trim({c}) AS TIMESTAMP) IS NOT NULL) THEN TRY_CAST({c} AS DATE) END",
    "time": f"CASE WHEN TRY_CAST({{c}} AS TIME) < TIME '24:00:00' AND (regexp_full_match({{c}}, '{TIME_FORM}') "
    "OR TRY_CAST(trim({c}) AS TIMESTAMP) IS NOT NULL) THEN TRY_CAST({c} AS TIME) END",
    "interval": f"CASE WHEN abs(date_part('hour', TRY_CAST({_INTERVAL} AS INTERVAL))) <= {MOST_HOURS} "
    f"THEN TRY_CAST({_INTERVAL} AS INTERVAL) END",
    "timestamp": "CASE WHEN isfinite(TRY_CAST({c} AS TIMESTAMP)) THEN TRY_CAST({c} AS TIMESTAMP) END",
    "timestamptz": "CASE WHEN isfinite(TRY_CAST({c} AS TIMESTAMPTZ)) THEN TRY_CAST({c} AS TIMESTAMPTZ) END",
    "bytea": "CASE WHEN starts_with({c}, '\\x') THEN CASE WHEN length({c}) % 2 = 0 THEN TRY(unhex(substr({c}, 3))) END "
    "ELSE encode({c}) END",
}


def _bytes(letters: bytes) -> Mask:
    mask = np.zeros(256, np.bool_)
    mask[list(letters)] = True
    return mask


_DIGITS: Final = _bytes(b"-0123456789")
_POINT: Final = _bytes(b"-.0123456789")

#: The plainest form of each type: bytes (None: any), shortest and longest text of types for which that matters.
_PLAIN: Final[dict[str, tuple[Mask | None, int, int]]] = {
    "boolean": (None, 0, 0),
    "smallint": (_DIGITS, 0, 0),
    "integer": (_DIGITS, 0, 0),
    "bigint": (_DIGITS, 0, 0),
    "real": (_POINT, 0, 0),
    "double precision": (_POINT, 0, 0),
    "numeric": (_POINT, 1, 38),
    "date": (_DIGITS, 0, 0),
    "timestamp": (_bytes(b"-.: T0123456789"), 16, 26),
}


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's own DuckDB: in memory, one thread, UTC, no way to the outside."""
    if getattr(_local, "process", None) != os.getpid():
        _local.connection = duckdbs.connect(memory_limit="1GB")
        _local.process = os.getpid()
    result: duckdb.DuckDBPyConnection = _local.connection
    return result


def evaluate(columns: Sequence[pa.Array], expressions: Sequence[str]) -> list[pa.Array]:
    """DuckDB `expressions` over the columns, called `t0`, `t1` …; rows keep their order."""
    if not expressions:
        return []
    names = [f"t{i}" for i in range(len(columns))]
    duck = connection()
    duck.register("_input", pa.Table.from_arrays(list(columns), names=names))
    try:
        result = duck.execute("SELECT " + ", ".join(expressions) + " FROM _input").to_arrow_table()
    finally:
        duck.unregister("_input")
    return [_one_array(column) for column in result.columns]


@dataclass(frozen=True)
class Converted:
    """A typed column. bad: rows whose text was not NULL but could not be converted; None if there are none."""

    column: pa.Array
    bad: Mask | None = None


def convert_scalars(columns: Sequence[pa.Array], types: Sequence[SqlType]) -> list[Converted]:
    """String columns as `types`, which are neither nested nor jsonb."""
    result: list[Converted | None] = [_without_duckdb(c, t) for c, t in zip(columns, types, strict=True)]
    open_ = [i for i, done in enumerate(result) if done is None]
    expressions = [_expression(types[i], f"t{k}", columns[i]) for k, i in enumerate(open_)]
    for i, column in zip(open_, evaluate([columns[i] for i in open_], expressions), strict=True):
        result[i] = _checked(columns[i], column, types[i])
    return [done for done in result if done is not None]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array


def _expression(kind: SqlType, column: str, texts: pa.Array) -> str:
    template = _EXPRESSIONS.get(kind.name, "TRY_CAST({c} AS {type})")
    if kind.name == "timestamptz" and pc.any(pc.match_substring_regex(texts, _ZONE)).as_py():
        column = with_offset_sql(column)
    return template.replace("{c}", column).replace("{type}", kind.duckdb)


def _without_duckdb(texts: pa.Array, kind: SqlType) -> Converted | None:
    """Text as it is, and values in their plainest form, which Arrow converts faster than DuckDB and to the same.

    None if there is any other value: then DuckDB converts the whole column.
    """
    if kind.name == "varchar":
        return Converted(texts)
    plain = _PLAIN.get(kind.name)
    if plain is None or (plain[0] is not None and not _has_only(texts, plain[0])):
        return None
    if kind.name in ("timestamp", "numeric"):
        lengths = pc.min_max(pc.binary_length(texts))
        shortest, longest = lengths["min"].as_py() or plain[1], lengths["max"].as_py() or plain[1]
        # Arrow takes hours without minutes, and decimals that overflow.
        if not plain[1] <= shortest <= longest <= plain[2]:
            return None
    if kind.name == "numeric" and _may_wrap(texts, kind):
        return None
    try:
        column = pc.cast(texts, kind.arrow)
    except pa.ArrowInvalid:
        return None
    if kind.is_float and pc.all(pc.is_finite(column)).as_py() is False:
        return None
    return Converted(column)


def _may_wrap(texts: pa.Array, kind: SqlType) -> bool:
    """Whether a text has more digits before its point than the type. Arrow scales such a number modulo 2^128, so that
    the result may be a wrong number of few digits.
    """
    point = pc.find_substring(texts, ".")
    before = pc.if_else(pc.less(point, 0), pc.binary_length(texts), point)
    return bool((pc.max(before).as_py() or 0) > kind.arrow.precision - kind.arrow.scale)


def _has_only(texts: pa.Array, letters: Mask) -> bool:
    """True if all text of the column is made of these bytes."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return True
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return bool(letters[np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]].all())


def _exact_exponents(texts: pa.Array, column: pa.Array, kind: SqlType) -> pa.Array:
    """Decimals written with an exponent, one by one: DuckDB rounds 1e-30 up to the last digit."""
    rows = np.nonzero(
        pc.fill_null(pc.match_substring_regex(texts, "[eE]"), fill_value=False).to_numpy(zero_copy_only=False)
    )[0]
    if not len(rows):
        return column
    values = [_decimal(texts[int(row)].as_py(), kind) for row in rows]
    mask = np.zeros(len(texts), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(column, pa.array(mask), pa.array(values, kind.arrow))


def _decimal(text: str, kind: SqlType) -> decimal.Decimal | None:
    """The text as a decimal of the type's scale, None if it's none or too large."""
    precision, scale = kind.arrow.precision, kind.arrow.scale
    context = decimal.Context(prec=2 * precision + 2, rounding=decimal.ROUND_HALF_UP)
    try:
        value = decimal.Decimal(text.strip()).quantize(decimal.Decimal(1).scaleb(-scale), context=context)
    except decimal.InvalidOperation:
        return None
    return value if "_" not in text and value.is_finite() and abs(value) < 10 ** (precision - scale) else None


def _checked(texts: pa.Array, column: pa.Array, kind: SqlType) -> Converted:
    """The converted column, with the mask of what got lost on the way."""
    if column.type != kind.arrow:
        column = column.cast(kind.arrow)
    if kind.name == "numeric":
        column = _exact_exponents(texts, column, kind)
    if column.null_count == texts.null_count:
        return Converted(column)
    bad = pc.and_(pc.is_valid(texts), pc.is_null(column))
    return Converted(column, bad.to_numpy(zero_copy_only=False))
