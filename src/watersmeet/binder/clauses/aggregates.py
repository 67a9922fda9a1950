"""Binds GROUP BY: keys, grouping sets (PostgreSQL 17, 7.2.4) and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Final, TypeVar

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    AggregateCall,
    Column,
    Expand,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    Union,
    Values,
)
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.sources import star_of
from watersmeet.binder.context.binding import value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeContext, SubqueryValues
from watersmeet.dialects.tree.queries import name_of
from watersmeet.errors import Error
from watersmeet.expressions.aggregatecalls import Written, aggregate_name, bind_call, written
from watersmeet.expressions.context import UNORDERED, Context, RowOrder, Value, duckdb_cast, number, refuse_maps
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, INTERVAL, SqlType

Item = TypeVar("Item")
_MOST: Final = 256


def sets_of(group: exp.Group, items: Callable[[exp.Expression], list[Item]], ctx: Context) -> list[list[Item]]:
    """The grouping sets. `items` returns the keys of an expression, or of a list in parentheses.

    Raises FEATURE_NOT_SUPPORTED for more than 256 sets.
    """

    def of(node: exp.Expression) -> list[list[Item]]:
        if isinstance(node, exp.Rollup):
            parts = [items(e) for e in node.expressions]
            return [_joined(parts[:n]) for n in range(len(parts), -1, -1)]
        if isinstance(node, exp.Cube):
            parts = [items(e) for e in node.expressions]
            if 2 ** len(parts) > _MOST:
                raise _too_many(node, ctx)
            return [_joined(c) for n in range(len(parts), -1, -1) for c in combinations(parts, n)]
        if isinstance(node, exp.GroupingSets):
            return [s for e in node.expressions for s in of(e)]
        return [items(node)]

    found: list[list[Item]] = [[]]
    for node in group.expressions:
        found = [[*a, *b] for a, b in product(found, of(node))]
        if len(found) > _MOST:
            raise _too_many(node, ctx)
    return found


def _joined(parts: Sequence[list[Item]]) -> list[Item]:
    return [item for part in parts for item in part]


def _too_many(node: exp.Expression, ctx: Context) -> Exception:
    return ctx.not_supported(f"GROUP BY with more than {_MOST} grouping sets", node)


def expanded(
    relation: Node,
    keys: Sequence[Scalar],
    sets: Sequence[tuple[int, ...]],
    calls: Sequence[AggregateCall],
    outputs: tuple[Column, ...],
    binding: Binding,
) -> Aggregate:
    """The groups of all sets, computed by one aggregate whose last key is the number of the set.

    The empty set has a group even without input: an additional row, which no call counts, creates it.
    """
    new = binding.new_column
    made = (*(new("key", k.type, nullable=True) for k in keys), new("flag", INTEGER, nullable=False))
    tree: Node = Expand(relation, tuple(keys), tuple(sets), made)
    empty = [i for i, chosen in enumerate(sets) if not chosen]
    if not empty:
        return Aggregate(tree, tuple(map(read, made)), tuple(calls), outputs)
    used = [c for c in relation.columns if any(c.id in s.columns for call in calls for s in call.scalars)]
    passed = (*used, *made)
    given = (*(new(c.name, c.type, nullable=True) for c in passed[:-1]), new("flag", INTEGER, nullable=False))
    counts = new("counts", BOOLEAN, nullable=False)
    true, false = (Scalar(exp.Boolean(this=b), BOOLEAN, nullable=False) for b in (True, False))
    rows = Project(tree, (*passed, new("counts", BOOLEAN, nullable=False)), (*map(read, passed), true))
    nulls = [Scalar(duckdb_cast(exp.null(), c.type), c.type) for c in given[:-1]]
    flags = [Scalar(number(i), INTEGER, nullable=False) for i in empty]
    stand_ins = Values(
        tuple((*nulls, flag, false) for flag in flags),
        (*(replace(c, id=new(c.name, c.type, c.nullable).id) for c in (*given, counts)),),
    )
    whole = Union((rows, stand_ins), (*given, counts))
    mapping = {c.id: read(g).expression for c, g in zip(used, given, strict=False)}
    counted = [
        _counted(call.changed(lambda s: replace(s.substitute(mapping), nullable=True)), counts) for call in calls
    ]
    return Aggregate(whole, tuple(map(read, given[len(used) :])), tuple(counted), outputs)


def _counted(call: AggregateCall, counts: Column) -> AggregateCall:
    parts = [read(counts), *([] if call.filter is None else [call.filter])]
    return replace(call, filter=conjunction(parts))


def grouping(places: Sequence[int], sets: Sequence[tuple[int, ...]], flags: Sequence[Value]) -> Value:
    """GROUPING of the keys at the indexes `places`: one bit per key, the first key's bit highest. A bit is 1 if the
    row's set lacks the key.

    flags: the number of the set if there are several sets.
    """
    values = [sum((place not in chosen) << (len(places) - 1 - i) for i, place in enumerate(places)) for chosen in sets]
    if not flags or len(set(values)) == 1:
        return Value(number(values[0]), INTEGER, nullable=False)
    ifs = [exp.If(this=number(i), true=number(v)) for i, v in enumerate(values)]
    case = exp.Case(this=flags[0].expression.copy(), ifs=ifs, default=number(0))
    return Value(duckdb_cast(exp.Paren(this=case), INTEGER), INTEGER, nullable=False)


def _of_all(call: Written, function: str) -> exp.Expression:
    """The call as a function of the array of all values of a group."""
    values = exp.Distinct(expressions=list(call.arguments)) if call.distinct else call.arguments[0]
    made: exp.Expression = exp.Anonymous(this="array_agg", expressions=[values.copy()])
    if call.filter is not None:
        made = exp.Filter(this=made, expression=exp.Where(this=call.filter.copy()))
    return exp.Anonymous(this=function, expressions=[made])


def _of_rank(node: exp.Expression, enum: SqlType) -> exp.Expression:
    """The call over the places of an enum's values in their order, and the value at the place that it returns."""
    node = node.copy()
    call = written(node)
    assert call is not None
    argument = call.arguments[0]
    argument.replace(exp.Anonymous(this="$rank", expressions=[argument.copy()]))
    texts = map(exp.Literal.string, (enum.enum, enum.enum_id, *enum.labels))
    return exp.Anonymous(this="$label", expressions=[node, *texts])


