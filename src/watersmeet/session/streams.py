"""CREATE STREAM: a table that is written by INSERT; rows know when they came. Documents 001, 003."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.catalog import EventTime
from watersmeet.dialects.statements import CreateStream
from watersmeet.session.context import Session
from watersmeet.session.ddl import add, check_columns, may_create, new_relation
from watersmeet.session.eventtimes import event_time
from watersmeet.session.result import Result

#: Far ahead of all times: every row moves the clock of an ordered stream.
_EVER_US: Final = 1 << 62


def _clock(statement: CreateStream) -> EventTime | None:
    """The event time of an ordered stream: that of its newest row."""
    found = event_time(statement)
    return replace(found, ahead_us=_EVER_US, ordered=True) if found is not None and statement.ordered else found


def create_stream(session: Session, statement: CreateStream) -> Result:
    """CREATE STREAM and CREATE MUTABLE STREAM, with the indexes that it names, called `stream.index`."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE STREAM")
    check_columns(statement.columns, statement)
    stream = new_relation(session, statement, "table", statement.columns, primary_key=statement.primary_key,
                          append_only=statement.mode == "append", mode=statement.mode, defaults=dict(statement.defaults),
                          ranges=dict(statement.ranges), digits=dict(statement.digits), event_time=_clock(statement))
    names = [f"{statement.name}.{i.name.name}" for i in statement.indexes]
    for name, index in zip(names, statement.indexes, strict=True):
        may_create(session, statement, name, index.name.span, if_not_exists=False)
    add(session, stream)
    for name, index in zip(names, statement.indexes, strict=True):
        add(session, new_relation(session, statement, "index", statement.columns, name=name, depends_on=(stream.id,),
                                  index_columns=tuple(c.name for c in index.columns), included=tuple(c.name for c in index.storing)))
    return Result("CREATE STREAM")
