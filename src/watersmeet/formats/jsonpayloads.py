"""Reads payloads in JSON: objects and arrays, keys, and rows and columns at paths.

Paths: SQLstream, "Parsing JSON": `$.a.b`, `$['a']`, `$.a[0]`, `$..name` (the first member with this name at any depth),
and for rows also `[*]` and `[:]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from watersmeet.errors import error
from watersmeet.formats.convert import MessageRules, TimeNumbers, are_zoned, json_objects, json_values, moments_of
from watersmeet.formats.jsonscan import elements, first_bytes, first_deep, is_valid, member
from watersmeet.formats.payloads import Numbers, Read, as_texts, first_of, joined, moved, nothing, spread, without_head
from watersmeet.formats.registry import option_error
from watersmeet.formats.valuetexts import Converted, Mask, convert_scalars, of_rows
from watersmeet.values.types import DEFAULT_PRECISION, Field

_BRACE, _BRACKET = b"{["
_NOT_OBJECT: Final = "json: not a JSON object"

#: The number of messages per piece if a batch is not plain, and the number of rejected pieces after which the fast
#: reader gives up.
_PIECE: Final = 2048

_ENOUGH: Final = 3

#: The types that Arrow's JSON reader reads with the same values.
_STRICT: Final = ("boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric", "varchar")

#: The types that it reads as text.
_TEXTUAL: Final = ("date", "time", "timestamp", "timestamptz")


def message_rules(options: Mapping[str, str], *, base64: bool = False, json_texts: bool = False) -> MessageRules:
    """The rules of the options. Raises CONNECTOR_OPTION for an unknown `timestamptz.handling.mode`."""
    mode = options.get("timestamptz.handling.mode", "guess_number_unit")
    if mode not in get_args(TimeNumbers):
        known = ", ".join(get_args(TimeNumbers))
        raise option_error("timestamptz.handling.mode", f'there is no mode "{mode}"', f"One of {known}.")
    return MessageRules(cast("TimeNumbers", mode), base64, json_texts)


class JsonReader:
    """Reads objects whose members are the columns, arrays of objects, and with `many_rows` several objects in a
    payload.

    framed: whether a payload may begin with a zero byte and the id of a schema, which are ignored.
    """

    def __init__(
        self, fields: Sequence[Field], rules: MessageRules, *, many_rows: bool = False, framed: bool = False
    ) -> None:
        self.fields = fields
        self._names = [f.name for f in fields]
        self._types = [f.type for f in fields]
        self.rules = rules
        self._many_rows = many_rows
        self._framed = framed
        self._is_plain = bool(fields) and {f.type.name for f in fields} <= {*_STRICT, *_TEXTUAL}

    def read(self, payloads: pa.BinaryArray) -> Read:
        if self._framed:
            payloads = without_frame(payloads)
        texts, is_text = as_texts(payloads)
        found = self.read_texts(texts)
        if is_text.all():
            return found
        return Read(found.columns, found.places, {i: _encoding(found.reasons, i, is_text) for i in found.reasons})

    def read_texts(self, texts: pa.StringArray) -> Read:
        """Like `read`, for texts."""
        if not self._is_plain or not len(texts):
            return self._scanned(texts)
        fast = _by_arrow(texts, self.fields, self.rules)
        if fast is not None:
            return Read(fast, np.arange(len(texts), dtype=np.int64))
        reads: list[Read] = []
        refused = 0
        begin = 0
        while begin < len(texts):
            # if the first pieces are all rejected, most of the others would be too
            piece = texts[begin : begin + _PIECE] if refused < _ENOUGH else texts[begin:]
            fast = _by_arrow(piece, self.fields, self.rules) if refused < _ENOUGH and len(texts) > _PIECE else None
            refused += fast is None
            found = self._scanned(piece) if fast is None else Read(fast, np.arange(len(piece), dtype=np.int64))
            reads.append(moved(found, np.arange(begin, begin + len(piece))))
            begin += len(piece)
        return joined(reads, self.fields)

    def _scanned(self, texts: pa.StringArray) -> Read:
        columns, wrong = json_objects(texts, self._names, self._types, self.rules)
        good = Read(columns, np.flatnonzero(~wrong))
        if not wrong.any():
            return good
        places = np.flatnonzero(wrong)
        return joined([good, moved(self._others(of_rows(texts, places)), places)], self.fields)

    def _others(self, texts: pa.StringArray) -> Read:
        """The objects in texts that are not objects."""
        arrays = (first_bytes(texts) == _BRACKET) & is_valid(texts)
        reads = []
        if arrays.any():
            places = np.flatnonzero(arrays)
            found = elements(of_rows(texts, arrays))
            objects = found.firsts == _BRACE
            odd = np.unique(found.rows[~objects])
            keep = ~np.isin(found.rows, odd)
            pieces, rows = of_rows(found.texts(), keep), found.rows[keep]
            columns, _ = json_objects(pieces, self._names, self._types, self.rules)
            reasons = dict.fromkeys(odd.tolist(), "json: an element of the array is not an object")
            reads.append(moved(Read(columns, rows, reasons), places))
        rest = np.flatnonzero(~arrays)
        if len(rest) and self._many_rows:
            reads.append(moved(self._several(of_rows(texts, rest)), rest))
        elif len(rest):
            reads.append(nothing(self.fields, dict.fromkeys(rest.tolist(), _NOT_OBJECT)))
        return joined(reads, self.fields)

    def _several(self, texts: pa.StringArray) -> Read:
        """The objects in texts with several objects, separated by white space or commas."""
        lines = pc.split_pattern(texts, "\n")
        rows = pc.list_parent_indices(lines).to_numpy()
        pieces = pc.utf8_trim_whitespace(lines.flatten())
        some = pc.not_equal(pieces, "").to_numpy(zero_copy_only=False)
        pieces, rows = of_rows(pieces, some), rows[some]
        columns, wrong = json_objects(pieces, self._names, self._types, self.rules)
        odd = np.union1d(rows[wrong], np.setdiff1d(np.arange(len(texts)), rows))
        if not len(odd):
            return Read(columns, rows)
        keep = ~np.isin(rows, odd)
        inside = keep[~wrong]
        columns = [c.rows(inside) for c in columns]
        good = Read(columns, rows[keep])
        # texts with objects over several lines, or several objects in a line, are read one by one
        cut = [objects_in(text) for text in of_rows(texts, odd).to_pylist()]
        reasons = {int(i): _NOT_OBJECT for i, found in zip(odd, cut, strict=True) if found is None}
        flat = pa.array([piece for found in cut for piece in found or ()], pa.string())
        counts = [len(found or ()) for found in cut]
        columns, wrong = json_objects(flat, self._names, self._types, self.rules)
        assert not wrong.any()
        return joined([good, Read(columns, np.repeat(odd, counts), reasons)], self.fields)


class JsonKeyReader:
    """Reads keys: an object with the columns as members or, for a single column, a JSON value other than an object."""

    def __init__(self, fields: Sequence[Field], rules: MessageRules, *, whole: bool, framed: bool = False) -> None:
        self._fields = fields
        self._rules = rules
        self._whole = whole
        self._framed = framed

    def read(self, payloads: pa.BinaryArray) -> Read:
        texts, is_text = as_texts(without_frame(payloads) if self._framed else payloads)
        valid = is_valid(texts) & is_text
        reasons = {int(i): "json: not JSON" if is_text[i] else "encoding: not UTF-8" for i in np.flatnonzero(~valid)}
        places = np.flatnonzero(valid)
        texts = of_rows(texts, valid)
        objects = first_bytes(texts) == _BRACE
        if self._whole:
            return Read([json_values(texts, self._fields[0].type, self._rules)], places, reasons)
        chosen = of_rows(texts, objects)
        columns, _ = json_objects(chosen, [f.name for f in self._fields], [f.type for f in self._fields], self._rules)
        reads = [Read(columns, places[objects], reasons)]
        if not objects.all():
            if len(self._fields) == 1:
                value = json_values(of_rows(texts, ~objects), self._fields[0].type, self._rules)
                reads.append(Read([value], places[~objects]))
            else:
                reads.append(nothing(self._fields, dict.fromkeys(places[~objects].tolist(), _NOT_OBJECT)))
        return joined(reads, self._fields)


def without_frame(payloads: pa.BinaryArray) -> pa.BinaryArray:
    """Payloads without a leading zero byte and the four bytes of a schema's id."""
    framed = pc.and_(pc.starts_with(payloads, b"\x00"), pc.greater_equal(pc.binary_length(payloads), 5))
    if not pc.any(framed).as_py():
        return payloads
    return pc.if_else(framed, without_head(payloads, 5), payloads)


