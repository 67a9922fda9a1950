"""Assignment: values of a query or expression become values of a table's columns, by PostgreSQL's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from watersmeet.catalog import ARRIVAL, Relation
from watersmeet.dialects.statements import Statement
from watersmeet.errors import Span, error
from watersmeet.kernel.arrays.times import microseconds
from watersmeet.session.access.context import error_at
from watersmeet.session.access.reading import Bounded
from watersmeet.session.access.values import python_rows
from watersmeet.sources.jsonscan import canonical
from watersmeet.store.merging import quoted
from watersmeet.types import Field, Schema, SqlType

_TREE_TYPES: Final[dict[str, exp.DataType.Type]] = {
    "boolean": exp.DataType.Type.BOOLEAN,
    "smallint": exp.DataType.Type.SMALLINT,
    "integer": exp.DataType.Type.INT,
    "bigint": exp.DataType.Type.BIGINT,
    "real": exp.DataType.Type.FLOAT,
    "double precision": exp.DataType.Type.DOUBLE,
    "varchar": exp.DataType.Type.VARCHAR,
    "bytea": exp.DataType.Type.VARBINARY,
    "date": exp.DataType.Type.DATE,
    "time": exp.DataType.Type.TIME,
    "timestamp": exp.DataType.Type.TIMESTAMP,
    "timestamptz": exp.DataType.Type.TIMESTAMPTZ,
    "interval": exp.DataType.Type.INTERVAL,
    "jsonb": exp.DataType.Type.JSONB,
}

_DATES: Final = ("date", "timestamp", "timestamptz")

#: The first and the last microsecond of the years 1 to 9999, since 1970: those of TIMESTAMP in the SQL standard.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@dataclass(frozen=True)
class Target:
    """A column that gets a value, and where the statement names it.

    epoch_ms: a timestamp that may be given as a whole number, milliseconds since 1970: the time of a topic's records.
    """

    column: Field
    span: Span | None = None
    epoch_ms: bool = False

    def takes(self, kind: SqlType) -> bool:
        """Whether values of the type can be assigned."""
        return (self.epoch_ms and kind.is_integer) or _is_assignable(kind, self.column.type)

    def converted(self, sql: str, kind: SqlType) -> str:
        """DuckDB SQL of the column's value, given that of a value of `kind`."""
        if self.epoch_ms and kind.is_integer:
            return f"make_timestamp(CAST({sql} AS BIGINT) * 1000)"
        return converted(sql, kind, self.column.type)

    def typed(self, value: exp.Expression) -> exp.Expression:
        """`value`, with a cast to the column's type if it is a literal of open type (a string, NULL, ROW(…), an empty
        array).
        """
        if not (_is_open(value) or (self.column.type.name == "struct" and _is_row(value))):
            return value
        cast = exp.Cast(this=value.copy(), to=data_type(self.column.type))
        cast.meta.update(value.meta)
        return cast


def typed_query(tree: exp.Expression, targets: Sequence[Target]) -> exp.Expression:
    """The query of an INSERT in which literals whose type is open have the types of the columns that they go to."""
    tree = tree.copy()
    if isinstance(tree, exp.Values):
        for row in tree.expressions:
            cells = row.expressions if isinstance(row, exp.Tuple) else []
            for cell, target in zip(cells, targets, strict=False):
                _replace(cell, target)
    elif isinstance(tree, exp.Select) and not any(isinstance(e, exp.Star) or e.is_star for e in tree.expressions):
        for item, target in zip(tree.expressions, targets, strict=False):
            _replace(item.this if isinstance(item, exp.Alias) else item, target)
    return tree


def check_types(columns: Schema, targets: Sequence[Target], statement: Statement) -> None:
    """DATATYPE_MISMATCH unless each column of the query can be assigned to its target."""
    for column, target in zip(columns, targets, strict=True):
        if not target.takes(column.type):
            raise error_at(
                statement,
                target.span or statement.span,
                "DATATYPE_MISMATCH",
                f'column "{target.column.name}" is of type {target.column.type.sql} but expression is of '
                f"type {column.type.sql}",
                hint="You will need to rewrite or cast the expression.",
            )


def omitted(relation: Relation, column: Field, now_us: int) -> str:
    """DuckDB SQL of what a column gets that an INSERT leaves out, at the time `now_us`: its default, else NULL."""
    default = relation.defaults.get(column.name)
    if default == ARRIVAL:
        # Timeplus' datetime64(3): milliseconds
        return f"CAST(make_timestamp({now_us // 1000 * 1000}) AS {column.type.duckdb})"
    return f"CAST({default or 'NULL'} AS {column.type.duckdb})"


def assignable(query: Bounded, targets: Sequence[Target], relation: Relation, now_us: int) -> Bounded:
    """The query that gives rows of `relation`: targets cast, other columns as `omitted` says at the time `now_us`."""
    given = {
        t.column.name: t.converted(f"x{i}", c.type) for i, (c, t) in enumerate(zip(query.columns, targets, strict=True))
    }
    columns = [
        f"{given[c.name] if c.name in given else omitted(relation, c, now_us)} AS c{i}"
        for i, c in enumerate(relation.columns)
    ]
    sql = f"SELECT {', '.join(columns)} FROM ({query.sql}) AS q({', '.join(f'x{i}' for i in range(len(targets)))})"
    return replace(query, sql=sql, columns=relation.columns, exact=relation.columns)


