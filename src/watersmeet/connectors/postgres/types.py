"""The types of PostgreSQL: the SQL type as which each is read, the SQL types that it stores, and texts of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.jsonscan import content, elements
from watersmeet.values.types import BOOLEAN, JSONB, REAL, VARCHAR, SqlType

TEXTS: Final = ("text", "varchar", "bpchar")
WHOLE: Final = ("int2", "int4", "int8")
#: The types that store some different texts as equal values.
LOOSE: Final = ("bpchar", "citext", "uuid", "inet", "cidr", "macaddr")


class _Type(NamedTuple):
    """A PostgreSQL type. read: the SQL type as which it is read; None: it is only read as a declared text.

    takes: the names of SQL types whose values it always stores unchanged; None for all types.
    """

    read: SqlType | None
    takes: tuple[str, ...] | None


#: The types by their names in `pg_type`.
_TYPES: Final[dict[str, _Type]] = {
    "bool": _Type(BOOLEAN, ("boolean",)),
    "int2": _Type(SqlType("smallint"), ("smallint",)),
    "int4": _Type(SqlType("integer"), ("smallint", "integer")),
    "int8": _Type(SqlType("bigint"), ("smallint", "integer", "bigint")),
    "numeric": _Type(SqlType("numeric"), ("smallint", "integer", "bigint", "numeric")),
    "float4": _Type(REAL, ("real",)),
    "float8": _Type(SqlType("double precision"), ("real", "double precision")),
    **dict.fromkeys(TEXTS, _Type(VARCHAR, None)),
    "name": _Type(VARCHAR, ()),
    "uuid": _Type(VARCHAR, ("varchar",)),
    **dict.fromkeys(("citext", "xml", "inet", "cidr", "macaddr"), _Type(None, ("varchar",))),
    **{n: _Type(SqlType(n), (n,)) for n in ("bytea", "date", "time", "timestamp", "timestamptz", "interval")},
    **dict.fromkeys(("json", "jsonb"), _Type(JSONB, ("varchar", "jsonb", "struct", "array"))),
}
_ENUM: Final = _Type(VARCHAR, ("varchar",))
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_SPACE: Final = 0x20
_NULL: Final = b"NULL"
#: JSON's escape of a control character, without its last two digits.
_CONTROL: Final = b"\\u0000"
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_SIGNS: Final = np.zeros(256, np.bool_)
_SIGNS[list(b"{},")] = True
_BRACKETS: Final = np.arange(256, dtype=np.uint8)
_BRACKETS[list(b"{}")] = list(b"[]")
_JSON: Final = ("json", "jsonb")
#: The maximum number of digits of a numeric.
_DIGITS: Final = 38
#: The encoding in `atttypmod` of the scale of a numeric, the fields and digits of an interval, and the digits of a
#: time.
_MODIFIER_HEAD: Final = 4
_SCALE_BITS: Final = 0x7FF
_SCALE_SIGN: Final = 0x400
_ALL_FIELDS: Final = 0x7FFF
_MICROSECONDS: Final = 6

#: The part of queries that finds types and the elements of arrays; for a domain the innermost base type.
_BASES: Final = """
WITH RECURSIVE bases AS (
    SELECT oid, oid AS base, NULL::int AS modifier, false AS required FROM pg_type
    UNION ALL
    SELECT b.oid, t.typbasetype, coalesce(nullif(b.modifier, -1), t.typtypmod), b.required OR t.typnotnull
    FROM bases b JOIN pg_type t ON t.oid = b.base WHERE t.typtype = 'd'
), whole AS (
    SELECT b.oid, t.typname, t.typtype, t.typarray, t.oid AS base, b.modifier, b.required
    FROM bases b JOIN pg_type t ON t.oid = b.base WHERE t.typtype <> 'd'
), described AS (
    SELECT w.oid, w.typname::text AS name, w.typtype::text AS kind, w.required, e.typname::text AS element,
        e.typtype::text AS element_kind, coalesce(nullif(w.modifier, -1), e.modifier, -1) AS modifier
    FROM whole w LEFT JOIN pg_type a ON a.typarray = w.base LEFT JOIN whole e ON e.oid = a.oid
)
"""
_COLUMNS: Final = f"""{_BASES}
SELECT a.attname::text, d.name, d.kind, d.element, d.element_kind, coalesce(nullif(a.atttypmod, -1), d.modifier),
    a.attnotnull OR d.required
