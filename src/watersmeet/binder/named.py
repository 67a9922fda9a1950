"""What WITH names in queries that end: evaluated once, however often it is read, and maybe recursive."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.bounded import Named, Recursion
from watersmeet.algebra.relations import Column, Project, Relation
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.binding import Bound, Cte, Environment, Output, check_width, value_of
from watersmeet.binder.rules import Binding, BindQuery
from watersmeet.dialects.queries import place_of
from watersmeet.expressions.values import duckdb_cast


def named_rows(cte: Cte, name: str, binding: Binding, bind: BindQuery) -> Bound:
    """The rows of a query of WITH, under ids of their own."""
    if cte.round is not None:
        return _read(cte.round[0], Bound(Named(cte.round[0], None, cte.round[1]), _outputs(cte.round[1])), binding)
    found = binding.collected.named.get(cte)
    if found is None:
        made = _recursion(cte, name, binding, bind) if cte.recursive else bind(cte.query, cte.environment, binding)
        called = binding.new_name()
        found = Bound(Named(called, made.relation, made.relation.columns), made.outputs)
        binding.collected.named[cte] = found
    assert isinstance(found.relation, Named)
    return _read(found.relation.name, found, binding)


def _read(name: str, found: Bound, binding: Binding) -> Bound:
    assert isinstance(found.relation, Named)
    columns = tuple(binding.new_column(c.name, c.type, c.nullable) for c in found.relation.columns)
    outputs = tuple(replace(o, column=c) for o, c in zip(found.outputs, columns, strict=True))
    return Bound(Named(name, found.relation.definition, columns), outputs)


def _outputs(columns: tuple[Column, ...]) -> tuple[Output, ...]:
    return tuple(Output(c) for c in columns)


def _recursion(cte: Cte, name: str, binding: Binding, bind: BindQuery) -> Bound:
    """`anchor UNION [ALL] step`: the step sees the columns of the anchor."""
    node, env = cte.query, cte.environment
    assert isinstance(node, exp.Union)
    anchor = bind(node.this, env, binding)
    columns = tuple(binding.new_column(c.name, c.type, nullable=True) for c in anchor.relation.columns)
    called = binding.new_name()
    round_ = Cte(node, cte.names, env, round=(called, columns))
    step = bind(node.expression, Environment(env.text, {**env.ctes, name: round_}, env.outer), binding)
    check_width("UNION", len(anchor.outputs), len(step.outputs), place_of(node.expression), env.text)
    made = Recursion(
        anchor.relation, _converted(step.relation, columns, binding), called, bool(node.args.get("distinct")), columns
    )
    return Bound(made, tuple(replace(o, column=c) for o, c in zip(anchor.outputs, columns, strict=True)))


def _converted(step: Relation, columns: tuple[Column, ...], binding: Binding) -> Relation:
    """The rows of a step with the types of the anchor."""
    if all(s.type == c.type for s, c in zip(step.columns, columns, strict=True)):
        return step
    outputs = tuple(binding.new_column(c.name, c.type, nullable=True) for c in columns)
    values = (duckdb_cast(value_of(c).expression, o.type) for c, o in zip(step.columns, outputs, strict=True))
    return Project(step, outputs, tuple(Scalar(v, o.type) for v, o in zip(values, outputs, strict=True)))
