"""DuckDB's errors at execution as ours."""

from __future__ import annotations

from typing import Final

import duckdb

from watersmeet.dialects.binder.context import first_line
from watersmeet.errors import Error, Span, error

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


def map_duckdb_error(exc: duckdb.Error, text: str, span: Span | None = None) -> Error:
    """The error that stands for one that DuckDB raised while it ran a translated query.

    INVALID_VALUE for values (casts, overflow, a scalar subquery's rows are SCALAR_SUBQUERY_ROWS), OUT_OF_MEMORY,
    FEATURE_NOT_SUPPORTED for what DuckDB can't plan; INTERNAL_ERROR for what the translation should have caught.
    """
    message = first_line(exc)
    if "More than one row returned by a subquery" in str(exc):
        return error("SCALAR_SUBQUERY_ROWS", "more than one row returned by a subquery used as an expression", sql=text,
                     span=span)
    condition = next((c for kind, c in _CONDITIONS if isinstance(exc, kind)), "INTERNAL_ERROR")
    return error(condition, _lower(message), sql=text, span=span)


def _lower(message: str) -> str:
    """The message in our voice: it starts in lower case and has no full stop."""
    message = message.rstrip(" .!")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


