"""Reads types, columns and keys in CREATE statements of Timeplus: `nullable(string)`, `datetime64(3)`.

Timeplus, "Multi-JOINs and ASOF JOINs", all listings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.catalog import DELTA_COLUMN
from watersmeet.dialects.timeplus.storage import take_column_clause
from watersmeet.dialects.tree.queries import expression_of
from watersmeet.dialects.tree.sqltypes import checked_map, numeric
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import Cursor, not_supported, span_of
from watersmeet.errors import Span, did_you_mean
from watersmeet.values.types import JSONB, VARCHAR, Field, SqlType

#: Unsigned types become the next larger signed types: every value fits, and sums and differences are signed.
_NAMES: Final[dict[str, str]] = {
    "bool": "boolean", "boolean": "boolean",
    "int8": "smallint", "int16": "smallint", "int32": "integer", "int": "integer", "integer": "integer",
    "int64": "bigint",
    "bigint": "bigint", "smallint": "smallint", "uint8": "smallint", "uint16": "integer", "uint32": "bigint",
    "uint": "bigint",
    "float32": "real", "float": "real", "float64": "double precision", "double": "double precision",
    "string": "varchar", "varchar": "varchar", "fixed_string": "varchar",
    "date": "date", "date32": "date", "datetime": "timestamp", "datetime64": "timestamp",
    "json": "jsonb",
}  # fmt: skip

_LARGE: Final = {"uint64": 20, "int128": 38, "uint128": 38}

#: Types whose values are texts in Watersmeet, each with the difference.
_TEXTS: Final = {
    "uuid": "it is compared as it is written, so 'A…' and 'a…' differ",
    "ipv4": "it is compared and sorted as text",
    "ipv6": "it is compared and sorted as text, so '::1' and '0:0:0:0:0:0:0:1' differ",
}
_ENUMS: Final = ("enum8", "enum16", "enum")

_LACKING: Final = {
    "nested": "Use one array for each of its columns, or json.",
    "int256": "Numbers have at most 38 digits: use int128.",
    "uint256": "Numbers have at most 38 digits: use int128.",
    "decimal256": "Numbers have at most 38 digits: use decimal128.",
    "variant": "Use json.",
    "dynamic": "Use json.",
    "aggregate_function": "Store what the aggregate computes, in a materialized view.",
    "simple_aggregate_function": "Store what the aggregate computes, in a materialized view.",
}

#: The ranges of columns with narrow types.
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "int8": (-(1 << 7), (1 << 7) - 1), "uint8": (0, (1 << 8) - 1), "uint16": (0, (1 << 16) - 1), "uint32": (0,
    (1 << 32) - 1),
    "uint": (0, (1 << 32) - 1), "uint64": (0, (1 << 64) - 1), "uint128": (0, 10**38 - 1),
}  # fmt: skip


#: The number of fractional digits of seconds in Watersmeet.
DIGITS: Final = 6


@dataclass(frozen=True)
class ColumnType:
    """The SQL type of a column, with the limits of Timeplus' type.

    range: the range of its numbers, if narrower than the SQL type. digits: the fractional digits of a second. choices:
    the values of an enum. note: the difference to Timeplus' type, if it may change a result.
    """

    type: SqlType
    nullable: bool = False
    range: tuple[int, int] | None = None
    digits: int | None = None
    choices: tuple[str, ...] = ()
    note: str = ""


def read_column_type(cursor: Cursor) -> ColumnType:
    """Reads a type at the cursor. Raises UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    place = cursor.name(reserved=True)
    name = place.name.lower()
    if name in ("nullable", "low_cardinality", "array"):
        cursor.expect("(")
        inner = read_column_type(cursor)
        cursor.expect(")")
        if name == "array":
            return ColumnType(SqlType("array", element=inner.type), note=inner.note)
        return replace(inner, nullable=inner.nullable or name == "nullable")
    if name == "map":
        cursor.expect("(")
        key = read_column_type(cursor)
        cursor.expect(",")
        value = read_column_type(cursor)
        cursor.expect(")")
        return ColumnType(checked_map(key.type, value.type, cursor.text, place.span), note=key.note or value.note)
    if name == "tuple":
        return _tuple(cursor)
    if name in _ENUMS:
        return ColumnType(VARCHAR, choices=_read_choices(cursor))
    if name in _TEXTS:
        return ColumnType(VARCHAR, note=f"type {name} is text here: {_TEXTS[name]}")
    if name.startswith("decimal") and name not in _LACKING:
        return _decimal(name, cursor)
    if name in _LARGE:
        return ColumnType(SqlType("numeric", _LARGE[name], 0), range=_RANGES.get(name))
    if name in _LACKING:
        raise not_supported(f"type {name}", cursor.text, place.span, hint=_LACKING[name])
    if name not in _NAMES:
        raise cursor.error_at(
            place.span,
            "UNDEFINED_OBJECT",
            f'type "{place.name}" does not exist',
            hint=did_you_mean(name, [*_NAMES, *_LARGE, "array", "nullable"]),
        )
    digits = {"datetime": 0, "datetime64": 3}.get(name)
    if cursor.take("("):  # a time zone and a length have no effect
        if name == "datetime64":
            digits = cursor.integer()
        cursor.until(")")
        cursor.expect(")")
    return ColumnType(SqlType(_NAMES[name]), range=_RANGES.get(name), digits=digits)


