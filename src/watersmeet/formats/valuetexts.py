"""Converts texts to columns of scalar types, and makes DuckDB SQL for the texts of values.

Every format converts text in the same way, independent of other rows. A value that can't be converted is NULL in the
result and true in the mask `bad`. Numbers are exact: text becomes a decimal without floats.

An expression for a text may contain its value several times, so callers pass the name of a column or parameter, never a
computation.
"""

from __future__ import annotations

import decimal
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import did_you_mean, error
from watersmeet.system import duckdbs
from watersmeet.system.duckdbs import JSON_BLANKS
from watersmeet.values.packing import offsets
from watersmeet.values.times import DAY_US, SECOND_US, UTC, shown_offset, with_offset_sql
from watersmeet.values.types import Field, SqlType

NumericForm = Literal["string", "number"]
DateForm = Literal["days_from_ce", "days_from_epoch", "string"]
TimeForm = Literal["milli", "string"]
TimestampForm = Literal["milli", "string", "iso"]
TimestamptzForm = Literal["utc_string", "utc_without_suffix", "micro", "milli"]
JsonbForm = Literal["string", "dynamic"]
ByteaForm = Literal["base64", "hex"]
IntervalForm = Literal["iso", "text"]
FloatForm = Literal["null", "string"]

#: The number of days from 0000-12-31, day 0 of "days from the common era", to 1970-01-01.
_DAYS_TO_EPOCH: Final = 719163


@dataclass(frozen=True, slots=True)
class JsonStyle:
    r"""The style of JSON values, which differs between systems. The defaults are RisingWave's ("Sink data to Kafka",
    "JSON encode").

    numeric: with all digits, as a string or a number. date: days from 0001-01-01, which is day 1, or from 1970-01-01,
    or 2023-11-11. time: milliseconds from midnight, or 18:30:09.453. timestamp: milliseconds from 1970-01-01, or
    2023-11-11 18:30:09.453000; iso with a T between. timestamptz: 2023-11-11T18:30:09.453000Z, or 2023-11-11
    18:30:09.453000, or a number. jsonb: its text as a string, or unchanged. bytea: Base64, or \x00ff. interval: ISO
    8601 with all its parts, or 1 year 2 days 00:00:01. float: NaN and infinities, for which JSON has no numbers.
    """

    numeric: NumericForm = "string"
    date: DateForm = "days_from_ce"
    time: TimeForm = "milli"
    timestamp: TimestampForm = "milli"
    timestamptz: TimestamptzForm = "utc_string"
    jsonb: JsonbForm = "string"
    bytea: ByteaForm = "base64"
    interval: IntervalForm = "iso"
    float: FloatForm = "null"

    def asked(self, options: Mapping[str, str]) -> JsonStyle:
        """The style in the options `….handling.mode`. Raises CONNECTOR_OPTION for an unknown mode."""
        return JsonStyle(
            numeric=_mode(options, "numeric", get_args(NumericForm), self.numeric),
            date=_mode(options, "date", get_args(DateForm), self.date),
            time=_mode(options, "time", get_args(TimeForm), self.time),
            timestamp=_mode(options, "timestamp", get_args(TimestampForm), self.timestamp),
            timestamptz=_mode(options, "timestamptz", get_args(TimestamptzForm), self.timestamptz),
            jsonb=_mode(options, "jsonb", get_args(JsonbForm), self.jsonb),
            bytea=_mode(options, "bytea", get_args(ByteaForm), self.bytea),
            interval=_mode(options, "interval", get_args(IntervalForm), self.interval),
            float=_mode(options, "float", get_args(FloatForm), self.float),
        )


def _mode(options: Mapping[str, str], kind: str, modes: tuple[str, ...], default: str) -> Any:
    name = f"{kind}.handling.mode"
    asked = options.get(name, default)
    if asked in modes:
        return asked
    raise error(
        "CONNECTOR_OPTION",
        f"{name} can't be '{asked}'",
        hint=did_you_mean(asked, modes) or f"It must be one of {', '.join(modes)}.",
    )


