"""The hooks by which a dialect changes the meaning of queries: one for each clause, with the law that it must keep.

`DialectRules` is plain SQL, which may be all that a dialect needs. Another dialect is a subclass that overrides the
hooks of the clauses in which it differs. The binder asks the rules of the dialect whose text it binds, and never
compares dialect names. A hook that gets `plain` may call it for the meaning in plain SQL. A view created in another
dialect is bound by the rules of that dialect. `Binding` has the rules and the catalog by which a query is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sqlglot import exp

from watersmeet.algebra.bounded import Past
from watersmeet.algebra.nodes import Column, Node
from watersmeet.binder.context.binding import (
    Bound,
    BoundQuery,
    Collected,
    Environment,
    Fill,
    Item,
    Part,
    check_alias_list,
    scope_columns,
)
from watersmeet.binder.context.emissions import Emission, Request, with_limit
from watersmeet.binder.context.scope import Scope, ScopeColumn, SubqueryValues, single
from watersmeet.catalog import Catalog, Relation
from watersmeet.dialects.registry import Language
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.queries import node_span
from watersmeet.expressions.context import Context, Value
from watersmeet.values.types import SqlType
from watersmeet.values.watermarks import Watermark

#: A relation and its columns that can be read.
Sourced = tuple[Node, Scope]


@dataclass(frozen=True)
class RecordsKept:
    """How a topic keeps records. compacted: only the last record of each key counts. key_format: None for a computed
    key. value_format: of the first source, if it is a topic.
    """

    compacted: bool
    key_format: str | None
    value_format: str | None


#: A row of DESCRIBE: name, type or value, whether a column is never NULL (None for other properties).
Described = tuple[str, str, bool | None]


def _as_it_is(bound: Bound) -> Bound:
    return bound


@dataclass(frozen=True)
class Reading:
    """How a query reads its inputs.

    part: the rows that it reads. still: relations other than streams are read as of the start of the query, and never
    change.
    """

    part: Part = "all"
    still: bool = False


@dataclass(frozen=True)
class Binding:
    """How a query is read, and the collected facts. A nested query may have its own binding.

    rules: those of the dialect whose text is bound.
    rules_of: those of a dialect by its name.
    moment: the start of the query: the newest commit that it follows.
    part: which rows of relations count: all of them; for append-only relations, those inserted after the moment; or
    those that existed at it.
    still: relations other than streams are read as of that moment, and never change.
    past: the moment as of which relations are read, in a query that ends; None: now.
    settings: of the query.
    closing_us: how long after the end of their windows rows are output (None: as they arrive).
    depends_on: ids of the catalog relations that the query names.
    fills: rows that look-ups find and the caches of dictionaries lack.
    """

    catalog: Catalog
    rules: DialectRules
    rules_of: Callable[[str], DialectRules]
    moment: int = 0
    part: Part = "all"
    still: bool = False
    past: Past | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    closing_us: int | None = None
    depends_on: list[str] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    collected: Collected = field(default_factory=Collected)

    def new_column(self, name: str, kind: SqlType, nullable: bool) -> Column:
        """A column with a new id."""
        column = Column(f"#{self.collected.next_id}", name, kind, nullable)
        self.collected.next_id += 1
        return column

    def new_name(self) -> str:
        """A name that no relation and no other query has."""
        shown = {r.shown for r in self.catalog.relations.values()}
        while True:
            name = f"~{self.collected.next_id}"
            self.collected.next_id += 1
            if name not in shown:
                return name

    def notice(self, text: str) -> None:
        """Adds a notice for the user; each text once."""
        if text not in self.collected.notices:
            self.collected.notices.append(text)

    def read(self, relation_id: str) -> None:
        """Notes that the query reads the content of this relation."""
        if relation_id not in self.collected.read:
            self.collected.read.append(relation_id)

    def read_system(self, name: str) -> None:
        """Notes that the query reads this system relation."""
        if name not in self.collected.system:
            self.collected.system.append(name)

    def depend(self, relation_id: str) -> None:
        """Notes that the query names this relation of the catalog."""
        if relation_id not in self.depends_on:
            self.depends_on.append(relation_id)


#: Binds a query in its environment.
BindQuery = Callable[[exp.Expression, Environment, Binding], Bound]


@dataclass(frozen=True)
class NamedItem:
    """How an item of FROM is named.

    names: the column list of its alias. shown: the item in errors. schema: that of a relation without alias.
    """

    alias: str | None
    names: Sequence[str]
    shown: str
    node: exp.Expression
    schema: str | None = None


class JoinSubqueries(SubqueryValues, Protocol):
    """The subqueries of a join's condition."""

    def reads(self) -> frozenset[str]:
        """The ids of the enclosing columns read by subqueries that `applied` has not added yet."""
        ...

    def applied(self, relation: Node) -> Node:
        """`relation` with the columns of the subqueries bound since the last call."""
        ...

    def filtered(self, relation: Node, parts: Sequence[exp.Expression], ctx: Context, clause: str) -> Node:
        """The rows of `relation` for which all parts are true."""
        ...


