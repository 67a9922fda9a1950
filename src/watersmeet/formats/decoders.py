"""Converts messages to rows: the readers of each encoding, the decoders of messages, and the columns of `*`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Encoding, MessageFormat
from watersmeet.errors import Error, error
from watersmeet.formats.avropayloads import TAKEN_SCHEMA, AvroReader
from watersmeet.formats.avroschema import Node, columns_from, read_schema
from watersmeet.formats.convert import convert
from watersmeet.formats.csvtext import CsvReader
from watersmeet.formats.debezium import (
    ALL_ROWS,
    AvroEnvelopeReader,
    EnvelopeReader,
    JsonEnvelopeKeyReader,
    JsonEnvelopeReader,
)
from watersmeet.formats.jsonpayloads import PATH, ROW_PATH, JsonKeyReader, JsonPathReader, JsonReader, message_rules
from watersmeet.formats.payloads import (
    WINDOW,
    Decoded,
    Decoder,
    Messages,
    Numbers,
    PayloadReader,
    Read,
    Unreadable,
    WindowedKeyReader,
    as_texts,
    check_part,
    cut_rows,
    default_of,
    first_of,
    joined,
    moved,
    nothing,
    part_column,
    spread,
    value_of,
)
from watersmeet.formats.protopayloads import ProtobufReader
from watersmeet.formats.protoschema import ProtoMessage, ProtoSchema, from_text, protobuf_schema
from watersmeet.formats.registry import (
    Part,
    RegisteredSchema,
    UnknownSchemaError,
    open_registry,
    option_error,
    schema_bytes,
    subject_of,
)
from watersmeet.formats.valuetexts import Converted, Mask, of_rows
from watersmeet.formats.xmltext import XmlReader
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    JSONB,
    TIME,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    Schema,
    SqlType,
)

_WIDTHS: Final[dict[str, int]] = {"int": 4, "long": 8}


class ScalarReader:
    """Reads the single column of a relation: plain bytes, a text in UTF-8, a big-endian int (4 bytes) or long (8).

    Source: Kafka's serializers of the same names.
    """

    def __init__(self, fields: Sequence[Field], encoding: Encoding) -> None:
        if len(fields) > 1:
            raise error(
                "CONNECTOR_OPTION",
                f"a message in {encoding.upper()} is one value, and there are {len(fields)} columns for it",
                detail="Columns: " + ", ".join(f'"{f.name}"' for f in fields) + ".",
            )
        self._fields = fields
        self._encoding = encoding

    def read(self, payloads: pa.BinaryArray) -> Read:
        everything = np.arange(len(payloads), dtype=np.int64)
        if not self._fields:
            return Read([], everything)
        kind = self._fields[0].type
        if self._encoding == "bytes" and kind.name == "bytea":
            return Read([Converted(payloads)], everything)
        if self._encoding in _WIDTHS:
            return self._integers(payloads)
        texts, is_text = as_texts(payloads)
        (found,) = convert([texts], [kind])
        reasons = {int(i): "encoding: not UTF-8" for i in np.flatnonzero(~is_text)}
        return cut_rows(Read([found], everything, reasons), is_text)

    def _integers(self, payloads: pa.BinaryArray) -> Read:
        width = _WIDTHS[self._encoding]
        sizes = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
        fits = sizes == width
        reasons = {int(i): f"{self._encoding}: {sizes[i]} bytes instead of {width}" for i in np.flatnonzero(~fits)}
        if not fits.any():
            return nothing(self._fields, reasons)
        fixed = payloads.filter(pa.array(fits)).cast(pa.binary(width))
        data = np.frombuffer(fixed.buffers()[1], f">i{width}")[fixed.offset : fixed.offset + len(fixed)]
        numbers = pa.array(data.astype(f"i{width}"))
        kind = self._fields[0].type
        found = Converted(numbers) if numbers.type == kind.arrow else convert([numbers.cast(pa.string())], [kind])[0]
        return Read([found], np.flatnonzero(fits), reasons)


def open_value_reader(fields: Sequence[Field], form: MessageFormat) -> PayloadReader:
    """A reader of values in the encoding of `form`. Raises the errors of `open_decoder`."""
    encoding = form.encoding
    if encoding == "json":
        if ROW_PATH in form.options or any(name.startswith(PATH) for name in form.options):
            return JsonPathReader(fields, message_rules(form.options), form.options)
        framed = "schema.registry" in form.options
        return JsonReader(fields, message_rules(form.options), many_rows=form.many_rows, framed=framed)
    if encoding == "avro":
        return _avro_reader(fields, form, whole=False, ours=form.options.get(TAKEN_SCHEMA))
    if encoding == "protobuf":
        return _protobuf_reader(fields, form, form.options.get("message"))
    if encoding in ("csv", "tsv"):
        return CsvReader(fields, form.options, tabs=encoding == "tsv", many_rows=form.many_rows)
    if encoding == "xml":
        return XmlReader(fields, form.options)
    if encoding in ("bytes", "string", "int", "long"):
        return ScalarReader(fields, encoding)
    raise _unknown(encoding)


def open_key_reader(fields: Sequence[Field], form: MessageFormat, *, whole: bool) -> PayloadReader:
    """A reader of keys, with one row for each. whole: whether the single field is the key itself, not a part of it with
    this name.
    """
    encoding = form.key_encoding or form.encoding
    if (window := form.options.get(WINDOW)) is not None:
        (key,) = fields
        plain = replace(form, options={n: v for n, v in form.options.items() if n != WINDOW})
        return WindowedKeyReader(key, window, open_key_reader([value_of(key, window)], plain, whole=True))
    if encoding == "json":
        if form.rows.startswith("debezium") and not whole:
            return JsonEnvelopeKeyReader(fields, form)
        framed = "schema.registry" in form.options
        return JsonKeyReader(fields, message_rules(form.options), whole=whole, framed=framed)
    if encoding == "avro":
        return _avro_reader(fields, form, whole=whole)
    if encoding == "protobuf" and not whole:
        return _protobuf_reader(fields, form, form.options.get("key.message"))
    if encoding in ("bytes", "string", "int", "long"):
        return ScalarReader(fields, encoding)
    raise _unknown(encoding)


def open_envelope_reader(fields: Sequence[Field], form: MessageFormat) -> EnvelopeReader:
    """A reader of Debezium's envelopes. Raises the errors of `open_decoder`."""
    if form.encoding == "json":
        return JsonEnvelopeReader(fields, form)
    if form.encoding == "avro" and form.rows == "debezium":
        return AvroEnvelopeReader(fields, _avro_reader(fields, form, whole=False))
    name = form.rows.upper()
    raise error("FEATURE_NOT_SUPPORTED", f"FORMAT {name} has no messages in {form.encoding.upper()}")


