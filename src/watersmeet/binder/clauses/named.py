"""The rows of CTEs. In a view they are bound again wherever they are named; in a query that ends they are evaluated
once, and may be recursive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.bounded import Named, Recursion
from watersmeet.algebra.nodes import Column, Node, Project
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.context.binding import Bound, Cte, Environment, OutputColumn, check_width, value_of
from watersmeet.binder.context.rules import Binding, BindQuery
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import error
from watersmeet.expressions.parts import words_of
from watersmeet.expressions.values import duckdb_cast


def named_rows(name: str, cte: Cte, binding: Binding, bind: BindQuery) -> Bound:
    """The rows of the query that `name` refers to, with new ids."""
    if not binding.rules.bounded:
        binding.collected.named.setdefault(cte)
        return bind(cte.query, cte.environment, binding)
    if cte.round is not None:
        called, columns = cte.round
        return _read(Named(called, None, columns), [OutputColumn(c) for c in columns], binding)
    found = binding.collected.named.get(cte)
    if found is None:
        found = _recursion(name, cte, binding, bind) if cte.recursive else bind(cte.query, cte.environment, binding)
        made = Named(binding.new_name(), found.relation, found.relation.columns)
        binding.collected.named[cte] = found = replace(found, relation=made)
    assert isinstance(found.relation, Named)
    return _read(found.relation, found.outputs, binding)


def _read(named: Named, outputs: Sequence[OutputColumn], binding: Binding) -> Bound:
    columns = tuple(binding.new_column(c.name, c.type, c.nullable) for c in named.columns)
    found = (replace(o, column=c) for o, c in zip(outputs, columns, strict=True))
    return Bound(replace(named, outputs=columns), tuple(found))


def _recursion(name: str, cte: Cte, binding: Binding, bind: BindQuery) -> Bound:
    """`anchor UNION [ALL] step`: the step reads the columns of the anchor."""
    node, env = cte.query, cte.environment
    assert isinstance(node, exp.Union)
    for part in ("with_", "order", "limit", "offset"):
        if node.args.get(part):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"{words_of(part)} of a recursive query is not supported",
                sql=env.text,
                span=place_of(node.args[part]),
                hint="Write it in the query that reads the recursive one.",
            )
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


def _converted(step: Node, columns: tuple[Column, ...], binding: Binding) -> Node:
    """The rows of a step, with the types of the anchor."""
    if all(s.type == c.type for s, c in zip(step.columns, columns, strict=True)):
        return step
    outputs = tuple(binding.new_column(c.name, c.type, nullable=True) for c in columns)
    values = (duckdb_cast(value_of(c).expression, o.type) for c, o in zip(step.columns, outputs, strict=True))
    return Project(step, outputs, tuple(Scalar(v, o.type) for v, o in zip(values, outputs, strict=True)))
