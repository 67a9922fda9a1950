"""Reads Debezium's envelopes, which contain the row before and after a change, and Kafka Connect's schemas in JSON
messages.

Source: Debezium, "Change events" of its connectors; Kafka Connect, `JsonConverter`; RisingWave, FORMAT DEBEZIUM.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import MessageFormat
from watersmeet.errors import error
from watersmeet.formats.avropayloads import AvroReader, declare, declared, raw_columns
from watersmeet.formats.avroschema import VARIABLE_DECIMAL, Kind, Node
from watersmeet.formats.convert import MessageRules, json_objects
from watersmeet.formats.jsonpayloads import JsonKeyReader, JsonReader, message_rules
from watersmeet.formats.jsonscan import Parts, canonical, first_bytes, is_valid, members, newest
from watersmeet.formats.payloads import Numbers, Read, as_texts, joined, moved, nothing
from watersmeet.formats.typemapping import of_connect
from watersmeet.formats.valuetexts import Converted, of_rows
from watersmeet.values.types import BIGINT, BOOLEAN, BYTEA, DOUBLE, JSONB, REAL, VARCHAR, Field, SqlType

_KINDS: Final[dict[str, Kind]] = {
    "boolean": "boolean",
    "int8": "long",
    "int16": "long",
    "int32": "long",
    "int64": "long",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "bytes": "bytes",
    "string": "string",
}

_WRITTEN_AS: Final[dict[str, SqlType]] = {
    "boolean": BOOLEAN,
    "long": BIGINT,
    "float": REAL,
    "double": DOUBLE,
    "bytes": BYTEA,
    "string": VARCHAR,
}

#: The meanings of numbers that would be read as different times without a schema.
_TIMES: Final = ("date", "time", "timestamp", "local timestamp", "duration")


@lru_cache(maxsize=256)
def record_of(schema: str, part: str | None) -> Node | None:
    """The tree of a schema, or of its field `part`; None if it is unreadable."""
    try:
        found = json.loads(schema)
        if part is not None:
            found = next(f for f in found["fields"] if f.get("field") == part)
        node = _node(found)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    return node if node.kind == "record" else None


def _node(schema: Mapping[str, Any]) -> Node:
    """The tree of a schema, where maps, whose JSON has several forms, become unions, so that their values are read as
    JSON.
    """
    kind, name = schema.get("type", "struct"), schema.get("name")
    if name == VARIABLE_DECIMAL:
        return Node("record", name=name, fields=((("scale",), Node("long")), (("value",), Node("bytes"))))
    if kind == "struct":
        return Node("record", name=name or "", fields=tuple(((f["field"],), _node(f)) for f in schema["fields"]))
    if kind == "array":
        return Node("array", items=_node(schema["items"]))
    if kind not in _KINDS:
        return Node("union")
    logical = of_connect(name, schema.get("parameters") or {})
    fits = logical is None or (logical.meaning == "decimal") == (kind == "bytes")
    return Node(_KINDS[kind], logical=logical if fits else None)


def written_as(node: Node) -> SqlType:
    """The type as which JSON values of a schema are first read."""
    if node.kind == "record":
        return SqlType("struct", fields=tuple((names[0], written_as(part)) for names, part in node.fields))
    if node.kind == "array":
        assert node.items is not None
        return SqlType("array", element=written_as(node.items))
    return _WRITTEN_AS.get(node.kind, VARCHAR)


def has_meaning(node: Node, kind: SqlType) -> bool:
    """Whether the schema determines more of a column's value than the JSON does."""
    if node.kind == "array":
        return node.items is not None and (
            (kind.element is not None and has_meaning(node.items, kind.element))
            or (kind.name == "jsonb" and has_meaning(node.items, kind))
        )
    if node.is_variable_decimal:
        return _is_declarable(node, kind)
    if node.kind == "record":
        parts = [(node.part(name), part) for name, part in kind.fields]
        # A struct with a part that only the rules of JSON convert, such as a date in a text, is read by these rules as
        # a whole.
        return any(held is not None and has_meaning(held[1], part) for held, part in parts) and _is_declarable(
            node, kind
        )
    if node.kind == "long" and kind.name == "boolean":
        return True
    if node.logical is None:
        return False
    meaning = node.logical.meaning
    if meaning == "decimal":
        return kind.name != "bytea"
    return meaning in _TIMES and kind.name in ("date", "time", "timestamp", "timestamptz", "interval")


def _is_declarable(node: Node, kind: SqlType) -> bool:
    return declare(node, pa.array([], node.arrow), kind) is not None


