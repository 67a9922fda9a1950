"""The columns that a schema gives, for relations that declare none (`*`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from watersmeet.catalog import MessageFormat
from watersmeet.errors import error
from watersmeet.formats.avropayloads import TAKEN_SCHEMA
from watersmeet.formats.avroschema import Node, columns_from, read_schema
from watersmeet.formats.payloads import option_error
from watersmeet.formats.protoschema import ProtoMessage, ProtoSchema, from_text, protobuf_schema
from watersmeet.formats.readers import avro_schema
from watersmeet.formats.registry import Part, RegisteredSchema, UnknownSchemaError, open_registry, subject_of
from watersmeet.formats.schemafiles import schema_bytes
from watersmeet.types import BIGINT, BOOLEAN, DATE, DOUBLE, JSONB, TIME, TIMESTAMPTZ, VARCHAR, Field, Schema, SqlType

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
