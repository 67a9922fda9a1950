"""Rows as records of a topic: with a value, or without one, a tombstone. Lenses, "Joins", "Join types"."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import RECORD_TIME, TOMBSTONE, VALUE_FACET, Relation
from watersmeet.dialects.statements import Statement
from watersmeet.errors import Error, error


def settled(relation: Relation, incoming: pa.Table, statement: Statement | None) -> pa.Table:
    """Rows with the columns of `accepting(relation)` or of the relation as records; rows of what is no topic as they
    are.

    `_value` NULL makes all of them tombstones. NOT_NULL_VIOLATION for a record with a value that lacks a required
    field, INVALID_VALUE for a `_value` that is written out, and for a tombstone with a field.
    """
    if relation.topic is None:
        return incoming
    if VALUE_FACET in incoming.column_names:
        if incoming.column(VALUE_FACET).null_count < incoming.num_rows:
            raise _failure(
                "INVALID_VALUE",
                f'a value of topic "{relation.name}" is written field by field',
                statement,
                "_value can only be NULL, which makes a tombstone.",
            )
        gone = pa.repeat(pa.scalar(True), incoming.num_rows)
        place = incoming.column_names.index(TOMBSTONE)
        incoming = incoming.set_column(place, TOMBSTONE, gone).drop_columns([VALUE_FACET])
    deleted = incoming.column(TOMBSTONE)
    for column in relation.columns:
        if column.name in (TOMBSTONE, RECORD_TIME) or not column.nullable:
            continue
        missing = pc.is_null(incoming.column(column.name))
        if pc.any(pc.and_(deleted, pc.invert(missing))).as_py():
            raise _failure(
                "INVALID_VALUE",
                f'a record without value of topic "{relation.name}" has a field "{column.name}"',
                statement,
            )
        if column.name in relation.topic.required and pc.any(pc.and_(missing, pc.invert(deleted))).as_py():
            raise _failure(
                "NOT_NULL_VIOLATION",
                f'null value in field "{column.name}" of topic "{relation.name}" violates not-null constraint',
                statement,
                f"Declare it {column.name} {column.type.sql} NULL, or write _value NULL for a tombstone.",
            )
    return incoming


def _failure(condition: str, message: str, statement: Statement | None, hint: str | None = None) -> Error:
    found = error(condition, message, hint=hint)
    if statement is not None:
        found.sql, found.span = statement.text, statement.span
    return found
