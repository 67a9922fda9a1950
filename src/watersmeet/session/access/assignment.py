"""Assignment: values of a query or an expression become values of a table's columns, by PostgreSQL's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.catalog import (
    Relation,
)
from watersmeet.dialects.tree.queries import is_default, place_of
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.errors import Span, did_you_mean
from watersmeet.expressions.context import decimal_literal
from watersmeet.places import own_place, set_place
from watersmeet.session.access.context import error_at
from watersmeet.session.access.reading import Bounded
from watersmeet.session.access.rows import converted, omitted
from watersmeet.store.merging import quoted
from watersmeet.types import NUMERIC, VARCHAR, Field, Schema, SqlType

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

#: Numbers of so many characters are the same number by way of numeric.
_PLAIN_DIGITS: Final = {"real": 8, "double precision": 11, "numeric": 11}

_DATES: Final = ("date", "timestamp", "timestamptz")


@dataclass(frozen=True)
class Target:
    """A column that gets a value, and where the statement names it.

    epoch_ms: a timestamp that may also be given as a whole number of milliseconds since 1970: the time of a topic's
    records. path: of a field of a column, the names that lead to it, the column's first; `column` is the field then.
    """

    column: Field
    span: Span | None = None
    epoch_ms: bool = False
    path: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, ...]:
        """The names that lead to it."""
        return self.path or (self.column.name,)

    def takes(self, kind: SqlType) -> bool:
        """Whether values of the type can be assigned."""
        return (self.epoch_ms and kind.is_integer) or _is_assignable(kind, self.column.type)

    def converted(self, sql: str, kind: SqlType) -> str:
        """DuckDB SQL for the column's value, from the SQL for a value of type `kind`."""
        if self.epoch_ms and kind.is_integer:
            return f"make_timestamp(CAST({sql} AS BIGINT) * 1000)"
        return converted(sql, kind, self.column.type)

    def typed(self, value: exp.Expression, *, numbers: bool = False, always: bool = False) -> exp.Expression:
        """`value`, cast to the column's type if it is an untyped literal (a string, NULL, ROW(…), an empty array) or a
        number with more digits than numeric has. numbers: if it is any number. always: if it is no parameter.
        """
        if always and not _is_open(value) and not isinstance(value, (exp.Placeholder, exp.Parameter)):
            return _cast(value, self.column.type, value)
        return _typed(value, self.column.type, numbers=numbers)

    def needs_numbers(self, values: Sequence[exp.Expression]) -> bool:
        """Whether numbers among the values of the column have to be cast to its type, as one has more digits than
        numeric has: that one and the others would meet in a type that may hold neither.
        """
        return self.column.type.name == "numeric" and any(_number_text(v, self.column.type) for v in values)


def typed_query(tree: exp.Expression, targets: Sequence[Target]) -> exp.Expression:
    """The query of an INSERT with each untyped literal cast to the type of the column that it goes to."""
    tree = tree.copy()
    if isinstance(tree, exp.Values):
        rows = [row.expressions if isinstance(row, exp.Tuple) else [] for row in tree.expressions]
        for place, target in enumerate(targets):
            cells = [row[place] for row in rows if place < len(row)]
            numbers = target.needs_numbers(cells)
            texts = target.column.type == VARCHAR  # which values of any types may become
            for cell in cells:
                _replace(cell, target, numbers=numbers, always=texts)
    elif isinstance(tree, exp.Select) and not any(isinstance(e, exp.Star) or e.is_star for e in tree.expressions):
        for item, target in zip(tree.expressions, targets, strict=False):
            _replace(item.this if isinstance(item, exp.Alias) else item, target)
    return tree


def without_defaults(
    tree: exp.Expression, targets: Sequence[Target], statement: Statement
) -> tuple[exp.Expression, tuple[Target, ...]]:
    """The query of an INSERT without the columns that have the word DEFAULT in each row of VALUES, and the targets of
    the others: it is as if such a column was left out. FEATURE_NOT_SUPPORTED for one that has it in some rows, and if
    there is no other column.
    """
    listed = tree.expressions if isinstance(tree, exp.Values) else []
    rows = [row.expressions for row in listed if isinstance(row, exp.Tuple)]
    words = {n: [row[n] for row in rows if n < len(row) and is_default(row[n])] for n in range(len(targets))}
    left_out = {n for n, found in words.items() if rows and len(found) == len(rows)}
    for n, found in words.items():
        if found and (n not in left_out or len(left_out) == min(len(targets), len(rows[0]))):
            raise error_at(
                statement,
                place_of(found[0]),
                "FEATURE_NOT_SUPPORTED",
                "DEFAULT in some rows of VALUES only, or in place of all values, is not supported",
                hint="Leave the column out of the list of columns.",
            )
    if not left_out:
        return tree, tuple(targets)
    tree = tree.copy()
    for row in tree.expressions:
        row.set("expressions", [v for n, v in enumerate(row.expressions) if n not in left_out])
    return tree, tuple(t for n, t in enumerate(targets) if n not in left_out)


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


