"""What Timeplus adds to plain SQL: the kinds of the two sides decide what a join does; `table()` and `changelog()` of a
stream; ranges of times; defaults of types in place of NULL; settings.

Timeplus, "Multi-JOINs and ASOF JOINs"; rulings D-003-06, D-003-14 and D-003-17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Join, Node
from watersmeet.algebra.trees import exactly
from watersmeet.binder.clauses.joins import join
from watersmeet.binder.clauses.lookups import is_looked_up, looking_up
from watersmeet.binder.context.binding import Bound, Environment, Item, Part
from watersmeet.binder.context.emissions import Emission, Request
from watersmeet.binder.context.rules import (
    Binding,
    BindQuery,
    DialectRules,
    JoinClause,
    NamedItem,
    Reading,
    SelectList,
    Sourced,
)
from watersmeet.binder.context.scope import Scope, ScopeColumn, qualified_items
from watersmeet.binder.dialects.timeplus.dictionaries import computed_once, is_looked_up_column, with_look_ups
from watersmeet.binder.dialects.timeplus.emit import (
    changelog,
    check_functions,
    check_said,
    with_emit,
    with_id,
    with_places,
)
from watersmeet.binder.dialects.timeplus.range_joins import with_ranges
from watersmeet.binder.dialects.timeplus.settings import (
    check_place,
    fills_aggregates,
    stops_at_bad_messages,
    with_settings,
    within,
)
from watersmeet.binder.dialects.timeplus.strictness import check_kind, strict_join
from watersmeet.binder.dialects.timeplus.type_defaults import default_neighbor, of_nothing, with_type_defaults
from watersmeet.catalog import Relation, View
from watersmeet.dialects.timeplus.nodes import DictionaryJoin, StreamTable
from watersmeet.expressions.context import Context, Value


class TimeplusRules(DialectRules):
    """Streams of several modes, and their joins."""

    def reading(self, query: exp.Expression) -> Reading:
        """Rows that arrive after the start, unless `seek_to` or a condition on `_tp_time` says otherwise."""
        return Reading("new")

    def settings(self, node: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
        return with_settings(node, text)

    def within(self, settings: Mapping[str, str], binding: Binding) -> Binding:
        return within(settings, binding)

    def stops_at_bad_messages(self, settings: Mapping[str, str]) -> bool:
        return stops_at_bad_messages(settings)

    def emission(self, query: exp.Expression) -> tuple[exp.Expression, Emission | None]:
        return with_emit(query)

    def request(self, query: exp.Expression, text: str) -> Request:
        """Also the setting with the query's id, and output columns that no stream has."""
        query, query_id = with_id(query)
        found = super().request(query, text)
        query, places = with_places(found.query, text)
        return replace(found, query=query, places=places, query_id=query_id)

    def item(
        self,
        node: exp.Expression,
        select: exp.Select,
        env: Environment,
        binding: Binding,
        plain: Callable[[], Sourced],
    ) -> Sourced:
        check_functions(node, env)
        return plain()

    def relation(
        self,
        relation: Relation,
        item: NamedItem,
        env: Environment,
        binding: Binding,
        plain: Callable[[Part | None], Sourced],
    ) -> Sourced:
        """`table(stream)`: the stored rows. `changelog(stream, key)`: the last row of each key. A stream whose time
        WHERE bounds begins at that time.
        """
        node = item.node
        part: Part | None = None
        if not relation.reopened and not isinstance(relation, View):
            check_place(binding.settings, node, env.text)
        if not isinstance(node, StreamTable):
            return plain(part)
        bounded = relation.is_external
        if node.is_stored:
            part = "before"
        elif node.is_rewound and not bounded and binding.part == "new" and "seek_to" not in binding.settings:
            part = "all"
        tree, scope = plain(part)
        return (tree if node.keys is None else changelog(tree, node, node.keys, env, binding)), scope

    def check_join(self, node: exp.Join, text: str) -> None:
        check_kind(node, text)

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        def strict(relation: Node, node: exp.Join) -> Node:
            relation = strict_join(relation, node, clause.env, clause.binding)
            if is_looked_up(node.this):
                relation = looking_up(relation, node, clause.left[1], clause.env, clause.binding)
            return relation

        return self._joined(clause, strict)

    def bounded_join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        return self._joined(clause, lambda relation, _: relation)

    def _joined(self, clause: JoinClause, strict: Callable[[Node, exp.Join], Node]) -> Sourced:
        """The join with the ranges in ON, by the rules of `strict`, and with the defaults that `join_use_nulls` asks
        for.
        """
        left, right, settings = clause.left[1], clause.right[1], clause.binding.settings
        clause = replace(clause, node=with_ranges(clause.node, left, right, clause.env.text, settings))
        relation, scope = join(clause)
        if clause.node.args.get("computes") and isinstance(relation, Join):
            relation = exactly(strict(computed_once(relation, clause.binding), clause.node), relation.columns)
        else:
            relation = strict(relation, clause.node)
        if settings.get("join_use_nulls") == "0" and not isinstance(clause.node, DictionaryJoin):
            return with_type_defaults((relation, scope), left, right, clause.binding)
        return relation, scope

    def written(self, node: exp.Select, env: Environment, binding: Binding) -> exp.Select:
        return with_look_ups(node, env, binding)

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        return [c for c in columns if not is_looked_up_column(c.name)]

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        return SelectList(qualified_items(items, scope))

    def of_nothing(
        self, value: Value, function: str, argument: exp.Expression, scope: Scope, settings: Mapping[str, str]
    ) -> Value:
        return of_nothing(value, function, argument, scope) if fills_aggregates(settings) else value

    def missing_neighbor(self, value: Value, scope: Scope) -> Sequence[Value]:
        return default_neighbor(value, scope)

    def set_operation(
        self,
        node: exp.SetOperation,
        env: Environment,
        binding: Binding,
        bind: BindQuery,
        plain: Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound],
    ) -> Bound:
        check_said(node, env)
        return plain(node, env, binding, bind)