def literal(text: str) -> str:
    """`text` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def json_object(columns: Sequence[Field], names: Sequence[str], style: JsonStyle) -> str:
    """A JSON object with a member for each column. names: the names of the columns in the SQL."""
    parts: list[str] = []
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        parts += [literal(("," if i else "{") + _json_name(column.name) + ":"), json_value(name, column.type, style)]
    return f"concat({', '.join(parts)}, '}}')" if parts else "'{}'"


def json_value(value: str, kind: SqlType, style: JsonStyle, depth: int = 0) -> str:
    """A value as JSON; NULL as `null`. depth: the number of arrays and structs around it."""
    return f"coalesce({_json(value, kind, style, depth)}, 'null')"


def _json_name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _quoted(text: str) -> str:
    """A text without characters that JSON escapes, in quotes; NULL for NULL."""
    return f"'\"' || {text} || '\"'"


def _json(value: str, kind: SqlType, style: JsonStyle, depth: int) -> str:
    name = kind.name
    if kind.is_float:
        otherwise = f"ELSE {_quoted(plain_text(value, kind))} " if style.float == "string" else ""
        return f"CASE WHEN isfinite({value}) THEN CAST({value} AS VARCHAR) {otherwise}END"
    if name == "numeric":
        text = numeric_text(value, kind)
        return _quoted(text) if style.numeric == "string" else text
    if name == "varchar":
        return f"CAST(to_json({value}) AS VARCHAR)"
    if name == "jsonb":
        return f"CAST(to_json(CAST({value} AS VARCHAR)) AS VARCHAR)" if style.jsonb == "string" else value
    if name == "bytea":
        return _quoted(f"to_base64({value})" if style.bytea == "base64" else rf"'\\x' || lower(hex({value}))")
    if name == "date":
        if style.date == "string":
            return _quoted(f"CAST({value} AS VARCHAR)")
        days = f"datediff('day', DATE '1970-01-01', {value})"
        return f"CAST({days}{f' + {_DAYS_TO_EPOCH}' if style.date == 'days_from_ce' else ''} AS VARCHAR)"
    if name == "time":
        text = f"CAST({value} AS VARCHAR)" if style.time == "string" else f"CAST(epoch_ms({value}) AS VARCHAR)"
        return _quoted(text) if style.time == "string" else text
    if name == "timestamp":
        if style.timestamp == "milli":
            return _milliseconds(value)
        between = "T" if style.timestamp == "iso" else " "
        return _quoted(f"strftime({value}, '%Y-%m-%d{between}%H:%M:%S.%f')")
    if name == "timestamptz":
        return _timestamptz(f"CAST({value} AS TIMESTAMP)", style)
    if name == "interval":
        return _quoted(interval_text(value) if style.interval == "iso" else f"CAST({value} AS VARCHAR)")
    if name == "map":
        entry, (key, item) = f"e{depth}", kind.entry
        written = json_value(f"{entry}.key", key, style, depth + 1)
        quoted = f"CASE WHEN starts_with({written}, '\"') THEN {written} ELSE {_quoted(written)} END"
        pair = f"concat({quoted}, ':', {json_value(f'{entry}.value', item, style, depth + 1)})"
        pairs = f"array_to_string(list_transform({value}, lambda {entry}: {pair}), ',')"
        return f"CASE WHEN {value} IS NOT NULL THEN concat('{{', {pairs}, '}}') END"
    if kind.element is not None:
        element = f"e{depth}"
        inner = json_value(element, kind.element, style, depth + 1)
        elements = f"array_to_string(list_transform({value}, lambda {element}: {inner}), ',')"
        return f"CASE WHEN {value} IS NOT NULL THEN concat('[', {elements}, ']') END"
    if name == "struct":
        parts: list[str] = []
        for i, (field, of) in enumerate(kind.fields):
            member = f"struct_extract({value}, {literal(field)})"
            parts += [literal(("," if i else "{") + _json_name(field) + ":"), json_value(member, of, style, depth)]
        return f"CASE WHEN {value} IS NOT NULL THEN concat({', '.join(parts)}, '}}') END"
    return f"CAST({value} AS VARCHAR)"


def _milliseconds(value: str) -> str:
    """Whole milliseconds since 1970, rounded down: `epoch_ms` rounds to 0."""
    return f"CAST(epoch_ms({value}) - CAST(epoch_us({value}) < epoch_ms({value}) * 1000 AS INTEGER) AS VARCHAR)"


def _timestamptz(utc: str, style: JsonStyle) -> str:
    if style.timestamptz == "milli":
        return _milliseconds(utc)
    if style.timestamptz == "micro":
        return f"CAST(epoch_us({utc}) AS VARCHAR)"
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if style.timestamptz == "utc_string" else "%Y-%m-%d %H:%M:%S.%f"
    return _quoted(f"strftime({utc}, '{form}')")


def numeric_text(value: str, kind: SqlType) -> str:
    """The text of a numeric with all digits; without a declared scale it has no trailing zeros."""
    text = f"CAST({value} AS VARCHAR)"
    return text if kind.precision is not None else f"rtrim(rtrim({text}, '0'), '.')"


def interval_text(value: str) -> str:
    """The text of an interval in ISO 8601 with all parts: P1Y1M2DT0H0M1.5S. Each part has its own sign."""
    micros = f"datepart('microsecond', {value})"
    fraction = f"rtrim(lpad(CAST(abs({micros}) % 1000000 AS VARCHAR), 6, '0'), '0')"
    parts = [
        f"'P', datepart('year', {value}), 'Y', datepart('month', {value}), 'M', datepart('day', {value}), 'DT'",
        f"datepart('hour', {value}), 'H', datepart('minute', {value}), 'M'",
        f"CASE WHEN {micros} < 0 AND {micros} > -1000000 THEN '-' END, datepart('second', {value})",
        f"CASE WHEN {micros} % 1000000 <> 0 THEN '.' || {fraction} END, 'S'",
    ]
    return f"CASE WHEN {value} IS NOT NULL THEN concat({', '.join(parts)}) END"


def plain_text(value: str, kind: SqlType) -> str:
    """The text of a value in CSV, TSV and plain text, which decoders read as the same value; NULL for NULL.

    Arrays, structs and jsonb are lossless JSON: numbers unquoted, times in microseconds.
    """
    name = kind.name
    if kind.is_nested:
        return _json(value, kind, EXACT_JSON, 0)
    if kind.is_float:
        special = f"CASE WHEN isnan({value}) THEN 'NaN' WHEN {value} > 0 THEN 'Infinity' ELSE '-Infinity' END"
        return f"CASE WHEN isfinite({value}) THEN CAST({value} AS VARCHAR) WHEN {value} IS NOT NULL THEN {special} END"
    if name == "numeric":
        return numeric_text(value, kind)
    if name == "bytea":
        return f"'\\x' || lower(hex({value}))"
    if name == "timestamptz":
        return f"CAST(CAST({value} AS TIMESTAMP) AS VARCHAR) || '+00:00'"
    return f"CAST({value} AS VARCHAR)"


def array_literal(value: str, kind: SqlType, depth: int = 0) -> str:
    """The text of an array in PostgreSQL: {1,2,NULL}; NULL for NULL. depth: the number of arrays around it."""
    assert kind.element is not None
    item = f"x{depth}"
    if kind.element.element is not None:
        text = array_literal(item, kind.element, depth + 1)
    else:
        text = f"""'"' || replace(replace({plain_text(item, kind.element)}, '\\', '\\\\'), '"', '\\"') || '"'"""
    items = f"list_transform({value}, lambda {item}: coalesce({text}, 'NULL'))"
    return f"'{{' || array_to_string({items}, ',') || '}}'"


#: The style from which every value of every type can be read back.
EXACT_JSON: Final = JsonStyle(
    numeric="number",
    date="string",
    time="string",
    timestamp="string",
    jsonb="dynamic",
    bytea="hex",
    interval="text",
    float="string",
)


def spaced(texts: pa.Array) -> pa.Array:
    """Texts of jsonb with PostgreSQL's blanks."""
    for pattern, replacement in JSON_BLANKS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