def as_kept(relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows in the form in which the relation keeps them.

    Times have as many digits of a second as their columns keep; one that is cut is never later. jsonb is canonical:
    equal documents are equal values.
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
    """Whether values of the type are or hold jsonb."""
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


def check_rows(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    """NOT_NULL_VIOLATION if a column that takes no NULL has one, INVALID_VALUE if a number, or the time of an ordered
    stream, is beyond what its column takes.
    """
    _check_not_null(relation, rows, statement)
    _check_rowtimes(relation, rows, statement)
    for name, (least, greatest) in relation.ranges.items():
        found = pc.min_max(rows.column(name)).as_py()
        value = next((v for v in (found["min"], found["max"]) if v is not None and not least <= v <= greatest), None)
        if value is not None:
            failure = error(
                "INVALID_VALUE",
                f'value {value} is out of range for column "{name}" of relation "{relation.name}"',
                detail=f"It takes numbers from {least} to {greatest}.",
            )
            if statement is not None:
                failure.sql, failure.span = statement.text, statement.span
            raise failure


def _check_rowtimes(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    """One that is infinite would be the stream's clock for good: every later row would be rejected."""
    if relation.event_time is None or not relation.event_time.ordered:
        return
    times, _ = microseconds(rows.column(relation.event_time.column))
    if bool(np.any((times < _FIRST_US) | (times > _LAST_US))):
        failure = error(
            "INVALID_VALUE",
            f'a time is out of range for column "{relation.event_time.column}" of relation "{relation.name}"',
            detail="It takes times of the years 1 to 9999.",
        )
        if statement is not None:
            failure.sql, failure.span = statement.text, statement.span
        raise failure


def _check_not_null(relation: Relation, rows: pa.Table, statement: Statement | None) -> None:
    for i, column in enumerate(relation.columns):
        if column.nullable or not rows.column(i).null_count:
            continue
        first = pc.index(pc.is_null(rows.column(i)), value=True).as_py()
        row = python_rows(rows.slice(first, 1), tuple(c.type for c in relation.columns))[0]
        shown = ", ".join("null" if v is None else str(v) for v in row)
        failure = error(
            "NOT_NULL_VIOLATION",
            f'null value in column "{column.name}" of relation "{relation.name}" violates not-null constraint',
            detail=f"Failing row contains ({shown}).",
        )
        if statement is not None:
            failure.sql, failure.span = statement.text, statement.span
        raise failure


def data_type(kind: SqlType) -> exp.DataType:
    """The type as the dialects' trees spell it."""
    if kind.name == "array":
        assert kind.element is not None
        return exp.DataType(this=exp.DataType.Type.ARRAY, expressions=[data_type(kind.element)], nested=True)
    if kind.name == "struct":
        fields = [exp.ColumnDef(this=exp.to_identifier(n, quoted=True), kind=data_type(t)) for n, t in kind.fields]
        return exp.DataType(this=exp.DataType.Type.STRUCT, expressions=fields, nested=True)
    if kind.name == "numeric":
        digits = [] if kind.precision is None else [kind.precision, kind.scale or 0]
        parameters = [exp.DataTypeParam(this=exp.Literal.number(d)) for d in digits]
        return exp.DataType(this=exp.DataType.Type.DECIMAL, expressions=parameters)
    return exp.DataType(this=_TREE_TYPES[kind.name])


def converted(column: str, source: SqlType, target: SqlType, depth: int = 0) -> str:
    """DuckDB SQL that gives `column`, of type `source`, as `target`. Structs are converted by position, as in SQL."""
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


def _is_open(value: exp.Expression) -> bool:
    if isinstance(value, exp.Array):
        return not value.expressions
    return isinstance(value, exp.Null) or (isinstance(value, exp.Literal) and value.is_string)


def _is_row(value: exp.Expression) -> bool:
    return isinstance(value, exp.Anonymous) and str(value.this).lower() == "row"


def _replace(node: exp.Expression, target: Target) -> None:
    typed = target.typed(node)
    if typed is not node:
        node.replace(typed)


def _is_assignable(source: SqlType, target: SqlType) -> bool:
    if source == target or target.name == "varchar":
        return True
    if source.is_numeric:
        return target.is_numeric
    if source.name in _DATES:
        return target.name in _DATES
    if source.name == "array" and target.name == "array":
        assert source.element is not None
        assert target.element is not None
        return _is_assignable(source.element, target.element)
    if source.name == "struct" and target.name == "struct":
        return [n for n, _ in source.fields] == [n for n, _ in target.fields] and all(
            _is_assignable(s, t) for (_, s), (_, t) in zip(source.fields, target.fields, strict=True)
        )
    return False
