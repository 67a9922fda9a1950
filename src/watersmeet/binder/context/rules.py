"""The hooks by which a dialect changes the meaning of queries: one for each clause, with the law that it must obey.

`DialectRules` is plain SQL, which suffices for some dialects. The rules of other dialects are subclasses that override
the hooks of the clauses in which they differ. The binder calls the rules of the dialect whose text it binds, and never
compares dialect names. A hook with the argument `plain` may call it for the meaning in plain SQL. A view created in
another dialect is bound by the rules of that dialect. `Binding` contains the rules and the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sqlglot import exp

from watersmeet.algebra.bounded import Past
from watersmeet.algebra.nodes import Column, Node
from watersmeet.algebra.scalars import Scalar
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
from watersmeet.binder.context.emissions import Closing, Emission, Request, with_limit
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, SubqueryValues, single
from watersmeet.catalog import Catalog, Relation
from watersmeet.dialects.registry import Language
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.queries import node_span
from watersmeet.expressions.context import Context, RowOrder, Value, WindowFunctions
from watersmeet.values.types import SqlType
from watersmeet.values.watermarks import Watermark

#: A relation and the scope of its readable columns.
Sourced = tuple[Node, Scope]


@dataclass(frozen=True)
class RecordsKept:
    """The way in which a topic keeps records. compacted: whether only the last record of each key counts. key_format:
    None for a computed key. value_format: the format of the first source if it is a topic.
    """

    compacted: bool
    key_format: str | None
    value_format: str | None


#: A row of DESCRIBE: name, type or value, and whether a column is never NULL (None for other properties).
Described = tuple[str, str, bool | None]


def _as_it_is(bound: Bound) -> Bound:
    return bound


@dataclass(frozen=True)
class Reading:
    """The way in which a query reads its inputs.

    part: the part of the rows that it reads. still: whether relations other than streams are read as of the start of
    the query and never change.
    """

    part: Part = "all"
    still: bool = False


@dataclass(frozen=True)
class Binding:
    """The way in which a query is bound, and the collected facts. A nested query may have its own binding.

    rules: the rules of the dialect whose text is bound.
    rules_of: returns the rules of a dialect by its name.
    moment: the newest commit at the start of the query.
    part: which rows are read: all; for append-only relations, those inserted after `moment`; or those that existed
    then.
    still: whether relations other than streams are read as of `moment` and never change.
    past: in a query that ends, the moment as of which relations are read; None: now.
    settings: the settings of the query.
    closing: the end of the time windows of a SELECT; None: they accept all rows.
    depends_on: ids of the catalog relations that the query names.
    fills: rows that look-ups find in the sources of dictionaries and that their cache streams lack.
    """

    catalog: Catalog
    rules: DialectRules
    rules_of: Callable[[str], DialectRules]
    moment: int = 0
    part: Part = "all"
    still: bool = False
    past: Past | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    closing: Closing | None = None
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
        """Adds a notice for the user, unless it was already added."""
        if text not in self.collected.notices:
            self.collected.notices.append(text)

    def read(self, relation_id: str) -> None:
        """Records that the query reads the content of this relation."""
        if relation_id not in self.collected.read:
            self.collected.read.append(relation_id)

    def read_system(self, name: str) -> None:
        """Records that the query reads this system relation."""
        if name not in self.collected.system:
            self.collected.system.append(name)

    def depend(self, relation_id: str) -> None:
        """Records that the query names this relation of the catalog."""
        if relation_id not in self.depends_on:
            self.depends_on.append(relation_id)


#: A function that binds a query in an environment.
BindQuery = Callable[[exp.Expression, Environment, Binding], Bound]


@dataclass(frozen=True)
class NamedItem:
    """The names of an item of FROM.

    names: the column list of its alias. shown: the name of the item in errors. schema: the schema of a relation without
    alias.
    """

    alias: str | None
    names: Sequence[str]
    shown: str
    node: exp.Expression
    schema: str | None = None


class JoinSubqueries(SubqueryValues, Protocol):
    """The subqueries of a join's condition."""

    def reads(self) -> frozenset[str]:
        """The ids of the enclosing columns that are read by subqueries not yet applied."""
        ...

    def applied(self, relation: Node) -> Node:
        """`relation` with the columns of the subqueries bound since the last call."""
        ...

    def filtered(self, relation: Node, parts: Sequence[exp.Expression], ctx: Context, clause: str) -> Node:
        """The rows of `relation` for which all parts of a condition are true."""
        ...