Mask = npt.NDArray[np.bool_]

#: The days and microseconds since 1970 of the years 1 to 9999, which Python's dates and times have.
FIRST_DAY: Final = -719_162

LAST_DAY: Final = 2_932_896
FIRST_US: Final = FIRST_DAY * DAY_US
LAST_US: Final = (LAST_DAY + 1) * DAY_US - 1

#: The texts that DuckDB reads completely as a date or as a time of day; of others it only reads the first part.
DATE_FORM: Final = r"(?i)\s*([+-]?\d+[-/. \\]\d{1,2}[-/. \\]\d{1,2}( \(BC\))?|[+-]?infinity|epoch)\s*"

TIME_FORM: Final = r"\s*\d{1,2}:\d{1,2}(:\d{1,2}(\.\d+)?)?([+-]\d{1,2}(:?\d{2})?)?\s*"

#: A plus sign in PostgreSQL's intervals (`-1 days +02:00:00`), which has no meaning and which DuckDB can't read.
PLUS_SIGN: Final = r"(^|\s)\+(\d)"

#: Arrow stores the time of an interval in nanoseconds.
MOST_HOURS: Final = 2**63 // (3600 * 10**9)

#: The form of a zone that is not an offset.
_ZONE: Final = r"[0-9]\s*([A-SU-Ya-su-y]|[TtZz][A-Za-z])"