FROM pg_attribute a JOIN described d ON d.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPE: Final = f"{_BASES} SELECT name, kind, element, element_kind, modifier FROM described WHERE oid = %s"


class Column(NamedTuple):
    """A column on the server. type: its SQL type, or None. is_json: whether its text is JSON. has_parts: whether it is
    an array that is read as JSON.
    """

    name: str
    theirs: str
    type: SqlType | None
    nullable: bool
    is_json: bool = False
    has_parts: bool = False


def described(connection: Any, oid: int) -> list[Column]:
    """The columns of a relation on the server in order."""
    return [column_of(*row) for row in connection.execute(_COLUMNS, [oid])]


def type_of(connection: Any, oid: int, modifier: int) -> tuple[str, str, str | None, str | None, int]:
    """The arguments of `column_of` for a type: name, kind, element, kind of the element, `atttypmod`. modifier: -1 if
    the column has none.
    """
    name, kind, element, element_kind, own = connection.execute(_TYPE, [oid]).fetchone()
    return name, kind, element, element_kind, own if modifier < 0 else modifier


def column_of(
    name: str, theirs: str, kind: str, element: str | None, element_kind: str | None, modifier: int, required: bool
) -> Column:
    """A column from the server's catalog: its name, its type and the kind of the type, the same for the elements of an
    array, `atttypmod`, and whether it is NOT NULL.
    """
    if element is not None:
        inner = _type(element, element_kind or "", modifier)
        outer = None if inner is None else SqlType("array", element=inner)
        return Column(name, f"{element}[]", outer, not required, has_parts=True)
    return Column(name, theirs, _type(theirs, kind, modifier), not required, is_json=theirs in _JSON)


def _type(name: str, kind: str, modifier: int) -> SqlType | None:
    """The conversions of a type. kind: the `pg_type.typtype`; an enum is a text."""
    if name == "numeric":
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if modifier < 0 or precision > _DIGITS or not 0 <= scale <= precision:
            return SqlType("numeric")
        return SqlType("numeric", precision, scale)
    return _known(name, kind).read


def _known(name: str, kind: str) -> _Type:
    return _ENUM if kind == "e" else _TYPES.get(name, _Type(None, ()))


def takes(kind: SqlType, name: str, there: str, element: str | None, element_kind: str | None) -> bool:
    """Whether a column stores all values of a type. name, there: its `typname` and `typtype`, for an array also those
    of its elements, because arrays of any dimensions have the same type.
    """
    if element is not None and name not in TEXTS:
        return kind.element is not None and takes(innermost(kind), element, element_kind or "", None, None)
    accepted = _known(name, there).takes
    return accepted is None or kind.name in accepted


def rounds(kind: SqlType, name: str, modifier: int) -> bool:
    """Whether a column with a modifier (`atttypmod`) silently stores rounded values."""
    if modifier < 0:
        return False
    if name == "numeric" and kind.name == "numeric":
        scale = (((modifier - _MODIFIER_HEAD) & _SCALE_BITS) ^ _SCALE_SIGN) - _SCALE_SIGN
        return kind.decimals > scale
    if name in ("time", "timestamp", "timestamptz"):
        return modifier < _MICROSECONDS
    return name == "interval" and (modifier >> 16 != _ALL_FIELDS or modifier & 0xFFFF < _MICROSECONDS)


def innermost(kind: SqlType) -> SqlType:
    """The type of the elements of an array with any number of dimensions."""
    return kind if kind.element is None else innermost(kind.element)


def without_forms(texts: list[pa.Array], columns: Sequence[Column], types: Sequence[SqlType]) -> list[pa.Array]:
    """Converts PostgreSQL's texts to the form that `typed` reads: arrays as JSON, char(n) without trailing blanks, real
    as double precision with all its digits.
    """
    return [_without_form(text, column, kind) for text, column, kind in zip(texts, columns, types, strict=True)]