_BRACE: Final = b"{"[0]

#: The placeholder for a value that the database did not send because it did not change.
_UNAVAILABLE: Final = "__debezium_unavailable_value"

_UNAVAILABLE_BASE64: Final = base64.b64encode(_UNAVAILABLE.encode()).decode()

#: The forms of the placeholder in JSON. In an array it is the only element.
_UNAVAILABLE_JSON: Final = rf'^(\[\s*)?"({_UNAVAILABLE}|{_UNAVAILABLE_BASE64})"(\s*\])?$'

#: The letters of changes with a row after them, of TRUNCATE, and of messages in the database's log, which change no
#: row.
_WITH_ROW: Final = ("c", "r", "u")

ALL_ROWS: Final = "t"
_NO_ROW: Final = "m"


@dataclass(frozen=True)
class Changes:
    """The changes of payloads. ops: the letter of each payload's change; empty if no row changed. before, after: the
    rows of the payloads that have them. unsent: by column, the places of payloads whose `after` lacks its unchanged
    value. reasons: by place, the reason why a payload can't be read.
    """

    ops: npt.NDArray[Any]
    before: Read
    after: Read
    unsent: Mapping[str, Numbers]
    reasons: Mapping[int, str] = field(default_factory=dict)


class EnvelopeReader(Protocol):
    """A reader that converts payloads to changes."""

    def read(self, payloads: pa.BinaryArray) -> Changes:
        """The changes of payloads, which must not be NULL. Raises the errors of `Decoder.decode`."""


def check_mongo(fields: Sequence[Field]) -> None:
    """Raises DATATYPE_MISMATCH unless the columns are those of documents: `_id` and `payload jsonb`."""
    kinds = {f.name: f.type.name for f in fields}
    fits = kinds.get("payload") == "jsonb" and kinds.get("_id") in ("varchar", "bigint", "integer", "jsonb")
    if len(kinds) != 2 or not fits:
        raise error(
            "DATATYPE_MISMATCH",
            "documents of MongoDB have the columns _id and payload",
            detail="_id is varchar, bigint, integer or jsonb; payload is jsonb.",
        )


class JsonEnvelopeReader:
    """Reads envelopes in JSON, either bare or as the `payload` of an object, with or without a `schema`.

    Debezium's `schemas.enable` selects the form; RisingWave reads the payload in both cases.
    """

    def __init__(self, fields: Sequence[Field], form: MessageFormat) -> None:
        self._fields = fields
        self._mongo = form.rows == "debezium_mongo"
        if self._mongo:
            check_mongo(fields)
        self._rules = message_rules(form.options, base64=True, json_texts=True)
        self._plain = JsonReader(fields, self._rules)

    def read(self, payloads: pa.BinaryArray) -> Changes:
        texts, good, reasons = _objects(payloads)
        places = np.flatnonzero(good)
        ops = np.full(len(payloads), "", "U8")
        schemas = pa.nulls(len(texts), pa.string())
        schema, payload, before, after, op = _parts(texts, ["schema", "payload", "before", "after", "op"])
        wrapped = (payload.firsts != 0) & ((schema.firsts != 0) | (op.firsts == 0))
        if wrapped.any():
            inner, schemas = _payloads(texts, schema, payload, wrapped)
            some = inner.is_valid().to_numpy(zero_copy_only=False)
            objects = first_bytes(inner) == _BRACE
            reasons |= dict.fromkeys(places[some & ~objects].tolist(), "debezium: the payload is not an object")
            places, schemas = places[objects], of_rows(schemas, objects)
            before, after, op = _parts(of_rows(inner, objects), ["before", "after", "op"])
        keep = _sort_out(op.contents(), places, ops, reasons)
        rows, _ = self._rows(before, "before", schemas, places, keep & (ops[places] != "r"))
        return Changes(ops, rows, *self._rows(after, "after", schemas, places, keep), reasons)

    def _rows(
        self, part: Parts, name: str, schemas: pa.StringArray, places: Numbers, keep: npt.NDArray[np.bool_]
    ) -> tuple[Read, dict[str, Numbers]]:
        """The rows in a part of the envelopes to keep, and their unsent values as in `Changes`."""
        texts = part.contents() if self._mongo else part.texts()
        some = keep & texts.is_valid().to_numpy(zero_copy_only=False)
        texts, places = of_rows(texts, some), places[some]
        if self._mongo:
            return moved(self._documents(texts), places), {}
        unsent = _unsent_members(texts, self._fields) if name == "after" else {}
        found = typed_objects(texts, of_rows(schemas, some), name, self._plain)
        return moved(found, places), {column: places[rows] for column, rows in unsent.items()}

    def _documents(self, texts: pa.StringArray) -> Read:
        good = is_valid(texts) & (first_bytes(texts) == _BRACE)
        reasons = {int(i): "debezium: the document is not a JSON object" for i in np.flatnonzero(~good)}
        texts = of_rows(texts, good)
        (ids,) = _parts(texts, ["_id"])
        columns = [
            Converted(canonical(texts)) if f.name == "payload" else _document_id(ids.texts(), f) for f in self._fields
        ]
        return Read(columns, np.flatnonzero(good), reasons)