def _avro_reader(fields: Sequence[Field], form: MessageFormat, *, whole: bool, ours: str | None = None) -> AvroReader:
    registry = open_registry(form.options)
    schema = None if registry else avro_schema(form)
    return AvroReader(fields, registry=registry, schema=schema, whole=whole, ours=ours)


def avro_schema(form: MessageFormat) -> Node:
    """The schema of messages without schema ids."""
    found = schema_bytes(form.options)
    if found is None:
        hint = "schema.registry = 'http://host:port', or schema.location = 'file:///path'"
        raise option_error("schema.registry", "messages in AVRO need a schema", hint)
    return read_schema(RegisteredSchema(0, "AVRO", found.decode("utf-8", "replace")))


def _protobuf_reader(fields: Sequence[Field], form: MessageFormat, message: str | None) -> ProtobufReader:
    registry = open_registry(form.options)
    schema = None if registry else protobuf_schema(form.options)
    return ProtobufReader(fields, registry=registry, schema=schema, message=message)


def _unknown(encoding: Encoding) -> Exception:
    return error("FEATURE_NOT_SUPPORTED", f"messages in {encoding.upper()} can't be read yet")


_FORMATS: Final = {"date-time": TIMESTAMPTZ, "date": DATE, "time": TIME}
_SCALARS: Final = {"integer": BIGINT, "number": DOUBLE, "boolean": BOOLEAN, "string": VARCHAR}