#: ISO 8601 intervals with a sign for each part and at most microseconds.
_ISO: Final = (
    r"(?i)\s*P([+-]?\d+Y)?([+-]?\d+M)?([+-]?\d+W)?([+-]?\d+D)?"
    r"(T([+-]?\d+H)?([+-]?\d+M)?([+-]?\d+([.]\d{1,6}0*)?S)?)?\s*"
)

_local = threading.local()
_UNSIGNED: Final = f"regexp_replace({{c}}, '{PLUS_SIGN}', '\\1\\2', 'g')"


def _words(part: int, letters: str) -> str:
    """SQL of a part of the ISO 8601 interval `{c}` in words. letters: L1:word1 L2:word2 …"""
    found = f"split_part(upper({{c}}), 'T', {part})"
    for letter, word in (pair.split(":") for pair in letters.split()):
        found = f"replace({found}, '{letter}', ' {word} ')"
    return found


#: The text of an interval in DuckDB's form.
_INTERVAL: Final = _UNSIGNED.replace(
    "{c}",
    f"CASE WHEN regexp_full_match({{c}}, '{_ISO}') THEN {_words(1, 'Y:years M:months W:weeks D:days P:')} || "
    f"{_words(2, 'H:hours M:minutes S:seconds')} ELSE {{c}} END",
)

#: The conversion of text `{c}` to each type for which a plain TRY_CAST accepts more than SQL does.
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

#: The plain form of each type: the allowed bytes (None: any), and the minimum and maximum length if these matter.
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
    """The DuckDB connection of this thread: in memory, single-threaded, in UTC, without external access."""
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
    return [one_array(column) for column in result.columns]


@dataclass(frozen=True)
class Converted:
    """A typed column. bad: the mask of rows whose non-NULL text could not be converted; None if all could."""

    column: pa.Array
    bad: Mask | None = None

    def with_bad(self, more: Mask | None) -> Converted:
        """The column with more bad rows."""
        if more is None or not more.any():
            return self
        return Converted(self.column, more if self.bad is None else more | self.bad)

    def rows(self, rows: Mask | npt.NDArray[np.int64]) -> Converted:
        """Some rows, selected by a mask or by places."""
        return Converted(of_rows(self.column, rows), None if self.bad is None else self.bad[rows])


def of_rows(column: pa.Array, rows: Mask | npt.NDArray[np.int64]) -> pa.Array:
    """Some rows of a column, by a mask or by places."""
    return column.filter(pa.array(rows)) if rows.dtype == np.bool_ else column.take(pa.array(rows))


def convert_scalars(columns: Sequence[pa.Array], types: Sequence[SqlType]) -> list[Converted]:
    """Converts string columns to `types`, except nested types and jsonb."""
    result: list[Converted | None] = [_without_duckdb(c, t) for c, t in zip(columns, types, strict=True)]
    open_ = [i for i, done in enumerate(result) if done is None]
    expressions = [_expression(types[i], f"t{k}", columns[i]) for k, i in enumerate(open_)]
    for i, column in zip(open_, evaluate([columns[i] for i in open_], expressions), strict=True):
        result[i] = _checked(columns[i], column, types[i])
    return [done for done in result if done is not None]


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array