class JsonEnvelopeKeyReader:
    """Reads the keys of messages with envelopes in JSON, which have the same forms.

    A `payload` without a schema is a column of the key if the key has a column with this name.
    """

    def __init__(self, fields: Sequence[Field], form: MessageFormat) -> None:
        self._fields = fields
        self._mongo = form.rows == "debezium_mongo"
        self._rules = message_rules(form.options, base64=True, json_texts=True)
        self._plain = JsonKeyReader(fields, self._rules, whole=False)
        self._objects = JsonReader(fields, self._rules)

    def read(self, payloads: pa.BinaryArray) -> Read:
        texts, good, _ = _objects(payloads)
        others = np.flatnonzero(~good)
        places = np.flatnonzero(good)
        schema, payload = _parts(texts, ["schema", "payload"])
        is_column = not self._mongo and "payload" in [f.name.lower() for f in self._fields]
        wrapped = (payload.firsts != 0) & ((schema.firsts != 0) | (not is_column))
        inner, schemas = _payloads(texts, schema, payload, wrapped)
        objects = (first_bytes(inner) == _BRACE) & inner.is_valid().to_numpy(zero_copy_only=False)
        chosen, chosen_schemas = of_rows(inner, objects), of_rows(schemas, objects)
        if self._mongo:
            (ids,) = _parts(chosen, ["id"])
            said = ids.contents()
            (known,) = _parts(chosen, ["_id"])
            texts_ = pc.coalesce(said, known.texts())
            reads = [moved(Read([_document_id(texts_, self._fields[0])], np.arange(len(chosen))), places[objects])]
        else:
            found = typed_objects(chosen, chosen_schemas, None, self._objects)
            reads = [moved(found, places[objects])]
        scalars = pc.fill_null(of_rows(inner, ~objects), "null")
        reads.append(moved(self._plain.read(scalars.cast(pa.binary())), places[~objects]))
        reads.append(moved(self._plain.read(of_rows(payloads, others)), others))
        return joined(reads, self._fields)


class AvroEnvelopeReader:
    """Reads envelopes in Avro."""

    def __init__(self, fields: Sequence[Field], avro: AvroReader) -> None:
        self._fields = fields
        self._avro = avro

    def read(self, payloads: pa.BinaryArray) -> Changes:
        ops = np.full(len(payloads), "", "U8")
        before, after = [nothing(self._fields)], [nothing(self._fields)]
        unsent: dict[str, list[Numbers]] = {}
        reasons: dict[int, str] = {}
        for places, bodies, schema, called in self._avro.by_schema(payloads):
            if isinstance(schema, str):
                reasons |= dict.fromkeys(places.tolist(), schema)
                continue
            values, unread, good = raw_columns(schema, bodies)
            reasons |= {int(places[i]): why for i, why in unread.items()}
            op = schema.part("op")
            if schema.kind != "record" or op is None:
                raise error("DATATYPE_MISMATCH", f"{called} is not a schema of Debezium's envelopes")
            there = places[good]
            keep = _sort_out(values.field(op[0]), there, ops, reasons)
            rows, _ = self._rows(schema, values, "before", keep, called)
            before.append(moved(rows, there))
            rows, lacking = self._rows(schema, values, "after", keep, called)
            after.append(moved(rows, there))
            for column, some in lacking.items():
                unsent.setdefault(column, []).append(there[some])
        return Changes(
            ops,
            joined(before, self._fields),
            joined(after, self._fields),
            {column: np.concatenate(found) for column, found in unsent.items()},
            reasons,
        )

    def _rows(
        self, schema: Node, values: pa.StructArray, name: str, keep: npt.NDArray[np.bool_], called: str
    ) -> tuple[Read, dict[str, Numbers]]:
        part = schema.part(name)
        if part is None or part[1].kind != "record":
            return nothing(self._fields), {}
        place, node = part
        records = values.field(place)
        some = np.flatnonzero(keep & records.is_valid().to_numpy(zero_copy_only=False))
        records = of_rows(records, some)
        columns, unsent = [], {}
        for column in self._fields:
            held = node.part(column.name)
            if held is None:
                columns.append(Converted(pa.nulls(len(some), column.type.arrow)))
                continue
            columns.append(declared(held[1], records.field(held[0]), column, called))
            lacking = _unsent_values(records.field(held[0])) if name == "after" else ()
            if len(lacking):
                unsent[column.name] = some[lacking]
        return Read(columns, some), unsent


