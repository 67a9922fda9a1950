"""Checks written rows: NOT NULL, CHECK, the ranges of numbers and times, and the values of enums; and gives them the
declared types of their columns (`values.types.Declared`).

Only a written row fails if its text is too long, and only in characters other than blanks at its end: PostgreSQL 17,
8.3 "Character Types". The values are those of a cast (`values.declaredtypes`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Check, Domain, Relation
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import python_rows
from watersmeet.database.sessions.sequences import take
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.context import NO_NULLS
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.evaluation.expressions import generated_values
from watersmeet.kernel.metrics import Counters
from watersmeet.values.declaredtypes import ADDRESS, MOST_OID, Declared, narrowing
from watersmeet.values.types import BOOLEAN, JSON, UUID, Field, Schema, SqlType

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


_STORED_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def check_fed_types(
    relation: Relation, columns: Schema, declared: Mapping[str, Declared], statement: Statement, span: Span
) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a column of a type whose rules a connector's rows would not follow."""
    for column in columns:
        if column.type.leaf in (JSON, UUID) or declared.get(column.name) not in (None, Declared("text")):
            raise not_supported(
                f'the declared type of column "{column.name}" of {relation.title}, which a connector fills,',
                statement.text,
                span,
                hint="Declare it varchar, bigint, jsonb, time, timestamp or interval, without length or digits.",
            )


#: The prefix of a column that is true in the rows in which another column is DEFAULT.
FLAG: Final = "default of "


def with_serials(session: Session, relation: Relation, rows: pa.Table, left_out: Collection[str]) -> pa.Table:
    """The rows with numbers in the serial columns among those that they omit, or for which they have a flag. The caller
    holds the guard.
    """
    flags = {n.removeprefix(FLAG): rows.column(n) for n in rows.column_names if n.startswith(FLAG)}
    rows = rows.drop_columns([f"{FLAG}{name}" for name in flags])
    for name in relation.serials:
        flag = None if name in left_out else flags.get(name)
        count = rows.num_rows if flag is None else pc.sum(flag).as_py() or 0
        if count and (name in left_out or flag is not None):
            place = rows.column_names.index(name)
            try:
                taken = take(session, relation.serials[name].sequence, count)
                values = pa.chunked_array([pa.array(taken, rows.schema.field(place).type)])
            except (pa.ArrowInvalid, OverflowError):
                raise error("VALUE_OUT_OF_RANGE", f"{relation.column(name).type.sql} out of range") from None
            if flag is not None:
                values = pc.replace_with_mask(
                    rows.column(place).combine_chunks(), flag.combine_chunks(), values.combine_chunks()
                )
            rows = rows.set_column(place, rows.schema.field(place), values)
    return rows


def check_uuids(relation: Relation, rows: pa.Table) -> None:
    """Raises INVALID_VALUE for a uuid that is not in its stored form, whose equality would be wrong."""
    for column in relation.columns:
        if column.type.leaf == UUID and column.name in rows.column_names:
            leaves = _leaves(rows.column(column.name))
            wrong = pc.invert(pc.match_substring_regex(leaves, _STORED_UUID))
            if pc.any(wrong).as_py():
                raise error("INVALID_VALUE", f'invalid input syntax for type uuid: "{leaves.filter(wrong)[0].as_py()}"')


def _leaves(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The elements of arrays of any depth."""
    while pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return values


def kept(values: pa.ChunkedArray, column: Field, declared: Declared) -> pa.ChunkedArray:
    """The values of a column of written rows, in their declared type.

    Raises VALUE_TOO_LONG for a text with more characters than its length, except blanks at its end; INVALID_VALUE.
    """
    leaves = _leaves(values)
    _check(leaves, declared)
    if declared.name == "varchar" and (pc.max(pc.utf8_length(leaves)).as_py() or 0) <= (declared.length or 0):
        return values
    template = narrowing(column.type, declared, "c0")
    if template is None or declared.name in ("inet", "cidr", "oid"):
        return values
    rows = pa.table({column.name: values})
    return generated_values(rows, column, (column,), template, Counters())


def _check(leaves: pa.ChunkedArray, declared: Declared) -> None:
    if declared.length is not None:
        lengths = pc.utf8_length(pc.utf8_rtrim(leaves, " "))
        if (pc.max(lengths).as_py() or 0) > declared.length:
            shown = f"{'character' if declared.name == 'bpchar' else 'character varying'}({declared.length})"
            raise error("VALUE_TOO_LONG", f"value too long for type {shown}")
    wrong = None
    if declared.name in ("inet", "cidr"):
        wrong = pc.invert(pc.match_substring_regex(leaves, f"^({ADDRESS})$"))
    elif declared.name == "oid":
        wrong = pc.or_(pc.less(leaves, 0), pc.greater(leaves, MOST_OID))
    if wrong is not None and pc.any(wrong).as_py():
        value = leaves.filter(wrong)[0].as_py()
        raise error("INVALID_VALUE", f'invalid input syntax for type {declared.name}: "{value}"')


def padded(table: pa.Table, columns: Schema) -> pa.Table:
    """The rows of a result, in which values of type `char(n)` are filled with blanks.

    Stored values have no blanks at their ends, so that comparisons ignore them.
    """
    for place, column in enumerate(columns):
        if column.type.leaf.padding:
            chunks = [_filled(chunk, column.type.leaf.padding) for chunk in table.column(place).chunks]
            field = table.schema.field(place)
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _filled(values: pa.Array, length: int) -> pa.Array:
    """Texts, or arrays of texts, with blanks up to a length."""
    if not pa.types.is_list(values.type):
        return pc.utf8_rpad(values, length, " ")
    values = pa.concat_arrays([values])  # the offsets of a slice of a larger array do not begin at 0
    elements = _filled(values.values, length)
    return pa.ListArray.from_arrays(values.offsets, elements, type=values.type, mask=values.is_null())
