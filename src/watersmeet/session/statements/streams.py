"""CREATE STREAM: a table written by INSERT, whose rows carry their times.

SQLstream, "JOIN clause"; Timeplus, "Multi-JOINs and ASOF JOINs".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.catalog import ARRIVAL, EventTime, Index, Stream
from watersmeet.dialects.queries import place_of
from watersmeet.dialects.statements import CreateStream
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import is_clock, reads_clock
from watersmeet.expressions.context import Context, first_line
from watersmeet.expressions.scalars import bind_value
from watersmeet.session.access.context import Session, error_at
from watersmeet.session.access.definitions import add, check_columns, may_create, new_relation
from watersmeet.session.access.eventtimes import event_time
from watersmeet.session.access.result import Result

#: Later than all times, as every row moves the clock of an ordered stream.
_EVER_US: Final = 1 << 62


def _clock(statement: CreateStream) -> EventTime | None:
    """The event time of an ordered stream: that of its newest row."""
    found = event_time(statement)
    return replace(found, ahead_us=_EVER_US, ordered=True) if found is not None and statement.ordered else found


def _declared(statement: CreateStream) -> dict[str, str]:
    """The values of columns with DEFAULT that an INSERT leaves out, as `Relation.defaults`: a constant, or the time.

    FEATURE_NOT_SUPPORTED for other expressions; errors in constants.
    """
    types = {c.name: c.type for c in statement.columns}
    found = {}
    for name, node in statement.declared.items():
        if types[name].name == "timestamp" and _is_arrival(node, statement.digits.get(name)):
            found[name] = ARRIVAL
            continue
        if reads_clock(node) or next(node.find_all(exp.Column, exp.Query), None) is not None:
            raise error_at(
                statement,
                place_of(node),
                "FEATURE_NOT_SUPPORTED",
                "DEFAULT with anything but a constant, or now() for a time, is not supported",
            )
        ctx = Context(statement.text, "DEFAULT")
        value = cast(bind_value(node, ctx), types[name], ctx, node).finish().expression
        try:
            ctx.constant(value)
        except duckdb.Error as cause:
            raise error_at(statement, place_of(node), "INVALID_VALUE", first_line(cause)) from None
        found[name] = value.sql(dialect="duckdb")
    return found


def _is_arrival(node: exp.Expression, digits: int | None) -> bool:
    """Whether an expression is the time of the INSERT, with at least as many digits of a second as its column."""
    if not isinstance(node, exp.Anonymous) or node.name != "date_trunc" or len(node.expressions) != 2:
        return False
    unit, time = node.expressions
    return is_clock(time) and (unit.name == "milliseconds" or (unit.name == "second" and digits == 0))


def create_stream(session: Session, statement: CreateStream) -> Result:
    """CREATE STREAM and CREATE MUTABLE STREAM, with its indexes, which are named `stream.index`."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE STREAM")
    check_columns(statement.columns, statement)
    stream = new_relation(
        session,
        statement,
        Stream,
        statement.columns,
        primary_key=statement.primary_key,
        append_only=statement.mode == "append",
        mode=statement.mode,
        defaults={**statement.defaults, **_declared(statement)},
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
