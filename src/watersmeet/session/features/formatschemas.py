"""CREATE FORMAT SCHEMA, and the external streams that name one.

Timeplus, "CREATE FORMAT SCHEMA", "Kafka Source".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, get_args

from watersmeet.catalog import FormatSchema, MessageFormat, Relation
from watersmeet.catalog.roles import ADMIN
from watersmeet.catalog.rowless import SchemaType
from watersmeet.database.definitions import add, may_create, new_relation
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import Cursor, span_of
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.formats.avroschema import read_schema
from watersmeet.formats.protoschema import from_text
from watersmeet.formats.registry import RegisteredSchema, SchemaKind
from watersmeet.session.handlers import handles


@dataclass(frozen=True, kw_only=True)
class CreateFormatSchema(Create):
    """`CREATE FORMAT SCHEMA name AS 'text' TYPE type`. schema_span: of the text."""

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = FormatSchema

    type: SchemaType
    schema_text: str
    schema_span: Span


@reads("CREATE FORMAT SCHEMA", own="format schema")
def read_format_schema(cursor: Cursor, base: dict[str, Any]) -> CreateFormatSchema:
    """`CREATE FORMAT SCHEMA name AS 'text' TYPE Avro | Protobuf`: the cursor stands behind SCHEMA."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("AS")
    start = cursor.index
    text = cursor.string()
    text_span = span_of(cursor.tokens[start : cursor.index])
    cursor.expect("TYPE")
    kind = cursor.name(reserved=True)
    cursor.end()
    of: SchemaType | None = next((t for t in get_args(SchemaType) if t == kind.name.lower()), None)
    if of is None:
        raise error(
            "INVALID_PARAMETER",
            f"a format schema can't be of type {kind.name}",
            hint="It is Avro or Protobuf.",
            sql=cursor.text,
            span=kind.span,
        )
    return CreateFormatSchema(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        type=of,
        schema_text=text,
        schema_span=text_span,
    )


_KINDS: Final[dict[str, SchemaKind]] = {"avro": "AVRO", "protobuf": "PROTOBUF"}


@handles(CreateFormatSchema)
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
