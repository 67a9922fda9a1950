"""What the columns of a statement say of their values: DEFAULT, and AS for generated columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.scalars import column_ref
from watersmeet.binder.context.scope import ScopeColumn, ScopeContext, single
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import ARRIVAL, GeneratedColumn, Relation
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.dialects.tree.statements import Statement
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import is_clock, reads_clock
from watersmeet.expressions.context import Context, Value, columns_of, first_line
from watersmeet.expressions.scalars import bind_value
from watersmeet.session.access.assignment import Target
from watersmeet.session.access.context import Session, error_at
from watersmeet.types import Schema

_CLAUSE: Final = "a generated column"


def default_values(statement: CreateRelation, digits: Mapping[str, int] | None = None) -> dict[str, str]:
    """The values of columns with DEFAULT that an INSERT leaves out, as `Relation.defaults`: a constant, or the time.

    digits: as in the catalog. FEATURE_NOT_SUPPORTED for other expressions; errors in constants.
    """
    types = {c.name: c.type for c in statement.columns}
    found = {}
    for name, node in statement.declared.items():
        if types[name].name == "timestamp" and _is_arrival(node, (digits or {}).get(name)):
            found[name] = ARRIVAL
            continue
        if reads_clock(node) or next(node.find_all(exp.Column, exp.Query), None) is not None:
            others = "" if digits is None else ", or now() for a time,"
            raise error_at(
                statement,
                place_of(node),
                "FEATURE_NOT_SUPPORTED",
                f"DEFAULT with anything but a constant{others} is not supported",
            )
        ctx = Context(statement.text, "DEFAULT")
        value = cast(bind_value(node, ctx), types[name], ctx, node).finish().expression
        try:
            ctx.check(value)
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


def generated_columns(
    session: Session, statement: CreateRelation
) -> tuple[dict[str, GeneratedColumn], tuple[str, ...]]:
    """The generated columns of a statement by name, and the ids of the functions that they call.

    RisingWave, "Generated columns". DATATYPE_MISMATCH for a value that can't be assigned to its column,
    FEATURE_NOT_SUPPORTED for an expression that reads another generated column; errors of the expressions.
    """
    given = tuple(c for c in statement.columns if c.name not in statement.generated)
    made: dict[str, GeneratedColumn] = {}
    functions: list[str] = []
    for column in statement.columns:
        if column.name not in statement.generated:
            continue
        tree, called = inlined(statement.generated[column.name], session.catalog, session.dialect, statement.text)
        functions += called
        _check_reads(tree, statement)
        target = Target(column)
        tree = target.typed(tree)
        ctx = _context(given, statement.name, statement.text, _CLAUSE)
        value = bind_value(tree, ctx)
        if not target.takes(value.type):
            raise error_at(
                statement,
                place_of(tree),
                "DATATYPE_MISMATCH",
                f'column "{column.name}" is of type {column.type.sql} but expression is of type {value.type.sql}',
                hint="You will need to rewrite or cast the expression.",
            )
        made[column.name] = positional(cast(value, column.type, ctx, tree), given)
    return made, tuple(dict.fromkeys(functions))


def _check_reads(tree: exp.Expression, statement: CreateRelation) -> None:
    """FEATURE_NOT_SUPPORTED for a column whose value does not come with the row."""
    for node in tree.find_all(exp.Column):
        name = name_of(node.this)
        if name in (*statement.generated, *statement.arrivals):
            raise error_at(
                statement,
                place_of(node),
                "FEATURE_NOT_SUPPORTED",
                "a generated column can't reference another generated column",
                hint="Write its expression again." if name in statement.generated else None,
            )


def _context(columns: Schema, name: str, text: str, clause: str) -> Context:
    """Where an expression reads the columns of one relation."""
    scope = single(name, [ScopeColumn(c.name, Value(column_ref(c.name), c.type, c.nullable)) for c in columns])
    return ScopeContext(text, scope, clause)


def bound_value(tree: exp.Expression, columns: Schema, name: str, text: str, clause: str) -> Value:
    """What an expression over the columns of the relation `name` means. text: in which its places are. clause: where it
    stands, in words. Errors of the expression.
    """
    return bind_value(tree, _context(columns, name, text, clause))


def positional(value: Value, given: Schema) -> GeneratedColumn:
    """A value over the columns `given` in the form of the catalog."""
    names = columns_of(value)
    reads = tuple(c for c in given if c.name in names) or given[:1]
    places = {c.name: exp.column(f"c{i}") for i, c in enumerate(reads)}
    return GeneratedColumn(value.finish().substitute(places).sql(), reads)


def check_given(relation: Relation, targets: Sequence[Target], statement: Statement) -> None:
    """READ_ONLY_RELATION if a statement gives the value of a generated column."""
    for target in targets:
        if target.column.name in relation.generated:
            raise error_at(
                statement,
                target.span or statement.span,
                "READ_ONLY_RELATION",
                f'can\'t write the generated column "{target.column.name}" of {relation.title}',
                detail="Its value follows from other columns.",
            )
