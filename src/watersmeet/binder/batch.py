"""Binds batch queries, which read the present rows of relations and end. They mean the same as views and have more
features.

`BatchRules` holds most differences from views; the others are where the binder tests `rules.batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from sqlglot import exp

from watersmeet.algebra.bounded import Named, PastScan, TopicScan
from watersmeet.algebra.nodes import Aggregate, Node, Project
from watersmeet.algebra.trees import walk_once
from watersmeet.binder.clauses.joins import join
from watersmeet.binder.clauses.lookups import is_looked_up, names_past
from watersmeet.binder.clauses.sources import READERS, bind_files, check_arguments, is_read_again, view_statement
from watersmeet.binder.context.binding import Bound, Environment, Item, Part
from watersmeet.binder.context.rules import Binding, DialectRules, JoinClause, NamedItem, SelectList, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn
from watersmeet.binder.dialects import rules_of
from watersmeet.binder.query import bind
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import Catalog, Index, Relation, View
from watersmeet.dialects.schemas import relation_in_from, with_current_names
from watersmeet.dialects.tree.nodes import MarkedTable
from watersmeet.dialects.tree.queries import depth_checked, is_marked, name_of, node_error
from watersmeet.expressions.context import Context, Value, in_zone
from watersmeet.expressions.setfunctions import table_call
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.types import Origin


@dataclass(frozen=True, kw_only=True)
class QueryFacts:
    """Facts about a batch query.

    depends_on: ids of the relations whose content it reads, directly or through views. named: ids of the relations and
    views in its own text. functions: ids of its SQL functions. system: names of its system relations. topics: topics
    whose present messages it reads. past: scans of earlier moments. origins: for each column that is an unchanged
    column of a relation, that relation and column.
    """

    depends_on: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    topics: tuple[TopicScan, ...] = ()
    past: tuple[PastScan, ...] = ()
    origins: tuple[Origin | None, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The facts by name, as arguments for another query."""
        return {f.name: getattr(self, f.name) for f in fields(QueryFacts)}


@dataclass(frozen=True)
class BoundBatchQuery(QueryFacts):
    """A bound batch query. The columns of `bound` have the user's names, which may repeat."""

    bound: Bound


def bind_batch_query(
    query: exp.Expression, catalog: Catalog, text: str, dialect: str = DEFAULT_DIALECT, *, files: bool = True
) -> BoundBatchQuery:
    """Binds a batch query. files: whether it may read files. Raises the errors of `bind_query`."""

    def rules(name: str) -> DialectRules:
        own = rules_of(name)
        return BatchRules(own.language, own, files)

    binding = Binding(catalog, rules(dialect), rules)
    with depth_checked(text), in_zone(catalog.zone):
        query, functions = inlined(query, catalog, dialect, text)
        query = with_current_names(query, catalog, binding.rules.semantics)
        bound = bind(query, Environment(text, outer=Scope(batch=True)), binding)
    collected = binding.collected
    return BoundBatchQuery(
        bound,
        depends_on=tuple(collected.read),
        named=tuple(binding.depends_on),
        functions=functions,
        system=tuple(collected.system),
        topics=tuple(collected.topics),
        past=tuple(collected.past),
        origins=_origins(bound, collected.origins),
    )


def _is_other(value: exp.Expression, column_id: str) -> bool:
    """Whether a value is a column with another id."""
    return isinstance(value, exp.Column) and value.name != column_id


def _origins(bound: Bound, known: Mapping[str, Origin]) -> tuple[Origin | None, ...]:
    """For each column of a query that is an unchanged column of a relation, that column, as in PostgreSQL's description
    of results.
    """
    passed: dict[str, str] = {}
    for node in walk_once(bound.relation):
        if isinstance(node, Project):
            columns = ((c.id, e.expression) for c, e in zip(node.outputs, node.exprs, strict=True))
            passed |= {i: e.name for i, e in columns if _is_other(e, i)}
        elif isinstance(node, Aggregate):
            keys = zip(node.outputs[: len(node.keys)], node.keys, strict=True)
            passed |= {c.id: k.expression.name for c, k in keys if _is_other(k.expression, c.id)}
        elif isinstance(node, Named) and node.definition is not None:
            passed |= {c.id: d.id for c, d in zip(node.outputs, node.definition.columns, strict=True)}

    def origin(column_id: str) -> Origin | None:
        while column_id not in known and column_id in passed:
            column_id = passed[column_id]
        return known.get(column_id)

    return tuple(origin(o.column.id) for o in bound.outputs)


