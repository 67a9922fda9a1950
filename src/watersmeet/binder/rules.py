"""What a dialect may add to the meaning of queries: one hook for each clause, with the law that it keeps.

`DialectRules` is plain SQL, which may be all of a dialect. Another one is a subclass that overrides the hooks of the
clauses in which it differs; the binder asks the rules of the dialect whose text it binds, and never for a name. A
hook that gets `plain` may ask it for the meaning in plain SQL. A view that another dialect made is bound by the rules
of that one. `Binding` is how a query is read: by whose rules, and over which catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sqlglot import exp

from watersmeet.algebra.relations import Column, Relation
from watersmeet.binder.binding import (
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
from watersmeet.binder.emission_request import Emission, Request, with_limit
from watersmeet.binder.scope import Scope, ScopeColumn, SubqueryValues, single
from watersmeet.catalog import Catalog
from watersmeet.catalog import Relation as CatalogRelation
from watersmeet.dialects.queries import place_of
from watersmeet.dialects.registry import Language
from watersmeet.dialects.semantics import Semantics
from watersmeet.expressions.context import Context
from watersmeet.expressions.values import Value
from watersmeet.types import SqlType
from watersmeet.watermarks import Watermark

#: A relation and what can be read of it.
Sourced = tuple[Relation, Scope]


@dataclass(frozen=True)
class RecordsKept:
    """How a topic keeps records. compacted: of each key the last one counts. key_format: None for a computed key."""

    compacted: bool
    key_format: str | None


#: A row of DESCRIBE: name, type or value, whether it is never NULL; None for what is no column.
Described = tuple[str, str, bool | None]


def _as_it_is(bound: Bound) -> Bound:
    return bound


@dataclass(frozen=True)
class Reading:
    """How a query reads its inputs. part: which of their rows count. still: what is no stream is read as it was when
    the query started, and stands still.
    """

    part: Part = "all"
    still: bool = False


@dataclass(frozen=True)
class Binding:
    """How a query is read, and where to put what is found. A query inside of another may have a binding of its own.

    rules: of the dialect whose text is bound. rules_of: those of others, by name. moment: of the start of the query:
    the newest commit that it follows. part: which rows of the relations count: all, of append-only ones those that come
    after the moment, or those that were there before. still: what is no stream is read as it was at that moment, and
    stands still. settings: of the query. closing_us: rows come out once their windows are over for so long (None: as
    they come). depends_on: ids of the relations of the catalog that the query names. fills: what it finds that caches
    of dictionaries lack.
    """

    catalog: Catalog
    rules: DialectRules
    rules_of: Callable[[str], DialectRules]
    moment: int = 0
    part: Part = "all"
    still: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    closing_us: int | None = None
    depends_on: list[str] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    collected: Collected = field(default_factory=Collected)

    def new_column(self, name: str, kind: SqlType, nullable: bool) -> Column:
        """A column with an id of its own."""
        column = Column(f"#{self.collected.next_id}", name, kind, nullable)
        self.collected.next_id += 1
        return column

    def new_name(self) -> str:
        """A name that no relation has, and no other query."""
        shown = {r.shown for r in self.catalog.relations.values()}
        while True:
            name = f"~{self.collected.next_id}"
            self.collected.next_id += 1
            if name not in shown:
                return name

    def notice(self, text: str) -> None:
        """Tells the user something that is no error; each text once."""
        if text not in self.collected.notices:
            self.collected.notices.append(text)

    def read(self, relation_id: str) -> None:
        """Notes that the query reads what this relation has."""
        if relation_id not in self.collected.read:
            self.collected.read.append(relation_id)

    def depend(self, relation_id: str) -> None:
        """Notes that the query names this relation of the catalog."""
        if relation_id not in self.depends_on:
            self.depends_on.append(relation_id)


#: Binds a query where it stands.
BindQuery = Callable[[exp.Expression, Environment, Binding], Bound]


@dataclass(frozen=True)
class NamedItem:
    """How an item of FROM is called.

    names: of its alias' list of columns. shown: the item in errors. schema: of a relation without alias.
    """

    alias: str | None
    names: Sequence[str]
    shown: str
    node: exp.Expression
    schema: str | None = None


class JoinSubqueries(SubqueryValues, Protocol):
    """The subqueries of a join's condition."""

    def reads(self) -> frozenset[str]:
        """The ids of the columns around them that those read which `applied` has not taken yet."""
        ...

    def applied(self, relation: Relation) -> Relation:
        """`relation` with the columns of those that were bound since the last time."""
        ...

    def filtered(self, relation: Relation, parts: Sequence[exp.Expression], ctx: Context, clause: str) -> Relation:
        """The rows of `relation` for which all parts are true."""
        ...