def objects_in(text: str) -> list[str] | None:
    """The JSON objects of a text, separated by white space or commas; None for other text."""
    found: list[str] = []
    place = 0
    decoder = json.JSONDecoder()
    while True:
        while place < len(text) and (text[place] in " \t\r\n" or (text[place] == "," and found)):
            place += 1
        if place == len(text):
            return found or None
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        piece = text[place:end]
        if not isinstance(value, dict) or not is_valid(pa.array([piece]))[0]:
            return None
        found.append(piece)
        place = end


def _encoding(reasons: Mapping[int, str], place: int, is_text: Mask) -> str:
    return reasons[place] if is_text[place] else "encoding: not UTF-8"


def _arrow_schema(fields: Sequence[Field], sample: str) -> pa.Schema | None:
    """The schema of the columns' members for Arrow's reader, from one of the texts; None if Arrow can't read them.

    The text shows the case of keys and the kinds of values.
    """
    try:
        values = json.loads(sample)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    spelled = {key.lower(): key for key in values}
    parts = []
    for column in fields:
        key = column.name if column.name in values else spelled.get(column.name.lower(), column.name)
        value = values.get(key)
        name = column.type.name
        written = isinstance(value, str)
        if name in _TEXTUAL:
            parts.append((key, pa.string() if written or value is None else pa.int64()))
        elif name == "varchar" and value is not None and not written:
            return None
        else:
            parts.append((key, pa.string() if written else column.type.arrow))
    return pa.schema(parts) if len({key for key, _ in parts}) == len(parts) else None


