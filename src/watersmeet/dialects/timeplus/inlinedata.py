"""Rows that follow an INSERT in a format: `INSERT INTO s FORMAT JSONEachRow {"id": 1} {"id": 2}`.

ClickHouse, "Formats for input and output data". The rows become those of VALUES, with the types, defaults and errors
of any INSERT. A field that a row of JSON lacks and an empty field of CSV have the default of their column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.statements import Insert, Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, span_of
from watersmeet.errors import Error, Span, error

#: The rows of a text: the names of their columns, None for those of the statement, and the values.
Rows = tuple[tuple[str, ...] | None, list[list[exp.Expression]]]


@dataclass(frozen=True)
class _Data:
    """The text after the format, and where it is. delimiter: the character between fields of CSV."""

    text: str
    span: Span
    sql: str
    delimiter: str = ","

    def error(self, message: str, at: int) -> Error:
        """The error at a position of the text."""
        place = Span(self.span.start + at, min(self.span.start + at + 1, self.span.end))
        return error("SYNTAX_ERROR", message, sql=self.sql, span=place)


def _default() -> exp.Expression:
    found: exp.Expression = exp.column("DEFAULT")
    return found


def _value(value: Any) -> exp.Expression:
    """A value of JSON. An object is its text, which a column of JSON, map or tuple reads."""
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, _Number):
        return exp.Literal.number(value) if not value.startswith("-") else exp.Neg(this=exp.Literal.number(value[1:]))
    if isinstance(value, list) and not any(isinstance(v, (dict, list)) for v in value):
        return exp.Array(expressions=[_value(v) for v in value])
    return exp.Literal.string(value if isinstance(value, str) else _written(value))


class _Number(str):
    """A number of JSON with all its digits."""

    __slots__ = ()


def _written(value: Any) -> str:
    """The text of a value of JSON."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)


_BETWEEN: Final = re.compile(r"[\s,]*")


def _json(data: _Data) -> Rows:
    """Objects, with spaces or commas between them."""
    decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number)
    found: list[Mapping[str, Any]] = []
    begin = re.match(r"\s*\[?\s*", data.text).end()  # type: ignore[union-attr]
    while begin < len(data.text) and data.text[begin] != "]":
        try:
            row, begin = decoder.raw_decode(data.text, begin)
        except json.JSONDecodeError as err:
            raise data.error(f"invalid JSON: {err.msg}", err.pos) from None
        if not isinstance(row, dict):
            raise data.error("a row of JSONEachRow is an object", begin - 1)
        found.append(row)
        begin = _BETWEEN.match(data.text, begin).end()  # type: ignore[union-attr]
    names = tuple(dict.fromkeys(name for row in found for name in row))
    return names, [[_value(row[n]) if n in row else _default() for n in names] for row in found]


@cache
def _field(delimiter: str) -> re.Pattern[str]:
    """A field of CSV with what ends it."""
    mark = re.escape(delimiter)
    return re.compile(rf"""[ ]*(?:"((?:[^"]|"")*)"|'((?:[^']|'')*)'|([^{mark}\n]*?))[ ]*({mark}|\r?\n|$)""")


def _csv(data: _Data) -> list[list[exp.Expression]]:
    rows: list[list[exp.Expression]] = []
    text, begin, row = data.text.strip("\n"), len(data.text) - len(data.text.lstrip("\n")), list[exp.Expression]()
    at = 0
    while True:
        found = _field(data.delimiter).match(text, at)
        if found is None:
            raise data.error("invalid CSV", begin + at)
        at = found.end()
        plain = found[3]
        if plain == "":
            row.append(_default())
        elif plain == r"\N":
            row.append(exp.Null())
        else:
            written = plain if plain is not None else (found[1] or "").replace('""', '"') or (found[2] or "")
            row.append(exp.Literal.string(written.replace("''", "'") if found[2] else written))
        if found[4] != data.delimiter:
            rows.append(row)
            row = []
            if not found[4]:
                return rows


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}


def _tsv(data: _Data) -> list[list[exp.Expression]]:
    def read(field: str) -> exp.Expression:
        if field == r"\N":
            return exp.Null()
        return exp.Literal.string(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), field))

    return [[read(f) for f in line.split("\t")] for line in data.text.strip("\n").split("\n")]


def _named(read: Callable[[_Data], list[list[exp.Expression]]]) -> Callable[[_Data], Rows]:
    """A format whose first row has the names of the columns."""

    def rows(data: _Data) -> Rows:
        first, *others = read(data)
        return tuple(v.name for v in first), others

    return rows


def _plain(read: Callable[[_Data], list[list[exp.Expression]]]) -> Callable[[_Data], Rows]:
    return lambda data: (None, read(data))


#: The formats of rows in a statement, in lower case.
FORMATS: Final[Mapping[str, Callable[[_Data], Rows]]] = {
    **dict.fromkeys(("jsoneachrow", "jsonlines", "ndjson"), _json),
    "csv": _plain(_csv), "csvwithnames": _named(_csv),
    **dict.fromkeys(("tsv", "tabseparated"), _plain(_tsv)),
    **dict.fromkeys(("tsvwithnames", "tabseparatedwithnames"), _named(_tsv)),
}  # fmt: skip


def read_inline(target: Cursor, cursor: Cursor, base: dict[str, Any], delimiter: str = ",") -> Statement:
    """Reads the rows after a format; the cursor stands after FORMAT. target: the tokens before it. delimiter: that of
    CSV.
    """
    read = FORMATS[cursor.rest[0].text.lower()]
    sql, last = cursor.text, cursor.tokens[-1]
    start = cursor.rest[0].end + 1
    data = _Data(sql[start : last.end + 1], Span(start, last.end + 1), sql, delimiter)
    if not data.text.strip():
        raise cursor.error(detail="Rows were expected after the format.")
    target.take("INSERT")
    target.expect("INTO")
    name = target.relation_name()
    columns = target.names() if target.at("(") else ()
    target.end()
    names, rows = read(data)
    if names is not None:
        span = span_of(cursor.rest[:1])
        given = {c.name for c in columns}
        unknown = [n for n in names if columns and n not in given]
        if unknown:
            raise error("UNDEFINED_COLUMN", f'the INSERT has no column "{unknown[0]}"', sql=sql, span=span)
        columns = tuple(Name(n, span) for n in names)
    values = exp.Values(expressions=[exp.Tuple(expressions=row) for row in rows])
    return Insert(**base, table=name, columns=columns, query=values, returning=None)