def _sort_out(
    letters: pa.StringArray, places: Numbers, ops: npt.NDArray[Any], reasons: dict[int, str]
) -> npt.NDArray[np.bool_]:
    """Stores the letters of changes in `ops`, and the reasons why others can't be read; returns the mask of changes of
    single rows.
    """
    codes = pc.fill_null(letters, "").dictionary_encode()
    which = codes.indices.to_numpy()
    keep = np.zeros(len(places), np.bool_)
    for code, letter in enumerate(codes.dictionary.to_pylist()):
        mine = which == code
        why = _problem(letter)
        if why is not None:
            reasons.update(dict.fromkeys(places[mine].tolist(), why))
        elif letter != _NO_ROW:
            if letter != ALL_ROWS:
                keep |= mine
            ops[places[mine]] = letter
    return keep


def _problem(letter: str) -> str | None:
    """The reason why a change with a letter can't be read."""
    if letter in (*_WITH_ROW, "d", ALL_ROWS, _NO_ROW):
        return None
    return f'debezium: there is no change "{letter}"' if letter else 'debezium: no "op" says what the change is'


def _objects(payloads: pa.BinaryArray) -> tuple[pa.StringArray, npt.NDArray[np.bool_], dict[int, str]]:
    """The payloads that are JSON objects, the mask of these, and the reasons for the others."""
    texts, is_text = as_texts(payloads)
    good = is_text & (first_bytes(texts) == _BRACE) & is_valid(texts)
    reasons = {
        int(i): "json: not a JSON object" if is_text[i] else "encoding: not UTF-8" for i in np.flatnonzero(~good)
    }
    return of_rows(texts, good), good, reasons


def _parts(objects: pa.StringArray, names: Sequence[str]) -> list[Parts]:
    """Members of valid JSON objects."""
    keys, found = members(objects)
    codes = pc.fill_null(pc.index_in(keys, value_set=pa.array(names)), -1).to_numpy(zero_copy_only=False)
    return [newest(codes, i, found, len(objects)) for i in range(len(names))]


def _payloads(
    objects: pa.StringArray, schema: Parts, payload: Parts, wrapped: npt.NDArray[np.bool_]
) -> tuple[pa.StringArray, pa.StringArray]:
    """The payloads of wrapped objects (other objects unchanged), and the schemas of wrapped objects (else NULL)."""
    which = pa.array(wrapped)
    schemas = pc.if_else(which, schema.texts(), pa.scalar(None, pa.string()))
    return pc.if_else(which, payload.texts(), objects), schemas


def typed_objects(texts: pa.StringArray, schemas: pa.StringArray, part: str | None, reader: JsonReader) -> Read:
    """Valid JSON texts as rows, one for each object, converted by a schema if it determines the meaning of a value.

    part: the field of the schema that describes the objects; None: the schema itself.
    """
    objects = first_bytes(texts) == _BRACE
    reads = []
    if not objects.all():
        others = np.flatnonzero(~objects)
        reads.append(nothing(reader.fields, dict.fromkeys(others.tolist(), "json: not a JSON object")))
    codes = schemas.dictionary_encode()
    which = pc.fill_null(codes.indices, -1).to_numpy(zero_copy_only=False)
    for code in np.unique(which[objects]).tolist():
        places = np.flatnonzero((which == code) & objects)
        chosen = texts if len(places) == len(texts) else of_rows(texts, places)
        schema = None if code < 0 else record_of(codes.dictionary[code].as_py(), part)
        if schema is not None and any(_field_node(schema, f) for f in reader.fields):
            found = _by_schema(chosen, reader.fields, reader.rules, schema)
        else:
            found = reader.read_texts(chosen)
        reads.append(moved(found, places))
    return joined(reads, reader.fields) if reads else nothing(reader.fields)


