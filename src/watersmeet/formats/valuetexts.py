"""Values as text, in DuckDB's SQL, for JSON, CSV and plain text; and the spacing of PostgreSQL's jsonb texts.

An expression is SQL over one value, which it may name several times, so callers pass the name of a column or of a
parameter, never a computation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import did_you_mean, error
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

#: Days from 0000-12-31, the day 0 of "days from the common era", to 1970-01-01.
_DAYS_TO_EPOCH: Final = 719163


@dataclass(frozen=True, slots=True)
class JsonStyle:
    r"""What systems write differently in JSON. The defaults are RisingWave's ("Sink data to Kafka", "JSON encode").

    numeric: with all digits, within quotes or bare. date: days from 0001-01-01, which is day 1, or from 1970-01-01, or
    2023-11-11. time: milliseconds from midnight, or 18:30:09.453. timestamp: milliseconds from 1970-01-01, or
    2023-11-11 18:30:09.453000; iso with a T between. timestamptz: 2023-11-11T18:30:09.453000Z, or 2023-11-11
    18:30:09.453000, or a number. jsonb: its text within quotes, or as it is.
    bytea: Base64, or \x00ff. interval: ISO 8601 with all its parts, or 1 year 2 days 00:00:01. float: what NaN and
    infinities are, for which JSON has no numbers.
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
        """The style with what options `….handling.mode` ask for. CONNECTOR_OPTION for a mode that does not exist."""
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
    """`text` as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def json_object(columns: Sequence[Field], names: Sequence[str], style: JsonStyle) -> str:
    """A JSON object with a member for each column. names: what the SQL calls the columns."""
    parts: list[str] = []
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        parts += [literal(("," if i else "{") + _json_name(column.name) + ":"), json_value(name, column.type, style)]
    return f"concat({', '.join(parts)}, '}}')" if parts else "'{}'"


def json_value(value: str, kind: SqlType, style: JsonStyle, depth: int = 0) -> str:
    """A value as JSON; NULL as `null`. depth: in how many arrays and structs it is."""
    return f"coalesce({_json(value, kind, style, depth)}, 'null')"


def _json_name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _quoted(text: str) -> str:
    """What never has a character that JSON escapes, within quotes; NULL if it is NULL."""
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
    """All digits; without a declared scale no zeros at the end."""
    text = f"CAST({value} AS VARCHAR)"
    return text if kind.precision is not None else f"rtrim(rtrim({text}, '0'), '.')"


def interval_text(value: str) -> str:
    """ISO 8601 with all parts: P1Y1M2DT0H0M1.5S. Each part has its own sign."""
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
    """The value as CSV, TSV and plain text have it, NULL for NULL: what decoders of text read as the same value.

    Arrays, structs and jsonb are JSON, in which nothing is lost: numbers bare, times in microseconds.
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
    """The text of an array as PostgreSQL reads it: {1,2,NULL}; NULL for NULL. depth: of arrays around it."""
    assert kind.element is not None
    item = f"x{depth}"
    if kind.element.element is not None:
        text = array_literal(item, kind.element, depth + 1)
    else:
        text = f"""'"' || replace(replace({plain_text(item, kind.element)}, '\\', '\\\\'), '"', '\\"') || '"'"""
    items = f"list_transform({value}, lambda {item}: coalesce({text}, 'NULL'))"
    return f"'{{' || array_to_string({items}, ',') || '}}'"


#: JSON from which every value can be read again, whatever its type.
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

_STRING: Final = r'"(?:[^"\\]|\\.)*"'

#: (pattern, replacement) in sequence: remove white space outside strings, add blanks, remove the last blank. Matches of
#: the second pattern are adjacent, so that none begins within a string.
_STEPS: Final = (
    (rf"({_STRING})|[ \t\r\n]+", r"\1"),
    (rf'((?:{_STRING}|[^",:])*)([,:]|$)', r"\1\2 "),
    (" +$", ""),
)


def spaced(texts: pa.Array) -> pa.Array:
    """Texts of jsonb with PostgreSQL's blanks."""
    for pattern, replacement in _STEPS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def spaced_sql(text: str) -> str:
    """The same in SQL of DuckDB."""
    for pattern, replacement in _STEPS:
        text = f"regexp_replace({text}, '{pattern}', '{replacement}', 'g')"
    return text
