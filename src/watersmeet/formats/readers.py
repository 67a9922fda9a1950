"""Which reader the payloads of an encoding have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.catalog import Encoding, MessageFormat
from watersmeet.errors import error
from watersmeet.formats.avropayloads import TAKEN_SCHEMA, AvroReader
from watersmeet.formats.avroschema import Node, read_schema
from watersmeet.formats.csvpayloads import CsvReader
from watersmeet.formats.debezium import AvroEnvelopeReader, EnvelopeReader, JsonEnvelopeKeyReader, JsonEnvelopeReader
from watersmeet.formats.jsonpaths import PATH, ROW_PATH, JsonPathReader
from watersmeet.formats.jsonpayloads import JsonKeyReader, JsonReader, message_rules
from watersmeet.formats.payloads import PayloadReader, option_error
from watersmeet.formats.protopayloads import ProtobufReader
from watersmeet.formats.protoschema import protobuf_schema
from watersmeet.formats.registry import RegisteredSchema, open_registry
from watersmeet.formats.scalarpayloads import ScalarReader
from watersmeet.formats.schemafiles import schema_bytes
from watersmeet.formats.windowedkeys import WINDOW, WindowedKeyReader, value_of
from watersmeet.formats.xmlpayloads import XmlReader
from watersmeet.types import Field


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
