"""Neighbouring inner joins by one key become one join of many inputs: one stage, no intermediate rows.

The key is one or several classes of equal expressions, and every input has one expression of each class. So `a JOIN b
ON a.k = b.k JOIN c ON b.k = c.k` is one join of a, b and c by k, whatever the shape of the tree, and `… JOIN d ON c.x =
d.x` stands above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from watersmeet.algebra.nodes import Join, Node
from watersmeet.algebra.retention import of_join
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.circuit import operators
from watersmeet.circuit.operators import InputColumn
from watersmeet.planner.builder import positional
from watersmeet.planner.distribution import matching
from watersmeet.planner.joins import JoinLowering
from watersmeet.planner.sharing import Side
from watersmeet.planner.streams import Stream, at
from watersmeet.planner.texts import index_of, position, sql

_Ids = frozenset[str]


@dataclass(frozen=True)
class Cluster:
    """An inner join of `inputs` by `keys[i]`, expressions over input i, which are pairwise equal.

    conditions: what else must hold.
    """

    inputs: tuple[Node, ...]
    keys: tuple[tuple[Scalar, ...], ...]
    conditions: tuple[Scalar, ...]
    spread: tuple[int, ...]


def cluster_of(node: Node) -> Cluster | None:
    """The largest cluster with `node` at the top; None if it is no inner join by keys that can be part of one."""
    if not isinstance(node, Join) or node.kind != "inner" or node.broadcast or not node.keys:
        return None
    if any(k.null_safe or k.left.type != k.right.type for k in node.keys):
        return None
    if any(of_join(node)):
        return None  # it forgets rows by its own bounds, and gives a watermark to joins above it
    sides = [tuple(k.left for k in node.keys), tuple(k.right for k in node.keys)]
    parts = [
        _aligned(cluster_of(below), keys) or Cluster((below,), (keys,), (), ())
        for below, keys in zip((node.left, node.right), sides, strict=True)
    ]
    one, other = parts
    own = () if node.residual is None else (node.residual,)
    return Cluster(
        one.inputs + other.inputs, one.keys + other.keys, (*one.conditions, *other.conditions, *own), node.spread
    )


def _aligned(cluster: Cluster | None, keys: Sequence[Scalar]) -> Cluster | None:
    """The cluster with its key classes in the order of `keys`, one class for each; None if the keys are different."""
    if cluster is None or len(keys) != len(cluster.keys[0]):
        return None
    classes = list(zip(*cluster.keys, strict=True))
    order = [
        next((i for i, members in enumerate(classes) if key.expression in [m.expression for m in members]), -1)
        for key in keys
    ]
    if sorted(order) != list(range(len(keys))):
        return None
    return replace(cluster, keys=tuple(tuple(k[i] for i in order) for k in cluster.keys))


class MultiwayLowering(JoinLowering):
    """Lowers clusters of at least three inputs into `builder`."""

    def lower_cluster(self, cluster: Cluster, needed: _Ids) -> Stream:
        """The stream of the join of `cluster` with at least the columns `needed`."""
        reads = needed.union(*[c.columns for c in cluster.conditions])
        sides = self._arranged_sides(cluster, reads)
        read = {i: InputColumn(n, p) for n, side in enumerate(sides) for i, p in side.positions.items()}
        pending = [
            p.substitute({c: _column(InputColumn(n, index_of(c))) for c in p.columns})
            for n, side in enumerate(sides)
            for p in side.pending
        ]
        conditions = conjunction([p.substitute({i: _column(c) for i, c in read.items()}) for p in cluster.conditions])
        same = {
            InputColumn(n, k): InputColumn(0, first)
            for n, side in enumerate(sides)
            for k, first, key in zip(side.keys, sides[0].keys, cluster.keys[0], strict=True)
            if key.type.is_identity
        }
        chosen = {i: same.get(read[i], read[i]) for i in needed if i in read}
        filtered = {InputColumn.of(c) for p in pending for c in p.columns}
        output = tuple(sorted({*chosen.values(), *filtered})) or (InputColumn(0, sides[0].keys[0]),)
        fields = [sides[c.input].operator.schema[c.column] for c in output]
        made = self.builder.add(
            operators.MultiJoin(
                tuple(s.operator.id for s in sides),
                positional((f.type, f.nullable) for f in fields),
                all(s.operator.append_only for s in sides),
                tuple(s.keys for s in sides),
                None if conditions is None else sql(conditions.expression),
                output,
            )
        )
        places = {c.numbered_name: position(i) for i, c in enumerate(output)}
        return Stream(
            made,
            {i: at(made, output.index(c)) for i, c in chosen.items()},
            tuple(p.substitute(places) for p in pending),
        )

    def _arranged_sides(self, cluster: Cluster, reads: _Ids) -> list[Side]:
        """Arrangements of all inputs in one stage, by keys in one order."""
        width = len(cluster.keys[0])
        plain = [False] * width
        inputs = [self._input(node, reads, keys) for node, keys in zip(cluster.inputs, cluster.keys, strict=True)]
        found = [self.sharing.find(i.stream, i.reads, i.keys, plain) for i in inputs]
        order = next((f.order for some in found for f in some), tuple(range(width)))
        sides = [self._side(i, plain) for i in inputs]
        sides = [replace(s, keys=tuple(s.keys[i] for i in order)) for s in sides]
        stage, spread = self._meeting_place(sides, [order.index(i) for i in cluster.spread])
        placement, safe = self.builder.placement, tuple(plain)
        arranged = []
        for side, some in zip(sides, found, strict=True):
            hit = next(
                (
                    f.side
                    for f in some
                    if f.order == order
                    and placement.stage(f.side.operator.id) == stage
                    and matching(placement.distribution(f.side.operator.id), f.side.keys, safe) == spread
                ),
                None,
            )
            if hit is None:
                op = self._brought(side.operator, side.keys, safe, spread, stage)
                assert op is not None, "the stage is such that all can be brought there"
                hit = replace(side, operator=self.builder.arrange(op, side.keys, safe, stage))
            arranged.append(hit)
        return arranged

    def _meeting_place(self, sides: Sequence[Side], wanted: list[int]) -> tuple[int, list[int]]:
        """The stage of the join and the keys by which rows are spread there: the earliest stage, then the fewest
        exchanges, then all keys or `wanted`.
        """
        placement = self.builder.placement
        safe = [False] * len(sides[0].keys)
        known = [matching(placement.distribution(s.operator.id), s.keys, safe) for s in sides]
        stages = [placement.stage(s.operator.id) for s in sides]
        options = []
        for spread in [wanted or list(range(len(safe))), *(k for k in known if k)]:
            target = max(n + (k != spread) for n, k in zip(stages, known, strict=True))
            moves = sum(n < target or k != spread for n, k in zip(stages, known, strict=True))
            options.append((target, moves, spread))
        target, _, spread = min(options, key=lambda o: o[:2])
        return target, spread


def _column(of: InputColumn) -> exp.Column:
    return exp.column(of.numbered_name)