def schema_columns(form: MessageFormat, registered: RegisteredSchema | None, part: Part = "value") -> Schema:
    """The columns of a topic's values, or of its keys, from the schema of the format.

    Source: RisingWave, "Avro", "Protobuf" and "JSON" with a schema registry; Debezium's columns are those of the row
    after a change. registered: the schema of the registry (`registered_schema`), or None. Raises OSError if a schema is
    temporarily unavailable, CONNECTOR_OPTION if there is no schema, FEATURE_NOT_SUPPORTED for types without an SQL
    type.
    """
    encoding = form.encoding if part == "value" else form.key_encoding or form.encoding
    message = form.options.get("message" if part == "value" else "key.message")
    if encoding == "avro":
        registry = open_registry(form.options)
        node = avro_schema(form) if registered is None else read_schema(registered, registry)
        if form.rows.startswith("debezium") and part == "value":
            node = _row_after(node)
        return columns_from(node, form.options)
    if encoding == "protobuf":
        schema = (
            protobuf_schema(form.options) if registered is None else from_text(registered, open_registry(form.options))
        )
        return _of_message(schema, schema.message(message), form.options)
    if encoding == "json":
        text = schema_bytes(form.options) if registered is None else registered.text.encode()
        if text is None:
            raise option_error("schema.registry", "columns can't be taken from JSON without a schema")
        return _of_json(text)
    hint = "Declare the columns."
    raise error("FEATURE_NOT_SUPPORTED", f"columns can't be taken from messages in {encoding.upper()}", hint=hint)


def taken_schema(form: MessageFormat, registered: RegisteredSchema | None) -> dict[str, str]:
    """The format option with the schema from which columns are derived, if the schema has defaults of Avro's fields."""
    if form.encoding != "avro" or form.rows.startswith("debezium"):
        return {}
    return {} if registered is None or '"default"' not in registered.text else {TAKEN_SCHEMA: registered.text}


def registered_schema(form: MessageFormat, topic: str, part: Part = "value") -> RegisteredSchema | None:
    """The newest schema of the topic; None if the format has no registry.

    Raises OSError if the registry is temporarily unavailable, CONNECTOR_OPTION if it has no schema of this kind.
    """
    message = form.options.get("message" if part == "value" else "key.message")
    registry = open_registry(form.options)
    if registry is None:
        return None
    subject = subject_of(topic, part, form.options, message)
    try:
        found = registry.newest(subject)
    except UnknownSchemaError as cause:
        raise option_error("schema.registry", str(cause)) from cause
    if found is None:
        raise option_error("schema.registry", f'there is no subject "{subject}"')
    wanted = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}
    encoding = form.encoding if part == "value" else form.key_encoding or form.encoding
    if found.kind != wanted.get(encoding):
        message = f'the schema of "{subject}" is one of {found.kind}, the messages are in {encoding.upper()}'
        raise option_error("schema.registry", message)
    return found


def _row_after(envelope: Node) -> Node:
    found = envelope.part("after") if envelope.kind == "record" else None
    if found is None or found[1].kind != "record":
        raise error("CONNECTOR_OPTION", "the schema is not one of Debezium's envelopes")
    return found[1]


def _of_message(schema: ProtoSchema, message: ProtoMessage, options: Mapping[str, str]) -> Schema:
    fields = tuple(((part.name,), schema.node(part)) for part in message.fields)
    return columns_from(Node("record", name=message.name, fields=fields), options)


