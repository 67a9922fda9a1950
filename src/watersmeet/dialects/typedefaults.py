"""What a value is where none is given and NULL is not possible: ClickHouse's defaults of types."""

from __future__ import annotations

from typing import Final

from watersmeet.types import SqlType

_DEFAULTS: Final[dict[str, str]] = {
    "boolean": "FALSE",
    "varchar": "''",
    "date": "DATE '1970-01-01'",
    "timestamp": "TIMESTAMP '1970-01-01'",
    "array": "[]",
    "jsonb": "'{}'",
}


def type_default(kind: SqlType) -> str | None:
    """The default of a type as DuckDB SQL, as ClickHouse has it; None for a type that has none there."""
    return "0" if kind.is_numeric else _DEFAULTS.get(kind.name)
