"""CREATE FORMAT SCHEMA, and what names one.

Timeplus, "CREATE FORMAT SCHEMA", "Kafka Source".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.catalog import FormatSchema, MessageFormat
from watersmeet.database.definitions import add, may_create, new_relation
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.formatschemas import CreateFormatSchema
from watersmeet.dialects.tree.statements import Name
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.formats.avroschema import read_schema
from watersmeet.formats.protoschema import from_text
from watersmeet.formats.registry import RegisteredSchema, SchemaKind

_KINDS: Final[dict[str, SchemaKind]] = {"avro": "AVRO", "protobuf": "PROTOBUF"}


def create_format_schema(session: Session, statement: CreateFormatSchema) -> Result:
    """CREATE FORMAT SCHEMA. CONNECTOR_OPTION for a text that is no schema."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE FORMAT SCHEMA")
    with located(statement, statement.schema_span):
        written = RegisteredSchema(0, _KINDS[statement.type], statement.schema_text)
        if statement.type == "avro":
            read_schema(written)
        else:
            from_text(written)
    made = new_relation(session, statement, FormatSchema, (), type=statement.type, text=statement.schema_text)
    add(session, made)
    return Result("CREATE FORMAT SCHEMA")


def with_format_schema(session: Session, form: MessageFormat, named: str) -> tuple[MessageFormat, tuple[str, ...]]:
    """The format with the schema that `name` or `name:Message` means, and the ids of what it depends on.

    UNDEFINED_OBJECT, CONNECTOR_OPTION.
    """
    name, _, message = named.partition(":")
    found = session.find(Name(name, Span(0, 0)))
    if not isinstance(found, FormatSchema):
        known = [r.name for r in session.catalog.relations.values() if isinstance(r, FormatSchema)]
        raise error(
            "UNDEFINED_OBJECT",
            f'format schema "{name}" does not exist',
            hint=did_you_mean(name, known) or "Create it first: CREATE FORMAT SCHEMA name AS '…' TYPE Protobuf.",
        )
    if form.encoding != found.type:
        raise error(
            "CONNECTOR_OPTION",
            f'format schema "{name}" is one of {found.type}, and the messages are in {form.encoding}',
            hint="Choose another data_format.",
        )
    options = {**form.options, "schema": found.text} | ({"message": message} if message else {})
    return replace(form, options=options), (found.id,)
