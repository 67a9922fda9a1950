"""Checks written rows: NOT NULL, CHECK, the ranges of numbers and times, and the values of enums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Check, Domain, Relation
from watersmeet.database.sessions.result import python_rows
from watersmeet.dialects.tree.statements import Statement
from watersmeet.errors import Error, error
from watersmeet.expressions.context import NO_NULLS
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.evaluation.expressions import generated_values
from watersmeet.kernel.metrics import Counters
from watersmeet.values.types import BOOLEAN, Field, SqlType

#: The first and the last microsecond of the years 1 to 9999, since 1970: the range of TIMESTAMP in the SQL standard.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


def refused_rows(table: Relation, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """The mask of rows that `check_rows` rejects, for a table without ordered times."""
    refused = np.zeros(rows.num_rows, bool)
    for column in table.columns:
        values = rows.column(column.name)
        if not column.nullable and values.null_count:
            refused |= pc.is_null(values).to_numpy()
        if column.name in table.ranges:
            least, greatest = table.ranges[column.name]
            outside = pc.or_(pc.less(values, least), pc.greater(values, greatest))
            refused |= pc.fill_null(outside, fill_value=False).to_numpy()
        if column.name in table.choices:
            refused |= _not_chosen(values, table.choices[column.name])
    for check in table.checks:
        refused |= violations(table, check, rows)
    for name, domain in table.domains.items():
        values = rows.column(name)
        refused |= pc.is_null(values).to_numpy() if not domain.nullable else False
        for check in domain.checks:
            refused |= violations(table, check, pa.table({"value": values}))
    return refused


def _not_chosen(values: pa.ChunkedArray, choices: Sequence[str]) -> npt.NDArray[np.bool_]:
    """The mask of values that are neither NULL nor one of an enum's."""
    allowed = pc.is_in(values, value_set=pa.array([*choices, None], pa.string()))
    found: npt.NDArray[np.bool_] = pc.invert(allowed).to_numpy()
    return found


def _check_labels(values: pa.ChunkedArray, kind: SqlType, statement: Statement | None) -> None:
    """Raises INVALID_VALUE for a text that is no label of an enum."""
    while pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    wrong = _not_chosen(values, kind.labels)
    if wrong.any():
        value = values[int(np.argmax(wrong))].as_py()
        found = error("INVALID_VALUE", f'invalid input value for enum {kind.enum}: "{value}"')
        if statement is not None:
            found.sql, found.span = statement.text, statement.span
        raise found


def check_rows(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    """Raises NOT_NULL_VIOLATION for NULL in a NOT NULL column, CHECK_VIOLATION, and INVALID_VALUE for a number, or a
    time of an ordered stream, that is out of range.
    """
    _check_not_null(relation, rows, statement)
    for name, domain in relation.domains.items():
        if name in rows.column_names and (broken := broken_rule(relation, domain, rows.column(name))) is not None:
            raise refused(statement, *broken)
    _check_rowtimes(relation, rows, statement)
    _check_conditions(relation, rows, statement)
    for name, (least, greatest) in relation.ranges.items():
        found = pc.min_max(rows.column(name)).as_py()
        value = next((v for v in (found["min"], found["max"]) if v is not None and not least <= v <= greatest), None)
        if value is not None:
            raise refused(
                statement,
                "INVALID_VALUE",
                f'value {value} is out of range for column "{name}" of relation "{relation.name}"',
                detail=f"It takes numbers from {least} to {greatest}.",
            )
    for column in relation.columns:
        if column.type.leaf.labels and column.name in rows.column_names:
            _check_labels(rows.column(column.name), column.type.leaf, statement)
    for name, choices in relation.choices.items():
        wrong = _not_chosen(rows.column(name), choices)
        if wrong.any():
            value = rows.column(name)[int(np.argmax(wrong))].as_py()
            raise refused(
                statement,
                "INVALID_VALUE",
                f'\'{value}\' is not a value of the enum column "{name}" of relation "{relation.name}"',
                detail=f"Its values are {', '.join(repr(c) for c in choices)}.",
            )


def broken_rule(relation: Relation, domain: Domain, values: pa.ChunkedArray) -> tuple[str, str] | None:
    """The condition and message of an error for values that break a rule of a domain."""
    if not domain.nullable and values.null_count:
        return "NOT_NULL_VIOLATION", f"domain {domain.name}{NO_NULLS}"
    rows = pa.table({"value": values})
    for check in domain.checks if rows.num_rows else ():
        if violations(relation, check, rows).any():
            return "CHECK_VIOLATION", f'value for domain {domain.name} violates check constraint "{check.name}"'
    return None


def refused(statement: Statement | None, condition: str, message: str, detail: str | None = None) -> Error:
    """The error for rejected rows, with its position if a statement wrote them."""
    if statement is None:
        return error(condition, message, detail=detail)
    return error(condition, message, detail=detail, sql=statement.text, span=statement.span)


def _check_rowtimes(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    """Rejects infinite rowtimes, because an infinite clock of the stream would reject every later row."""
    if relation.event_time is None or not relation.event_time.ordered:
        return
    times, _ = microseconds(rows.column(relation.event_time.column))
    if bool(np.any((times < _FIRST_US) | (times > _LAST_US))):
        raise refused(
            statement,
            "INVALID_VALUE",
            f'a time is out of range for column "{relation.event_time.column}" of relation "{relation.name}"',
            detail="It takes times of the years 1 to 9999.",
        )


def _check_not_null(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    own = rows.select([c.name for c in relation.columns])  # rows of a changelog also have a sign
    for i, column in enumerate(relation.columns):
        if column.nullable or not own.column(i).null_count:
            continue
        first = pc.index(pc.is_null(own.column(i)), value=True).as_py()
        found = refused(
            statement,
            "NOT_NULL_VIOLATION",
            f'null value in column "{column.name}" of relation "{relation.name}" violates not-null constraint',
            detail=_failing(relation, own, first),
        )
        found.place = (relation.schema, relation.name, column.name)
        raise found


def _failing(relation: Relation, rows: pa.Table, place: int) -> str:
    """The detail of an error with the row at a place."""
    row = python_rows(rows.slice(place, 1), tuple(c.type for c in relation.columns))[0]
    shown = ", ".join("null" if v is None else str(v) for v in row)
    return f"Failing row contains ({shown})."


def violations(relation: Relation, check: Check, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """The mask of rows in which a condition is false. Raises INVALID_VALUE if it raises an error in a row."""
    counters, made = Counters(), check.condition
    values = generated_values(rows, Field(check.name, BOOLEAN), made.reads, made.sql, counters)
    if counters.expression_errors:
        raise error(
            "INVALID_VALUE",
            f'check constraint "{check.name}" of {relation.title} can\'t be computed',
            detail=f"Its expression raises an error in {counters.expression_errors} of {rows.num_rows} rows.",
        )
    found: npt.NDArray[np.bool_] = pc.fill_null(pc.invert(values), fill_value=False).to_numpy()
    return found


def _check_conditions(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    for check in relation.checks if rows.num_rows else ():
        wrong = violations(relation, check, rows)
        if not wrong.any():
            continue
        own = rows.select([c.name for c in relation.columns])
        found = refused(
            statement,
            "CHECK_VIOLATION",
            f'new row for relation "{relation.name}" violates check constraint "{check.name}"',
            detail=_failing(relation, own, int(np.argmax(wrong))),
        )
        found.place, found.constraint = (relation.schema, relation.name, None), check.name
        raise found
