"""Columns that a CREATE takes from the schema of its messages, or of the table that it reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from watersmeet.catalog import LAKES
from watersmeet.connectors.lakes.source import lake_schema
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.readers import registered_schema, schema_columns, taken_schema
from watersmeet.session.access.context import Session, error_at, located
from watersmeet.types import Field, Schema

S = TypeVar("S", bound=CreateRelation)


def with_schema_columns(session: Session, statement: S) -> S:
    """The statement with the columns of the schema, as it is now, before those that it declares.

    A column that it declares, too, has the declared type. Errors of tables of lakes as in `lake_schema`; of messages
    CONNECTOR_OPTION without a schema, RUNTIME_UNAVAILABLE if it
    can't be read for now, UNDEFINED_COLUMN if the primary key or a watermark names another column.
    """
    if not statement.takes_columns:
        return statement
    if statement.options.get("connector", "").lower() in LAKES:
        with located(statement, statement.name_span):
            session.require_files(statement.options)
            return _with_columns(statement, lake_schema(statement.options))
    if statement.format is None:
        return statement
    topic = statement.options.get("topic", statement.options.get("kafka.topic", ""))
    try:
        with located(statement, statement.name_span):
            session.require_files(statement.format.options)
            registered = registered_schema(statement.format, topic)
            found = schema_columns(statement.format, registered)
            taken = taken_schema(statement.format, registered)
    except OSError as cause:
        raise error(
            "RUNTIME_UNAVAILABLE",
            f"the schema of the messages can't be read: {cause}",
            hint="Check the option schema.registry or schema.location.",
            sql=statement.text,
            span=statement.name_span,
        ) from cause
    made = _with_columns(statement, found)
    return replace(made, format=replace(statement.format, options={**statement.format.options, **taken}))


def _with_columns(statement: S, found: Schema) -> S:
    """The statement with the columns of a schema. UNDEFINED_COLUMN."""
    declared = {c.name for c in statement.columns}
    columns = (*(c for c in found if c.name not in declared), *statement.columns)
    names = [c.name for c in columns]
    for what, name in (
        *(("key", k) for k in statement.primary_key),
        *(("watermark", w.column) for w in statement.watermarks),
    ):
        if name not in names:
            raise error_at(
                statement,
                statement.name_span,
                "UNDEFINED_COLUMN",
                f'column "{name}" of the {what} does not exist',
                hint=did_you_mean(name, names) or "The columns are " + ", ".join(names) + ".",
            )
    keyed = tuple(Field(c.name, c.type, c.nullable and c.name not in statement.primary_key) for c in columns)
    return replace(statement, columns=keyed)
