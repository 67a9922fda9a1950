"""Lowering of ASOF joins: both sides arranged by the key where rows that match meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from watersmeet.algebra.relations import AsofJoin, KeyPair, Relation, Scan, Versions
from watersmeet.algebra.retention import of_asof
from watersmeet.algebra.scalars import Scalar
from watersmeet.circuit import operators
from watersmeet.circuit.operators import Operator
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.joins import meeting, one_type
from watersmeet.planner.sharing import Side
from watersmeet.planner.streams import Stream, at, emit, identity
from watersmeet.planner.texts import position, sql
from watersmeet.types import BIGINT, Field
from watersmeet.watermarks import Watermark

_Ids = frozenset[str]


@dataclass(frozen=True)
class _Compared:
    """One side: its rows, and the position of the value that is compared."""

    side: Side
    value: int


class AsofLowering:
    """Lowers ASOF joins into `builder`; `lower_input` lowers what they read, `changes` gives a table's changes in order."""

    def __init__(self, builder: Builder, lower_input: Callable[[Relation, _Ids], Stream]) -> None:
        self.builder = builder
        self.lower_input = lower_input

    def lower(self, node: AsofJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        pairs = [one_type(k) for k in node.keys]
        null_safe = tuple(k.null_safe for k in pairs)
        reads = needed if node.residual is None else needed | node.residual.columns
        left = self._side(node.left, reads & node.left.ids, [k.left for k in pairs], node.left_value)
        right = self._versions(node.right, pairs) if isinstance(node.right, Versions) else self._side(
            node.right, reads.union(node.ties) & node.right.ids, [k.right for k in pairs], node.right_value)
        sides = left.side, right.side
        if self.builder.buckets > 1:
            met = meeting(self.builder, *sides, null_safe, ())
            sides = replace(sides[0], operator=met[0]), replace(sides[1], operator=met[1])
        stage = max(self.builder.placement.arrival(s.operator.id) for s in sides)
        final, asked = of_asof(node)
        one = self.builder.arrange(sides[0].operator, sides[0].keys, null_safe, stage, time=left.value, retain=final)
        if isinstance(node.right, Versions):
            other = self._kept(node.right, sides[1], stage, asked)
            ties: tuple[int, ...] = ()
        else:
            other = self.builder.arrange(sides[1].operator, sides[1].keys, null_safe, stage, time=right.value, retain=asked, newest=True)
            ties = tuple(dict.fromkeys(sides[1].positions[c.id] for c in node.right.columns if c.id in (node.ties or reads)))
        return self._joined(node, needed, (replace(left, side=replace(sides[0], operator=one)),
                                           replace(right, side=replace(sides[1], operator=other))), null_safe, ties)

    def _joined(self, node: AsofJoin, needed: _Ids, sides: tuple[_Compared, _Compared], null_safe: tuple[bool, ...],
                ties: tuple[int, ...]) -> Stream:
        left, right = (s.side for s in sides)
        places = {i: ("l", left.positions[i]) for i in needed & node.left.ids}
        places |= {i: ("r", right.positions[i]) for i in needed & node.right.ids}
        tokens = sorted(set(places.values())) or [("l", left.keys[0])]
        schemas = {"l": left.operator.schema, "r": right.operator.schema}
        schema = positional((schemas[s][p].type, schemas[s][p].nullable or (s == "r" and node.kind == "left")) for s, p in tokens)
        kind, below, append_only = operators.AsofJoin, left.operator.id, False  # a later right row may be nearer
        if node.arrival:
            (below,) = left.operator.inputs  # what is decided when it comes is not kept
            kind, append_only = operators.ArrivalAsofJoin, left.operator.append_only
        made = self.builder.add(kind(
            (below, right.operator.id), schema, append_only=append_only, join_kind=node.kind, left_keys=left.keys,
            right_keys=right.keys, null_safe=null_safe, comparison=node.comparison, left_value=sides[0].value,
            right_value=sides[1].value, ties=ties, output=tuple(f"{s}{p}" for s, p in tokens),
            residual=None if node.residual is None else _residual(node.residual, left.positions, right.positions)))
        return Stream(made, {i: at(made, tokens.index(t)) for i, t in places.items()})

    def _side(self, node: Relation, reads: _Ids, keys: Sequence[Scalar], value: Scalar) -> _Compared:
        """The rows of an input."""
        stream = self.lower_input(node, reads.union(value.columns, *[k.columns for k in keys]))
        resolved, compared = [stream.resolve(k) for k in keys], stream.resolve(value)
        op, positions = emit(self.builder, stream, [*(stream.values[i] for i in sorted(reads)), *resolved, compared])
        side = Side(op, {i: positions[identity(stream.values[i])] for i in reads},
                    tuple(positions[identity(k)] for k in resolved))
        return _Compared(side, positions[identity(compared)])

    def _versions(self, node: Versions, pairs: Sequence[KeyPair]) -> _Compared:
        """The changes of a table, in order, with the positions that the versions have."""
        positions = {c.id: i for i, c in enumerate(node.columns)}
        keys = tuple(positions[k.right.column] for k in pairs if k.right.column is not None)
        return _Compared(Side(self._changes(node.scan), positions, keys), positions[node.made[0].id])

    def _changes(self, scan: Scan) -> Operator:
        fields = tuple(Field(n, c.type, c.nullable) for n, c in zip(scan.source_names, scan.outputs, strict=True))
        read = next((o for o in self.builder.operators.values()
                     if isinstance(o, operators.Scan) and o.ordered and o.relation_id == scan.relation_id), None)
        return read or self.builder.add(operators.Scan(
            (), (*fields, Field("_seq", BIGINT, nullable=False)), append_only=False, relation_id=scan.relation_id,
            names=scan.source_names, ordered=True))

    def _kept(self, node: Versions, side: Side, stage: int, retain: Watermark) -> Operator:
        fields = [(c.type, c.nullable) for c in node.columns]
        return self.builder.add(operators.Versions(
            (side.operator.id,), positional(fields), append_only=False, keys=side.keys, time=side.positions[node.time],
            source=node.scan.relation_id, stage=stage, retain=retain))


def _residual(residual: Scalar, left: Mapping[str, int], right: Mapping[str, int]) -> str:
    places = {i: position(p, "l") for i, p in left.items()} | {i: position(p, "r") for i, p in right.items()}
    return sql(residual.substitute(places).expression)
