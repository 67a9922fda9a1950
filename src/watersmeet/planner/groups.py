"""Lowering of GROUP BY: an aggregate over the rows of its input, or one operator for a join and the groups of its key.

If a query groups a regular join by exactly its key, and its aggregates add up, the sums of each side by key determine
the result. So `GroupJoin` reads the arrangements of the join, and the join itself is not part of the circuit. Left rows
of a left join with a NULL in the key are not arranged; their groups are those of an ordinary aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, AggregateCall, Node
from watersmeet.algebra.scalars import Scalar, null_of
from watersmeet.algebra.watermarks import of_aggregate
from watersmeet.circuit import operators
from watersmeet.circuit.operators import ADDITIVE, AggregateSpec, GroupJoin, InputColumn, Operator, SortKey
from watersmeet.planner.builder import Builder, Stream, at, emit, emit_exactly, identity, of_operator, positional
from watersmeet.planner.display import position
from watersmeet.values.types import BOOLEAN, Schema, SqlType

_Ids = frozenset[str]

#: The calls of an aggregate, and the types of their results.
_Calls = Sequence[tuple[AggregateSpec, SqlType]]


class AggregateLowering:
    """Lowers aggregates into `builder`.

    lower_input: lowers an input. grouped: sends the rows of an operator with equal keys to one bucket, which further
    columns or all keys determine. together: sends operators to one stage.
    """

    def __init__(
        self,
        builder: Builder,
        lower_input: Callable[[Node, _Ids], Stream],
        grouped: Callable[[Operator, tuple[int, ...], list[int]], Operator],
        together: Callable[[list[Operator]], list[Operator]],
    ) -> None:
        self.builder = builder
        self.lower_input = lower_input
        self.grouped = grouped
        self.together = together

    def lower(self, node: Aggregate, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        groups = len(node.keys)
        calls = [(c, call) for c, call in zip(node.outputs[groups:], node.calls, strict=True) if c.id in needed]
        if not calls and not groups:
            calls = [(node.outputs[0], node.calls[0])]
        parts = [*node.keys, *[s for _, c in calls for s in c.scalars]]
        below = self.lower_input(node.input, _Ids().union(*[p.columns for p in parts]))
        resolved = {id(p): below.resolve(p) for p in parts}
        op, positions = emit(self.builder, below, list(resolved.values()))

        def place(part: Scalar) -> int:
            return positions[identity(resolved[id(part)])]

        keys = tuple(dict.fromkeys(map(place, node.keys)))
        specs = list(dict.fromkeys((_spec(c, place), c.type) for _, c in calls))
        made = self._group_join(op, keys, specs) if of_aggregate(node) is None and not node.whole else None
        made = made or self._aggregate(node, op, keys, specs, place)
        at_key = [(c, keys.index(place(k))) for c, k in zip(node.outputs, node.keys, strict=False)]
        at_call = [(c, len(keys) + specs.index((_spec(call, place), call.type))) for c, call in calls]
        return of_operator(made, at_key + at_call)

    def _aggregate(
        self, node: Aggregate, op: Operator, keys: tuple[int, ...], specs: _Calls, place: Callable[[Scalar], int]
    ) -> Operator:
        op = self.grouped(op, keys, [place(node.keys[i]) for i in node.spread])
        append_only = (not specs or node.whole) and op.append_only  # without calls: DISTINCT over append-only rows
        marked = of_aggregate(node)
        return self.builder.add(
            operators.Aggregate(
                (op.id,),
                _results(op, keys, specs),
                append_only,
                keys,
                tuple(s for s, _ in specs),
                None if marked is None else keys.index(place(node.keys[marked[0]])),
                () if marked is None else marked[1],
            )
        )

    def _group_join(self, op: Operator, keys: tuple[int, ...], specs: _Calls) -> Operator | None:
        """The groups of a join by its key, from the arrangements that the join reads; None if that is not possible."""
        found = _group_join(op, self.builder.operators, keys, specs)
        if found is None:
            return None
        made = self.builder.add(found)
        left, right = (self.builder.operators[i] for i in found.inputs)
        nullable = [k for k in found.keys if left.schema[k].nullable]
        if found.join_kind == "inner" or not nullable:
            return made
        nulls = exp.or_(*[exp.Is(this=position(k), expression=exp.null()) for k in nullable])
        rows = Stream(self.builder.operators[left.inputs[0]], {}, (Scalar(nulls, BOOLEAN, nullable=False),))
        arguments = [null_of(right.schema[c.column].type) if c.input else at(left, c.column) for c in found.arguments]
        alone = emit_exactly(self.builder, rows, [*(at(left, k) for k in found.keys), *arguments])
        own = tuple(range(len(found.keys)))
        moved = [
            (c if c.argument is None else replace(c, argument=len(own) + c.argument), kind)
            for c, (_, kind) in zip(found.calls, specs, strict=True)
        ]
        alone = self.grouped(alone, own, [])
        groups = self.builder.add(
            operators.Aggregate((alone.id,), _results(alone, own, moved), False, own, tuple(c for c, _ in moved))
        )
        both = tuple(p.id for p in self.together([made, groups]))
        return self.builder.add(operators.Union(both, found.schema, append_only=False))


def _results(op: Operator, keys: Sequence[int], calls: _Calls) -> Schema:
    """The columns of groups of the rows of `op`."""
    fields = [(op.schema[k].type, op.schema[k].nullable) for k in keys]
    return positional([*fields, *((kind, call.function != "count") for call, kind in calls)])


def _spec(call: AggregateCall, place: Callable[[Scalar], int]) -> AggregateSpec:
    argument, condition = (None if part is None else place(part) for part in (call.argument, call.filter))
    order = tuple(SortKey(place(item.value), item.descending, item.nulls_first) for item in call.order)
    return AggregateSpec(
        call.function, argument, condition, call.distinct, tuple(map(place, call.extra)), order, call.constant
    )


def _group_join(join: Operator, known: Mapping[str, Operator], keys: Sequence[int], calls: _Calls) -> GroupJoin | None:
    """The operator for the groups of a join by the columns `keys`; None if these are not exactly the join's key, or if
    a call needs the pairs.
    """
    if type(join) is not operators.Join or join.residual is not None or any(join.null_safe) or not (keys and calls):
        return None
    if join.join_kind not in ("inner", "left", "right"):
        return None
    sides = [(known[i], k) for i, k in zip(join.inputs, (join.left_keys, join.right_keys), strict=True)]
    if not all(isinstance(op, operators.Arrange) and op.keeps_all for op, _ in sides):
        return None
    mirrored = join.join_kind == "right"
    output = [InputColumn(1 - c.input if mirrored else c.input, c.column) for c in join.output]
    (left, left_keys), (right, right_keys) = reversed(sides) if mirrored else sides
    if {output[k] for k in keys} != {InputColumn(0, k) for k in left_keys}:
        return None
    if not all(_adds_up(c, join) for c, _ in calls):
        return None
    places = list(dict.fromkeys(c.argument for c, _ in calls if c.argument is not None))
    specs = [c if c.argument is None else replace(c, argument=places.index(c.argument)) for c, _ in calls]
    own = tuple(output[k].column for k in keys)
    return GroupJoin(
        (left.id, right.id),
        _results(left, own, calls),
        False,
        "inner" if join.join_kind == "inner" else "left",
        left_keys,
        right_keys,
        own,
        tuple(output[p] for p in places),
        tuple(specs),
    )


def _adds_up(call: AggregateSpec, op: Operator) -> bool:
    """Whether a call over rows of `op` is one of a `GroupJoin`."""
    if call.function not in ADDITIVE or call.distinct or call.filter is not None:
        return False
    return call.argument is None or call.function == "count" or not op.schema[call.argument].type.is_float