def _by_arrow(texts: pa.StringArray, fields: Sequence[Field], rules: MessageRules) -> list[Converted] | None:
    """The members of JSON objects, read by Arrow in one pass; None if a text needs the slower reader.

    Arrow's reader keeps all digits of numbers, and rejects a batch with equal keys, values of another JSON type than
    the column's, or invalid JSON. It compares names with case, and reads only consecutive objects; this function checks
    both.
    """
    braces = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if not pc.all(braces).as_py():
        return None
    schema = _arrow_schema(fields, texts[0].as_py())
    if schema is None or _may_wrap(texts, schema):
        return None
    joined_texts = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")[0]
    data = joined_texts.as_buffer()
    try:
        table = pajson.read_json(
            pa.BufferReader(data),
            read_options=pajson.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pajson.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(texts):
        return None
    columns = [flat(column) for column in table.columns[: len(fields)]]
    if any(c.null_count and _may_be_there(texts, key, c) for key, c in zip(schema.names, columns, strict=True)):
        return None
    if any(_may_be_exact(texts, f.name) for f, key in zip(fields, schema.names, strict=True) if f.name != key):
        return None
    done = []
    for column, values in zip(fields, columns, strict=True):
        found = _plain_column(column, values, rules)
        if found is None:
            return None
        done.append(found)
    return done


def _plain_column(column: Field, values: pa.Array, rules: MessageRules) -> Converted | None:
    """Values that Arrow has read, converted to the column's type; None if the rules may require other values."""
    kind = column.type
    if kind.name in _TEXTUAL and pa.types.is_integer(values.type):
        return moments_of(values, kind, rules)
    if pa.types.is_string(values.type) and kind.name != "varchar":
        if kind.name == "boolean" or (kind.name == "timestamptz" and not are_zoned(values, rules).all()):
            return None
        return convert_scalars([values], [kind])[0]
    if kind.is_float and pc.all(pc.is_finite(values)).as_py() is False:
        return None
    return Converted(values) if kind.name != "numeric" or _fit(values) else None


def _may_wrap(texts: pa.StringArray, schema: pa.Schema) -> bool:
    """Whether a text may contain a number that Arrow's reader scales modulo 2^128, because it has more digits before
    the point than the column, or an exponent.
    """
    scales = [field.type.scale for field in schema if pa.types.is_decimal(field.type)]
    if not scales:
        return False
    long = f"[0-9]{{{DEFAULT_PRECISION + 1 - max(scales)}}}"
    return bool(pc.any(pc.match_substring_regex(texts, rf"{long}|[0-9.][eE][+-]?[0-9]")).as_py())


def _may_be_there(texts: pa.StringArray, name: str, values: pa.Array) -> bool:
    """Whether a text without a value for a name may contain the name as a key in another case or with escapes."""
    without = texts.filter(values.is_null())
    if pc.any(pc.match_substring(without, "\\")).as_py():
        return True
    quoted = f'"{name}"'
    alike = pc.count_substring(without, quoted, ignore_case=True)
    return bool(pc.any(pc.greater(alike, pc.count_substring(without, quoted))).as_py())


def _fit(decimals: pa.Array) -> bool:
    """Whether decimals fit their type, which Arrow's reader doesn't check."""
    try:
        decimals.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _may_be_exact(texts: pa.StringArray, name: str) -> bool:
    """Whether a text may have a key equal to the name."""
    return bool(
        pc.any(pc.match_substring(texts, f'"{name}"')).as_py() or pc.any(pc.match_substring(texts, "\\u")).as_py()
    )


def flat(column: pa.ChunkedArray) -> pa.Array:
    """The values as one array."""
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


_STEP: Final = re.compile(
    r"\.\.(?P<deep>[\w-]+)|\.(?P<member>[\w-]+)|\[\s*'(?P<quoted>[^']*)'\s*\]|\[(?P<place>\d+)\]"
    r"|(?P<every>\[(?:\*|:|0:)?\])"
)

#: The format options with the path of rows, and with the paths of columns (a prefix of the column's name).
ROW_PATH: Final = "row_path"

PATH: Final = "path."


@dataclass(frozen=True)
class Step:
    """A step of a path. deep: whether it is the first member with the name at any depth. every: whether it is all
    elements. place: the index of one element.
    """

    kind: Literal["member", "deep", "place", "every"]
    name: str = ""
    place: int = 0


def read_path(path: str, what: str) -> tuple[Step, ...]:
    """The steps of a path. what: its owner, for the error. Raises FEATURE_NOT_SUPPORTED."""
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
    """The steps from a row to a column. A path that begins with the path of rows continues from there."""
    steps, rows = read_path(path, f'column "{column}"'), read_path(row_path, "rows")
    if rows and steps[: len(rows)] == rows:
        steps = steps[len(rows) :]
    if any(s.kind == "every" for s in steps):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'the path "{path}" of column "{column}" is not supported',
            detail="It names several values.",
            hint="Let the path of rows lead to the array: each of its elements is a row.",
        )
    return steps


