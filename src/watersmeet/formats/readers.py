"""The reader of the payloads of each encoding, and the columns of relations that declare none (`*`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Encoding, MessageFormat
from watersmeet.errors import error
from watersmeet.formats.avropayloads import TAKEN_SCHEMA, AvroReader
from watersmeet.formats.avroschema import Node, columns_from, read_schema
from watersmeet.formats.convert import convert
from watersmeet.formats.csvtext import CsvReader
from watersmeet.formats.debezium import AvroEnvelopeReader, EnvelopeReader, JsonEnvelopeKeyReader, JsonEnvelopeReader
from watersmeet.formats.jsonpaths import PATH, ROW_PATH, JsonPathReader
from watersmeet.formats.jsonpayloads import JsonKeyReader, JsonReader, message_rules
from watersmeet.formats.messageparts import WINDOW, WindowedKeyReader, value_of
from watersmeet.formats.payloads import PayloadReader, Read, as_texts, cut_rows, nothing, option_error
from watersmeet.formats.protopayloads import ProtobufReader
from watersmeet.formats.protoschema import ProtoMessage, ProtoSchema, from_text, protobuf_schema
from watersmeet.formats.registry import (
    Part,
    RegisteredSchema,
    UnknownSchemaError,
    open_registry,
    schema_bytes,
    subject_of,
)
from watersmeet.formats.scalars import Converted
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
    """The one column of a relation: bytes as they are, a text in UTF-8, a big-endian int (4 bytes) or long (8).

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
    """A reader of values in the encoding of `form`. Raises as `open_decoder` does."""
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
    """A reader of keys, one row for each. whole: the one field is the key, not a part of it that has its name."""
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
    """A reader of Debezium's envelopes. Raises as `open_decoder` does."""
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
    """The schema of messages that have no id of one."""
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
    """The columns of a topic's values, or of its keys, as the schema of the format has them.

    Source: RisingWave, "Avro", "Protobuf" and "JSON" with a schema registry; Debezium's are those of the row after a
    change. registered: the schema of the registry (`registered_schema`), None without one. Raises OSError if a schema
    can't be reached for now, else an `Error`: CONNECTOR_OPTION without a schema, FEATURE_NOT_SUPPORTED for types that
    SQL does not have.
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
    """The option of the format that keeps the schema from which columns are taken, where it says more than these: the
    defaults of Avro's fields.
    """
    if form.encoding != "avro" or form.rows.startswith("debezium"):
        return {}
    return {} if registered is None or '"default"' not in registered.text else {TAKEN_SCHEMA: registered.text}


def registered_schema(form: MessageFormat, topic: str, part: Part = "value") -> RegisteredSchema | None:
    """The newest schema of the topic; None without a registry.

    Raises OSError if the registry can't be reached for now, CONNECTOR_OPTION if it has no schema of that kind.
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
    """The properties of a JSON Schema's object."""
    try:
        schema = json.loads(text)
        properties = schema["properties"]
        return tuple(Field(name, _json_type(part, schema, 0)) for name, part in properties.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise error("CONNECTOR_OPTION", "the schema is no JSON Schema of an object with properties") from cause


def _json_type(part: Any, schema: Any, depth: int) -> SqlType:
    """The SQL type of a property; jsonb where there is none of its own."""
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