def _without_form(text: pa.Array, column: Column, kind: SqlType) -> pa.Array:
    if column.has_parts and kind.name == "array":
        found = _unpadded(arrays_as_json(text)) if column.theirs == "bpchar[]" else arrays_as_json(text)
        return _documents(found) if kind.element == JSONB else found
    if column.theirs == "bpchar":
        return pc.utf8_rtrim(text, " ")
    if column.type == REAL and kind.name == "double precision":
        return text.cast(pa.float32()).cast(pa.float64()).cast(pa.string())
    return text


def _unpadded(arrays: pa.StringArray) -> pa.StringArray:
    """JSON arrays of strings without trailing blanks. A quote inside a string follows a backslash."""
    return pc.replace_substring_regex(arrays, ' +"', '"')


def _documents(arrays: pa.StringArray) -> pa.StringArray:
    """Converts JSON arrays of strings that contain documents to JSON arrays of the documents. Other values stay
    unchanged.
    """
    is_array = pc.fill_null(pc.starts_with(arrays, "["), fill_value=False)
    chosen = arrays.filter(is_array)
    found = elements(chosen)
    counts = np.bincount(found.rows, minlength=len(chosen))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    documents = pa.ListArray.from_arrays(offsets, pc.fill_null(found.contents(), "null"))
    joined = pc.binary_join_element_wise("[", pc.binary_join(documents, ","), "]", "")
    return pc.replace_with_mask(arrays, is_array, joined)


def arrays_as_json(texts: pa.StringArray) -> pa.StringArray:
    """Converts PostgreSQL's texts of arrays (`{1,NULL,"a b"}`) to JSON, in which all elements except NULL are strings.

    PostgreSQL, "Array Input and Output Syntax". Arrays with several dimensions, or with bounds (`[0:1]={…}`), don't
    become valid JSON, because no type has such values.
    """
    if not len(texts):
        return texts
    has_dimensions = pc.fill_null(pc.starts_with(texts, "{{"), fill_value=False)
    data, offsets = content(texts)
    # a quote after an odd number of backslashes belongs to its string
    behind = np.maximum.accumulate(np.where(data != _BACKSLASH, np.arange(len(data)), -1))
    backslashes = np.concatenate([[0], (np.arange(len(data)) - behind)[:-1]])
    quotes = (data == _QUOTE) & (backslashes % 2 == 0)
    outside = (np.cumsum(quotes) % 2 == 0) & ~quotes
    plain = np.concatenate([[False], outside & ~_SIGNS[data], [False]])
    begins, ends = np.flatnonzero(plain[1:] & ~plain[:-1]), np.flatnonzero(plain[:-1] & ~plain[1:]) - 1
    null = ends - begins == len(_NULL) - 1
    for i, letter in enumerate(_NULL):
        null[null] = data[begins[null] + i] == letter
    controls = np.flatnonzero(data < _SPACE)
    sizes = np.ones(len(data), np.int64)
    sizes[begins[~null]] += 1
    sizes[ends[~null]] += 1
    sizes[controls] = len(_CONTROL)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    places = bounds[:-1].copy()
    places[begins[~null]] += 1
    result = np.full(bounds[-1], _QUOTE, np.uint8)
    result[places] = np.where(outside, _BRACKETS[data], data)
    for i, letter in enumerate(_NULL.lower()):
        result[places[begins[null] + i]] = letter
    for i, letter in enumerate(_CONTROL):
        result[bounds[controls] + i] = letter
    for i, shift in enumerate((4, 0)):
        result[bounds[controls] + len(_CONTROL) - 2 + i] = _HEX[data[controls] >> shift & 15]
    found = pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(bounds[offsets].astype(np.int32)), pa.py_buffer(result.tobytes())
    )
    found = pc.if_else(has_dimensions, texts, found)
    return found if not texts.null_count else pc.if_else(pc.is_valid(texts), found, None)
