"""Lowering of ASOF joins: both sides arranged by the key where rows that match meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from watersmeet.algebra.relations import AsofJoin, Relation
from watersmeet.algebra.scalars import Scalar
from watersmeet.circuit import operators
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.joins import meeting, one_type
from watersmeet.planner.sharing import Side
from watersmeet.planner.streams import Stream, at, emit, identity

_Ids = frozenset[str]


class AsofLowering:
    """Lowers ASOF joins into `builder`; `lower_input` lowers what they read."""

    def __init__(self, builder: Builder, lower_input: Callable[[Relation, _Ids], Stream]) -> None:
        self.builder = builder
        self.lower_input = lower_input

    def lower(self, node: AsofJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        pairs = [one_type(k) for k in node.keys]
        left, left_value = self._side(node.left, needed & node.left.ids, [k.left for k in pairs], node.left_value)
        reads = needed.union(node.ties) & node.right.ids
        right, right_value = self._side(node.right, reads, [k.right for k in pairs], node.right_value)
        null_safe = tuple(k.null_safe for k in pairs)
        if self.builder.buckets > 1:
            one, other = meeting(self.builder, left, right, null_safe, ())
            left, right = replace(left, operator=one), replace(right, operator=other)
        stage = max(self.builder.placement.arrival(s.operator.id) for s in (left, right))
        arranged = [self.builder.arrange(s.operator, s.keys, null_safe, stage) for s in (left, right)]
        places = {i: ("l", p) for i, p in left.positions.items()} | {i: ("r", right.positions[i]) for i in needed & node.right.ids}
        tokens = sorted(set(places.values())) or [("l", left.keys[0])]
        sides = {"l": arranged[0], "r": arranged[1]}
        fields = [sides[s].schema[p] for s, p in tokens]
        schema = positional((f.type, f.nullable or (s == "r" and node.kind == "left"))
                            for f, (s, _) in zip(fields, tokens, strict=True))
        ties = tuple(dict.fromkeys(right.positions[c.id] for c in node.right.columns
                                   if c.id in (node.ties or reads)))
        # A later right row may be nearer: only with no right rows to come would rows stay.
        made = self.builder.add(operators.AsofJoin(
            (arranged[0].id, arranged[1].id), schema, append_only=False, join_kind=node.kind, left_keys=left.keys,
            right_keys=right.keys, null_safe=null_safe, comparison=node.comparison, left_value=left_value,
            right_value=right_value, ties=ties, output=tuple(f"{s}{p}" for s, p in tokens)))
        return Stream(made, {i: at(made, tokens.index(t)) for i, t in places.items()})

    def _side(self, node: Relation, reads: _Ids, keys: Sequence[Scalar], value: Scalar) -> tuple[Side, int]:
        """The rows of an input, and the position of the value that is compared."""
        stream = self.lower_input(node, reads.union(value.columns, *[k.columns for k in keys]))
        resolved, compared = [stream.resolve(k) for k in keys], stream.resolve(value)
        op, positions = emit(self.builder, stream, [*(stream.values[i] for i in sorted(reads)), *resolved, compared])
        side = Side(op, {i: positions[identity(stream.values[i])] for i in reads},
                    tuple(positions[identity(k)] for k in resolved))
        return side, positions[identity(compared)]