def _of_json(text: bytes) -> Schema:
    """The columns for the properties of a JSON Schema's object."""
    try:
        schema = json.loads(text)
        properties = schema["properties"]
        return tuple(Field(name, _json_type(part, schema, 0)) for name, part in properties.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise error("CONNECTOR_OPTION", "the schema is no JSON Schema of an object with properties") from cause


def _json_type(part: Any, schema: Any, depth: int) -> SqlType:
    """The SQL type of a property; jsonb if no other type fits."""
    if not isinstance(part, dict) or depth > 20:
        return JSONB
    reference = part.get("$ref")
    if isinstance(reference, str):
        target = schema
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
        return _json_type(target, schema, depth + 1)
    kind = part.get("type")
    if isinstance(kind, list):
        some = [k for k in kind if k != "null"]
        kind = some[0] if len(some) == 1 else None
    if kind == "string":
        return _FORMATS.get(str(part.get("format")), VARCHAR)
    if kind == "array" and "items" in part:
        return SqlType("array", element=_json_type(part["items"], schema, depth + 1))
    if kind == "object" and part.get("properties"):
        parts = part["properties"].items()
        return SqlType("struct", fields=tuple((name, _json_type(p, schema, depth + 1)) for name, p in parts))
    return _SCALARS.get(str(kind), JSONB)


#: The number of characters of an unexpected error that are shown.
_SHOWN: Final = 200

_NOWHERE: Final = np.zeros(0, np.int64)


def open_decoder(
    columns: Schema, primary_key: Sequence[str], form: MessageFormat, message_parts: Mapping[str, str]
) -> Decoder:
    """A decoder of messages into `columns`, which are all columns from messages, including those of `message_parts`.

    primary_key: the names of its columns, or empty. message_parts: the part of a message in each column (`Input`).
    Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH or LIBRARY_MISSING if the format can't be read
    into the columns.
    """
    by_name = {c.name: c for c in columns}
    parts = {name: part for name, part in message_parts.items() if name in by_name}
    for name, part in parts.items():
        check_part(by_name[name], part)
    fields = [c for c in columns if c.name not in parts]
    keyed = [c for c in fields if c.name in primary_key]
    envelope: EnvelopeReader | None = None
    value: PayloadReader | None = None
    if form.rows.startswith("debezium"):
        envelope = open_envelope_reader(fields, form)
    else:
        value = open_value_reader(fields, form)
    key: PayloadReader | None = None
    shown: dict[str, PayloadReader] = {}
    if form.key_encoding is not None:
        shown = {
            name: open_key_reader([by_name[name]], form, whole=True) for name, part in parts.items() if part == "key"
        }
    reads_key = form.rows in ("upsert", "debezium", "debezium_mongo") and keyed
    if reads_key and (envelope is not None or form.key_encoding is not None):
        ignored = form.options.get("ignore_key", "").lower() == "true"
        key = None if ignored else open_key_reader(keyed, form, whole=False)
    return _MessageDecoder(columns, tuple(primary_key), form, parts, fields, keyed, value, envelope, key, shown)


@dataclass(frozen=True)
class _Rows:
    """Rows before rejections: columns by name, with NULL for missing values. diff: see `Decoded`.

    unsent: by column, the mask of rows that lack its value because it did not change. emptied: the mask of rows that
    stand for the deletion of all rows.
    """

    columns: dict[str, Converted]
    places: Numbers
    diff: Numbers | None
    reasons: dict[int, str]
    unsent: Mapping[str, Mask] = field(default_factory=dict)
    emptied: Mask | None = None

    def kept(self) -> pa.ListArray | None:
        """The `kept` of `Decoded`."""
        if not self.unsent and self.emptied is None:
            return None
        count = len(self.places)
        lacking = np.stack([np.zeros(count, np.bool_), *self.unsent.values()], axis=1)
        rows, which = np.nonzero(lacking)
        names = pa.array(["", *self.unsent], pa.string()).take(pa.array(which))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
        whole = ~lacking.any(axis=1) & (True if self.emptied is None else ~self.emptied)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names, mask=pa.array(whole))


