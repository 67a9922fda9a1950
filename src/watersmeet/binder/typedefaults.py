"""Columns that an outer join could not fill have the default of their type instead of NULL: `SETTINGS join_use_nulls = 0`.

Proton's own behaviour; the default here is NULL, as document 003 says (ruling D-003-08). A nullable column's default is NULL.
"""

from __future__ import annotations

from sqlglot import exp

from watersmeet.algebra.relations import Column, Project, Relation
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.scope import Scope, ScopeColumn, ScopeTable
from watersmeet.binder.shared import Binding, value_of
from watersmeet.dialects.typedefaults import type_default
from watersmeet.expressions.signatures import fill
from watersmeet.expressions.values import Value, duckdb_cast


def filled(value: Value) -> Value:
    """The value, with the default of its type in place of NULL."""
    default = type_default(value.type)
    if default is None:
        return value
    given = duckdb_cast(fill(default), value.type)
    return Value(exp.Coalesce(this=value.expression, expressions=[given]), value.type, nullable=False)


def with_type_defaults(joined: tuple[Relation, Scope], left: Scope, right: Scope, binding: Binding) -> tuple[Relation, Scope]:
    """The join whose missing columns have the defaults of their types; left, right: the scopes of its sides."""
    relation, scope = joined
    never = {_key(c) for side in (left, right) for t in side.tables for c in t.columns if not c.value.nullable}
    columns = [c for t in scope.tables for c in t.columns] + list(scope.visible)
    made: dict[str, tuple[Column, Scalar]] = {}
    for column in columns:
        if _key(column) not in made:
            value = filled(column.value) if column.value.nullable and _key(column) in never else column.value
            made[_key(column)] = binding.new_column(column.name, value.type, value.nullable), value.finish()

    def update(column: ScopeColumn) -> ScopeColumn:
        return ScopeColumn(column.name, value_of(made[_key(column)][0]))

    tables = tuple(ScopeTable(t.alias, tuple(update(c) for c in t.columns)) for t in scope.tables)
    whole = Project(relation, tuple(c for c, _ in made.values()), tuple(s for _, s in made.values()))
    return whole, Scope(tables, tuple(update(c) for c in scope.visible), scope.outer, scope.from_inside)


def _key(column: ScopeColumn) -> str:
    return str(column.value.expression.sql())