def bare(expression: exp.Expression) -> exp.Expression:
    """The expression without enclosing parentheses."""
    while isinstance(expression, exp.Paren):
        expression = expression.this
    return expression


def scans_below(relation: Node) -> list[Scan]:
    """The scans whose rows are in the relation as they are, or joined: a primary key still determines the other
    columns of its scan.
    """
    if isinstance(relation, Scan):
        return [relation]
    if isinstance(relation, (Filter, Project)) or (isinstance(relation, Join) and not relation.arrival):
        return [found for child in relation.inputs for found in scans_below(child)]
    return []


class Grouping(Context):
    """The context of expressions over the groups of a GROUP BY. Binding them collects group keys and aggregate calls.

    `below` binds the arguments of aggregate functions. sets: the grouping sets, as positions in `keys`. order: the
    order in which the groups are output. scans: those whose columns are keys, too, if their primary key is one
    (PostgreSQL 17, "GROUP BY clause": functional dependency).
    """

    order: RowOrder = UNORDERED
    scans: Sequence[Scan] = ()

    def __init__(
        self,
        below: ScopeContext,
        keys: Sequence[Scalar],
        key_names: Sequence[str],
        sets: Sequence[tuple[int, ...]],
        binding: Binding,
        clause: str,
    ) -> None:
        super().__init__(below.text, clause, batch=below.batch)
        refuse_maps((k.type for k in keys), "GROUP BY", below.text)
        self.below = below
        self.binding = binding
        self.keys = tuple(Scalar(bare(k.expression), k.type, k.nullable) for k in keys)
        self.grouping_sets = tuple(sets)
        self.key_columns = tuple(
            binding.new_column(n, k.type, k.nullable or any(i not in chosen for chosen in sets))
            for i, (n, k) in enumerate(zip(key_names, keys, strict=True))
        )
        self.flags = [binding.new_column("flag", INTEGER, nullable=False)] if len(sets) > 1 else []
        self.subqueries: SubqueryValues | None = None
        self.calls: list[AggregateCall] = []
        self.call_columns: list[Column] = []

    @property
    def row_order(self) -> RowOrder | None:
        return None if self.below.row_order is None else self.order

    def tree(self, relation: Node) -> Aggregate:
        """The node that computes all keys and the calls collected so far."""
        if not self.keys and not self.calls:
            self._add(AggregateCall("count", None, None, distinct=False, type=BIGINT), "count", nullable=False)
        if self.flags:
            outputs = (*self.key_columns, *self.flags, *self.call_columns)
            return expanded(relation, self.keys, self.grouping_sets, self.calls, outputs, self.binding)
        return Aggregate(relation, self.keys, tuple(self.calls), (*self.key_columns, *self.call_columns))

    def column(self, node: exp.Column) -> Value:
        table = node.args.get("table")
        shown = f"{name_of(table)}.{name_of(node.this)}" if table is not None else name_of(node.this)
        value = self.below.column(node)
        return self.grouped(value, shown, node) if self.below.scope.gives(value) else value

    def grouped(self, value: Value, shown: str, node: exp.Expression) -> Value:
        """The group key that equals `value`, an expression over the input rows. Raises COLUMN_NOT_GROUPED if none
        does.
        """
        found = self._key(value)
        if found is None:
            found = self._determined(value, shown)
        if found is not None:
            return found
        raise self.error(
            "COLUMN_NOT_GROUPED",
            f'column "{shown}" must appear in the GROUP BY clause or be used in an aggregate function',
            node,
        )

    def _determined(self, value: Value, name: str) -> Value | None:
        """A column that the keys determine, as a further key."""
        scalar = value.finish()
        known = {k.column for k in self.keys}
        if len(self.grouping_sets) != 1 or not any(
            s.key and known.issuperset(s.key) and scalar.column in {c.id for c in s.outputs} for s in self.scans
        ):
            return None
        refuse_maps((scalar.type,), "GROUP BY", self.text)
        column = self.binding.new_column(name.rpartition(".")[2], scalar.type, scalar.nullable)
        self.keys = (*self.keys, Scalar(bare(scalar.expression), scalar.type, scalar.nullable))
        self.key_columns = (*self.key_columns, column)
        return value_of(column)

    def special(self, node: exp.Expression) -> Value | None:
        if aggregate_name(node, self) is not None:
            return self._call(node)
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "grouping":
            return self._grouping(node)
        found = None if self.subqueries is None else self.subqueries.value(node, self)
        if found is not None:
            return found
        if (
            isinstance(node, (exp.Column, exp.Literal, exp.Star))
            or not any(k.column is None for k in self.keys)
            or (node.find(exp.Query, exp.Exists) is not None)
        ):
            return None
        try:
            value = bind_value(node, self.below)
        except Error:
            return None
        return self._key(value)

    def _key(self, value: Value) -> Value | None:
        scalar = value.finish()
        for key, column in zip(self.keys, self.key_columns, strict=True):
            if key.expression == bare(scalar.expression) and key.type == scalar.type:
                return value_of(column)
        return None

    def _grouping(self, node: exp.Anonymous) -> Value:
        places = []
        for argument in node.expressions:
            scalar = bind_value(argument, self._inside("GROUPING")).finish()
            same = [i for i, k in enumerate(self.keys) if k.expression == bare(scalar.expression)]
            if not same:
                raise self.error(
                    "COLUMN_NOT_GROUPED",
                    "arguments to GROUPING must be grouping expressions of the associated query level",
                    argument,
                )
            places.append(same[0])
        if not 1 <= len(places) < 32:
            raise self.error("SYNTAX_ERROR", "GROUPING must have fewer than 32 arguments", node)
        return grouping(places, self.grouping_sets, [value_of(c) for c in self.flags])

    def _call(self, node: exp.Expression) -> Value:
        call = written(node)
        assert call is not None
        if call.name == "sum" and len(call.arguments) == 1 and self._is_interval(call.arguments[0]):
            return bind_value(_of_all(call, "array_sum"), self)
        if call.name in ("min", "max") and (enum := self._enum_of(call)) is not None:
            return bind_value(_of_rank(node, enum), self)
        bound = bind_call(call, self._inside)
        read = frozenset[str]().union(*(s.columns for s in bound.scalars))
        if read and read <= self.below.scope.ids_around:
            raise self.not_supported("an aggregate function that reads only columns of an outer query", node)
        value = self._add(bound, call.name, nullable=bound.function != "count")
        if bound.argument is None or not self._may_have_none(bound):
            return value
        return self.binding.rules.of_nothing(
            value, bound.function, bound.argument.expression, self.below.scope, self.binding.settings
        )

    def _is_interval(self, node: exp.Expression) -> bool:
        if isinstance(node, exp.Star):
            return False
        value = bind_value(node, self._inside("the argument of an aggregate function"))
        return value.type == INTERVAL and not value.unknown

    def _enum_of(self, call: Written) -> SqlType | None:
        """The type of the only argument of a call if it is an enum."""
        if len(call.arguments) != 1 or isinstance(call.arguments[0], exp.Star):
            return None
        kind = bind_value(call.arguments[0], self._inside("the argument of an aggregate function")).type
        return kind if kind.labels else None

    def _may_have_none(self, call: AggregateCall) -> bool:
        """True if a group may have too few values for a call (deviations need two values)."""
        return (
            call.filter is not None
            or not self.keys
            or len(self.grouping_sets) > 1
            or call.function in ("stddev_samp", "var_samp")
        )

    def _inside(self, clause: str) -> ScopeContext:
        made = ScopeContext(self.text, self.below.scope, clause, self.below.subqueries)
        made.clock = self.below.clock
        return made

    def _add(self, call: AggregateCall, name: str, *, nullable: bool) -> Value:
        if call in self.calls:
            return value_of(self.call_columns[self.calls.index(call)])
        column = self.binding.new_column(name, call.type, nullable)
        self.calls.append(call)
        self.call_columns.append(column)
        return value_of(column)


