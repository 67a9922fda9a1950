"""Resolves type names of PostgreSQL and RisingWave, from tokens (columns) and from sqlglot's trees (casts)."""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import sql_of
from watersmeet.dialects.tree.tokens import Cursor, not_supported
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.values.types import SqlType

_NAMES: Final[dict[str, str]] = {
    "boolean": "boolean", "bool": "boolean",
    "smallint": "smallint", "int2": "smallint",
    "integer": "integer", "int": "integer", "int4": "integer",
    "bigint": "bigint", "int8": "bigint",
    "numeric": "numeric", "decimal": "numeric", "dec": "numeric",
    "real": "real", "float4": "real",
    "float": "double precision", "float8": "double precision", "double": "double precision",
    "varchar": "varchar", "text": "varchar", "string": "varchar",
    "bytea": "bytea", "bytes": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
    "jsonb": "jsonb",
}  # fmt: skip

#: The unsupported types of PostgreSQL and RisingWave, each with an alternative.
_LACKING: Final[dict[str, str]] = {
    "json": "Use jsonb.", "char": "Use varchar.", "character": "Use varchar.", "bpchar": "Use varchar.",
    "nchar": "Use varchar.", "nvarchar": "Use varchar.", "uuid": "Use varchar.", "money": "Use numeric.",
    "serial": "Use integer.", "bigserial": "Use bigint.", "map": "Use jsonb.", "rw_int256": "Use numeric(38, 0).",
    "timetz": "Use time.", "xml": "Use varchar.", "inet": "Use varchar.", "bit": "Use bytea.", "vector": "Use real[].",
    "name": "Use varchar.",
    "oid": "Use bigint.", "regclass": "Use varchar.", "tinyint": "Use smallint.", "hugeint": "Use numeric(38, 0).",
}  # fmt: skip

_TREE_NAMES: Final[dict[exp.DataType.Type, str]] = {
    exp.DataType.Type.BOOLEAN: "boolean",
    exp.DataType.Type.SMALLINT: "smallint",
    exp.DataType.Type.INT: "integer",
    exp.DataType.Type.BIGINT: "bigint",
    exp.DataType.Type.DECIMAL: "numeric",
    exp.DataType.Type.FLOAT: "real",
    exp.DataType.Type.DOUBLE: "double precision",
    exp.DataType.Type.VARCHAR: "varchar",
    exp.DataType.Type.TEXT: "varchar",
    exp.DataType.Type.VARBINARY: "bytea",
    exp.DataType.Type.DATE: "date",
    exp.DataType.Type.TIME: "time",
    exp.DataType.Type.TIMESTAMP: "timestamp",
    exp.DataType.Type.TIMESTAMPTZ: "timestamptz",
    exp.DataType.Type.INTERVAL: "interval",
    exp.DataType.Type.JSONB: "jsonb",
}

_MAX_PRECISION: Final = 38


def numeric(precision: int, scale: int, text: str, span: Span) -> SqlType:
    """The type `numeric(precision, scale)`, or the error for an invalid precision or scale."""
    if not 1 <= precision <= _MAX_PRECISION:
        raise error(
            "INVALID_PARAMETER",
            f"numeric precision {precision} must be between 1 and {_MAX_PRECISION}",
            sql=text,
            span=span,
        )
    if not 0 <= scale <= precision:
        raise error(
            "INVALID_PARAMETER",
            f"numeric scale {scale} must be between 0 and precision {precision}",
            sql=text,
            span=span,
        )
    return SqlType("numeric", precision, scale)


def _unknown(name: str, text: str, span: Span) -> Error:
    if name in _LACKING:
        return not_supported(f"type {name}", text, span, hint=_LACKING[name])
    return error(
        "UNDEFINED_OBJECT", f'type "{name}" does not exist', hint=did_you_mean(name, _NAMES), sql=text, span=span
    )


def _no_length(text: str, span: Span) -> Error:
    return not_supported("a length of character varying", text, span, hint="Write varchar.")


def read_type(cursor: Cursor) -> SqlType:
    """Reads a type at the cursor."""
    kind = _read_element(cursor)
    while cursor.take("["):
        if not cursor.at("]"):
            cursor.integer()
        cursor.expect("]")
        kind = SqlType("array", element=kind)
    return kind