def _by_schema(texts: pa.StringArray, fields: Sequence[Field], rules: MessageRules, schema: Node) -> Read:
    """Valid JSON objects as rows, with members converted by a schema if it determines more than JSON."""
    nodes = [_field_node(schema, f) for f in fields]
    kinds = [f.type if node is None else written_as(node) for f, node in zip(fields, nodes, strict=True)]
    found, wrong = json_objects(texts, [f.name for f in fields], kinds, rules)
    columns = []
    for column, values, node in zip(fields, found, nodes, strict=True):
        done = values
        if node is not None:
            read = declare(node, values.column, column.type)
            if read is None:  # a number that means another kind of time than the column
                read = Converted(
                    pa.nulls(len(values.column), column.type.arrow),
                    values.column.is_valid().to_numpy(zero_copy_only=False),
                )
            done = read.with_bad(values.bad)
        columns.append(done)
    reasons = dict.fromkeys(np.flatnonzero(wrong).tolist(), "json: not a JSON object")
    return Read(columns, np.flatnonzero(~wrong), reasons)


def _field_node(schema: Node, column: Field) -> Node | None:
    """The type of a column in a schema; None if the schema determines no more than JSON."""
    part = schema.part(column.name)
    return part[1] if part is not None and has_meaning(part[1], column.type) else None


def _unsent_members(objects: pa.StringArray, fields: Sequence[Field]) -> dict[str, Numbers]:
    """For each column, the mask of JSON objects in which it has the placeholder of an unsent value."""
    # unsent values are rare; a search in bytes is ten times faster than Arrow
    written = b"" if not len(objects) else objects.buffers()[2].to_pybytes()
    may = first_bytes(objects) == _BRACE
    may &= np.logical_or.reduce(
        [
            pc.match_substring(objects, text).to_numpy(zero_copy_only=False)
            for text in (_UNAVAILABLE, _UNAVAILABLE_BASE64)
            if text.encode() in written
        ],
        initial=False,
    )
    some = np.flatnonzero(may)
    if not len(some):
        return {}
    keys, found = members(of_rows(objects, some))
    exact, folded = (
        pc.fill_null(pc.index_in(k, value_set=pa.array(names)), -1).to_numpy(zero_copy_only=False)
        for k, names in (
            (keys, [f.name for f in fields]),
            (pc.utf8_lower(keys), list(dict.fromkeys(f.name.lower() for f in fields))),
        )
    )
    lacking = {}
    places = {name: i for i, name in enumerate(dict.fromkeys(f.name.lower() for f in fields))}
    for i, column in enumerate(fields):
        said = newest(exact, i, found, len(some))
        alike = newest(folded, places[column.name.lower()], found, len(some))
        texts = pc.if_else(pa.array(said.firsts != 0), said.texts(), alike.texts())
        here = pc.fill_null(pc.match_substring_regex(texts, _UNAVAILABLE_JSON), fill_value=False)
        if pc.any(here).as_py():
            lacking[column.name] = some[here.to_numpy(zero_copy_only=False)]
    return lacking


def _unsent_values(values: pa.Array) -> Numbers:
    """The mask of values that are the placeholder of an unsent value."""
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
            return np.zeros(0, np.int64)
        single = np.flatnonzero(pc.fill_null(pc.equal(pc.list_value_length(values), 1), fill_value=False))
        return single[_unsent_values(pc.list_flatten(of_rows(values, single)))]
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return np.zeros(0, np.int64)
    stand_in = pa.scalar(_UNAVAILABLE.encode(), pa.binary()).cast(kind)
    return np.flatnonzero(pc.fill_null(pc.equal(values, stand_in), fill_value=False))


def _document_id(texts: pa.StringArray, column: Field) -> Converted:
    """The ids of documents from extended JSON: the digits of an object id, the number of a number."""
    plain = texts
    for name in ("$oid", "$numberLong", "$numberInt"):
        objects = first_bytes(plain) == _BRACE
        if not objects.any():
            break
        (part,) = _parts(of_rows(plain, objects), [name])
        said = pc.coalesce(part.texts(), of_rows(plain, objects))
        plain = pc.replace_with_mask(plain, pa.array(objects), said)
    chosen = texts if column.type == JSONB else plain
    valid = is_valid(chosen) | chosen.is_null().to_numpy(zero_copy_only=False)
    wrapped = pc.binary_join_element_wise(
        '{"c":', pc.fill_null(pc.if_else(pa.array(valid), chosen, "null"), "null"), "}", ""
    )
    (found,), _ = json_objects(wrapped, ["c"], [column.type], MessageRules())
    bad = ~valid if found.bad is None else found.bad | ~valid
    return Converted(found.column, bad if bad.any() else None)