@dataclass(frozen=True)
class JoinClause:
    """A JOIN and its sides. subqueries: the subqueries of a condition over a scope."""

    left: Sourced
    right: Sourced
    node: exp.Join
    env: Environment
    binding: Binding
    subqueries: Callable[[Scope], JoinSubqueries]


@dataclass(frozen=True)
class Groups:
    """A SELECT that groups.

    node: the SELECT whose select list is bound.
    hidden: whether the first item of that list is not in the list as written.
    finish: turns the bound query into the final one.
    """

    node: exp.Select
    hidden: bool = False
    finish: Callable[[Bound], Bound] = _as_it_is


@dataclass(frozen=True)
class SelectList:
    """A bound select list.

    hidden: as in `Groups`.
    ordered: rows already have the order of ORDER BY.
    beside: how many of the last items are additions to the list.
    finish: turns the bound query into the final one.
    """

    items: Sequence[Item]
    hidden: bool = False
    ordered: bool = False
    finish: Callable[[Bound], Bound] = field(default=_as_it_is)


@dataclass(frozen=True)
class DialectRules:
    """Plain SQL. Errors that a hook raises have their span in the text of its environment."""

    language: Language
    #: The name of a query in errors.
    query_called: ClassVar[str] = "a view"
    #: Whether queries end: they read what is stored now, and may do what no view can follow.
    batch: ClassVar[bool] = False
    #: The functions that read files.
    readers: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.language.name

    @property
    def semantics(self) -> Semantics:
        """The dialect's defaults."""
        return self.language.semantics

    # -- a query as a whole -------------------------------------------------------------------------------------

    def reading(self, query: exp.Expression) -> Reading:
        """How the outermost query reads its inputs, including those of views created in other dialects.

        Law: it depends only on the query's own text.
        """
        return Reading()

    def settings(self, node: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
        """The query without its settings, and the settings by their names.

        Law: the given tree is not changed; the result has no part that only this hook reads.
        """
        return node, {}

    def stops_at_bad_messages(self, settings: Mapping[str, str]) -> bool:
        """Whether a message that can't be decoded stops a query with these settings."""
        return False

    def within(self, settings: Mapping[str, str], binding: Binding) -> Binding:
        """The binding inside a query with these settings, which are not empty.

        Law: settings also hold in nested queries, unless these have their own.
        """
        raise NotImplementedError(f"{self.name} has no settings: {sorted(settings)}, {binding.part}")

    def emission(self, query: exp.Expression) -> tuple[exp.Expression, Emission | None]:
        """The query without its clause about when it outputs rows, and that clause or None.

        Law: the given tree is not changed.
        """
        return query, None

    def request(self, query: exp.Expression, text: str) -> Request:
        """A SELECT that runs until it is stopped, and its clauses about its output.

        Law: the query in the result gives the rows that this output is about.
        """
        query, emission = self.emission(query)
        query, limit, offset = with_limit(query)
        return Request(query, emission or Emission(), limit, offset)

    def running_output(self, query: BoundQuery, asked: exp.Expression, text: str) -> Node:
        """The rows that a running query gives its reader. asked: the query as written.

        Law: they begin with the query's columns.
        """
        return query.tree

    def records_kept(self, query: BoundQuery) -> RecordsKept | None:
        """How a topic keeps the records of a query; None if the query reads no records.

        Law: records kept so, when the topic is read, are records of the query's own kind.
        """
        return None

    def records_of(self, query: BoundQuery) -> Node:
        """The records that a processor writes to its topic: the changes of its query.

        Law: the topic, read as its records are kept, has the query's result.
        """
        raise NotImplementedError(f"{self.name} has no processors: {query.columns}")

    def described(self, relation: Relation, plain: Callable[[], list[Described]]) -> list[Described]:
        """The rows of DESCRIBE: the columns of a relation, then its other properties.

        Law: every column that SELECT can name appears under that name.
        """
        return plain()

    def check_query(self, query: exp.Expression, tree: Node, text: str) -> None:
        """Raises an error for a whole query, or a view's query, that has no meaning although its parts have one.

        Law: it changes nothing.
        """

    def rowtime(self, tree: Node) -> str | None:
        """The name of the column by which the rows of a whole query rise, or None.

        Law: that column never decreases from row to row.
        """
        return None

    # -- FROM ---------------------------------------------------------------------------------------------------

    def item(
        self, node: exp.Expression, select: exp.Select, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        """An item of FROM, without the joins attached to it. select: the enclosing SELECT.

        Law: the relation has every column that the scope offers.
        """
        return plain()

    def relation(
        self,
        relation: Relation,
        item: NamedItem,
        env: Environment,
        binding: Binding,
        plain: Callable[[Part | None], Sourced],
    ) -> Sourced:
        """The rows of a catalog relation, as an item of FROM. plain: binds it, given which rows count; None: those that
        the query reads of every relation.

        Law: after every epoch they are what the clauses at the relation's name make of its content.
        """
        return plain(None)

    def item_scope(self, tree: Node, item: NamedItem, env: Environment, bound: Bound | None = None) -> Scope:
        """The scope of an item of FROM: its visible columns. bound: the bound query, if the item is a subquery or CTE.

        Law: each visible column has one name, and the item's list of names replaces the first ones. SYNTAX_ERROR for a
        list that is too long.
        """
        check_alias_list(item.names, len(tree.columns), item.shown, env.text, node_span(item.node))
        return single(item.alias, scope_columns(tree.columns, item.names), item.schema)

    def time_columns(self, relation: Relation) -> Mapping[str, Watermark]:
        """The columns of a relation whose watermarks queries may use, with these watermarks.

        Law: no later row that counts has a lower value.
        """
        return {} if relation.topic is not None else relation.time_columns  # records may be late

    def check_ending(self, node: exp.Expression, text: str) -> None:
        """Raises an error for clauses that a query that ends can't have: in a SELECT, an item of FROM, or a join.

        Law: it changes nothing.
        """

    # -- joins --------------------------------------------------------------------------------------------------

    def check_join(self, node: exp.Join, text: str) -> None:
        """Raises an error for a kind of join that the dialect lacks, also in queries that end."""

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        """The result of a JOIN.

        Law: the relation has every column of both sides, under the ids in its scope.
        """
        return plain(clause)

    def batch_join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        """The result of a JOIN in a query that ends.

        Law: that of `join`.
        """
        return plain(clause)

    # -- SELECT -------------------------------------------------------------------------------------------------

    def check_select(self, node: exp.Select, text: str) -> None:
        """Raises an error for clauses that a SELECT of a view can't have, before any of it is bound."""

    def written(self, node: exp.Select, env: Environment, binding: Binding) -> exp.Select:
        """A SELECT with shorthands written out, before any of it is bound; also in queries that end.

        Law: the given tree is not changed; `starred` leaves out columns that this adds to FROM.
        """
        return node

    def select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node]:
        """A SELECT and the rows that pass WHERE, before the select list and GROUP BY are bound.

        Law: the given tree is not changed; the scope still matches the relation.
        """
        return node, relation

    def groups(self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding) -> Groups:
        """A SELECT with groups or aggregate functions, over the rows that pass WHERE.

        Law: no row changes a group that was output as final.
        """
        return Groups(node)

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        """The select list with its stars expanded. relation, scope: of the rows below groups. ctx: above groups.

        Law: the items as written stay together and in order.
        """
        return SelectList(items)

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        """The columns that `*` stands for, of all columns that can be read; also in queries that end.

        Law: it may leave columns out, but renames none.
        """
        return columns

    def of_nothing(
        self, value: Value, function: str, argument: exp.Expression, scope: Scope, settings: Mapping[str, str]
    ) -> Value:
        """The value of an aggregate function that may get no rows, also in queries that end. scope: of the rows below.

        Law: if there are rows, it is the given value.
        """
        return value

    def missing_neighbor(self, value: Value, scope: Scope) -> Sequence[Value]:
        """The third argument of `lag(value)` and `lead(value)` where a query leaves it out, also in queries that end:
        the result for a row without a neighbor; empty for NULL. scope: of the rows of the SELECT before its groups.

        Law: if there is a neighbor, the result is its value.
        """
        return ()

    # -- set operations -----------------------------------------------------------------------------------------

    def set_operation(
        self,
        node: exp.SetOperation,
        env: Environment,
        binding: Binding,
        bind: BindQuery,
        plain: Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound],
    ) -> Bound:
        """UNION, INTERSECT, EXCEPT. bind: binds a query.

        Law: the result has the columns of the left side.
        """
        return plain(node, env, binding, bind)
