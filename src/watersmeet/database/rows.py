"""Which rows a relation accepts, and in which form it stores them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import ARRIVAL, RECORD_TIME, TOMBSTONE, VALUE_FACET, Relation
from watersmeet.database.values import python_rows
from watersmeet.dialects.tree.statements import Statement
from watersmeet.errors import Error, error
from watersmeet.formats.jsonscan import canonical
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.metrics import Counters
from watersmeet.runtime.generated import computed
from watersmeet.store.changes import quoted
from watersmeet.values.types import Field, SqlType

#: The first and the last microsecond of the years 1 to 9999, since 1970: those of TIMESTAMP in the SQL standard.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


def omitted(relation: Relation, column: Field, now_us: int) -> str:
    """DuckDB SQL for a column that an INSERT leaves out, at the time `now_us`: its default, or NULL."""
    default = relation.defaults.get(column.name)
    if default == ARRIVAL:
        # Timeplus' datetime64(3): milliseconds
        return f"CAST(make_timestamp({now_us // 1000 * 1000}) AS {column.type.duckdb})"
    return f"CAST({default or 'NULL'} AS {column.type.duckdb})"


def with_generated(relation: Relation, rows: pa.Table, statement: Statement | None) -> pa.Table:
    """The rows with the values of generated columns, whatever they had there.

    INVALID_VALUE if the expression of one raises an error.
    """
    for name, made in relation.generated.items():
        counters = Counters()
        values = computed(rows, relation.column(name), made, counters)
        if counters.expression_errors:
            raise _refused(
                statement,
                "INVALID_VALUE",
                f'generated column "{name}" of {relation.title} can\'t be computed',
                detail=f"Its expression raises an error in {counters.expression_errors} of {rows.num_rows} rows.",
            )
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
    return rows


def as_kept(relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows in the form in which the relation stores them.

    Times are cut to the digits of a second that their columns keep, so they are never later. jsonb is canonical: equal
    documents are equal values.
    """
    for column in relation.columns:
        if _has_documents(column.type) and column.name in rows.column_names:
            place = rows.column_names.index(column.name)
            chunks = [_with_documents(c, column.type) for c in rows.column(place).chunks]
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    for name, digits in relation.digits.items():
        place = rows.column_names.index(name)
        cut = pc.floor_temporal(rows.column(place), multiple=10 ** (6 - digits), unit="microsecond")
        rows = rows.set_column(place, rows.schema.field(place), cut)
    return rows


def _has_documents(kind: SqlType) -> bool:
    """Whether values of the type are jsonb or contain it."""
    inner = ([] if kind.element is None else [kind.element]) + [t for _, t in kind.fields]
    return kind.name == "jsonb" or any(_has_documents(t) for t in inner)


def _with_documents(array: pa.Array, kind: SqlType) -> pa.Array:
    """The values with canonical jsonb."""
    if kind.name == "jsonb":
        return canonical(array)
    if not _has_documents(kind):
        return array
    array = pa.concat_arrays([array])  # not a part of a larger one, whose offsets begin elsewhere
    if kind.element is not None:
        values = _with_documents(array.values, kind.element)
        return pa.ListArray.from_arrays(array.offsets, values, type=array.type, mask=array.is_null())
    parts = [_with_documents(array.field(i), t) for i, (_, t) in enumerate(kind.fields)]
    return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())