def assignable(query: Bounded, targets: Sequence[Target], relation: Relation, now_us: int) -> Bounded:
    """The query for rows of `relation`: targets are cast, other columns are as `omitted` says for the time `now_us`."""
    given = {t.place: t.converted(f"x{i}", c.type) for i, (c, t) in enumerate(zip(query.columns, targets, strict=True))}
    named = {place[0] for place in given}
    columns = [
        f"{_packed((c.name,), c.type, given) if c.name in named else omitted(relation, c, now_us)} AS c{i}"
        for i, c in enumerate(relation.columns)
    ]
    sql = f"SELECT {', '.join(columns)} FROM ({query.sql}) AS q({', '.join(f'x{i}' for i in range(len(targets)))})"
    return replace(query, sql=sql, columns=relation.columns, exact=relation.columns)


def _packed(place: tuple[str, ...], kind: SqlType, given: Mapping[tuple[str, ...], str]) -> str:
    """DuckDB SQL for what is at a place, of the values of it or of its fields; fields that are not given are NULL."""
    if place in given:
        return given[place]
    if not any(p[: len(place)] == place for p in given):
        return f"CAST(NULL AS {kind.duckdb})"
    return f"struct_pack({', '.join(f'{quoted(n)} := {_packed((*place, n), t, given)}' for n, t in kind.fields)})"


def data_type(kind: SqlType) -> exp.DataType:
    """The type as the syntax trees of dialects spell it."""
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


def _typed(value: exp.Expression, kind: SqlType, *, numbers: bool = False) -> exp.Expression:
    if isinstance(value, exp.Array) and value.expressions and kind.element is not None:
        elements = [_typed(e, kind.element) for e in value.expressions]
        if all(new is old for new, old in zip(elements, value.expressions, strict=True)):
            return value
        array = value.copy()
        array.set("expressions", [e.copy() for e in elements])
        return array
    written = _number_text(value, kind, always=numbers)
    if written is None and not (_is_open(value) or (kind.name == "struct" and _is_row(value))):
        return value
    return _cast(value if written is None else exp.Literal.string(written), kind, value)


def _cast(value: exp.Expression, kind: SqlType, written: exp.Expression) -> exp.Cast:
    """`value` as a type, at the place of what was written."""
    cast = exp.Cast(this=value.copy(), to=data_type(kind))
    set_place(cast, own_place(written) or place_of(written))
    return cast


def _number_text(value: exp.Expression, kind: SqlType, *, always: bool = False) -> str | None:
    """The text of a number for a float or a numeric, if it would lose digits by way of numeric, or `always`."""
    number = value.this if isinstance(value, exp.Neg) else value
    if not isinstance(number, exp.Literal) or number.is_string or not (kind.is_float or kind.name == "numeric"):
        return None
    text = str(number.this).replace("_", "")
    if not always and len(text) <= _PLAIN_DIGITS[kind.name] and "e" not in text.lower():
        return None
    if not always and (kind == NUMERIC or (kind.is_float and text.isdecimal())):
        read = decimal_literal(text)
        if read is not None and read.type == NUMERIC:
            return None
    return f"-{text}" if number is not value else text


def _is_open(value: exp.Expression) -> bool:
    if isinstance(value, exp.Array):
        return not value.expressions
    return isinstance(value, exp.Null) or (isinstance(value, exp.Literal) and value.is_string)


def _is_row(value: exp.Expression) -> bool:
    return isinstance(value, exp.Anonymous) and str(value.this).lower() == "row"


def _replace(node: exp.Expression, target: Target, *, numbers: bool = False, always: bool = False) -> None:
    typed = target.typed(node, numbers=numbers, always=always)
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


def named_targets(relation: Relation, names: tuple[Name, ...], statement: Statement) -> tuple[Target, ...]:
    """The columns with those names. UNDEFINED_COLUMN, DUPLICATE_COLUMN."""
    known = {c.name: c for c in relation.columns}
    lower = {c.name.lower(): c for c in relation.columns}
    found: list[Target] = []
    for name in names:
        column = known.get(name.name) or (lower.get(name.name.lower()) if name.folded else None)
        if column is None:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_COLUMN",
                f'column "{name.name}" of relation "{relation.name}" does not exist',
                hint=did_you_mean(name.name, known),
            )
        target = Target(column, name.span)
        if name.path:
            target = Target(_field(relation, column, name, statement), name.span, path=(column.name, *name.path))
        place = target.place
        if any(t.place[: len(place)] == place or place[: len(t.place)] == t.place for t in found):
            raise error_at(
                statement, name.span, "DUPLICATE_COLUMN", f'column "{".".join(place)}" specified more than once'
            )
        found.append(target)
    return tuple(found)


def _field(relation: Relation, column: Field, name: Name, statement: Statement) -> Field:
    """The field of a column that a name stands for. UNDEFINED_COLUMN."""
    kind, place = column.type, column.name
    for below in name.path:
        fields = dict(kind.fields)
        if below not in fields:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_COLUMN",
                f'"{place}" of relation "{relation.name}" has no field "{below}"',
                hint=did_you_mean(below, fields),
            )
        kind, place = fields[below], f"{place}.{below}"
    return Field(place, kind)
