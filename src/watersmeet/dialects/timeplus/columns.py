"""What the CREATE statements of Timeplus share: names, columns, keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from sqlglot import Dialect, exp

from watersmeet.catalog import DELTA_COLUMN
from watersmeet.dialects.options import not_supported
from watersmeet.dialects.queries import read_expression
from watersmeet.dialects.statements import Name
from watersmeet.dialects.timeplus.types import ColumnType, read_column_type
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import error
from watersmeet.types import JSONB, Field

#: The one column that may be a map, of names and values: its text is JSON.
HEADERS_COLUMN: Final = "_tp_message_headers"


def key_names(cursor: Cursor) -> tuple[Name, ...]:
    """`(a, b)` or `a`."""
    return cursor.names() if cursor.at("(") else (cursor.name(),)


def read_column(cursor: Cursor, earlier: Collection[str]) -> tuple[Field, ColumnType]:
    """A column, up to DEFAULT, `,` or `)`, and its type as it is written. earlier: the names of those before it."""
    name = cursor.name(reserved=True)
    if name.name in earlier:
        raise error(
            "DUPLICATE_COLUMN", f'column "{name.name}" specified more than once', sql=cursor.text, span=name.span
        )
    if name.name == DELTA_COLUMN:
        raise error("DUPLICATE_COLUMN", f'column "{DELTA_COLUMN}" is a system column', sql=cursor.text, span=name.span)
    if name.name == HEADERS_COLUMN and cursor.take("MAP", "(", "STRING", ",", "STRING", ")"):
        kind = ColumnType(JSONB, nullable=True)
    else:
        kind = read_column_type(cursor)
    nullable = kind.nullable
    while not (cursor.done or cursor.at(",") or cursor.at(")") or cursor.at("DEFAULT")):
        start = cursor.index
        if cursor.take("NOT", "NULL"):
            nullable = False
        elif cursor.take("NULL"):
            nullable = True
        else:
            cursor.until(",", ")")
            place = span_of(cursor.tokens[start : cursor.index])
            raise not_supported(f"{cursor.tokens[start].text.upper()} on a column", cursor.text, place)
    return Field(name.name, kind.type, nullable), kind


def read_default(cursor: Cursor, dialect: Dialect) -> exp.Expression:
    """The expression behind DEFAULT of a column. SYNTAX_ERROR."""
    return read_expression(cursor.originals(cursor.until(",", ")")), cursor.text, dialect)


def refuse_default(cursor: Cursor, of: str) -> None:
    """FEATURE_NOT_SUPPORTED for DEFAULT behind a column that can have none."""
    if cursor.at("DEFAULT"):
        place = span_of(cursor.until(",", ")"))
        raise not_supported(f"DEFAULT of a column {of}", cursor.text, place)


def read_columns(
    cursor: Cursor, declare: Callable[[str], None] | None = None
) -> tuple[tuple[Field, ...], dict[str, tuple[int, int]]]:
    """`(a int, b string)`: the columns, and which numbers those take whose types take more.

    declare: reads the DEFAULT of a column, the cursor behind that word. None: columns can have none.
    """
    cursor.expect("(")
    columns: list[Field] = []
    ranges: dict[str, tuple[int, int]] = {}
    while not cursor.at(")"):
        column, kind = read_column(cursor, [c.name for c in columns])
        columns.append(column)
        if declare is None:
            refuse_default(cursor, "of what is outside")
        elif cursor.take("DEFAULT"):
            declare(column.name)
        if kind.range is not None:
            ranges[column.name] = kind.range
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(columns), ranges