def refused_rows(table: Relation, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows `check_rows` refuses, of a table whose rows have no times in order."""
    refused = np.zeros(rows.num_rows, bool)
    for column in table.columns:
        values = rows.column(column.name)
        if not column.nullable and values.null_count:
            refused |= pc.is_null(values).to_numpy()
        if column.name in table.ranges:
            least, greatest = table.ranges[column.name]
            outside = pc.or_(pc.less(values, least), pc.greater(values, greatest))
            refused |= pc.fill_null(outside, fill_value=False).to_numpy()
    return refused


def check_rows(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    """NOT_NULL_VIOLATION for a NULL in a column that takes none, INVALID_VALUE for a number, or a time of an ordered
    stream, that is out of range.
    """
    _check_not_null(relation, rows, statement)
    _check_rowtimes(relation, rows, statement)
    for name, (least, greatest) in relation.ranges.items():
        found = pc.min_max(rows.column(name)).as_py()
        value = next((v for v in (found["min"], found["max"]) if v is not None and not least <= v <= greatest), None)
        if value is not None:
            raise _refused(
                statement,
                "INVALID_VALUE",
                f'value {value} is out of range for column "{name}" of relation "{relation.name}"',
                detail=f"It takes numbers from {least} to {greatest}.",
            )


def _refused(statement: Statement | None, condition: str, message: str, detail: str) -> Error:
    """The error for rows, with its place if a statement wrote them."""
    if statement is None:
        return error(condition, message, detail=detail)
    return error(condition, message, detail=detail, sql=statement.text, span=statement.span)


def _check_rowtimes(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    """Refuses infinite rowtimes: one would be the stream's clock for good, and every later row would be rejected."""
    if relation.event_time is None or not relation.event_time.ordered:
        return
    times, _ = microseconds(rows.column(relation.event_time.column))
    if bool(np.any((times < _FIRST_US) | (times > _LAST_US))):
        raise _refused(
            statement,
            "INVALID_VALUE",
            f'a time is out of range for column "{relation.event_time.column}" of relation "{relation.name}"',
            detail="It takes times of the years 1 to 9999.",
        )


def _check_not_null(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    own = rows.select([c.name for c in relation.columns])  # rows of a changelog have their sign beside them
    for i, column in enumerate(relation.columns):
        if column.nullable or not own.column(i).null_count:
            continue
        first = pc.index(pc.is_null(own.column(i)), value=True).as_py()
        row = python_rows(own.slice(first, 1), tuple(c.type for c in relation.columns))[0]
        shown = ", ".join("null" if v is None else str(v) for v in row)
        found = _refused(
            statement,
            "NOT_NULL_VIOLATION",
            f'null value in column "{column.name}" of relation "{relation.name}" violates not-null constraint',
            detail=f"Failing row contains ({shown}).",
        )
        found.place = (relation.schema, relation.name, column.name)
        raise found


def converted(column: str, source: SqlType, target: SqlType, depth: int = 0) -> str:
    """DuckDB SQL for `column`, of type `source`, as `target`. Structs are converted by position, as in SQL."""
    if source == target or not _names_differ(source, target):
        return f"CAST({column} AS {target.duckdb})"
    if target.name == "array" and source.element is not None and target.element is not None:
        inner = converted(f"e{depth}", source.element, target.element, depth + 1)
        return f"list_transform({column}, lambda e{depth}: {inner})"
    fields = [
        converted(f"struct_extract_at({column}, {i + 1})", s, t, depth)
        for i, ((_, s), (_, t)) in enumerate(zip(source.fields, target.fields, strict=True))
    ]
    packed = ", ".join(f"{quoted(n)} := {f}" for (n, _), f in zip(target.fields, fields, strict=True))
    return f"CASE WHEN {column} IS NOT NULL THEN struct_pack({packed}) END"


def _names_differ(source: SqlType, target: SqlType) -> bool:
    if source.element is not None and target.element is not None:
        return _names_differ(source.element, target.element)
    return any(a != b or _names_differ(s, t) for (a, s), (b, t) in zip(source.fields, target.fields, strict=False))


def settled(relation: Relation, incoming: pa.Table, statement: Statement | None) -> pa.Table:
    """Rows with the columns of `accepting(relation)`, or of the relation, as records. Unless it is a topic they stay as
    they are.

    `_value` NULL makes every one a tombstone. NOT_NULL_VIOLATION for a record with a value that lacks a required field,
    INVALID_VALUE for an explicit `_value` and for a tombstone with a field.
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
            found = _failure(
                "NOT_NULL_VIOLATION",
                f'null value in field "{column.name}" of topic "{relation.name}" violates not-null constraint',
                statement,
                f"Declare it {column.name} {column.type.sql} NULL, or write _value NULL for a tombstone.",
            )
            found.place = (relation.schema, relation.name, column.name)
            raise found
    return incoming


def _failure(condition: str, message: str, statement: Statement | None, hint: str | None = None) -> Error:
    found = error(condition, message, hint=hint)
    if statement is not None:
        found.sql, found.span = statement.text, statement.span
    return found
