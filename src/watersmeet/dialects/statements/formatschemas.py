"""CREATE FORMAT SCHEMA as it is written.

Timeplus, "CREATE FORMAT SCHEMA".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from watersmeet.catalog import FormatSchema, Relation
from watersmeet.catalog.formatschemas import SchemaType
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.tokens import Cursor, span_of
from watersmeet.errors import Span, error


@dataclass(frozen=True, kw_only=True)
class CreateFormatSchema(Create):
    """`CREATE FORMAT SCHEMA name AS 'text' TYPE type`. schema_span: of the text."""

    makes: ClassVar[type[Relation]] = FormatSchema

    type: SchemaType
    schema_text: str
    schema_span: Span


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