def _read_element(cursor: Cursor) -> SqlType:
    if cursor.at("STRUCT"):
        cursor.index += 1
        return _read_struct(cursor)
    place = cursor.word()
    name = place.name
    if name in ("character", "char") and cursor.take("VARYING"):
        name = "varchar"
    elif name == "double":
        cursor.take("PRECISION")
    elif name in ("time", "timestamp"):
        if cursor.take("WITH", "TIME", "ZONE"):
            name += "tz"
        else:
            cursor.take("WITHOUT", "TIME", "ZONE")
    if name not in _NAMES:
        raise _unknown(name, cursor.text, place.span)
    kind = _NAMES[name]
    if not cursor.at("("):
        return SqlType(kind)
    if kind == "varchar":
        raise _no_length(cursor.text, place.span)
    if kind != "numeric":
        raise cursor.error(detail=f"Type {kind} takes no arguments.")
    cursor.expect("(")
    precision = cursor.integer()
    scale = cursor.integer() if cursor.take(",") else 0
    cursor.expect(")")
    return numeric(precision, scale, cursor.text, place.span)


def _read_struct(cursor: Cursor) -> SqlType:
    close = ")" if cursor.at("(") else ">"
    cursor.expect("(" if close == ")" else "<")
    fields: list[tuple[str, SqlType]] = []
    while True:
        name = cursor.name(reserved=True)
        if name.name in dict(fields):
            raise cursor.error_at(name.span, "DUPLICATE_COLUMN", f'field "{name.name}" specified more than once')
        fields.append((name.name, read_type(cursor)))
        if not cursor.take(","):
            break
    cursor.split_shift()
    cursor.expect(close)
    return SqlType("struct", fields=tuple(fields))


def _written(kind: Any) -> str:
    """The name of a type in a tree."""
    if isinstance(kind, exp.Expression):
        return sql_of(kind)
    return str(kind.value if isinstance(kind, exp.DataType.Type) else kind)


def type_of_tree(tree: exp.DataType, text: str, span: Span) -> SqlType:
    """The target type of a cast."""
    kind = tree.this
    if kind in (exp.DataType.Type.ARRAY, exp.DataType.Type.LIST):
        if not tree.expressions:
            raise error("UNDEFINED_OBJECT", 'type "array" does not exist', hint="Write int[].", sql=text, span=span)
        return SqlType("array", element=type_of_tree(tree.expressions[0], text, span))
    if kind == exp.DataType.Type.STRUCT:
        fields = tuple((f.this.name, type_of_tree(f.args["kind"], text, span)) for f in tree.expressions)
        return SqlType("struct", fields=fields)
    if kind == exp.DataType.Type.USERDEFINED:
        written = tree.args.get("kind") or ""
        name = (sql_of(written) if isinstance(written, exp.Expression) else str(written)).lower()
        if name in _NAMES:
            return SqlType(_NAMES[name])
        raise _unknown(name, text, span)
    if kind == exp.DataType.Type.INTERVAL or isinstance(kind, exp.Interval):
        return SqlType("interval")
    if kind not in _TREE_NAMES:
        raise _unknown(_written(kind).lower(), text, span)
    name = _TREE_NAMES[kind]
    if name == "varchar" and tree.expressions:
        raise _no_length(text, span)
    if name == "numeric" and tree.expressions:
        if not all(p.name.isdecimal() for p in tree.expressions):
            raise error(
                "INVALID_PARAMETER",
                "the digits of a numeric are not whole numbers",
                hint="Write, for example, numeric(10, 2).",
                sql=text,
                span=span,
            )
        numbers = [int(p.name) for p in tree.expressions]
        return numeric(numbers[0], numbers[1] if len(numbers) > 1 else 0, text, span)
    return SqlType(name)


def type_named(text: str) -> SqlType:
    """The type for a text such as `int` or `numeric(10, 2)`. Raises UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    return type_of_tree(exp.DataType.build(text, dialect="postgres", udt=True), text, Span(0, len(text)))


_DEFAULTS: Final[dict[str, str]] = {
    "boolean": "FALSE",
    "varchar": "''",
    "date": "DATE '1970-01-01'",
    "timestamp": "TIMESTAMP '1970-01-01'",
    "array": "[]",
    "jsonb": "'{}'",
}


def type_default(kind: SqlType) -> str | None:
    """ClickHouse's default of a type, as DuckDB SQL; None for a type without a default."""
    if kind.name == "struct":
        parts = [(name, type_default(inner)) for name, inner in kind.fields]
        listed = ", ".join(
            f'"{name}" := CAST({default} AS {dict(kind.fields)[name].duckdb})' for name, default in parts
        )
        return None if any(default is None for _, default in parts) else f"struct_pack({listed})"
    return "0" if kind.is_numeric else _DEFAULTS.get(kind.name)