@dataclass(frozen=True)
class _MessageDecoder:
    """fields: the columns of the value. keyed: the fields in the primary key. key: the reader of these from the key.
    shown: by column, the reader of a key that the column shows as a whole.
    """

    columns: Schema
    primary_key: tuple[str, ...]
    form: MessageFormat
    parts: Mapping[str, str]
    fields: Sequence[Field]
    keyed: Sequence[Field]
    value: PayloadReader | None
    envelope: EnvelopeReader | None
    key: PayloadReader | None
    shown: Mapping[str, PayloadReader]

    def decode(self, messages: Messages) -> Decoded:
        try:
            return self._decode(messages)
        except (OSError, Error, duckdb.InterruptException):
            raise  # errors of the registry, the options or the user, not of a message
        except Exception as cause:
            if len(messages) > 1:
                return self._halves(messages)
            why = f"unexpected: {type(cause).__name__}: {str(cause)[:_SHOWN]}"
            schema = pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])
            diff = None if self.form.rows == "plain" else _NOWHERE
            return Decoded(schema.empty_table(), _NOWHERE, diff, [Unreadable(0, why)])

    def _halves(self, messages: Messages) -> Decoded:
        middle = len(messages) // 2
        first, second = (
            self.decode(_cut(messages, begin, end)) for begin, end in ((0, middle), (middle, len(messages)))
        )
        diff = None if first.diff is None or second.diff is None else np.concatenate([first.diff, second.diff])
        unreadable = [*first.unreadable, *(Unreadable(u.place + middle, u.reason) for u in second.unreadable)]
        table = pa.concat_tables([first.table, second.table])
        places = np.concatenate([first.places, second.places + middle])
        return Decoded(table, places, diff, unreadable, together([first, second]))

    def _decode(self, messages: Messages) -> Decoded:
        if self.envelope is not None:
            rows = self._changes(messages, self.envelope)
        elif self.form.rows == "upsert":
            rows = self._newest(messages)
        else:
            rows = self._plain(messages)
        for name, part in self.parts.items():
            reader = self.shown.get(name)
            if reader is not None:
                found = self._shown_key(reader, messages, rows.reasons)
            else:
                found = part_column(self._column(name), part, messages)
            rows.columns[name] = _taken(found, rows.places)
        return self._refused(rows)

    def _column(self, name: str) -> Field:
        return next(c for c in self.columns if c.name == name)

    def _plain(self, messages: Messages) -> _Rows:
        """The rows of plain messages; a message without a value has a row of NULLs."""
        assert self.value is not None
        read, absent = _read_some(self.value, messages.values, empty=False)
        if len(absent):
            read = joined([read, _nulls(self.fields, absent)], self.fields)
        return _Rows(_by_name(self.fields, read), read.places, None, dict(read.reasons))

    def _newest(self, messages: Messages) -> _Rows:
        """The rows of messages with the newest row of their key; a message with a missing or empty value deletes that
        row.
        """
        assert self.value is not None
        read, gone = _read_some(self.value, messages.values, empty=True)
        if len(gone):
            read = joined([read, _nulls(self.fields, gone)], self.fields)
        reasons = dict(read.reasons)
        counts = np.bincount(read.places, minlength=len(messages))
        for i in np.flatnonzero(counts != 1).tolist():
            reasons.setdefault(i, f"upsert: {counts[i]} rows in a message, which has one key")
        diff = np.where(np.isin(read.places, gone), np.int64(-1), np.int64(1))
        columns = _by_name(self.fields, read)
        if self.key is not None:
            keys = self._keys(self.key, messages, np.flatnonzero(counts), reasons)
            for column, found in keys.items():
                columns[column] = first_of(_taken(found, read.places), columns[column])
        for i in np.flatnonzero(messages.keys.is_null().to_numpy(zero_copy_only=False)).tolist():
            reasons.setdefault(i, "key: the message has none")
        return _Rows(columns, read.places, diff, reasons)

    def _changes(self, messages: Messages, envelope: EnvelopeReader) -> _Rows:
        """The rows of messages with the row before and after a change; a message without a value has no rows."""
        present = _present(messages.values, empty=True)
        places = np.flatnonzero(present)
        found = envelope.read(of_rows(messages.values, present))
        before, after = moved(found.before, places), moved(found.after, places)
        reasons = {int(places[i]): why for i, why in found.reasons.items()}
        ops = np.full(len(messages), "", "U8")
        ops[places] = found.ops
        deleted, emptied = ops == "d", ops == ALL_ROWS
        # deleted rows, and rows whose key changed
        has_before, has_after = np.zeros((2, len(messages)), np.bool_)
        has_before[before.places], has_after[after.places] = True, True
        lacking = (ops != "") & ~deleted & ~emptied & ~has_after
        for i in np.flatnonzero(lacking & ~np.isin(np.arange(len(messages)), list(reasons))).tolist():
            reasons[i] = f'debezium: a change "{ops[i]}" has no "after"'
        rekeyed = self._rekeyed(before, after, len(messages))
        old = cut_rows(before, deleted[before.places] | rekeyed)
        new = cut_rows(after, ~deleted[after.places])
        unsent = {name: places[some][~deleted[places[some]]] for name, some in found.unsent.items()}
        for name, some in unsent.items():
            if name in self.primary_key:
                _note(reasons, some, f'debezium: the value of column "{name}", of the primary key, was not sent')
            moved_away = some[np.isin(some, before.places[rekeyed])]
            _note(
                reasons, moved_away, f'debezium: the value of column "{name}" was not sent, but the primary key changed'
            )
        unknown = np.flatnonzero(deleted & ~has_before)
        unknown = unknown[~np.isin(unknown, list(reasons))]
        columns = [self._gone(old)]
        if len(unknown):
            columns.append(self._from_keys(messages, unknown, reasons))
        columns.append(_nulls(self.fields, np.flatnonzero(emptied)))
        gone = joined(columns, self.fields)
        read = joined([gone, new], self.fields)  # each message's deleted row before its new one
        order = np.argsort(np.concatenate([gone.places, new.places]), kind="stable")
        diff = np.concatenate([np.full(len(gone.places), -1), np.ones(len(new.places), np.int64)])[order]
        return _Rows(
            _by_name(self.fields, read),
            read.places,
            diff.astype(np.int64),
            reasons | dict(read.reasons),
            {name: np.isin(read.places, some) & (diff > 0) for name, some in unsent.items()},
            emptied[read.places] if emptied.any() else None,
        )

    def _gone(self, read: Read) -> Read:
        """Deleted rows, of which only the primary key counts, so that other unreadable fields have no effect."""
        columns = [
            c if f.name in self.primary_key else Converted(pa.nulls(len(read.places), f.type.arrow))
            for f, c in zip(self.fields, read.columns, strict=True)
        ]
        return Read(columns, read.places, read.reasons)

    def _rekeyed(self, before: Read, after: Read, count: int) -> Mask:
        """The mask of rows of `before` whose primary key differs from that of the row after the change."""
        if not len(before.places) or not len(after.places) or not self.keyed:
            return np.zeros(len(before.places), np.bool_)
        at = np.full(count, -1, np.int64)
        at[after.places] = np.arange(len(after.places))
        place = at[before.places]
        changed = np.zeros(len(before.places), np.bool_)
        for i, column in enumerate(self.fields):
            if column.name in self.primary_key:
                old = before.columns[i].column
                new = after.columns[i].column.take(pa.array(np.maximum(place, 0), mask=place < 0))
                differs = pc.fill_null(pc.not_equal(old, new), fill_value=False).to_numpy(zero_copy_only=False)
                changed |= differs & (place >= 0)
        return changed

    def _from_keys(self, messages: Messages, places: Numbers, reasons: dict[int, str]) -> Read:
        """Rows with only the primary key, from the keys of the messages."""
        if self.key is None:
            reasons.update(dict.fromkeys(places.tolist(), 'debezium: a change "d" has no "before", and no key is read'))
            return _nulls(self.fields, _NOWHERE)
        keys = self._keys(self.key, messages, places, reasons)
        columns = [
            _taken(keys[f.name], places) if f.name in keys else Converted(pa.nulls(len(places), f.type.arrow))
            for f in self.fields
        ]
        return Read(columns, places)

    def _keys(
        self, reader: PayloadReader, messages: Messages, wanted: Numbers, reasons: dict[int, str]
    ) -> dict[str, Converted]:
        """The columns of the primary key from the keys of the `wanted` messages, with a row for each message."""
        chosen = np.zeros(len(messages), np.bool_)
        chosen[wanted] = True
        chosen &= messages.keys.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(chosen)
        read = moved(reader.read(of_rows(messages.keys, chosen)), places)
        for i, why in read.reasons.items():
            reasons.setdefault(i, f"key: {why}")
        for i in np.flatnonzero(messages.keys.is_null().to_numpy(zero_copy_only=False)).tolist():
            if i in set(wanted.tolist()):
                reasons.setdefault(i, "key: the message has none")
        return {f.name: spread(c, read.places, len(messages)) for f, c in zip(self.keyed, read.columns, strict=True)}

    def _shown_key(self, reader: PayloadReader, messages: Messages, reasons: dict[int, str]) -> Converted:
        read, _ = _read_some(reader, messages.keys, empty=False)
        for i, why in read.reasons.items():
            reasons.setdefault(i, f"key: {why}")
        return spread(read.columns[0], read.places, len(messages))

    def _refused(self, rows: _Rows) -> Decoded:
        """The rows of readable messages, with defaults for unreadable fields."""
        reasons = rows.reasons
        kept = self.form.bad_field
        gone = None if rows.diff is None else rows.diff < 0
        arrays = []
        for column in self.columns:
            found = rows.columns[column.name]
            array, bad = found.column, found.bad
            strict = column.name in self.primary_key
            unsent = rows.unsent.get(column.name)
            if unsent is not None and bad is not None:
                bad = bad & ~unsent
            if bad is not None and bad.any() and (strict or kept == "dead letter"):
                _note(reasons, rows.places[bad], f'value: column "{column.name}" is not {column.type.sql}')
            elif bad is not None and kept == "default":
                array = pc.if_else(pa.array(bad), default_of(column.type), array)
            if array.null_count and (strict or not column.nullable):
                null = array.is_null().to_numpy(zero_copy_only=False)
                if not strict and gone is not None:
                    null &= ~gone
                for others in (unsent, rows.emptied):
                    if others is not None:
                        null &= ~others
                if (kept == "default" or self.form.defaults) and not strict:
                    array = pc.if_else(pa.array(null), default_of(column.type), array)
                else:
                    _note(reasons, rows.places[null], f'null: column "{column.name}" is NULL')
            if unsent is not None:
                array = pc.if_else(pa.array(unsent), pa.scalar(None, array.type), array)
            arrays.append(array)
        schema = pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])
        table = pa.Table.from_arrays(arrays, schema=schema)
        places, diff, keeping = rows.places, rows.diff, rows.kept()
        if reasons:
            keep = ~np.isin(places, list(reasons))
            table = table.filter(pa.array(keep)) if self.columns else table
            places = places[keep]
            diff = None if diff is None else diff[keep]
            keeping = None if keeping is None else of_rows(keeping, keep)
        return Decoded(table, places, diff, [Unreadable(i, reasons[i]) for i in sorted(reasons)], keeping)