def _expression(kind: SqlType, column: str, texts: pa.Array) -> str:
    template = _EXPRESSIONS.get(kind.name, "TRY_CAST({c} AS {type})")
    if kind.name == "timestamptz" and pc.any(pc.match_substring_regex(texts, _ZONE)).as_py():
        column = with_offset_sql(column)
    return template.replace("{c}", column).replace("{type}", kind.duckdb)


def _without_duckdb(texts: pa.Array, kind: SqlType) -> Converted | None:
    """Converts texts unchanged, and values in their plain form, which Arrow converts faster than DuckDB with equal
    results.

    None if another value occurs; then DuckDB converts the whole column.
    """
    if kind.name == "varchar":
        return Converted(texts)
    plain = _PLAIN.get(kind.name)
    if plain is None or (plain[0] is not None and not _has_only(texts, plain[0])):
        return None
    if kind.name in ("timestamp", "numeric"):
        lengths = pc.min_max(pc.binary_length(texts))
        shortest, longest = lengths["min"].as_py() or plain[1], lengths["max"].as_py() or plain[1]
        # Arrow accepts hours without minutes, and decimals that overflow.
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
    """Whether a text has more digits before its point than the type. Arrow scales such a number modulo 2^128, which may
    result in a wrong number with few digits.
    """
    point = pc.find_substring(texts, ".")
    before = pc.if_else(pc.less(point, 0), pc.binary_length(texts), point)
    return bool((pc.max(before).as_py() or 0) > kind.arrow.precision - kind.arrow.scale)


def _has_only(texts: pa.Array, letters: Mask) -> bool:
    """Whether all texts of the column consist of these bytes."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return True
    bounds = offsets(texts)
    return bool(letters[np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]].all())


def _exact_exponents(texts: pa.Array, column: pa.Array, kind: SqlType) -> pa.Array:
    """Converts decimals written with an exponent one by one, because DuckDB rounds 1e-30 up to the last digit."""
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
    """The text as a decimal with the type's scale; None if it is invalid or too large."""
    precision, scale = kind.arrow.precision, kind.arrow.scale
    context = decimal.Context(prec=2 * precision + 2, rounding=decimal.ROUND_HALF_UP)
    try:
        value = decimal.Decimal(text.strip()).quantize(decimal.Decimal(1).scaleb(-scale), context=context)
    except decimal.InvalidOperation:
        return None
    return value if "_" not in text and value.is_finite() and abs(value) < 10 ** (precision - scale) else None


def _checked(texts: pa.Array, column: pa.Array, kind: SqlType) -> Converted:
    """The converted column, with the mask of lost values."""
    if column.type != kind.arrow:
        column = column.cast(kind.arrow)
    if kind.name == "numeric":
        column = _exact_exponents(texts, column, kind)
    if column.null_count == texts.null_count:
        return Converted(column)
    bad = pc.and_(pc.is_valid(texts), pc.is_null(column))
    return Converted(column, bad.to_numpy(zero_copy_only=False))


def local_times(moments: pa.Array) -> tuple[pa.Array, pa.Array | str]:
    """The local times (timestamps) of timestamptz in the zone of their Arrow type, and the texts of their offsets; the
    infinities stay as they are.
    """
    in_utc = moments.cast(pa.timestamp("us", UTC)).cast(pa.timestamp("us"))
    if moments.type.tz in (None, UTC):
        return in_utc, "+00"
    numbers = in_utc.cast(pa.int64())
    limit = np.iinfo(np.int64).max
    infinite = pc.is_in(numbers, pa.array([limit, -limit]))
    local = pc.local_timestamp(pc.if_else(infinite, pa.scalar(0, moments.type), moments))
    local = pc.if_else(infinite, in_utc, local)
    differences = pc.subtract(local.cast(pa.int64()), numbers).dictionary_encode()
    texts = [shown_offset(d // SECOND_US) for d in differences.dictionary.to_pylist()]
    return local, pa.array(texts, pa.large_string()).take(differences.indices)