def _tuple(cursor: Cursor) -> ColumnType:
    """The type of `tuple(int, string)` or `tuple(a int, b string)`: a struct; unnamed elements are called 1, 2 and so
    on.
    """
    cursor.expect("(")
    fields: list[tuple[str, SqlType]] = []
    notes: list[str] = []
    while not fields or cursor.take(","):
        begin, number = cursor.index, str(len(fields) + 1)
        first = cursor.name(reserved=True)
        is_name = not (cursor.at(",") or cursor.at(")") or cursor.at("("))
        if not is_name:
            cursor.index = begin
        kind = read_column_type(cursor)
        fields.append((first.name if is_name else number, kind.type))
        notes += [kind.note] if kind.note else []
    cursor.expect(")")
    return ColumnType(SqlType("struct", fields=tuple(fields)), note=notes[0] if notes else "")


def _read_choices(cursor: Cursor) -> tuple[str, ...]:
    """The values of `('a' = 1, 'b' = 2)`, an enum's, in the order of their numbers."""
    cursor.expect("(")
    found: dict[str, int] = {}
    while not found or cursor.take(","):
        span = span_of(cursor.rest[:1] or cursor.tokens)
        text = cursor.string()
        if text in found:
            raise cursor.error_at(span, "INVALID_PARAMETER", f"the enum has the value '{text}' twice")
        number = max(found.values(), default=0) + 1
        if cursor.take("="):
            sign = -1 if cursor.take("-") else 1
            number = sign * cursor.integer()
        found[text] = number
    cursor.expect(")")
    return tuple(sorted(found, key=lambda text: found[text]))


def first_choice(choices: Sequence[str]) -> str:
    """The default of an enum, the value with the least number, as SQL."""
    return str(exp.Literal.string(choices[0]).sql(dialect="duckdb"))


#: sqlglot's types in casts, each with the type that the binder reads.
_TREES: Final[dict[exp.DType, exp.DType]] = {
    exp.DType.TINYINT: exp.DType.SMALLINT, exp.DType.UTINYINT: exp.DType.SMALLINT, exp.DType.USMALLINT: exp.DType.INT,
    exp.DType.UINT: exp.DType.BIGINT, exp.DType.DATE32: exp.DType.DATE, exp.DType.DATETIME: exp.DType.TIMESTAMP,
    exp.DType.DATETIME64: exp.DType.TIMESTAMP, exp.DType.FIXEDSTRING: exp.DType.TEXT, exp.DType.JSON: exp.DType.JSONB,
}  # fmt: skip

_DIGITS: Final = {exp.DType.UBIGINT: 20, exp.DType.INT128: 38, exp.DType.UINT128: 38}
_SCALED: Final = {exp.DType.DECIMAL32: 9, exp.DType.DECIMAL64: 18, exp.DType.DECIMAL128: 38}


def tree_of(name: str) -> exp.DataType:
    """The tree of a type that a cast contains as a text."""
    found: exp.DataType = cast_type(exp.DataType.build(name, dialect="clickhouse"))
    return found


def cast_type(tree: exp.DataType) -> exp.DataType:
    """Converts the type of a cast to the binder's form, without nullability, digits of a second and length."""
    kind = tree.this
    if kind == exp.DType.LOWCARDINALITY and tree.expressions:
        return cast_type(tree.expressions[0])
    if kind in (exp.DType.ARRAY, exp.DType.MAP):
        return exp.DataType(this=kind, expressions=[cast_type(e) for e in tree.expressions], nested=True)
    if kind in _TREES:
        return exp.DataType(this=_TREES[kind])
    if kind in _DIGITS:
        return _numeric(_DIGITS[kind], 0)
    if kind in _SCALED:
        return _numeric(_SCALED[kind], int(tree.expressions[0].name) if tree.expressions else 0)
    return tree


def _numeric(*digits: int) -> exp.DataType:
    return exp.DataType(
        this=exp.DType.DECIMAL, expressions=[exp.DataTypeParam(this=exp.Literal.number(d)) for d in digits]
    )


def _decimal(name: str, cursor: Cursor) -> ColumnType:
    """The type of `decimal(p, s)` or `decimal64(s)`."""
    start = cursor.index
    cursor.expect("(")
    first = cursor.integer()
    second = cursor.integer() if cursor.take(",") else None
    cursor.expect(")")
    digits = {"decimal32": 9, "decimal64": 18, "decimal128": 38}.get(name)
    from_to = (digits, first) if digits is not None else (first, second or 0)
    return ColumnType(numeric(*from_to, cursor.text, span_of(cursor.tokens[start - 1 : cursor.index])))