@dataclass(frozen=True)
class JoinClause:
    """A JOIN and its sides. subqueries: those of a condition over a scope."""

    left: Sourced
    right: Sourced
    node: exp.Join
    env: Environment
    binding: Binding
    subqueries: Callable[[Scope], JoinSubqueries]


@dataclass(frozen=True)
class Groups:
    """A SELECT that groups. node: as its select list is bound. hidden: the first item of that is not in the list that
    was written. finish: what becomes of the bound query.
    """

    node: exp.Select
    hidden: bool = False
    finish: Callable[[Bound], Bound] = _as_it_is


@dataclass(frozen=True)
class SelectList:
    """A bound select list. hidden: as in `Groups`. ordered: rows come in the order that ORDER BY may ask for.

    beside: how many of the last items are not what is selected. finish: what becomes of the bound query.
    """

    items: Sequence[Item]
    hidden: bool = False
    ordered: bool = False
    finish: Callable[[Bound], Bound] = field(default=_as_it_is)


@dataclass(frozen=True)
class DialectRules:
    """Plain SQL. Errors that a hook raises have their place in the text of its environment."""

    language: Language
    #: What a query is called in errors.
    query_called: ClassVar[str] = "a view"
    #: Whether queries end: they read what is stored now, and may do what no view can follow.
    bounded: ClassVar[bool] = False
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
        """How the outermost query reads its inputs, also those of views that other dialects made.

        Law: it hangs on the query's own words alone.
        """
        return Reading()

    def settings(self, node: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
        """The query without what it says of how it is run, and that, by name.

        Law: the tree that is given is not changed; what comes back has no part that only this hook reads.
        """
        return node, {}

    def within(self, settings: Mapping[str, str], binding: Binding) -> Binding:
        """The binding inside of a query with such settings, which are not empty.

        Law: settings hold in the queries inside, unless these say otherwise.
        """
        raise NotImplementedError(f"{self.name} has no settings: {sorted(settings)}, {binding.part}")

    def emission(self, query: exp.Expression) -> tuple[exp.Expression, Emission | None]:
        """The query without its words on when its output comes, and these; None where it has none.

        Law: the tree that is given is not changed.
        """
        return query, None

    def request(self, query: exp.Expression, text: str) -> Request:
        """A SELECT that runs until it is stopped, and what it says of its output.

        Law: the query that comes back gives the rows of which the output is told.
        """
        query, emission = self.emission(query)
        query, limit, offset = with_limit(query)
        return Request(query, emission or Emission(), limit, offset)

    def told(self, query: BoundQuery, asked: exp.Expression, text: str) -> Relation:
        """The rows that a query which runs gives whoever reads it. asked: as it was written.

        Law: they begin with the query's columns.
        """
        return query.tree

    def records_kept(self, query: BoundQuery) -> RecordsKept | None:
        """How a topic keeps the records of a query; None if the query reads no records.

        Law: what the topic keeps so, read as a topic, is what the query reads as.
        """
        return None

    def records_of(self, query: BoundQuery) -> Relation:
        """The records that a processor writes to its topic: the changes of its query.

        Law: what they make of the topic, read as it is kept, is the query's result.
        """
        raise NotImplementedError(f"{self.name} has no processors: {query.columns}")

    def described(self, relation: CatalogRelation, plain: Callable[[], list[Described]]) -> list[Described]:
        """What DESCRIBE shows of a relation: its columns, then what else there is to say of it.

        Law: what SELECT can name comes under that name.
        """
        return plain()

    def check_query(self, query: exp.Expression, tree: Relation, text: str) -> None:
        """Raises for a whole query, or that of a view, whose parts have a meaning and which as a whole has none.

        Law: it changes nothing.
        """

    def rowtime(self, tree: Relation) -> str | None:
        """The name of the column by which the rows of a whole query rise; None if none does.

        Law: no row comes after one with a greater value there.
        """
        return None

    # -- FROM ---------------------------------------------------------------------------------------------------

    def item(
        self,
        node: exp.Expression,
        select: exp.Select,
        env: Environment,
        binding: Binding,
        plain: Callable[[], Sourced],
    ) -> Sourced:
        """An item of FROM, without joins that hang on it. select: the SELECT around it.

        Law: what its scope offers, the relation has.
        """
        return plain()

    def relation(
        self,
        relation: CatalogRelation,
        item: NamedItem,
        env: Environment,
        binding: Binding,
        plain: Callable[[Part | None], Sourced],
    ) -> Sourced:
        """The rows of a relation of the catalog, as an item of FROM. plain: with the part of it that counts, None for
        what the query reads of all.

        Law: after every epoch it is what the words at its name make of the relation's content.
        """
        return plain(None)

    def item_scope(self, tree: Relation, item: NamedItem, env: Environment, bound: Bound | None = None) -> Scope:
        """What can be read of an item of FROM. bound: of a query, what it gives.

        Law: each visible column has one name, and the item's list of names replaces the first of them. SYNTAX_ERROR
        for a list that is too long.
        """
        check_alias_list(item.names, len(tree.columns), item.shown, env.text, place_of(item.node))
        return single(item.alias, scope_columns(tree.columns, item.names), item.schema)

    def time_columns(self, relation: CatalogRelation) -> Mapping[str, Watermark]:
        """The columns of a relation whose watermarks hold for queries, with these.

        Law: no row comes later with a lower value that counts.
        """
        return {} if relation.topic is not None else relation.time_columns  # records may be late

    def check_ending(self, node: exp.Expression, text: str) -> None:
        """Raises for what a query that ends can't have: a SELECT, an item of FROM, a join.

        Law: it changes nothing.
        """

    # -- joins --------------------------------------------------------------------------------------------------

    def check_join(self, node: exp.Join, text: str) -> None:
        """Raises for a kind of join that the dialect does not have, also in queries that end."""

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        """What a JOIN gives.

        Law: every column of both sides stays in the relation, under the ids that its scope has.
        """
        return plain(clause)

    def bounded_join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        """What a JOIN gives in a query that ends.

        Law: that of `join`.
        """
        return plain(clause)

    # -- SELECT -------------------------------------------------------------------------------------------------

    def check_select(self, node: exp.Select, text: str) -> None:
        """Raises for what a SELECT of a view can't have, before any of it is bound."""

    def select(
        self,
        node: exp.Select,
        relation: Relation,
        scope: Scope,
        env: Environment,
        binding: Binding,
    ) -> tuple[exp.Select, Relation]:
        """A SELECT over the rows that WHERE left, and these, before the select list and GROUP BY are bound.

        Law: the tree that is given is not changed; the scope stays true of the relation.
        """
        return node, relation

    def groups(
        self,
        node: exp.Select,
        relation: Relation,
        scope: Scope,
        env: Environment,
        binding: Binding,
    ) -> Groups:
        """A SELECT that groups, or has aggregate functions, over the rows that WHERE left.

        Law: what it says of the end of groups holds for every row: none changes a group that has come out as final.
        """
        return Groups(node)

    def select_list(
        self,
        items: Sequence[Item],
        node: exp.Select,
        relation: Relation,
        scope: Scope,
        ctx: Context,
    ) -> SelectList:
        """The select list with its stars expanded. relation, scope: of the rows below groups. ctx: above these.

        Law: what was written stays together and in order.
        """
        return SelectList(items)

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        """What `*` means of all columns that can be read, also in queries that end.

        Law: it leaves columns out, and gives none another name.
        """
        return columns

    def of_nothing(
        self,
        value: Value,
        function: str,
        argument: exp.Expression,
        scope: Scope,
        settings: Mapping[str, str],
    ) -> Value:
        """The value of an aggregate function that may get no rows, also in queries that end. scope: of the rows below.

        Law: where there are rows it is the value that is given.
        """
        return value

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

        Law: it has the columns of its left side.
        """
        return plain(node, env, binding, bind)
