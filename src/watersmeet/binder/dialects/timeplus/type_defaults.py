"""Defaults of types instead of NULL, as in Proton: in columns that an outer join could not fill, in aggregates of
nothing, and in `lag` of rows without a neighbor.

For joins: `SETTINGS join_use_nulls = 0`; the default here is NULL, as Timeplus' document says (ruling D-003-08). For
aggregates: as in ClickHouse, unless `SETTINGS aggregate_functions_null_for_empty = 1`. The default of a nullable
column is NULL.

LEFT JOIN of keyed streams whose rows show NULLs only until their first partner: `SETTINGS join_restore_nulls = 0`.

In Proton, when the last partner of a left row is deleted, the pair is deleted and nothing takes its place. The default
follows the standard: the row shows NULLs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, Column, Join, KeyPair, Node, Project, Records, Union
from watersmeet.algebra.scalars import Scalar, null_of
from watersmeet.algebra.trees import read
from watersmeet.binder.context.binding import value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeTable
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.expressions.context import Value, duckdb_cast, fill
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE

#: Aggregate functions that return no number for no values.
_OF_NUMBERS: Final = (
    "avg",
    "stddev_pop",
    "stddev_samp",
    "var_pop",
    "var_samp",
    "stddev",
    "variance",
    "percentile_cont",
)


def filled(value: Value) -> Value:
    """The value, with the default of its type in place of NULL."""
    default = type_default(value.type)
    if default is None:
        return value
    given = duckdb_cast(fill(default), value.type)
    return Value(exp.Coalesce(this=value.expression, expressions=[given]), value.type, nullable=False)


def of_nothing(value: Value, function: str, argument: exp.Expression, scope: Scope) -> Value:
    """The value of an aggregate function that returns the default of its type for no values: 0, NaN for an average, an
    empty array.

    If its argument reads a nullable column of the scope, it returns NULL; arrays leave NULLs out.
    """
    if not value.nullable or (function != "array_agg" and _reads_null(argument, scope)):
        return value
    if function in _OF_NUMBERS and value.type == DOUBLE:
        return Value(exp.Coalesce(this=value.expression, expressions=[fill("'NaN'::DOUBLE")]), DOUBLE, nullable=False)
    return filled(value)


def default_neighbor(value: Value, scope: Scope) -> Sequence[Value]:
    """The result of `lag(value)` for a row without a neighbor: the default of the type, or empty if it is nullable."""
    default = type_default(value.type)
    if default is None or (value.nullable and _reads_null(value.expression, scope)):
        return ()
    return (Value(duckdb_cast(fill(default), value.type), value.type, nullable=False),)


def _reads_null(argument: exp.Expression, scope: Scope) -> bool:
    """True if an expression is of a nullable type in ClickHouse, because it reads something that may be NULL.

    What it makes of that can't fail there.
    """
    columns = [c for t in scope.tables for c in (*t.columns, *t.hidden)] + list(scope.visible)
    known = {_key(c): c.value.nullable for c in columns}
    return any(
        isinstance(n, (exp.Null, exp.Nullif, exp.Query, exp.JSONExtract, exp.JSONExtractScalar, exp.Bracket))
        or (isinstance(n, exp.Case) and n.args.get("default") is None)
        or (isinstance(n, exp.Column) and known.get(str(n.sql()), True))
        for n in argument.walk()
    )


def with_type_defaults(joined: tuple[Node, Scope], left: Scope, right: Scope, binding: Binding) -> tuple[Node, Scope]:
    """The join, with the defaults of their types in missing columns. left, right: the scopes of its sides."""
    relation, scope = joined
    never = {_key(c) for side in (left, right) for t in side.tables for c in t.columns if not c.value.nullable}
    columns = [c for t in scope.tables for c in t.columns] + list(scope.visible)
    made: dict[str, tuple[Column, Scalar]] = {}
    for column in columns:
        if _key(column) not in made:
            value = filled(column.value) if column.value.nullable and _key(column) in never else column.value
            made[_key(column)] = binding.new_column(column.name, value.type, value.nullable), value.finish()

    def update(column: ScopeColumn) -> ScopeColumn:
        return replace(column, value=value_of(made[_key(column)][0]))

    tables = tuple(ScopeTable(t.alias, tuple(update(c) for c in t.columns)) for t in scope.tables)
    whole = Project(relation, tuple(c for c, _ in made.values()), tuple(s for _, s in made.values()))
    return whole, Scope(tables, tuple(update(c) for c in scope.visible), scope.outer, scope.from_inside)


def _key(column: ScopeColumn) -> str:
    return str(column.value.expression.sql())


def without_restored_nulls(joined: Join, binding: Binding) -> Node:
    """The pairs of `joined`, a LEFT JOIN, and, with NULLs, the left rows that were never in a pair.

    Whether a row has had a partner is remembered as long as the view exists. A pair inserted and deleted within one
    epoch does not count.
    """
    pairs = replace(joined, kind="inner")
    marks = (
        binding.new_column("_deleted", BOOLEAN, nullable=False),
        binding.new_column("_offset", BIGINT, nullable=False),
    )
    left = joined.left.columns
    met = tuple(binding.new_column(c.name, c.type, c.nullable) for c in left)
    ever = Aggregate(Records(pairs, None, (), marks), tuple(read(c) for c in left), (), met)
    keys = tuple(KeyPair(read(c), read(m), null_safe=c.nullable) for c, m in zip(left, met, strict=True))
    alone = Join(joined.left, ever, "anti", keys, span=joined.span)
    ids = joined.left.ids
    exprs = tuple(read(c) if c.id in ids else null_of(c.type) for c in joined.columns)
    padded = Project(alone, tuple(binding.new_column(c.name, c.type, c.nullable) for c in joined.columns), exprs)
    return Union((pairs, padded), joined.columns)
