"""DuckDB's errors at execution as ours."""

from __future__ import annotations

import re
from typing import Final

import duckdb

from watersmeet.errors import Error, Span, error
from watersmeet.expressions.casts import NO_INTEGER
from watersmeet.expressions.context import first_line
from watersmeet.expressions.templates import FAILURES
from watersmeet.timezones import NO_TIME

_CONDITIONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (duckdb.ConversionException, "INVALID_VALUE"),
    (duckdb.OutOfRangeException, "INVALID_VALUE"),
    (duckdb.InvalidInputException, "INVALID_VALUE"),
    (duckdb.ParserException, "INTERNAL_ERROR"),
    (duckdb.CatalogException, "INTERNAL_ERROR"),
    (duckdb.BinderException, "FEATURE_NOT_SUPPORTED"),
    (duckdb.NotImplementedException, "FEATURE_NOT_SUPPORTED"),
    (duckdb.OutOfMemoryException, "OUT_OF_MEMORY"),
    (duckdb.InterruptException, "QUERY_CANCELED"),
    (duckdb.IOException, "INTERNAL_ERROR"),
)


#: DuckDB's words for a value that a type can't hold.
_OUT_OF_RANGE: Final = (
    re.compile(r"^Type \w+ with value (?P<value>.*) can't be cast .*destination type (?P<type>[\w() ,]+?)$", re.DOTALL),
    re.compile(r'^Casting value "(?P<value>.*)" to type (?P<type>.+?) failed: value is out of range$', re.DOTALL),
    re.compile(r"^Could not cast value (?P<value>.*) to (?P<type>DECIMAL\(.+?\))$", re.DOTALL),
)
_UNKNOWN_ZONE: Final = re.compile(r"Unknown TimeZone '(?P<name>.*?)\??'")
_NO_NUMBER: Final = re.compile(r"^Could not convert string '(?P<value>.*)' to (?P<type>[\w(), ]+)$", re.DOTALL)
_TYPE_NAME: Final = re.compile(r"\bINT(?:16|32|64)\b|\bDECIMAL(?=\()")
_SOURCE_COLUMN: Final = re.compile(r"!?\s*when casting from source column \S+$")
_TYPES: Final = {
    "BLOB": "bytea",
    "BOOL": "boolean",
    "BOOLEAN": "boolean",
    "DOUBLE": "double precision",
    "FLOAT": "real",
    "INT16": "smallint",
    "INT32": "integer",
    "INT64": "bigint",
    "INTEGER": "integer",
    "SMALLINT": "smallint",
}


def map_duckdb_error(exc: duckdb.Error, text: str, span: Span | None = None) -> Error:
    """The error that stands for one that DuckDB raised while it ran a translated query.

    INVALID_VALUE for values (casts, overflow, a scalar subquery's rows are SCALAR_SUBQUERY_ROWS), OUT_OF_MEMORY,
    FEATURE_NOT_SUPPORTED for what DuckDB can't plan; INTERNAL_ERROR for what the translation should have caught.
    """
    message = first_line(exc)
    if "More than one row returned by a subquery" in str(exc):
        return error(
            "SCALAR_SUBQUERY_ROWS",
            "more than one row returned by a subquery used as an expression",
            sql=text,
            span=span,
        )
    if (zone := _UNKNOWN_ZONE.search(message)) is not None:
        return error("INVALID_PARAMETER", f'time zone "{zone["name"]}" not recognized', sql=text, span=span)
    condition = next((c for kind, c in _CONDITIONS if isinstance(exc, kind)), "INTERNAL_ERROR")
    return error(condition, _lower(_worded(message)), sql=text, span=span)


def _worded(message: str) -> str:
    """The message without what only DuckDB knows: names of its types and of columns that the translation made."""
    if (known := next((f for f in FAILURES if f in message), None)) is not None:
        return known
    message = _SOURCE_COLUMN.sub("", message.rstrip(" .!")).replace(NO_TIME, "")
    for pattern in _OUT_OF_RANGE:
        if (found := pattern.match(message)) is not None:
            return f"value {found['value']} is out of range for type {_sql_type(found['type'])}"
    if (found := _NO_NUMBER.match(message)) is not None:
        value = found["value"].removesuffix(NO_INTEGER)
        return f'invalid input syntax for type {_sql_type(found["type"])}: "{value}"'
    return _TYPE_NAME.sub(lambda m: _sql_type(m[0]), message)


def _sql_type(name: str) -> str:
    return _TYPES.get(name, name.replace("DECIMAL", "numeric").lower())


def _lower(message: str) -> str:
    """The message in our voice: it starts in lower case and has no full stop."""
    message = message.rstrip(" .!")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
