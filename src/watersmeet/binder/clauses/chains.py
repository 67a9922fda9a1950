"""The items of a FROM clause while they are joined from left to right. Table functions read the items to their left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Node, Unnest, Values
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.binder.clauses.joins import check_aliases
from watersmeet.binder.clauses.lookups import plain_join
from watersmeet.binder.clauses.subqueries import Subqueries
from watersmeet.binder.clauses.timewindows import check_join
from watersmeet.binder.context.binding import Environment, check_alias_list, filtered, value_of
from watersmeet.binder.context.rules import Binding, JoinClause, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, single
from watersmeet.dialects.tree.nodes import CommaJoin
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import did_you_mean
from watersmeet.expressions.context import Context, Value, columns_of
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.expressions.setfunctions import TableCall, is_set_function, row_names, row_values, set_function
from watersmeet.values.types import BIGINT, INTEGER


class SetFunctions:
    """The set-returning functions of a select list, walked in parallel (RisingWave's ProjectSet)."""

    def __init__(self, env: Environment, binding: Binding) -> None:
        self.env = env
        self.binding = binding
        self.arrays: list[Scalar] = []
        self.elements: list[Column] = []

    def add(self, name: str, array: Value, node: exp.Expression) -> Value:
        """Adds a function whose rows are `array`. Returns its value in each row."""
        scalar, kind = array.finish(), array.type.element
        assert kind is not None
        if scalar.columns & {c.id for c in self.elements}:
            raise self.env.not_supported(
                "a set-returning function inside of another", node, hint="Call the inner one in FROM."
            )
        self.arrays.append(scalar)
        self.elements.append(self.binding.new_column(name, kind, nullable=True))
        return value_of(self.elements[-1])

    def tree(self, relation: Node) -> Node:
        """`relation` with the functions' columns; the relation itself if there are none."""
        return Unnest(relation, tuple(self.arrays), tuple(self.elements)) if self.arrays else relation


class Chain:
    """`first JOIN …, second JOIN …`: JOIN binds tighter than the comma.

    A table function that reads columns becomes an Unnest on the item with these columns, so that it never needs a join.
    """

    def __init__(self, env: Environment, binding: Binding, subqueries: Callable[[Scope], Subqueries]) -> None:
        self.env = env
        self.binding = binding
        self.subqueries = subqueries
        self._items: list[Sourced] = []
        self._written: list[Scope] = []
        self._commas: list[exp.Join] = []

    def start(self, item: Sourced | TableCall) -> None:
        """The first item."""
        item = self._constant(item) if isinstance(item, TableCall) else item
        self._items.append(item)
        self._written.append(item[1])

    def add(self, node: exp.Join, item: Sourced | TableCall) -> None:
        """The next item, by a comma or a JOIN."""
        if isinstance(item, TableCall):
            arrays = self._arrays(item, self.left)
            reads = frozenset[str]().union(*[columns_of(a) for a in arrays]) & self.left_ids
            if reads:
                self._lateral(node, item, arrays, reads)
                return
            item = self._constant(item)
        if isinstance(node, CommaJoin):
            self._commas.append(node)
            self._items.append(item)
            self._written.append(item[1])
        else:
            self._items[-1] = self._join(self._items[-1], item, node)
            self._written[-1] = self._items[-1][1]

    def _join(self, left: Sourced, right: Sourced, node: exp.Join) -> Sourced:
        check_join(node, left[1], right[1], self.binding.collected.windowed, Context(self.env.text, "JOIN/ON"))
        self.binding.rules.check_join(node, self.env.text)
        clause = JoinClause(left, right, node, self.env, self.binding, self.subqueries)
        return self.binding.rules.join(clause, plain_join)

    @property
    def left(self) -> Scope:
        """The scope of what can be read to the right of all items."""
        extension = self._written[0].extension if len(self._written) == 1 else None
        return Scope(
            tuple(t for s in self._written for t in s.tables),
            tuple(c for s in self._written for c in s.visible),
            self.env.outer,
            extension=extension,
        )

    def result(self) -> Sourced:
        """All items joined. Joins by commas change no column, so the written column order is kept."""
        self._merge()
        relation, scope = self._items[0]
        return relation, replace(self.left, stream=scope.stream)

    def _merge(self) -> None:
        """The items joined into one."""
        whole = self._items[0]
        for item, node in zip(self._items[1:], self._commas, strict=True):
            whole = self._join(whole, item, node)
        self._items, self._written, self._commas = [whole], [self.left], []

    # -- table functions ----------------------------------------------------------------------------------------

    def _arrays(self, call: TableCall, scope: Scope) -> list[Value]:
        """The rows of each function of the item as an array."""
        ctx = ScopeContext(self.env.text, scope, "functions in FROM")
        found = []
        for name, arguments, node in call.calls:
            if name in ("tumble", "hop", "session"):
                raise ctx.not_supported(f"the time window function {name.upper()} in this place", node)
            if not is_set_function(name):
                raise self.env.error(
                    "UNDEFINED_FUNCTION",
                    f"table function {name} does not exist",
                    node,
                    hint=did_you_mean(name, ["generate_series", "unnest", *sorted(self.binding.rules.readers)]),
                )
            found.append(set_function(name, [bind_value(a, ctx) for a in arguments], list(arguments), node, ctx))
        return found

    def _constant(self, call: TableCall) -> Sourced:
        """A function that reads no columns: a relation of its own."""
        column = self.binding.new_column("dummy", INTEGER, nullable=False)
        one = Values(((Scalar(exp.Literal.number(0), INTEGER, nullable=False),),), (column,))
        arrays = self._arrays(call, Scope(outer=self.env.outer))
        unnested = self._unnested(one, call, arrays)
        return unnested, self._scope(call, unnested)

    def _lateral(self, node: exp.Join, call: TableCall, arrays: Sequence[Value], reads: frozenset[str]) -> None:
        if node.side.upper() in ("RIGHT", "FULL"):
            raise self.env.error(
                "SYNTAX_ERROR",
                f"a function that reads columns can't be the right side of {node.side.upper()} JOIN",
                call.calls[0][2],
                detail="The combining JOIN type must be INNER or LEFT for a LATERAL reference.",
            )
        if node.args.get("using") or node.method.upper() == "NATURAL":
            raise self.env.not_supported(
                "USING with a function that reads columns", call.calls[0][2], hint="Write the condition with ON."
            )
        if isinstance(node, CommaJoin):
            self._attach(call, arrays, reads)
            return
        if not reads <= self._items[-1][0].ids:
            self._merge()
        relation, scope = self._items[-1]
        unnested = self._unnested(relation, call, arrays)
        made = self._scope(call, unnested)
        check_aliases(scope, made, node, self.env)
        both = Scope(scope.tables + made.tables, scope.visible + made.visible, self.env.outer, stream=scope.stream)
        self._items[-1] = self._joined(unnested, both, node), both
        self._written[-1] = both

    def _attach(self, call: TableCall, arrays: Sequence[Value], reads: frozenset[str]) -> None:
        """`…, f(t.a)`: attaches the function to the item with the columns. Items are joined only if no single item has
        them all.
        """
        if not any(reads <= relation.ids for relation, _ in self._items):
            self._merge()
        at = next(i for i, (relation, _) in enumerate(self._items) if reads <= relation.ids)
        relation, scope = self._items[at]
        unnested = self._unnested(relation, call, arrays)
        made = self._scope(call, unnested)
        if call.title in [t.alias for t in self.left.tables]:
            raise self.env.error(
                "DUPLICATE_OBJECT",
                f'table name "{call.title}" specified more than once',
                call.calls[0][2],
                hint="Give one of them an alias.",
            )
        self._items[at] = (
            unnested,
            Scope(scope.tables + made.tables, scope.visible + made.visible, self.env.outer, stream=scope.stream),
        )
        self._written.append(made)

    def _joined(self, unnested: Unnest, scope: Scope, node: exp.Join) -> Node:
        condition = node.args.get("on")
        parts = (
            []
            if condition is None
            else conjuncts(bind_condition(condition, ScopeContext(self.env.text, scope, "JOIN/ON"), "JOIN/ON").finish())
        )
        parts = [p for p in parts if not (isinstance(p.expression, exp.Boolean) and p.expression.this)]
        if node.side.upper() == "LEFT":
            return Unnest(
                unnested.input,
                unnested.arrays,
                unnested.elements,
                unnested.ordinality,
                outer=True,
                condition=conjunction(parts),
            )
        return filtered(unnested, parts)

    @property
    def left_ids(self) -> frozenset[str]:
        """The ids of the columns of all items."""
        return frozenset[str]().union(*[relation.ids for relation, _ in self._items])

    def _unnested(self, relation: Node, call: TableCall, arrays: Sequence[Value]) -> Unnest:
        kinds = [a.type.element for a in arrays]
        elements = tuple(
            self.binding.new_column(name, kind, nullable=True)
            for (name, _, _), kind in zip(call.calls, kinds, strict=True)
            if kind is not None
        )
        number = self.binding.new_column("ordinality", BIGINT, nullable=True) if call.ordinality else None
        return Unnest(relation, tuple(a.finish() for a in arrays), elements, number)

    def _scope(self, call: TableCall, unnested: Unnest) -> Scope:
        columns = [
            ScopeColumn(name, value)
            for i, element in enumerate(unnested.elements)
            for name, value in zip(row_names(call, i, element.type), row_values(value_of(element)), strict=True)
        ]
        if unnested.ordinality is not None:
            columns.append(ScopeColumn("ordinality", value_of(unnested.ordinality)))
        check_alias_list(call.names, len(columns), f'table "{call.title}"', self.env.text, place_of(call.calls[0][2]))
        shown = [*call.names, *[c.name for c in columns[len(call.names) :]]]
        return single(call.title, [ScopeColumn(n, c.value) for n, c in zip(shown, columns, strict=True)])
