"""Dictionaries in joins: look-ups use the whole key, answers are reused for a while, and a mutable stream may cache the
source.

Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary" (TP-19, TP-44 to TP-48); rulings
D-003-10, D-003-11.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Join, KeyPair, TemporalJoin, Union
from watersmeet.algebra.rewrites.keys import as_predicate
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.trees import exactly
from watersmeet.binder.context.binding import Environment, Fill, read
from watersmeet.binder.context.rules import Binding
from watersmeet.catalog import Relation
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.dialects.tree.nodes import MarkedTable
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import error
from watersmeet.expressions.values import duckdb_cast
from watersmeet.types import VARCHAR, SqlType


def dictionary_of(node: exp.Join, env: Environment, binding: Binding) -> Relation | None:
    """The dictionary on the right side of a join."""
    table = node.this
    if (
        not isinstance(table, exp.Table)
        or not isinstance(table.this, exp.Identifier)
        or (isinstance(table, MarkedTable) and table.is_stored)
        or table.args.get("joins")
    ):
        return None
    if table.args.get("db") is None and name_of(table.this) in env.ctes:
        return None
    relation = relation_in_from(table, binding.catalog)
    return relation if relation is not None and relation.dictionary is not None else None


def by_key(joined: Join, relation: Relation) -> Join | None:
    """The join with the dictionary's key as its keys and other equalities in its residual; None if part of the
    key is missing.
    """
    names = {c.id: n for c, n in zip(joined.right.columns, [c.name for c in relation.columns], strict=True)}
    found: dict[str, KeyPair] = {}
    rest: list[Scalar] = []
    for pair in joined.keys:
        name = names.get(pair.right.cast_column or "")
        if name in relation.key_columns and name not in found:
            found[name] = pair
        else:
            rest.append(as_predicate(pair))
    for part in conjuncts(joined.residual):
        constant = _constant_key(part, joined)
        name = "" if constant is None else names.get(constant.right.cast_column or "")
        if constant is not None and name in relation.key_columns and name not in found:
            found[name] = constant
        else:
            rest.append(part)
    if len(found) < len(relation.key_columns):
        return None
    residual = conjunction(rest)
    return replace(joined, keys=tuple(found[k] for k in relation.key_columns), residual=residual)


def _constant_key(part: Scalar, joined: Join) -> KeyPair | None:
    """A comparison of a column of the right side with a constant, as a pair of keys; None for any other condition."""
    if not isinstance(part.expression, exp.EQ):
        return None
    for column, other in ((part.expression.left, part.expression.right), (part.expression.right, part.expression.left)):
        right = next((c for c in joined.right.columns if isinstance(column, exp.Column) and c.id == column.name), None)
        if right is not None and _is_exact(other.unnest(), right.type):
            return KeyPair(Scalar(duckdb_cast(other, right.type), right.type, nullable=False), read(right))
    return None


def _is_exact(node: exp.Expression, kind: SqlType) -> bool:
    """Whether a cast of a constant to a type changes no value."""
    if not isinstance(node, exp.Literal):
        return False
    return kind == VARCHAR if node.is_string else kind.is_integer and node.name.isdecimal()


def look_up(joined: Join, relation: Relation, kind: Literal["inner", "left"], binding: Binding) -> TemporalJoin:
    """The look-up of a join `by_key` in a dictionary. Rows that its cache stream lacks are noted, to be written
    there.
    """
    dictionary = relation.dictionary
    assert dictionary is not None
    if dictionary.fills and isinstance(joined.right, Union):
        rest = joined.right.parts[1]
        below = {o.id: read(c).expression for o, c in zip(joined.right.outputs, rest.columns, strict=True)}
        keys = tuple(replace(k, right=k.right.substitute(below)) for k in joined.keys)
        found = TemporalJoin(joined.left, rest, "inner", keys, None, None, span=joined.span)
        binding.fills.append(Fill(relation.id, exactly(found, rest.columns)))
    return TemporalJoin(
        joined.left, joined.right, kind, joined.keys, joined.residual, None, span=joined.span, ttl_us=dictionary.ttl_us
    )


def check_key(joined: Join, relation: Relation, node: exp.Join, env: Environment) -> Join:
    """Like `by_key`; DIRECT_KEY if part of the key is missing."""
    found = by_key(joined, relation)
    if found is None:
        raise error(
            "DIRECT_KEY",
            f'the condition does not have the whole key of dictionary "{relation.name}"',
            sql=env.text,
            span=place_of(node.this),
            detail="Its key is (" + ", ".join(relation.key_columns) + ").",
            hint="A direct join looks up the exact key of a dictionary: compare all of its columns with =.",
        )
    return found