@dataclass(frozen=True)
class BatchRules(DialectRules):
    """Standard SQL over stored rows, with the rules of a dialect that also apply to batch queries."""

    own: DialectRules
    files: bool = True
    query_called: ClassVar[str] = "a query"
    batch: ClassVar[bool] = True
    readers: ClassVar[frozenset[str]] = READERS

    def settings(self, node: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
        return self.own.settings(node, text)

    def stops_at_bad_messages(self, settings: Mapping[str, str]) -> bool:
        return self.own.stops_at_bad_messages(settings)

    def within(self, settings: Mapping[str, str], binding: Binding) -> Binding:
        return replace(binding, settings={**binding.settings, **settings})

    def check_select(self, node: exp.Select, text: str) -> None:
        self.own.check_ending(node, text)

    def select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        return self.own.batch_select(node, relation, scope, env, binding)

    def item(
        self, node: exp.Expression, select: exp.Select, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        self.own.check_ending(node, env.text)
        if isinstance(node, MarkedTable):
            parts = frozenset(node.args) - node.own_parts | node.stored_parts
            check_arguments(node, parts, env.text, "FROM")
        if is_looked_up(node) and not names_past(node):
            raise env.error(
                "FEATURE_NOT_SUPPORTED",
                "do not support temporal join for batch queries",
                node,
                hint="Please use temporal join in streaming queries.",
            )
        call = table_call(node)
        if call is not None and call.calls[0][0] in READERS:
            return bind_files(call, node, env, binding, allowed=self.files)
        return self.own.batch_item(node, env, binding, plain)

    def relation(
        self,
        relation: Relation,
        item: NamedItem,
        env: Environment,
        binding: Binding,
        plain: Callable[[Part | None], Sourced],
    ) -> Sourced:
        """The stored rows of the relation."""
        if isinstance(relation, View) and is_marked(view_statement(relation).query):
            raise env.error(
                "FEATURE_NOT_SUPPORTED",
                f'view "{relation.name}" can\'t be read by a batch query',
                item.node,
                detail="It is a SELECT STREAM, which runs until it is stopped.",
                hint="Write SELECT STREAM, or read a materialized view of it.",
            )
        # In dialects whose queries over a stream run until they are stopped, a batch query reads the present messages
        # of a topic.
        read_now = (relation.reopened and self.semantics.continuous == "streams") or is_read_again(relation)
        if not isinstance(relation, (View, Index)) and not relation.is_stored and not read_now:
            raise env.error(
                "FEATURE_NOT_SUPPORTED",
                f'{relation.family} "{relation.name}" can\'t be read by a query',
                item.node,
                hint="Create a materialized view over it and read that.",
            )
        tree, scope = plain("all")
        # The origin is the view, not its inputs, which may be hidden from its readers.
        binding.collected.origins.update({c.id: (relation.id, c.name) for c in tree.columns})
        return self.own.browsed(relation, item, (tree, scope), env, binding)

    def check_join(self, node: exp.Join, text: str) -> None:
        if node.method.upper() == "ASOF":
            raise node_error(
                text,
                node.this,
                "FEATURE_NOT_SUPPORTED",
                "do not support asof join for batch queries",
                hint="Use an ASOF join in a materialized view.",
            )
        self.own.check_ending(node, text)
        self.own.check_join(node, text)

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        return self.own.batch_join(clause, join)

    def written(self, node: exp.Select, env: Environment, binding: Binding) -> exp.Select:
        return _in_order(self.own.written(node, env, binding), env, binding.catalog)

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        return self.own.starred(columns, node, text)

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        return SelectList(self.own.batch_items(items, ctx))

    def of_nothing(
        self, value: Value, function: str, argument: exp.Expression, scope: Scope, settings: Mapping[str, str]
    ) -> Value:
        return self.own.of_nothing(value, function, argument, scope, settings)

    def missing_neighbor(self, value: Value, scope: Scope) -> Sequence[Value]:
        return self.own.missing_neighbor(value, scope)


def _in_order(node: exp.Select, env: Environment, catalog: Catalog) -> exp.Select:
    """A SELECT of columns of an index; without ORDER BY it uses the order of the index."""
    clause = node.args.get("from_")
    table = None if clause is None else clause.this
    if not isinstance(table, exp.Table) or any(node.args.get(k) for k in ("order", "group", "distinct", "joins")):
        return node
    if not all(isinstance(e.unalias(), (exp.Star, exp.Column)) for e in node.expressions):
        return node
    if table.args.get("joins") or table.alias_column_names or (not table.db and name_of(table.this) in env.ctes):
        return node
    index = relation_in_from(table, catalog)
    if not isinstance(index, Index):
        return node
    names = dict.fromkeys((*index.index_columns, *catalog.relations[index.depends_on[0]].primary_key))
    alias = table.args["alias"].this if table.alias else table.this
    keys = [exp.column(exp.to_identifier(name, quoted=True), alias.copy()) for name in names]
    node = node.copy()
    node.set("order", exp.Order(expressions=[exp.Ordered(this=key) for key in keys]))
    return node
