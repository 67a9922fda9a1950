"""Binds dictionaries in joins, and in `dict_get` and similar calls.

In joins, look-ups need the whole key, answers are reused for a set time, and a mutable stream may cache the source.
Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary" (TP-19, TP-44 to TP-48).

A call of `dict_get` (ClickHouse, "Functions for Working with Dictionaries") becomes a column of a left join of FROM
with the dictionary, by the rules of joins: a row of an append stream is looked up when it arrives, and later changes of
the dictionary do not change its answer. Calls with the same dictionary and key share one join.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final, Literal

import sqlglot
from sqlglot import exp

from watersmeet.algebra.nodes import Column, Join, KeyPair, Project, TemporalJoin, Union
from watersmeet.algebra.rewrites.conditions import as_predicate
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.context.binding import Environment, Fill
from watersmeet.binder.context.rules import Binding
from watersmeet.catalog import AddressRanges, Relation
from watersmeet.dialects.schemas import find_relation, relation_in_from
from watersmeet.dialects.timeplus.nodes import DictionaryJoin
from watersmeet.dialects.tree.nodes import KnownTable, MarkedTable
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.errors import Error, did_you_mean
from watersmeet.expressions.context import duckdb_cast
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.types import JSONB, VARCHAR, SqlType

#: The functions: whether they name an attribute, and whether their last argument is the value for missing keys.
_CALLS: Final = {
    "dict_get": (True, False),
    "dict_get_or_null": (True, False),
    "dict_get_or_default": (True, True),
    "dict_has": (False, False),
}

_HIERARCHICAL: Final = ("dict_get_hierarchy", "dict_is_in", "dict_get_children", "dict_get_descendants")

#: The prefix of column names of joins that replace calls.
_OWN: Final = re.compile(r"~\d+\.")

#: The joins by dictionary, key and moment.
_Joins = dict[tuple[Hashable, ...], DictionaryJoin]


def is_looked_up_column(name: str) -> bool:
    """Whether a column of FROM only replaces calls, so that `*` omits it."""
    return _OWN.match(name) is not None


def with_look_ups(node: exp.Select, env: Environment, binding: Binding) -> exp.Select:
    """The SELECT with joins instead of its calls.

    Raises UNDEFINED_RELATION, UNDEFINED_COLUMN, DATATYPE_MISMATCH, FEATURE_NOT_SUPPORTED.
    """
    if not any(_called(n) for n in node.walk()):
        return node
    made = node.copy()
    joins: _Joins = {}
    for name, part in list(made.args.items()):
        for tree in part if isinstance(part, list) else [part]:
            if not isinstance(tree, exp.Expression):
                continue
            if name in ("from_", "joins"):
                _refuse(tree, env)
                continue
            for call in reversed([n for n in tree.walk(prune=lambda n: isinstance(n, exp.Query)) if _called(n)]):
                value = _Call(call, env, binding).value(joins)
                set_span(value, own_span(call))
                call.replace(value)
    if joins and made.args.get("from_") is None:
        one = exp.Subquery(
            this=exp.select(exp.alias_(exp.Literal.number(1), f"{binding.new_name()}.one", quoted=True)),
            alias=exp.TableAlias(this=exp.to_identifier(binding.new_name(), quoted=True)),
        )
        made.set("from_", exp.From(this=one))
    made.set("joins", [*(made.args.get("joins") or []), *joins.values()])
    return made


def _called(node: exp.Expression) -> str:
    """The dictionary function of the call in lower case; empty for other functions."""
    name = str(node.this).lower() if isinstance(node, exp.Anonymous) else ""
    return name if name in _CALLS or name in _HIERARCHICAL else ""


def _refuse(tree: exp.Expression, env: Environment) -> None:
    for call in tree.walk(prune=lambda n: isinstance(n, exp.Query)):
        if _called(call):
            raise _not_supported(f"{_called(call)} in FROM", call, env, "Join the dictionary, or write it in WHERE.")


def _not_supported(feature: str, node: exp.Expression, env: Environment, hint: str) -> Error:
    return env.not_supported(f"{feature}", node, hint=hint)


class _Call:
    """A call of a dictionary function."""

    def __init__(self, call: exp.Expression, env: Environment, binding: Binding) -> None:
        self.call = call
        self.env = env
        self.binding = binding
        self.name = _called(call)

    def value(self, joins: _Joins) -> exp.Expression:
        """The call as an expression over columns of a join, which is added to `joins` unless it is already there."""
        if self.name in _HIERARCHICAL:
            hint = "Hierarchies of dictionaries are not there: join the dictionary for each level."
            raise _not_supported(self.name, self.call, self.env, hint)
        has_attribute, has_default = _CALLS[self.name]
        relation = self._dictionary()
        assert relation.dictionary is not None
        count = 2 + has_attribute + has_default + bool(relation.dictionary.bounds)
        arguments = list(self.call.expressions)
        if len(arguments) != count:
            ranged = ", and where it is valid" if relation.dictionary.bounds else ""
            raise self._mismatch(f"It takes {count} arguments, not {len(arguments)}: those of the key{ranged}.")
        keys = self._keys(arguments[1 + has_attribute], relation)
        moment = arguments[2 + has_attribute] if relation.dictionary.bounds else None
        attribute = self._attribute(arguments[1], relation) if has_attribute else ""
        defaults = relation.dictionary.defaults
        if relation.dictionary.by_address:
            relation, (address,) = self._ranges(relation), keys
            keys = [exp.Anonymous(this="$address_network", expressions=[address.copy()])]
            moment = exp.Anonymous(this="$address_rest", expressions=[address.copy()])
            for call in (*keys, moment):
                set_span(call, node_span(address))
        alias = self._joined(relation, keys, moment, joins)
        is_there = exp.Not(this=exp.Is(this=_column(alias, relation.primary_key[0]), expression=exp.Null()))
        if self.name == "dict_has":
            return exp.Paren(this=is_there)
        found = _column(alias, attribute)
        if self.name == "dict_get_or_null":
            return found
        if has_default:
            missing: exp.Expression = arguments[-1]
        elif attribute in defaults:
            default = sqlglot.parse_one(defaults[attribute], dialect="duckdb")
            kind = relation.column(attribute).type
            missing = exp.Cast(
                this=default, to=exp.DataType.build("jsonb" if kind == JSONB else kind.duckdb, dialect="duckdb")
            )
            for part in missing.find_all(exp.DataType):
                if part.this == exp.DType.TIMESTAMPNTZ:  # sqlglot's name of DuckDB's TIMESTAMP
                    part.set("this", exp.DType.TIMESTAMP)
        else:
            return found
        return exp.Paren(this=exp.Case(ifs=[exp.If(this=is_there, true=found)], default=missing))

    def _dictionary(self) -> Relation:
        named = self._constant(0, "the name of a dictionary")
        schema, dot, name = named.rpartition(".")
        catalog = self.binding.catalog
        relation = find_relation(catalog, name, schema if dot else None, folded=False)
        known = [r.name for r in catalog.shown if r.dictionary is not None]
        if relation is None or relation.dictionary is None:
            raise self.env.error(
                "UNDEFINED_RELATION", f'dictionary "{named}" does not exist', self.call, hint=did_you_mean(name, known)
            )
        return relation

    def _ranges(self, relation: Relation) -> Relation:
        """The relation with the rows of a dictionary of address ranges."""
        all_ranges = (r for r in self.binding.catalog.relations.values() if isinstance(r, AddressRanges))
        return next(r for r in all_ranges if r.owner == relation.id)

    def _attribute(self, node: exp.Expression, relation: Relation) -> str:
        if isinstance(node, exp.Tuple):
            hint = "Write a call for each attribute: they share one look-up."
            raise _not_supported(f"{self.name} of several attributes", self.call, self.env, hint)
        name = self._constant(1, "the name of an attribute")
        names = [c.name for c in relation.columns if c.name not in relation.primary_key]
        if name not in names:
            raise self.env.error(
                "UNDEFINED_COLUMN",
                f'dictionary "{relation.name}" has no attribute "{name}"',
                self.call,
                hint=did_you_mean(name, names),
            )
        return name

    def _constant(self, place: int, what: str) -> str:
        node = self.call.expressions[place] if place < len(self.call.expressions) else None
        if not isinstance(node, exp.Literal) or not node.is_string:
            raise self._mismatch(f"Argument {place + 1} is {what}, as a text.")
        return str(node.name)

    def _keys(self, node: exp.Expression, relation: Relation) -> list[exp.Expression]:
        node = node.unnest()
        is_tuple = isinstance(node, exp.Tuple) or (
            isinstance(node, exp.Anonymous) and str(node.this).lower() == "$tuple_cast"  # tuple(…)
        )
        keys = list(node.expressions) if is_tuple else [node]
        wanted = relation.key_columns
        if len(keys) != len(wanted):
            raise self._mismatch(
                f'The key of dictionary "{relation.name}" is ({", ".join(wanted)}), and {len(keys)} values are given.'
            )
        return keys

    def _joined(
        self, relation: Relation, keys: Sequence[exp.Expression], moment: exp.Expression | None, joins: _Joins
    ) -> str:
        """The alias of the join with the dictionary by these keys."""
        asked = (relation.id, *(k.copy() for k in keys), *([] if moment is None else [moment.copy()]))
        if asked not in joins:
            alias = self.binding.new_name()
            computes = isinstance(relation, AddressRanges)
            names = [exp.to_identifier(f"{alias}.{c.name}", quoted=True) for c in relation.columns]
            table = KnownTable(
                this=exp.to_identifier(relation.name, quoted=True),
                db=exp.to_identifier(relation.schema, quoted=True),
                alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True), columns=names),
                relation_id=relation.id,
            )
            set_span(table, node_span(self.call))
            parts: list[exp.Expression] = [
                exp.EQ(this=k.copy(), expression=_column(alias, n))
                for k, n in zip(keys, relation.key_columns, strict=True)
            ]
            if moment is not None:
                assert relation.dictionary is not None
                first, last = (_column(alias, n) for n in relation.dictionary.bounds)
                within: exp.Expression = exp.GTE(this=last, expression=moment.copy())
                if not computes:
                    within = exp.Paren(this=exp.or_(exp.Is(this=last.copy(), expression=exp.Null()), within))
                parts += [exp.LTE(this=first, expression=moment.copy()), within]
            joins[asked] = DictionaryJoin(this=table, side="LEFT", on=exp.and_(*parts), computes=computes)
        return str(joins[asked].this.alias)

    def _mismatch(self, detail: str) -> Error:
        return self.env.error(
            "DATATYPE_MISMATCH", f"{self.name} does not exist with these arguments", self.call, detail=detail
        )


def computed_once(joined: Join, binding: Binding) -> Join:
    """The join with the compared expressions of its left side as columns of this side, all converted to text."""
    left = [*joined.left.columns]
    known = {c.id for c in left}
    made: dict[exp.Expression, tuple[Column, Scalar]] = {}

    def column_of(tree: exp.Expression) -> Scalar:
        if tree not in made:
            column = binding.new_column("address", VARCHAR, nullable=True)
            made[tree] = column, Scalar(tree.copy(), VARCHAR)
        return read(made[tree][0])

    keys = tuple(replace(k, left=column_of(k.left.expression)) for k in joined.keys)
    residual = joined.residual
    if residual is not None:
        tree = residual.expression.copy()
        for test in [*tree.find_all(exp.LTE, exp.GTE, exp.EQ)]:
            for side in (test.left, test.right):
                named = {c.name for c in side.find_all(exp.Column)}  # the columns include parameters of lambdas
                if named & known and not isinstance(side.unnest(), exp.Column):
                    side.replace(column_of(side.copy()).expression)
        residual = replace(residual, expression=tree)
    outputs = (*left, *(c for c, _ in made.values()))
    below = Project(joined.left, outputs, (*map(read, left), *(s for _, s in made.values())))
    return replace(joined, left=below, keys=keys, residual=residual)


def _column(alias: str, name: str) -> exp.Column:
    return exp.Column(
        this=exp.to_identifier(f"{alias}.{name}", quoted=True), table=exp.to_identifier(alias, quoted=True)
    )


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
    """The join by the dictionary's key, with other equalities in its residual; None unless it compares the whole
    key.
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
    """A comparison of a column of the right side with a constant as a pair of keys; None for other conditions."""
    if not isinstance(part.expression, exp.EQ):
        return None
    for column, other in ((part.expression.left, part.expression.right), (part.expression.right, part.expression.left)):
        right = next((c for c in joined.right.columns if isinstance(column, exp.Column) and c.id == column.name), None)
        if right is not None and _is_exact(other.unnest(), right.type):
            return KeyPair(Scalar(duckdb_cast(other, right.type), right.type, nullable=False), read(right))
    return None


def _is_exact(node: exp.Expression, kind: SqlType) -> bool:
    """Whether a cast to a type keeps the value of a constant."""
    if not isinstance(node, exp.Literal):
        return False
    return kind == VARCHAR if node.is_string else kind.is_integer and node.name.isdecimal()


def look_up(joined: Join, relation: Relation, kind: Literal["inner", "left"], binding: Binding) -> TemporalJoin:
    """Turns a join `by_key` into the look-up in a dictionary. Rows that its cache stream lacks become a `Fill`."""
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
    """Like `by_key`, but raises DIRECT_KEY if part of the key is missing."""
    found = by_key(joined, relation)
    if found is None:
        raise env.error(
            "DIRECT_KEY",
            f'the condition does not have the whole key of dictionary "{relation.name}"',
            node.this,
            detail="Its key is (" + ", ".join(relation.key_columns) + ").",
            hint="A direct join looks up the exact key of a dictionary: compare all of its columns with =.",
        )
    return found