def aliased(node: exp.Expression, items: Sequence[exp.Expression], scope: Scope) -> exp.Expression | None:
    """The expression of the select item whose alias is the key; None if no item has this alias, or if FROM has such a
    column.
    """
    if not isinstance(node, exp.Column) or node.args.get("table") is not None:
        return None
    name = name_of(node.this)
    if any(c.name == name for c in scope.visible) or (scope.stream is not None and scope.stream.rowtime.name == name):
        return None
    return next((e.this for e in items if isinstance(e, exp.Alias) and name_of(e.args["alias"]) == name), None)


def spelled_out(group: exp.Group, items: Sequence[exp.Expression], scope: Scope) -> exp.Group:
    """GROUP BY with the expressions for which aliases and numbers stand, except for numbers after a star."""
    made = group.copy()
    made.set("expressions", [_spelled(key, items, scope).copy() for key in group.expressions])
    return made


def _spelled(key: exp.Expression, items: Sequence[exp.Expression], scope: Scope) -> exp.Expression:
    while isinstance(key, exp.Paren):
        key = key.this
    if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(items):
        found = items[: int(key.name)]
        if all(star_of(e) is None for e in found):
            return found[-1].this if isinstance(found[-1], exp.Alias) else found[-1]
    return aliased(key, items, scope) or key