#: Parts of a column that Watersmeet lacks, each with the way round.
_COLUMNS_LACKING: Final = {
    "AUTO_INCREMENT": "Write the numbers in the INSERT.",
    "EPHEMERAL": "Declare the column without the word, and leave it out of queries.",
}

#: The words before the expression of a column.
VALUE_WORDS: Final = ("DEFAULT", "MATERIALIZED", "ALIAS")

#: The only column that may be a map. It maps names to values and is stored as JSON text.
HEADERS_COLUMN: Final = "_tp_message_headers"


def key_names(cursor: Cursor) -> tuple[Name, ...]:
    """Reads the names of a key: `(a, b)` or `a`."""
    return cursor.names() if cursor.at("(") else (cursor.name(),)


@dataclass(frozen=True)
class Column:
    """A column as declared. value: the word (DEFAULT, MATERIALIZED or ALIAS) before its expression, and that. notices:
    for parts that have no effect.
    """

    field: Field
    kind: ColumnType
    value: tuple[str, exp.Expression] | None = None
    value_span: Span | None = None
    notices: tuple[str, ...] = ()


def read_column(cursor: Cursor, earlier: Collection[str], *, has_delta: bool = False) -> Column:
    """Reads a column up to `,` or `)`. earlier: the names of earlier columns. has_delta: whether `_tp_delta` may be
    declared.
    """
    name = cursor.name(reserved=True)
    if name.name in earlier:
        raise cursor.error_at(name.span, "DUPLICATE_COLUMN", f'column "{name.name}" specified more than once')
    if name.name == DELTA_COLUMN and not has_delta:
        raise cursor.error_at(name.span, "DUPLICATE_COLUMN", f'column "{DELTA_COLUMN}" is a system column')
    if name.name == HEADERS_COLUMN and cursor.take("MAP", "(", "STRING", ",", "STRING", ")"):
        kind = ColumnType(JSONB, nullable=True)
    elif any(map(cursor.at, VALUE_WORDS)):
        raise not_supported("a column without a type", cursor.text, name.span, hint="Write its type after its name.")
    else:
        kind = read_column_type(cursor)
    nullable, value, span, notices = kind.nullable, None, None, [kind.note] if kind.note else []
    while not (cursor.done or cursor.at(",") or cursor.at(")") or cursor.at("FIRST") or cursor.at("AFTER")):
        start = cursor.index
        if cursor.take("NOT", "NULL"):
            nullable = False
        elif cursor.take("NULL"):
            nullable = True
        elif value is None and any(map(cursor.take, VALUE_WORDS)):
            word = cursor.tokens[start].text.upper()
            tokens = cursor.until(",", ")", "COMMENT", "CODEC", "TTL", "FIRST", "AFTER")
            value, span = (word, expression_of(cursor, tokens)), span_of(cursor.tokens[start : cursor.index])
        elif (taken := take_column_clause(cursor, name.name)) is not None:
            notices += taken
        else:
            cursor.until(",", ")")
            refused = span_of(cursor.tokens[start : cursor.index])
            word = cursor.tokens[start].text.upper()
            raise not_supported(f"{word} on a column", cursor.text, refused, hint=_COLUMNS_LACKING.get(word))
    return Column(Field(name.name, kind.type, nullable), kind, value, span, tuple(notices))


def only_default(cursor: Cursor, column: Column, of: str, *, constant: bool = True) -> exp.Expression | None:
    """The DEFAULT of a column that can't be MATERIALIZED or ALIAS. constant: whether it can have a DEFAULT. Raises
    FEATURE_NOT_SUPPORTED.
    """
    if column.value is None:
        return None
    word, expression = column.value
    if word == "DEFAULT" and constant:
        return expression
    raise not_supported(f"{word} of a column {of}", cursor.text, column.value_span)


def read_columns(
    cursor: Cursor, declared: dict[str, exp.Expression] | None = None
) -> tuple[tuple[Field, ...], dict[str, tuple[int, int]]]:
    """Reads `(a int, b string)`: the columns, and the ranges of those that are narrower than their SQL types.

    declared: receives the DEFAULT of columns. None: columns can't have a DEFAULT.
    """
    cursor.expect("(")
    columns: list[Field] = []
    ranges: dict[str, tuple[int, int]] = {}
    while not cursor.at(")"):
        column = read_column(cursor, [c.name for c in columns])
        columns.append(column.field)
        default = only_default(cursor, column, "of what is outside", constant=declared is not None)
        if default is not None and declared is not None:
            declared[column.field.name] = default
        if column.kind.range is not None:
            ranges[column.field.name] = column.kind.range
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(columns), ranges
