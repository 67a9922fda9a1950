"""Paths into JSON: which objects are rows, and where the columns are in them.

SQLstream, "Parsing JSON": `$.a.b`, `$['a']`, `$.a[0]`, `$..name` (the first of that name, however deep), and in the
path of rows `[*]` and `[:]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.convert import MessageRules, json_values
from watersmeet.formats.jsonpayloads import JsonReader, objects_in
from watersmeet.formats.jsonscan import elements, first_bytes, first_deep, is_valid, member
from watersmeet.formats.payloads import Numbers, Read, as_texts, first_of, of_rows, spread
from watersmeet.formats.scalars import Converted
from watersmeet.values.types import Field

_BRACE, _BRACKET = b"{["
_STEP: Final = re.compile(
    r"\.\.(?P<deep>[\w-]+)|\.(?P<member>[\w-]+)|\[\s*'(?P<quoted>[^']*)'\s*\]|\[(?P<place>\d+)\]"
    r"|(?P<every>\[(?:\*|:|0:)?\])"
)

#: Options of a format: the path of its rows, and before the name of a column the path of that.
ROW_PATH: Final = "row_path"
PATH: Final = "path."


@dataclass(frozen=True)
class Step:
    """deep: the first member of that name, however deep. every: all elements of an array. place: one of them."""

    kind: Literal["member", "deep", "place", "every"]
    name: str = ""
    place: int = 0


def read_path(path: str, what: str) -> tuple[Step, ...]:
    """The steps of a path. what: whose it is, for the error: FEATURE_NOT_SUPPORTED."""
    text = path.strip()
    steps: list[Step] = []
    at = 1
    while text.startswith("$") and at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            break
        at = found.end()
        kind = found.lastgroup
        if kind == "deep":
            steps.append(Step("deep", found["deep"]))
        elif kind == "place":
            steps.append(Step("place", place=int(found["place"])))
        elif kind == "every":
            steps.append(Step("every"))
        else:
            steps.append(Step("member", found["member"] or found["quoted"]))
    if not text.startswith("$") or at < len(text):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'the path "{path}" of {what} is not supported',
            hint="A path is $ with .name, ['name'], [0] and ..name; that of rows also with [*].",
        )
    return tuple(steps)


def column_path(path: str, row_path: str, column: str) -> tuple[Step, ...]:
    """The steps from a row to a column. A path that begins as that of the rows does goes on from there."""
    steps, rows = read_path(path, f'column "{column}"'), read_path(row_path, "rows")
    if rows and steps[: len(rows)] == rows:
        steps = steps[len(rows) :]
    if any(s.kind == "every" for s in steps):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'the path "{path}" of column "{column}" is not supported',
            detail="It names several values.",
        )
    return steps


class JsonPathReader:
    """Rows that are objects at a path, of which columns are members at paths. Columns without one are members.

    A payload may have several objects, one after the other.
    """

    def __init__(self, fields: Sequence[Field], rules: MessageRules, options: Mapping[str, str]) -> None:
        self._fields = fields
        self._rules = rules
        row_path = options.get(ROW_PATH, "$")
        self._rows = read_path(row_path, "rows")
        paths = {
            f.name: column_path(options[PATH + f.name], row_path, f.name) for f in fields if PATH + f.name in options
        }
        self._deep = {n for n, steps in paths.items() if steps == (Step("deep", n),)}
        self._paths = {n: steps for n, steps in paths.items() if n not in self._deep}
        self._direct = JsonReader([f for f in fields if f.name not in self._paths], rules)

    def read(self, payloads: pa.BinaryArray) -> Read:
        texts, is_text = as_texts(payloads)
        if not self._rows and (first_bytes(texts) == _BRACE).all():
            found = self._direct.read_texts(texts)
            if not found.reasons and len(found.places) == len(texts):
                return Read(self._columns(texts, found), found.places)
        rows, places, reasons = self._row_texts(texts)
        reasons |= {int(i): "encoding: not UTF-8" for i in np.flatnonzero(~is_text)}
        return Read(self._columns(rows, self._direct.read_texts(rows)), places, reasons)

    def _columns(self, rows: pa.StringArray, direct: Read) -> list[Converted]:
        """All columns. rows: objects. direct: those of the columns that are their members, or may be."""
        columns = {f.name: c for f, c in zip(self._direct.fields, direct.columns, strict=True)}
        for column in self._fields:
            if column.name in self._paths:
                columns[column.name] = self._at_path(rows, column)
            elif column.name in self._deep and columns[column.name].column.null_count:
                columns[column.name] = self._deeper(rows, column, columns[column.name])
        return [columns[f.name] for f in self._fields]

    def _at_path(self, rows: pa.StringArray, column: Field) -> Converted:
        found = rows
        for step in self._paths[column.name]:
            found = _taken(found, step)
        there = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        return spread(json_values(of_rows(found, there), column.type, self._rules), there, len(rows))

    def _deeper(self, rows: pa.StringArray, column: Field, direct: Converted) -> Converted:
        """A column that is no member of some of the objects, but may be deeper in them."""
        may_be = pc.and_(direct.column.is_null(), pc.match_substring(rows, f'"{column.name}"'))
        places = np.flatnonzero(may_be.to_numpy(zero_copy_only=False) & (True if direct.bad is None else ~direct.bad))
        if not len(places):
            return direct
        found = first_deep(of_rows(rows, places), column.name)
        there = found.is_valid().to_numpy(zero_copy_only=False)
        values = json_values(of_rows(found, there), column.type, self._rules)
        return first_of(direct, spread(values, places[there], len(rows)))

    def _row_texts(self, texts: pa.StringArray) -> tuple[pa.StringArray, Numbers, dict[int, str]]:
        """(the objects that are rows, the payload of each, why payloads have none)."""
        valid = is_valid(texts)
        reasons: dict[int, str] = {}
        places = np.flatnonzero(valid)
        found = of_rows(texts, valid)
        if not valid.all():  # several objects in a row, or none
            odd = np.flatnonzero(~valid)
            cut = [objects_in(text) for text in of_rows(texts, odd).to_pylist()]
            reasons = {int(i): "json: not a JSON object" for i, pieces in zip(odd, cut, strict=True) if pieces is None}
            more = np.repeat(odd, [len(pieces or ()) for pieces in cut])
            found = pa.concat_arrays([found, pa.array([p for pieces in cut for p in pieces or ()], pa.string())])
            places = np.concatenate([places, more])
            order = np.argsort(places, kind="stable")
            found, places = of_rows(found, order), places[order]
        for step in self._rows:
            if step.kind == "every":
                inner, places = _elements(found, places)
            else:
                inner = _taken(found, step)
            there = inner.is_valid().to_numpy(zero_copy_only=False)
            found, places = of_rows(inner, there), places[there]
        if (first_bytes(found) == _BRACKET).any():  # an array where a row should be: its elements are rows
            arrays = first_bytes(found) == _BRACKET
            inner, of = _elements(of_rows(found, arrays), places[arrays])
            found = pa.concat_arrays([of_rows(found, ~arrays), inner])
            places = np.concatenate([places[~arrays], of])
            order = np.argsort(places, kind="stable")
            found, places = of_rows(found, order), places[order]
        objects = first_bytes(found) == _BRACE
        for place in np.unique(places[~objects]).tolist():
            reasons.setdefault(place, "json: a row is not a JSON object")
        keep = ~np.isin(places, list(reasons))
        return of_rows(found, keep), places[keep], reasons


def _elements(texts: pa.StringArray, places: Numbers) -> tuple[pa.StringArray, Numbers]:
    """The elements of the arrays among texts, and the places that these have. What is no array has none."""
    arrays = first_bytes(texts) == _BRACKET
    found = elements(of_rows(texts, arrays))
    return found.texts(), places[arrays][found.rows]


def _taken(texts: pa.StringArray, step: Step) -> pa.StringArray:
    """What a step leads to from each text; NULL where there is nothing, or null."""
    wanted = _BRACKET if step.kind == "place" else _BRACE
    firsts = first_bytes(texts)
    right = (firsts == wanted) | ((firsts == _BRACKET) & (step.kind == "deep"))
    chosen = of_rows(texts, right)
    if step.kind == "place":
        parts = elements(chosen)
        starts = np.searchsorted(parts.rows, parts.rows, "left")
        which = np.flatnonzero(np.arange(len(parts.rows)) - starts == step.place)
        inner = spread(Converted(of_rows(parts.texts(), which)), parts.rows[which], len(chosen)).column
    elif step.kind == "deep":
        inner = first_deep(chosen, step.name)
    else:
        inner = member(chosen, step.name)
    if right.all():
        return inner
    return pc.replace_with_mask(pa.nulls(len(texts), pa.string()), pa.array(right), inner)