@dataclass(frozen=True)
class JoinClause:
    """A JOIN and its sides. subqueries: returns the subqueries of a condition over a scope."""

    left: Sourced
    right: Sourced
    node: exp.Join
    env: Environment
    binding: Binding
    subqueries: Callable[[Scope], JoinSubqueries]


class SelectWindows(WindowFunctions, Protocol):
    """The window functions of a SELECT."""

    def tree(self, relation: Node) -> Node:
        """`relation` with the columns of all functions that were added."""
        ...


@dataclass(frozen=True)
class Groups:
    """A SELECT with groups.

    node: the SELECT whose select list is bound.
    hidden: whether the first item of this list was added to the written list.
    finish: turns the bound query into the final one.
    """

    node: exp.Select
    hidden: bool = False
    finish: Callable[[Bound], Bound] = _as_it_is


@dataclass(frozen=True)
class SelectList:
    """A bound select list.

    hidden: see `Groups`.
    ordered: whether rows already have the order of ORDER BY.
    beside: the number of last items that were added to the list.
    finish: turns the bound query into the final one.
    """

    items: Sequence[Item]
    hidden: bool = False
    ordered: bool = False
    finish: Callable[[Bound], Bound] = field(default=_as_it_is)


@dataclass(frozen=True)
class DialectRules:
    """The rules of plain SQL. Errors that a hook raises have their span in the text of its environment."""

    language: Language
    #: The name of a query in errors.
    query_called: ClassVar[str] = "a view"
    #: Whether queries end: they read the stored rows, and may use features that a view can't maintain.
    batch: ClassVar[bool] = False
    #: Whether now() in the select list of a view is the time at which the row is computed, which the row keeps.
    keeps_clock: ClassVar[bool] = False
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
        """The way in which the outermost query reads its inputs, also the inputs of views created in other dialects.

        Law: the result depends only on the query's own text.
        """
        return Reading()

    def settings(self, node: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
        """The query without its settings, and the settings by name.

        Law: the given tree is not changed; the result has no part that only this hook reads.
        """
        return node, {}

    def stops_at_bad_messages(self, settings: Mapping[str, str]) -> bool:
        """Whether an undecodable message stops a query with these settings."""
        return False

    def within(self, settings: Mapping[str, str], binding: Binding) -> Binding:
        """The binding inside a query with these settings, which are not empty.

        Law: settings also hold in nested queries unless these have their own.
        """
        raise NotImplementedError(f"{self.name} has no settings: {sorted(settings)}, {binding.part}")

    def emission(self, query: exp.Expression, text: str) -> tuple[exp.Expression, Emission | None]:
        """The query without its EMIT clause, and this clause or None.

        Law: the given tree is not changed.
        """
        return query, None

    def without_sign(self, query: exp.Expression) -> tuple[exp.Expression, exp.Expression | None]:
        """The query of a view without the column that is only the sign of its rows, and this column or None.

        Law: the given tree is not changed.
        """
        return query, None

    def request(self, query: exp.Expression, text: str) -> Request:
        """A SELECT that runs until it is stopped, and its clauses about its output.

        Law: the query in the result returns the rows to which the clauses apply.
        """
        query, emission = self.emission(query, text)
        query, limit, offset = with_limit(query)
        return Request(query, emission or Emission(), limit, offset)

    def running_output(self, query: BoundQuery, asked: exp.Expression, text: str) -> Node:
        """The rows that a running query sends to its reader. asked: the query as written.

        Law: they begin with the query's columns.
        """
        return query.tree

    def records_kept(self, query: BoundQuery) -> RecordsKept | None:
        """The way in which a topic keeps the records of a query; None if the query reads no records.

        Law: reading a topic that keeps records in this way returns records of the query's own kind.
        """
        return None

    def records_of(self, query: BoundQuery) -> Node:
        """The records that a processor writes to its topic: the changes of its query.

        Law: reading the topic in the way in which it keeps records returns the query's result.
        """
        raise NotImplementedError(f"{self.name} has no processors: {query.columns}")

    def described(self, relation: Relation, plain: Callable[[], list[Described]]) -> list[Described]:
        """The rows of DESCRIBE: the columns of a relation, then its other properties.

        Law: every column that SELECT can name appears under that name.
        """
        return plain()

    def check_query(self, query: exp.Expression, tree: Node, text: str) -> None:
        """Raises an error for a whole query, or a view's query, that is invalid although its parts are valid.

        Law: it changes nothing.
        """

    def rowtime(self, tree: Node) -> str | None:
        """The name of the column that never decreases from row to row of a whole query, or None.

        Law: this column never decreases from row to row.
        """
        return None

    # -- FROM ---------------------------------------------------------------------------------------------------

    def item(
        self, node: exp.Expression, select: exp.Select, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        """Binds an item of FROM, without the joins attached to it. select: the enclosing SELECT.

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
        """The rows of a catalog relation as an item of FROM. plain: binds the relation, given the part of its rows to
        read; None: the part that the query reads of every relation.

        Law: after every epoch, the rows are the result of the clauses at the relation's name over its content.
        """
        return plain(None)

    def browsed(
        self, relation: Relation, item: NamedItem, sourced: Sourced, env: Environment, binding: Binding
    ) -> Sourced:
        """A relation of a batch query, with further columns that the query names."""
        del relation, item, env, binding
        return sourced

    def item_scope(self, tree: Node, item: NamedItem, env: Environment, bound: Bound | None = None) -> Scope:
        """The scope of an item of FROM with its visible columns. bound: the bound query if the item is a subquery or
        CTE.

        Law: each visible column has one name, and the item's list of names replaces the first names. Raises
        SYNTAX_ERROR for a list that is too long.
        """
        check_alias_list(item.names, len(tree.columns), item.shown, env.text, node_span(item.node))
        return single(item.alias, scope_columns(tree.columns, item.names), item.schema)

    def time_of_rows(self, scope: Scope) -> Scalar | None:
        """The time that orders the rows of FROM if the order of their arrival is unknown; None without one.

        Law: it is a column of FROM.
        """
        return None

    def time_columns(self, relation: Relation) -> Mapping[str, Watermark]:
        """The columns of a relation that have watermarks which queries may use, with these watermarks.

        Law: no later row that is not late has a lower value.
        """
        return {} if relation.topic is not None else relation.time_columns  # records may be late

    def check_ending(self, node: exp.Expression, text: str) -> None:
        """Raises an error if a SELECT, an item of FROM or a join has clauses that a query that ends can't have.

        Law: it changes nothing.
        """

    # -- joins --------------------------------------------------------------------------------------------------

    def check_join(self, node: exp.Join, text: str) -> None:
        """Raises an error for a kind of join that the dialect lacks, also in queries that end."""

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        """Binds a JOIN.

        Law: the relation has every column of both sides, with the ids in its scope.
        """
        return plain(clause)

    def batch_item(
        self, node: exp.Expression, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        """An item of FROM in a query that ends.

        Law: that of `item`.
        """
        return plain()

    def batch_select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        """Adapts a SELECT of a query that ends.

        Law: the same as for `select`.
        """
        return node, relation, scope

    def batch_items(self, items: Sequence[Item], ctx: Context) -> Sequence[Item]:
        """The items of the select list of a query that ends.

        Law: each has the name of a column of the result.
        """
        return items

    def batch_join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        """Binds a JOIN in a query that ends.

        Law: the same as for `join`.
        """
        return plain(clause)

    # -- SELECT -------------------------------------------------------------------------------------------------

    def check_select(self, node: exp.Select, text: str) -> None:
        """Raises an error for clauses that a SELECT of a view can't have. Called before any part is bound."""

    def written(self, node: exp.Select, env: Environment, binding: Binding) -> exp.Select:
        """The SELECT with its shorthands written out. Called before any part is bound, also in queries that end.

        Law: the given tree is not changed; `starred` omits the columns that this hook adds to FROM.
        """
        return node

    def substream(self, node: exp.Table, scope: Scope, env: Environment) -> tuple[Scalar, ...] | None:
        """The values by which an item of FROM with time windows is divided into streams with their own clocks; None if
        it is one stream. scope: the columns of the item.
        """
        return None

    def closed(
        self,
        rows: Node,
        partition: tuple[Scalar, ...],
        times: tuple[Scalar, Scalar],
        node: exp.Table,
        env: Environment,
        binding: Binding,
    ) -> Node:
        """The rows whose windows have closed in their substream. times: those of a row and of its window's end.

        Law: the relation has the columns of the given one, and each row is output at most once.
        """
        raise NotImplementedError(f"{self.name} has no substreams: {partition}")

    def emitted(
        self, node: exp.Select, env: Environment, binding: Binding, plain: Callable[[exp.Select, Binding], Bound]
    ) -> Bound:
        """Binds a SELECT, whose rows its clauses or the dialect may delay until they are final (`Binding.closing`).

        Law: a row that is output is a row of plain SQL, over rows that are not late for a window that has ended.
        """
        return plain(node, binding)

    def select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        """Adapts a SELECT, the rows that pass WHERE and their columns before the select list and GROUP BY are bound.

        Law: the given tree is not changed; the scope matches the relation.
        """
        return node, relation, scope

    def groups(self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding) -> Groups:
        """Adapts a SELECT with groups or aggregate functions over the rows that pass WHERE.

        Law: no row changes a group that was output as final.
        """
        return Groups(node)

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        """Adapts the select list, whose stars are expanded. relation, scope: the rows before grouping. ctx: the context
        after grouping.

        Law: the written items stay together and in order.
        """
        return SelectList(items)

    def windows(
        self,
        node: exp.Select,
        rows: RowOrder,
        ctx: ScopeContext,
        env: Environment,
        binding: Binding,
        plain: Callable[[], SelectWindows],
    ) -> SelectWindows:
        """The collector of a SELECT's window functions. rows: the rows that pass WHERE. ctx: the context of these rows.

        Law: the returned relation has the columns of the given one.
        """
        return plain()

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        """The columns for which `*` stands, out of all readable columns; also in queries that end.

        Law: it may omit columns, but never renames one.
        """
        return columns

    def of_nothing(
        self, value: Value, function: str, argument: exp.Expression, scope: Scope, settings: Mapping[str, str]
    ) -> Value:
        """The value of an aggregate function that may have no input rows, also in queries that end. scope: the scope of
        the input rows.

        Law: if there are input rows, the result is the given value.
        """
        return value

    def missing_neighbor(self, value: Value, scope: Scope) -> Sequence[Value]:
        """The default for the third argument of `lag(value)` and `lead(value)`, also in queries that end: the result
        for a row without a neighbor; empty for NULL. scope: the scope of the SELECT before grouping.

        Law: if a neighbor exists, the result is its value.
        """
        return ()

    def query_of_view(self, query: exp.Expression, node: exp.Expression) -> exp.Expression:
        """The query of a view in the form in which `node`, an item of FROM, reads it.

        Law: it has the columns of the view, then those that the dialect adds.
        """
        del node
        return query

    # -- set operations -----------------------------------------------------------------------------------------

    def set_operation(
        self,
        node: exp.SetOperation,
        env: Environment,
        binding: Binding,
        bind: BindQuery,
        plain: Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound],
    ) -> Bound:
        """Binds UNION, INTERSECT or EXCEPT. bind: binds a query.

        Law: the result has the columns of the left side.
        """
        return plain(node, env, binding, bind)
