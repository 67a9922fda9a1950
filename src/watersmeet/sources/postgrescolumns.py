"""Columns of PostgreSQL: which types they are here, and how their texts become values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.jsonscan import content
from watersmeet.types import JSONB, TIMESTAMP, VARCHAR, SqlType

#: Types by their names there. Others are read as text if the column is declared so.
_TYPES: Final[dict[str, SqlType]] = {
    "bool": SqlType("boolean"),
    "int2": SqlType("smallint"),
    "int4": SqlType("integer"),
    "int8": SqlType("bigint"),
    "float4": SqlType("real"),
    "float8": SqlType("double precision"),
    "text": VARCHAR,
    "varchar": VARCHAR,
    "bpchar": VARCHAR,
    "name": VARCHAR,
    "uuid": VARCHAR,
    "bytea": SqlType("bytea"),
    "date": SqlType("date"),
    "time": SqlType("time"),
    "timestamp": TIMESTAMP,
    "timestamptz": SqlType("timestamptz"),
    "interval": SqlType("interval"),
    "json": JSONB,
    "jsonb": JSONB,
}
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_SPACE: Final = 0x20
_NULL: Final = b"NULL"
#: How JSON writes a control character; its last two digits are to be filled in.
_CONTROL: Final = b"\\u0000"
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_SIGNS: Final = np.zeros(256, np.bool_)
_SIGNS[list(b"{},")] = True
_BRACKETS: Final = np.arange(256, dtype=np.uint8)
_BRACKETS[list(b"{}")] = list(b"[]")
_JSON: Final = ("json", "jsonb")
#: Most digits of a numeric here.
_DIGITS: Final = 38

_COLUMNS: Final = """
SELECT a.attname, t.typname, t.typtype, e.typname, e.typtype, a.atttypmod, a.attnotnull
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


class Column(NamedTuple):
    """A column there. type: here, None if there is none for it. is_json: its text is JSON. has_parts: it is an array,
    whose JSON is read.
    """

    name: str
    theirs: str
    type: SqlType | None
    nullable: bool
    is_json: bool = False
    has_parts: bool = False


def described(connection: Any, oid: int) -> list[Column]:
    """The columns of a relation there, in order."""
    return [column_of(*row) for row in connection.execute(_COLUMNS, [oid])]


def column_of(
    name: str, theirs: str, kind: str, element: str | None, element_kind: str | None, modifier: int, required: bool
) -> Column:
    """A column by what the catalogue there says: its name and type, of which kind that is, the same of what an array
    contains, `atttypmod`, and whether it takes no NULL.
    """
    if element is not None:
        inner = _type(element, element_kind or "", modifier)
        outer = None if inner is None else SqlType("array", element=inner)
        return Column(name, f"{element}[]", outer, not required, has_parts=True)
    return Column(name, theirs, _type(theirs, kind, modifier), not required, is_json=theirs in _JSON)


def _type(name: str, kind: str, modifier: int) -> SqlType | None:
    """kind: of `pg_type.typtype`: an enum is a text."""
    if kind == "e":
        return VARCHAR
    if name == "numeric":
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if modifier < 0 or precision > _DIGITS or not 0 <= scale <= precision:
            return SqlType("numeric")
        return SqlType("numeric", precision, scale)
    return _TYPES.get(name)


def without_forms(texts: list[pa.Array], columns: Sequence[Column], types: Sequence[SqlType]) -> list[pa.Array]:
    """Texts as types there write them, as `typed` reads them: arrays as JSON, char(n) without the spaces behind."""
    return [
        arrays_as_json(text)
        if column.has_parts and kind.name == "array"
        else pc.utf8_rtrim(text, " ")
        if column.theirs == "bpchar"
        else text
        for text, column, kind in zip(texts, columns, types, strict=True)
    ]


def arrays_as_json(texts: pa.StringArray) -> pa.StringArray:
    """Arrays as PostgreSQL writes them (`{1,NULL,"a b"}`) as JSON: all elements but NULL are strings.

    PostgreSQL, "Array Input and Output Syntax". What has bounds of its own (`[0:1]={…}`) gives no JSON.
    """
    if not len(texts):
        return texts
    data, offsets = content(texts)
    # A quote behind an odd number of backslashes belongs to its string.
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
    return found if not texts.null_count else pc.if_else(pc.is_valid(texts), found, None)
