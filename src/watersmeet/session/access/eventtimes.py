"""WATERMARK FOR: from the clause of a CREATE statement to the event time in the catalog.

RisingWave, "Joins", "Window joins"; RisingWave, "Understanding streaming joins", "watermark".
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.algebra.timewindows import TIME_TYPES, duration_us, has_months, timeout_us
from watersmeet.catalog import EventTime
from watersmeet.dialects.tree.definitions import CreateRelation, CreateTable, Watermark
from watersmeet.dialects.tree.queries import name_of
from watersmeet.errors import Error, error
from watersmeet.session.access.context import error_at
from watersmeet.units import DAY_US

#: WITH options about event time, which the connector doesn't get.
_AHEAD: Final = "watermark_max_ahead"
_IDLE: Final = "watermark_idle_timeout"
OPTIONS: Final = (_AHEAD, _IDLE)
_FORM: Final = "Write WATERMARK FOR ts AS ts - INTERVAL '20' SECOND."


def event_time(statement: CreateRelation) -> EventTime | None:
    """The event time that the statement declares, or None.

    FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH, INVALID_VALUE.
    """
    options = {n: _option(statement, n) for n in OPTIONS if n in statement.options}
    if not statement.watermarks:
        if options:
            raise error_at(
                statement,
                statement.name_span,
                "CONNECTOR_OPTION",
                f"option {min(options)} needs a watermark",
                hint=_FORM,
            )
        return None
    if len(statement.watermarks) > 1:
        raise _refused(statement, statement.watermarks[1], "FEATURE_NOT_SUPPORTED", "Only 1 watermark is supported now")
    mark = statement.watermarks[0]
    column = next(c for c in statement.columns if c.name == mark.column)
    if column.type.name not in TIME_TYPES:
        raise _refused(
            statement,
            mark,
            "DATATYPE_MISMATCH",
            f'a watermark can\'t be on column "{column.name}" of type {column.type.sql}',
            hint="It needs a timestamp, timestamp with time zone or date.",
        )
    if isinstance(statement, CreateTable) and not (statement.append_only or statement.primary_key or statement.options):
        raise _refused(
            statement,
            mark,
            "FEATURE_NOT_SUPPORTED",
            "Defining watermarks on table requires the table to be append only.",
            hint="Use the key words `APPEND ONLY`, or give a PRIMARY KEY for a table of versions "
            "(FOR SYSTEM_TIME AS OF left.ts).",
        )
    return EventTime(column.name, _delay_us(statement, mark), options.get(_AHEAD, DAY_US), options.get(_IDLE))


def _delay_us(statement: CreateRelation, mark: Watermark) -> int:
    """How far the watermark is behind the greatest time."""
    node = mark.expression.unnest()
    if _is_column(node, mark.column):
        return 0
    if not isinstance(node, exp.Sub) or not _is_column(node.this, mark.column):
        raise _refused(
            statement,
            mark,
            "FEATURE_NOT_SUPPORTED",
            "a watermark other than the column minus an interval is not supported",
            hint=_FORM,
        )
    delay = duration_us(node.expression)
    if delay is None:
        raise _refused(
            statement,
            mark,
            "INVALID_VALUE",
            "the delay of a watermark must be a constant interval of fixed length",
            detail="Months and years have no one length in days."
            if has_months(node.expression)
            else "What is subtracted is not an interval.",
            hint=_FORM,
        )
    if delay < 0:
        raise _refused(
            statement,
            mark,
            "INVALID_VALUE",
            "the delay of a watermark can't be negative",
            detail="Otherwise every row would be late as soon as it arrives.",
            hint=_FORM,
        )
    return delay


def _is_column(node: exp.Expression, name: str) -> bool:
    return isinstance(node, exp.Column) and name_of(node.this) == name


def _option(statement: CreateRelation, name: str) -> int:
    """The value of an option that is a positive interval, in microseconds."""
    text = statement.options[name]
    found = timeout_us(text)
    if found is None:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'option {name} can\'t be "{text}"',
            hint="It must be an interval above zero of fixed length, such as '10 seconds'.",
        )
    return found


def _refused(
    statement: CreateRelation,
    mark: Watermark,
    condition: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
) -> Error:
    return error(condition, message, detail=detail, hint=hint, sql=statement.text, span=mark.span)
