"""Resolves type names of PostgreSQL and RisingWave, from tokens (columns) and from sqlglot's trees (casts)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import sql_of
from watersmeet.dialects.tree.tokens import Cursor, not_supported, span_of
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import MAP_KEYS, SqlType, map_of

_NAMES: Final[dict[str, str]] = {
    "boolean": "boolean", "bool": "boolean",
    "smallint": "smallint", "int2": "smallint",
    "integer": "integer", "int": "integer", "int4": "integer",
    "bigint": "bigint", "int8": "bigint",
    "numeric": "numeric", "decimal": "numeric", "dec": "numeric",
    "real": "real", "float4": "real",
    "float": "double precision", "float8": "double precision", "double": "double precision",
    "varchar": "varchar", "text": "varchar", "string": "varchar",
    "char": "varchar", "character": "varchar", "bpchar": "varchar", "nchar": "varchar", "name": "varchar",
    "inet": "varchar", "cidr": "varchar", "oid": "bigint",
    "bytea": "bytea", "bytes": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
    "jsonb": "jsonb", "json": "json", "uuid": "uuid",
}  # fmt: skip

#: PostgreSQL's names of types that have no `SqlType` of their own.
_DECLARED: Final[dict[str, str]] = {
    "text": "text", "char": "bpchar", "character": "bpchar", "bpchar": "bpchar", "nchar": "bpchar", "name": "name",
    "inet": "inet", "cidr": "cidr", "oid": "oid",
}  # fmt: skip

#: The unsupported types of PostgreSQL and RisingWave, each with an alternative.
_LACKING: Final[dict[str, str]] = {
    "nvarchar": "Use varchar.", "money": "Use numeric.", "map": "Write map(k, v), or jsonb.",
    "rw_int256": "Use numeric(38, 0).",
    "timetz": "Use time.", "xml": "Use varchar.", "bit": "Use bytea.", "vector": "Use real[].",
    "regclass": "Use varchar.", "tinyint": "Use smallint.", "hugeint": "Use numeric(38, 0).",
    "serial": "A column of a table can have it.", "bigserial": "A column of a table can have it.",
}  # fmt: skip

#: The names of types in sqlglot's trees.
_TREE_NAMES: Final[dict[exp.DataType.Type, str]] = {
    exp.DataType.Type.BOOLEAN: "boolean",
    exp.DataType.Type.SMALLINT: "smallint",
    exp.DataType.Type.INT: "integer",
    exp.DataType.Type.BIGINT: "bigint",
    exp.DataType.Type.DECIMAL: "numeric",
    exp.DataType.Type.FLOAT: "real",
    exp.DataType.Type.DOUBLE: "float",
    exp.DataType.Type.VARCHAR: "varchar",
    exp.DataType.Type.TEXT: "text",
    exp.DataType.Type.CHAR: "char",
    exp.DataType.Type.NCHAR: "char",
    exp.DataType.Type.BPCHAR: "bpchar",
    exp.DataType.Type.NAME: "name",
    exp.DataType.Type.INET: "inet",
    exp.DataType.Type.VARBINARY: "bytea",
    exp.DataType.Type.DATE: "date",
    exp.DataType.Type.TIME: "time",
    exp.DataType.Type.TIMESTAMP: "timestamp",
    exp.DataType.Type.TIMESTAMPTZ: "timestamptz",
    exp.DataType.Type.INTERVAL: "interval",
    exp.DataType.Type.JSONB: "jsonb",
    exp.DataType.Type.JSON: "json",
    exp.DataType.Type.UUID: "uuid",
}

_MAX_PRECISION: Final = 38
_MAX_LENGTH: Final = 10_485_760
_MOST_DIGITS: Final = 6
_TIMES: Final = ("time", "timestamp", "timestamptz")

#: The fields of intervals, with PostgreSQL's bits for them in a modifier.
_FIELDS: Final = {"year": 2, "month": 1, "day": 3, "hour": 10, "minute": 11, "second": 12}
#: The spans of fields, with the masks of their bits.
INTERVAL_FIELDS: Final = {
    f if f == t else f"{f} to {t}": sum(1 << bit for bit in list(_FIELDS.values())[i : k + 1])
    for i, f in enumerate(_FIELDS)
    for k, t in enumerate(_FIELDS)
    if f == t or (f, t) == ("year", "month") or (2 <= i < k)
}
_ALL_FIELDS: Final = 0x7FFF
_ALL_DIGITS: Final = 0xFFFF

#: A type, and the part of its declaration that the type of values lacks.
Written = tuple[SqlType, Declared | None]


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


def _written(name: str, numbers: Sequence[int], fields: str, text: str, span: Span) -> Written:
    """The type for a name in `_NAMES` with its arguments. fields: the fields of an interval, such as `day to second`.

    Raises INVALID_PARAMETER, UNDEFINED_OBJECT.
    """

    def out_of_range(message: str) -> Error:
        return error("INVALID_PARAMETER", message, sql=text, span=span)

    kind, declared = _NAMES[name], _DECLARED.get(name)
    if name in ("char", "character", "nchar") and not numbers:
        numbers = (1,)
    if kind == "interval" and (numbers or fields):
        if fields and fields not in INTERVAL_FIELDS:
            raise error("SYNTAX_ERROR", f"an interval can't have the fields {fields}", sql=text, span=span)
        mask = INTERVAL_FIELDS.get(fields, _ALL_FIELDS)
        return SqlType(kind), Declared(kind, mask << 16 | (min(numbers[0], _MOST_DIGITS) if numbers else _ALL_DIGITS))
    if not numbers:
        return SqlType(kind), None if declared is None else Declared(declared)
    if kind == "numeric" and len(numbers) <= 2:
        return numeric(numbers[0], numbers[1] if len(numbers) > 1 else 0, text, span), None
    if len(numbers) > 1:
        raise out_of_range(f"type {name} takes one number")
    number = numbers[0]
    if name == "varchar" or declared == "bpchar":
        if not 1 <= number <= _MAX_LENGTH:
            raise out_of_range(f"length for type {declared or name} must be between 1 and {_MAX_LENGTH}")
        padding = number if declared == "bpchar" else 0
        return SqlType(kind, padding=padding), Declared(declared or name, number + 4)
    if name == "float":
        if not 1 <= number <= 53:
            raise out_of_range(f"precision for type float must be between 1 and 53 bits, not {number}")
        return SqlType("real" if number <= 24 else kind), None
    if kind in _TIMES:
        return SqlType(kind), Declared(kind, min(number, _MOST_DIGITS))
    raise error("SYNTAX_ERROR", f"type {name} takes no arguments", sql=text, span=span)


def read_type(cursor: Cursor) -> SqlType:
    """Reads a type at the cursor where its length or precision could not be applied, so that it is refused."""
    span = span_of(cursor.rest[:1] or cursor.tokens[-1:])
    kind, declared = read_declared(cursor)
    if declared is not None and declared.modifier >= 0:
        hint = "Write it without." if declared.name != "varchar" else "Write varchar."
        raise not_supported(f"a length or precision of type {kind.sql}", cursor.text, span, hint=hint)
    return kind


def read_declared(cursor: Cursor) -> Written:
    """Reads the type of a column at the cursor."""
    kind, declared = _read_element(cursor)
    for _ in range(read_depth(cursor)):
        kind = SqlType("array", element=kind)
    return kind, declared


def read_depth(cursor: Cursor) -> int:
    """Reads `[]`, as often as it is there, or `ARRAY` or `ARRAY[n]`."""
    word = cursor.take("ARRAY")
    depth = 0
    while cursor.take("["):
        if not cursor.at("]"):
            cursor.integer()
        cursor.expect("]")
        depth += 1
    return max(depth, int(word))


def checked_map(key: SqlType, value: SqlType, text: str, span: Span) -> SqlType:
    """The type of a map. Raises FEATURE_NOT_SUPPORTED for keys whose values have several forms."""
    if key.name not in MAP_KEYS:
        hint = "Keys are strings, whole numbers, numeric, booleans, dates and timestamps."
        raise not_supported(f"a map with keys of type {key.sql}", text, span, hint=hint)
    return map_of(key, value)


def _read_map(cursor: Cursor, span: Span) -> SqlType:
    cursor.expect("(")
    key = read_type(cursor)
    cursor.expect(",")
    value = read_type(cursor)
    cursor.expect(")")
    return checked_map(key, value, cursor.text, span)


def _read_element(cursor: Cursor) -> Written:
    if cursor.at("STRUCT"):
        cursor.index += 1
        return _read_struct(cursor), None
    cursor.take("PG_CATALOG", ".")
    place = cursor.word()
    if place.name == "map" and cursor.at("("):
        return _read_map(cursor, place.span), None
    name = place.name
    if name == "national":
        name = cursor.word().name
    if name in ("character", "char", "nchar") and cursor.take("VARYING"):
        name = "varchar"
    elif name == "double":
        cursor.take("PRECISION")
    numbers = _read_numbers(cursor) if name in ("time", "timestamp") else []
    if name in ("time", "timestamp"):
        if cursor.take("WITH", "TIME", "ZONE"):
            name += "tz"
        else:
            cursor.take("WITHOUT", "TIME", "ZONE")
    if name not in _NAMES:
        raise _unknown(name, cursor.text, place.span)
    fields = []
    if name == "interval":
        while (field := next((f for f in _FIELDS if cursor.take(f.upper())), None)) is not None:
            fields.append(field)
            if not cursor.take("TO"):
                break
    return _written(name, numbers or _read_numbers(cursor), " to ".join(fields), cursor.text, place.span)


def _read_numbers(cursor: Cursor) -> list[int]:
    """Reads the arguments of a type, if any."""
    found: list[int] = []
    if cursor.take("("):
        found.append(cursor.integer())
        while cursor.take(","):
            found.append(cursor.integer())
        cursor.expect(")")
    return found


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


def _name_of(kind: Any) -> str:
    """The name of a type in a tree."""
    if isinstance(kind, exp.Expression):
        return sql_of(kind)
    return str(kind.value if isinstance(kind, exp.DataType.Type) else kind)


def type_of_tree(tree: exp.DataType, text: str, span: Span) -> SqlType:
    """The type that a tree names."""
    return declared_of_tree(tree, text, span)[0]


def declared_of_tree(tree: exp.DataType, text: str, span: Span) -> Written:
    """The target type of a cast."""
    kind = tree.this
    if kind in (exp.DataType.Type.ARRAY, exp.DataType.Type.LIST):
        if not tree.expressions:
            raise error("UNDEFINED_OBJECT", 'type "array" does not exist', hint="Write int[].", sql=text, span=span)
        element, declared = declared_of_tree(tree.expressions[0], text, span)
        return SqlType("array", element=element), declared
    if kind == exp.DataType.Type.MAP and len(tree.expressions) == 2:
        key, value = (type_of_tree(part, text, span) for part in tree.expressions)
        return checked_map(key, value, text, span), None
    if kind == exp.DataType.Type.STRUCT:
        fields = tuple(
            (f.this.name, type_of_tree(f.args["kind"], text, span))
            if isinstance(f, exp.ColumnDef)
            else (str(number), type_of_tree(f, text, span))  # Timeplus' tuple(int, string)
            for number, f in enumerate(tree.expressions, 1)
        )
        return SqlType("struct", fields=fields), None
    unit = ""
    if kind == exp.DataType.Type.USERDEFINED:
        written = tree.args.get("kind") or ""
        name = (sql_of(written) if isinstance(written, exp.Expression) else str(written)).lower()
        name = name.removeprefix("pg_catalog.")
    elif isinstance(kind, exp.Interval):
        name, unit = "interval", sql_of(kind.args["unit"]).lower() if kind.args.get("unit") else ""
    elif kind in _TREE_NAMES:
        name = _TREE_NAMES[kind]
    else:
        name = _name_of(kind).lower()
    if name not in _NAMES:
        raise _unknown(name, text, span)
    if not all(p.name.isdecimal() for p in tree.expressions):
        raise error(
            "INVALID_PARAMETER",
            f"the arguments of type {name} are not whole numbers",
            hint="Write, for example, numeric(10, 2).",
            sql=text,
            span=span,
        )
    return _written(name, [int(p.name) for p in tree.expressions], unit, text, span)


def type_named(text: str) -> SqlType:
    """The type for a text such as `int` or `numeric(10, 2)`. Raises UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    return type_of_tree(exp.DataType.build(text, dialect="postgres", udt=True), text, Span(0, len(text)))


_DEFAULTS: Final[dict[str, str]] = {
    "boolean": "FALSE",
    "varchar": "''",
    "date": "DATE '1970-01-01'",
    "timestamp": "TIMESTAMP '1970-01-01'",
    "array": "[]",
    "map": "[]",
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