def together(batches: Sequence[Decoded]) -> pa.ListArray | None:
    """The joined `kept` of several batches."""
    if all(b.kept is None for b in batches):
        return None
    kind = pa.list_(pa.string())
    return pa.concat_arrays([pa.nulls(len(b.places), kind) if b.kept is None else b.kept for b in batches])


def _cut(messages: Messages, begin: int, end: int) -> Messages:
    rows = np.arange(begin, end)
    return Messages(
        messages.topic,
        messages.partition,
        of_rows(messages.keys, rows),
        of_rows(messages.values, rows),
        messages.offsets[begin:end],
        None if messages.times_ms is None else messages.times_ms[begin:end],
        None if messages.headers is None else of_rows(messages.headers, rows),
        None if messages.numbers is None else of_rows(messages.numbers, rows),
    )


def _present(payloads: pa.BinaryArray, *, empty: bool) -> Mask:
    """The mask of existing payloads. empty: whether payloads without bytes count as missing."""
    present: Mask = payloads.is_valid().to_numpy(zero_copy_only=False)
    if empty:
        sizes = pc.fill_null(pc.binary_length(payloads), 0).to_numpy(zero_copy_only=False)
        present = present & (sizes > 0)
    return present


def _read_some(reader: PayloadReader, payloads: pa.BinaryArray, *, empty: bool) -> tuple[Read, Numbers]:
    """The rows of the existing payloads, and the places of the others."""
    present = _present(payloads, empty=empty)
    if present.all():
        return reader.read(payloads), _NOWHERE
    return moved(reader.read(of_rows(payloads, present)), np.flatnonzero(present)), np.flatnonzero(~present)


def _nulls(fields: Sequence[Field], places: Numbers) -> Read:
    return Read([Converted(pa.nulls(len(places), f.type.arrow)) for f in fields], places)


def _by_name(fields: Sequence[Field], read: Read) -> dict[str, Converted]:
    return {f.name: c for f, c in zip(fields, read.columns, strict=True)}


def _taken(found: Converted, places: Numbers) -> Converted:
    """The values at ascending places."""
    if np.array_equal(places, np.arange(len(found.column))):
        return found
    return found.rows(places)


def _note(reasons: dict[int, str], places: Numbers, why: str) -> None:
    for place in places.tolist():
        reasons.setdefault(place, why)