class JsonPathReader:
    """Reads rows that are objects at a path, with columns that are members at paths. Columns without a path are direct
    members.

    A payload may contain several consecutive objects.
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
        """All columns. rows: the objects. direct: the columns that are, or may be, direct members."""
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
        """A column whose values are not direct members of some objects, but may be nested deeper."""
        may_be = pc.and_(direct.column.is_null(), pc.match_substring(rows, f'"{column.name}"'))
        places = np.flatnonzero(may_be.to_numpy(zero_copy_only=False) & (True if direct.bad is None else ~direct.bad))
        if not len(places):
            return direct
        found = first_deep(of_rows(rows, places), column.name)
        there = found.is_valid().to_numpy(zero_copy_only=False)
        values = json_values(of_rows(found, there), column.type, self._rules)
        return first_of(direct, spread(values, places[there], len(rows)))

    def _row_texts(self, texts: pa.StringArray) -> tuple[pa.StringArray, Numbers, dict[int, str]]:
        """The objects that are rows, the payload of each, and the reasons why payloads have no rows."""
        valid = is_valid(texts)
        reasons: dict[int, str] = {}
        places = np.flatnonzero(valid)
        found = of_rows(texts, valid)
        if not valid.all():  # several consecutive objects, or none
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
        if (first_bytes(found) == _BRACKET).any():  # an array instead of a row, whose elements are rows
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
    """The elements of the arrays in texts, and the places of the arrays. Other texts have no elements."""
    arrays = first_bytes(texts) == _BRACKET
    found = elements(of_rows(texts, arrays))
    return found.texts(), places[arrays][found.rows]


def _taken(texts: pa.StringArray, step: Step) -> pa.StringArray:
    """The value at a step in each text; NULL if it is missing or null."""
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
