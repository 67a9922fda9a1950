"""CREATE STREAM: a table written by INSERT, whose rows carry their times.

SQLstream, "JOIN clause"; Timeplus, "Multi-JOINs and ASOF JOINs".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.catalog import EventTime, Index, Stream
from watersmeet.database.assignment import default_values
from watersmeet.database.definitions import add, check_columns, may_create, new_relation, schema_for
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree.definitions import CreateStream
from watersmeet.session.access.clauses import event_time
from watersmeet.session.statements.lakedatabases import create_lake_table, lake_of

#: Later than all times, as every row moves the clock of an ordered stream.
_EVER_US: Final = 1 << 62


def _clock(statement: CreateStream) -> EventTime | None:
    """The event time of an ordered stream: that of its newest row."""
    found = event_time(statement)
    return replace(found, ahead_us=_EVER_US, ordered=True) if found is not None and statement.ordered else found


def create_stream(session: Session, statement: CreateStream) -> Result:
    """CREATE STREAM and CREATE MUTABLE STREAM, with its indexes, which are named `stream.index`."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE STREAM")
    lake = lake_of(session, schema_for(session, statement))
    if lake is not None:
        return create_lake_table(session, statement, lake)
    check_columns(statement.columns, statement)
    stream = new_relation(
        session,
        statement,
        Stream,
        statement.columns,
        primary_key=statement.primary_key,
        append_only=statement.mode == "append",
        mode=statement.mode,
        defaults={**statement.defaults, **default_values(statement, statement.digits)},
        ranges=dict(statement.ranges),
        digits=dict(statement.digits),
        event_time=_clock(statement),
    )
    names = [f"{statement.name}.{i.name.name}" for i in statement.indexes]
    for name, index in zip(names, statement.indexes, strict=True):
        may_create(session, statement, name, index.name.span, if_not_exists=False)
    add(session, stream)
    for name, index in zip(names, statement.indexes, strict=True):
        add(
            session,
            new_relation(
                session,
                statement,
                Index,
                statement.columns,
                name=name,
                depends_on=(stream.id,),
                index_columns=tuple(c.name for c in index.columns),
                included=tuple(c.name for c in index.storing),
            ),
        )
    return Result("CREATE STREAM")
