"""The streams that a view can write: CREATE MATERIALIZED VIEW … INTO stream."""

from __future__ import annotations

from watersmeet.catalog import Relation, Stream
from watersmeet.dialects.statements import CreateMaterializedView
from watersmeet.errors import did_you_mean
from watersmeet.session.access.assignment import Target, check_types
from watersmeet.session.access.context import Session, error_at
from watersmeet.types import Schema


def target_of(
    session: Session, statement: CreateMaterializedView, columns: Schema, depends_on: tuple[str, ...]
) -> Relation | None:
    """The stream that the view writes its rows to; None without INTO.

    UNDEFINED_RELATION, READ_ONLY_RELATION, UNDEFINED_COLUMN, DATATYPE_MISMATCH; FEATURE_NOT_SUPPORTED for a stream that
    the view reads.
    """
    name = statement.into
    if name is None:
        return None
    stream = session.relation(name, statement)
    if not isinstance(stream, Stream):
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f"can't write {stream.title} by a view",
            hint="INTO needs a stream made by CREATE STREAM or CREATE MUTABLE STREAM.",
        )
    if stream.id in session.catalog.upstream(depends_on, writers=True):
        raise error_at(
            statement,
            name.span,
            "FEATURE_NOT_SUPPORTED",
            f'a view INTO the stream "{stream.shown}", which it reads, is not supported',
            detail="Each row that it writes would produce another row.",
        )
    known = [c.name for c in stream.columns]
    targets = []
    for column in columns:
        if column.name not in known:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_COLUMN",
                f'stream "{stream.shown}" has no column "{column.name}"',
                hint=did_you_mean(column.name, known) or "Name the column with AS.",
            )
        targets.append(Target(stream.column(column.name), statement.span))
    lacking = [k for k in stream.primary_key if k not in [c.name for c in columns]]
    if lacking:
        raise error_at(
            statement,
            name.span,
            "NOT_NULL_VIOLATION",
            f'the view has no column "{lacking[0]}", which is a key of the stream "{stream.shown}"',
        )
    check_types(columns, targets, statement)
    return stream
