"""Lowering of regular joins: of two inputs, of many inputs with one key, and with selected partners.

Neighboring inner joins by one key become one join of many inputs: one stage, no intermediate rows. The key is one or
several classes of equal expressions, and every input has one expression of each class. So `a JOIN b ON a.k = b.k JOIN c
ON b.k = c.k` is one join of a, b and c by k, for any shape of the tree, and `… JOIN d ON c.x = d.x` is a join on top.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Join, JoinKind, KeyPair, Node
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.scalars import MIRRORED_SIGNS, SIGNS, Comparison, Scalar, conjunction, conjuncts, null_of
from watersmeet.algebra.trees import cast, common_type, is_constant, part_of
from watersmeet.algebra.watermarks import Retention, of_join
from watersmeet.circuit import operators
from watersmeet.circuit.operators import InputColumn, Operator
from watersmeet.errors import Error, error
from watersmeet.planner.builder import Builder, Side, Stream, at, emit, emit_exactly, identity, of_operator, positional
from watersmeet.planner.display import index_of, position, sql
from watersmeet.planner.distribution import matching, plain_keys
from watersmeet.planner.sides import Arranging, Input, Keep, one_type
from watersmeet.values.types import BOOLEAN

_ORDERED: Final = ("varchar", "bytea", "date", "time", "timestamp", "timestamptz")


@dataclass(frozen=True)
class Compared:
    """A condition `left comparison right`, with each operand over its input. Both have the same ordered type."""

    left: Scalar
    comparison: Comparison
    right: Scalar


def comparisons(node: Join, needed: frozenset[str]) -> list[Compared] | None:
    """The comparisons of a join of which the columns `needed` are read; None if it has any other condition."""
    if node.keys or not node.broadcast or node.residual is None or node.kind not in ("inner", "semi"):
        return None
    if (node.kind == "inner" and needed & node.right.ids) or not is_single_row(node.right):
        return None
    found = [_compared(p, node.left, node.right) for p in conjuncts(node.residual)]
    known = [c for c in found if c is not None]
    return known if len(known) == len(found) else None


def _compared(part: Scalar, left: Node, right: Node) -> Compared | None:
    node = part.expression
    sign = SIGNS.get(type(node))
    if sign is None:
        return None
    one, other = node.this.unnest(), node.expression.unnest()
    if Scalar(one, BOOLEAN).columns <= right.ids:
        one, other, sign = other, one, MIRRORED_SIGNS[sign]
    reads, given = Scalar(one, BOOLEAN).columns, Scalar(other, BOOLEAN).columns
    if not (reads and given and reads <= left.ids and given <= right.ids):
        return None
    mine, theirs = part_of(one, left.columns), part_of(other, right.columns)
    kind = None if mine is None or theirs is None else common_type(mine.type, theirs.type)
    if mine is None or theirs is None or kind is None or not (kind.is_numeric or kind.name in _ORDERED):
        return None
    return Compared(cast(mine, kind), sign, cast(theirs, kind))


_Ids = frozenset[str]

#: The ids of columns that only determine where a row is sent.
_SCATTER: Final = "$scatter"

#: The kinds of join for which a filter on columns of the left (right) input can be above or below the join.
_LEFT_STAYS: Final = ("inner", "left", "semi", "anti")

_RIGHT_STAYS: Final = ("inner", "right")

_HINT: Final = (
    "The non-equal join in the query requires a nested-loop join executor, which could be very expensive to run. "
    "Consider rewriting the query to use dynamic filter as a substitute if possible.\n"
    "See also: https://docs.risingwave.com/processing/sql/dynamic-filters"
)

_CONSTANT: Final = (
    "The condition compares no column of one side with one of the other; a column of an outer query belongs in WHERE. "
    "If every row is to meet every other, join by a constant: "
    "FROM (SELECT *, 1 AS one FROM a) AS a JOIN (SELECT *, 1 AS one FROM b) AS b ON a.one = b.one."
)

#: For each kind of join, an equivalent form of the condition `a = b OR c = d`.
_ALTERNATIVES: Final[dict[JoinKind, str]] = {
    "inner": "Write one join for each side of OR, and combine them with UNION.",
    "semi": "Write one subquery for each side of OR: EXISTS (…) OR EXISTS (…).",
    "anti": "Write one subquery for each side of OR: NOT EXISTS (…) AND NOT EXISTS (…).",
}


class JoinLowering(Arranging):
    """Lowers joins into the builder."""

    def lower(self, node: Join, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`.

        Raises JOIN_WITHOUT_EQUALITY for a nested-loop join.
        """
        node = _with_broadcast(node)
        compared = comparisons(node, needed)
        if compared is not None:
            return self._filtered(node, compared, needed)
        pairs = [one_type(k) for k in node.keys]
        reads = needed | (node.residual.columns if node.residual is not None else _Ids())
        kept = of_join(node)
        reads |= {k.time.column for k in kept if k is not None and k.key is None and k.time.column is not None}
        # A full join outputs rows of both sides without partners: a filter can't be moved above it.
        movable = node.kind != "full"
        inputs = (
            self._input(node.left, reads, [k.left for k in pairs], keep=keeping(kept[0]), movable=movable),
            self._input(node.right, reads, [k.right for k in pairs], keep=keeping(kept[1]), movable=movable),
        )
        left, right, order = self._both(node, inputs, [k.null_safe for k in pairs])
        pairs = [pairs[i] for i in order]
        residual = _residual(node, left, right)
        above = _of_side(left.pending, "l") if node.kind in _LEFT_STAYS else []
        above += _of_side(right.pending, "r") if node.kind in _RIGHT_STAYS else []
        output, values = _output(node, pairs, needed, left, right, {c for p in above for c in p.columns})
        extended = (node.kind in ("right", "full"), node.kind in ("left", "full"))
        fields = [(left, right)[o.input].operator.schema[o.column] for o in output]
        schema = positional((f.type, f.nullable or extended[o.input]) for f, o in zip(fields, output, strict=True))
        append_only = node.kind in ("inner", "semi") and left.operator.append_only and right.operator.append_only
        kind, below = operators.Join, left.operator.id
        if node.arrival:
            kind, append_only = operators.ArrivalJoin, left.operator.append_only
            if node.kind in ("semi", "anti"):
                below = self.builder.with_present_late_rows(left.operator.inputs[0])  # such rows are not kept
        made = self.builder.add(
            kind(
                (below, right.operator.id),
                schema,
                append_only,
                node.kind,
                left.keys,
                right.keys,
                tuple(k.null_safe for k in pairs),
                residual,
                output,
            )
        )
        return Stream(made, {i: at(made, p) for i, p in values.items()}, tuple(_above(above, output)))

    def _filtered(self, node: Join, compared: Sequence[Compared], needed: _Ids) -> Stream:
        """The left rows that pass the comparison with the only row of the right side."""
        later = _Ids().union(*[c.left.columns for c in compared])
        stream = self.lower_input(node.left, needed & node.left.ids | later)
        wanted = sorted(needed & node.left.ids)
        below = self.lower_input(node.right, _Ids().union(*[c.right.columns for c in compared]))
        for i, test in enumerate(compared):
            kept = sorted({*wanted, *[c for other in compared[i + 1 :] for c in other.left.columns]})
            value = stream.resolve(test.left)
            right = emit_exactly(self.builder, below, [below.resolve(test.right)])
            moves = self._moves(stream.operator, right) and all(s.columns <= stream.values.keys() for s in node.scatter)
            scatter = [stream.resolve(s) for s in node.scatter] if moves else []
            left, positions = emit(self.builder, stream, [*[stream.values[c] for c in kept], value, *scatter])
            left, right = self._copied(left, right, [positions[identity(s)] for s in scatter])
            column = positions[identity(value)]
            places = {c: positions[identity(stream.values[c])] for c in kept}
            keep = tuple(sorted(set(places.values()))) or (column,)
            schema = positional((left.schema[k].type, left.schema[k].nullable) for k in keep)
            made = self.builder.add(
                operators.DynamicFilter(
                    (left.id, right.id), schema, left.append_only and right.append_only, column, test.comparison, keep
                )
            )
            stream = Stream(made, {c: at(made, keep.index(p)) for c, p in places.items()})
        return stream

    def _both(
        self, node: Join, inputs: tuple[Input, Input], null_safe: Sequence[bool]
    ) -> tuple[Side, Side, Sequence[int]]:
        """Arrangements of both inputs in one stage, and the order of the join's key pairs in their keys."""
        if node.keys and not node.broadcast:
            return self._arranged(inputs, null_safe, node.spread)
        left, right = (self._side(i, null_safe) for i in inputs)
        if node.broadcast and self._moves(left.operator, right.operator):
            left = self._side(self._scattered(inputs[0], node), null_safe)
        left, right = self._placed(node, left, right)
        stage = max(self.builder.placement.arrival(s.operator.id) for s in (left, right))
        return (
            self._kept(left, inputs[0], left.keys, (), stage),
            self._kept(right, inputs[1], right.keys, (), stage),
            (),
        )

    def _moves(self, left: Operator, right: Operator) -> bool:
        """Whether the left side must move to the stage in which the copies of the right side arrive."""
        placement = self.builder.placement
        return placement.stage(left.id) <= placement.stage(right.id)

    def _scattered(self, given: Input, node: Join) -> Input:
        """The input with a column for each value of the join's `scatter`."""
        extra = {f"{_SCATTER}{i}": given.stream.resolve(s) for i, s in enumerate(node.scatter)}
        return replace(
            given,
            stream=replace(given.stream, values={**given.stream.values, **extra}),
            reads=given.reads | extra.keys(),
        )

    def _placed(self, node: Join, left: Side, right: Side) -> tuple[Side, Side]:
        """Both sides of a join without keys, in the buckets in which their rows match."""
        if node.broadcast:
            scatter = [p for i, p in left.positions.items() if i.startswith(_SCATTER)]
            one, other = self._copied(left.operator, right.operator, scatter)
        else:
            one, other = self._gathered(left.operator), self._gathered(right.operator)
        return replace(left, operator=one), replace(right, operator=other)

    def _copied(self, left: Operator, right: Operator, scatter: Sequence[int]) -> tuple[Operator, Operator]:
        """Both sides, with the right side copied to every bucket. If possible, the left side stays; otherwise its rows
        are scattered, or sent by their own distribution.
        """
        placement = self.builder.placement
        known = placement.distribution(left.id)
        if known == placement.distribution(right.id) == () and placement.stage(left.id) == placement.stage(right.id):
            return left, right
        if self._moves(left, right):
            keys = scatter or plain_keys(known)
            left = (
                self._gathered(left)
                if known == ()
                else self.builder.exchange(left, keys)
                if keys
                else self.builder.spread(left)
            )
        return left, self.builder.broadcast(right)

    def _gathered(self, op: Operator) -> Operator:
        return self.builder.exchange(op, ())


def keeping(kept: Retention | None) -> Keep | None:
    """A function that adds the operator that arranges only needed rows; None if all rows are kept."""
    if kept is None:
        return None

    def keep(builder: Builder, side: Side, keys: tuple[int, ...], null_safe: tuple[bool, ...], stage: int) -> Operator:
        time = (
            side.positions[kept.time.column]
            if kept.key is None and kept.time.column is not None
            else side.keys[kept.key or 0]
        )
        return builder.arrange(side.operator, keys, null_safe, stage, time=time, retain=kept.bound)

    return keep


def _with_broadcast(node: Join) -> Join:
    """A join without keys whose right side is copied. Raises an error if this is not possible."""
    if node.keys:
        return node
    if node.broadcast and node.kind not in ("right", "full"):
        return node
    if node.broadcast or (is_single_row(node.left) and is_single_row(node.right)):
        return replace(node, broadcast=node.kind not in ("right", "full"))
    if node.kind in ("inner", "left", "semi", "anti") and (is_single_row(node.right) or is_constant(node.right)):
        return replace(node, broadcast=True)
    if node.kind in ("inner", "right") and (is_single_row(node.left) or is_constant(node.left)):
        kind: JoinKind = "inner" if node.kind == "inner" else "left"
        return Join(
            node.right, node.left, kind, (), node.residual, broadcast=True, scatter=node.scatter, arrival=node.arrival
        )
    raise _nested_loop(node)


def _nested_loop(node: Join) -> Error:
    return error(
        "JOIN_WITHOUT_EQUALITY",
        "streaming nested-loop join",
        hint=_rewrite(node),
        span=node.span,
        detail="The join has no equality between its two sides, so every row would be compared with every other.",
    )


def _rewrite(node: Join) -> str:
    """The hint with an equivalent form that has equalities."""
    sides = [frozenset(c.id for c in side.columns) for side in (node.left, node.right)]
    if node.residual is None or any(node.residual.columns.isdisjoint(side) for side in sides):
        return _CONSTANT
    alternatives = _alternatives(node.residual.expression)
    if len(alternatives) > 1 and all(_compares(part, sides) for part in alternatives):
        return _ALTERNATIVES.get(node.kind, _HINT)
    return _HINT


def _alternatives(condition: exp.Expression) -> list[exp.Expression]:
    inner = condition.unnest()
    return (
        [a for p in (inner.this, inner.expression) for a in _alternatives(p)] if isinstance(inner, exp.Or) else [inner]
    )


def _compares(part: exp.Expression, sides: Sequence[frozenset[str]]) -> bool:
    """Whether a part of the condition is an equality between the two sides."""
    equalities = [
        e for e in (part.flatten() if isinstance(part, exp.And) else [part]) if isinstance(e.unnest(), exp.EQ)
    ]
    reads = [{c.name for c in e.find_all(exp.Column)} for e in equalities]
    return any(all(read & side for side in sides) for read in reads)


def _residual(node: Join, left: Side, right: Side) -> str | None:
    """The join's condition without the keys, and with those filters of inputs that decide on matches, not on rows."""
    places = {i: position(p, "l") for i, p in left.positions.items()}
    places |= {i: position(p, "r") for i, p in right.positions.items()}
    parts = [] if node.residual is None else [node.residual.substitute(places)]
    if node.kind not in _LEFT_STAYS:
        parts += _of_side(left.pending, "l")
    if node.kind not in _RIGHT_STAYS:
        parts += _of_side(right.pending, "r")
    condition = conjunction(parts)
    return None if condition is None else sql(condition.expression)


def _of_side(pending: Iterable[Scalar], side: str) -> list[Scalar]:
    return [p.substitute({c: position(index_of(c), side) for c in p.columns}) for p in pending]


def _above(pending: Iterable[Scalar], output: Sequence[InputColumn]) -> Iterator[Scalar]:
    """The filters over `l0`, `r0`, … as filters over the join's output columns."""
    places = {c.name: position(i) for i, c in enumerate(output)}
    return (p.substitute(places) for p in pending)


def _output(
    node: Join, pairs: Sequence[KeyPair], needed: _Ids, left: Side, right: Side, filtered: Collection[str]
) -> tuple[tuple[InputColumn, ...], dict[str, int]]:
    """The output columns, each once, and the position of each needed column id among them.

    Of two columns that an inner join makes equal, only the left one is output.

    filtered: the names that filters read.
    """
    places = {i: InputColumn(0, left.positions[i]) for i in needed & node.left.ids}
    if node.kind not in ("semi", "anti"):
        places |= {i: InputColumn(1, right.positions[i]) for i in needed & node.right.ids}
    if node.kind == "inner":
        same = {
            InputColumn(1, r): InputColumn(0, p)
            for p, r, k in zip(left.keys, right.keys, pairs, strict=True)
            if k.left.type.is_identity
        }
        kept = set(places.values())
        places = {i: same[c] if same.get(c) in kept else c for i, c in places.items()}
    output = sorted({*places.values(), *map(InputColumn.of, filtered)}) or [
        InputColumn(0, left.keys[0] if left.keys else 0)
    ]
    return tuple(output), {i: output.index(c) for i, c in places.items()}


class PartneredLowering(JoinLowering):
    """Lowers joins with `partners` into the builder: an inner join, and an anti join for each preserved side."""

    def lower(self, node: Join, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        assert node.keys
        assert node.partners is not None
        pairs = [one_type(k) for k in node.keys]
        conditions = [*node.partners, *conjuncts(node.residual)]
        reads = needed.union(*[s.columns for s in conditions])
        kept = of_join(node)
        inputs = (
            self._input(node.left, reads, [k.left for k in pairs], keep=keeping(kept[0]), movable=False),
            self._input(node.right, reads, [k.right for k in pairs], keep=keeping(kept[1]), movable=False),
        )
        left, right, order = self._both(node, inputs, [k.null_safe for k in pairs])
        pairs = [pairs[i] for i in order]
        wanted = [c for c in node.columns if c.id in needed] or [node.columns[0]]
        # The pairs are last, because the last join determines the left and right rows that a view keeps.
        parts = (
            [self._alone(node.partners[0], node, pairs, left, right, wanted)] if node.kind in ("left", "full") else []
        )
        parts += (
            [self._alone(node.partners[1], node, pairs, right, left, wanted)] if node.kind in ("right", "full") else []
        )
        parts.append(self._pairs(node, pairs, left, right, wanted))
        fields = [(c.type, any(p.schema[i].nullable for p in parts)) for i, c in enumerate(wanted)]
        made = self.builder.add(operators.Union(tuple(p.id for p in parts), positional(fields), append_only=False))
        return of_operator(made, [(c, i) for i, c in enumerate(wanted)])

    def _pairs(
        self, node: Join, pairs: Sequence[KeyPair], left: Side, right: Side, wanted: Sequence[Column]
    ) -> Operator:
        places = [
            InputColumn(0, left.positions[c.id]) if c.id in node.left.ids else InputColumn(1, right.positions[c.id])
            for c in wanted
        ]
        output = tuple(dict.fromkeys(places))
        fields = [(left, right)[p.input].operator.schema[p.column] for p in output]
        append_only = left.operator.append_only and right.operator.append_only
        made = self.builder.add(
            operators.Join(
                (left.operator.id, right.operator.id),
                positional((f.type, f.nullable) for f in fields),
                append_only,
                "inner",
                left.keys,
                right.keys,
                tuple(k.null_safe for k in pairs),
                _text(conjuncts(node.residual), left, right),
                output,
            )
        )
        return self._exactly(made, [at(made, output.index(p)) for p in places], wanted)

    def _alone(
        self, partner: Scalar, node: Join, pairs: Sequence[KeyPair], own: Side, other: Side, wanted: Sequence[Column]
    ) -> Operator:
        """The rows of `own` that have no partner in `other`, extended by NULLs."""
        places = {c.id: InputColumn(0, own.positions[c.id]) for c in wanted if c.id in own.positions}
        output = tuple(dict.fromkeys(places.values())) or (InputColumn(0, own.keys[0]),)
        fields = [own.operator.schema[p.column] for p in output]
        made = self.builder.add(
            operators.Join(
                (own.operator.id, other.operator.id),
                positional((f.type, f.nullable) for f in fields),
                False,
                "anti",
                own.keys,
                other.keys,
                tuple(k.null_safe for k in pairs),
                _text([*conjuncts(node.residual), partner], own, other),
                output,
            )
        )
        values = [at(made, output.index(places[c.id])) if c.id in places else null_of(c.type) for c in wanted]
        return self._exactly(made, values, wanted)

    def _exactly(self, op: Operator, values: Sequence[Scalar], wanted: Sequence[Column]) -> Operator:
        return emit_exactly(self.builder, Stream(op, {c.id: v for c, v in zip(wanted, values, strict=True)}), values)


def _text(parts: Sequence[Scalar], left: Side, right: Side) -> str | None:
    """The condition of a join over the columns of its sides."""
    places = {i: position(p, "l") for i, p in left.positions.items()} | {
        i: position(p, "r") for i, p in right.positions.items()
    }
    condition = conjunction([p.substitute(places) for p in parts])
    return None if condition is None else sql(condition.expression)


@dataclass(frozen=True)
class Cluster:
    """An inner join of `inputs` by `keys[i]`, expressions over input i, which are pairwise equal.

    conditions: further conditions.
    """

    inputs: tuple[Node, ...]
    keys: tuple[tuple[Scalar, ...], ...]
    conditions: tuple[Scalar, ...]
    spread: tuple[int, ...]


def cluster_of(node: Node) -> Cluster | None:
    """The largest cluster with `node` at the top; None if it is not an inner join by keys that can be part of one."""
    if not isinstance(node, Join) or node.kind != "inner" or node.broadcast or not node.keys:
        return None
    if any(k.null_safe or k.left.type != k.right.type for k in node.keys):
        return None
    if any(of_join(node)):
        return None  # this join limits its own state, and has a watermark for joins above it
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
    """The cluster with its key classes in the order of `keys`; None if they are not the same keys."""
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
        """The stage of the join and the keys by which rows are spread: prefers the earliest stage, then the fewest
        exchanges, then `wanted` or all keys.
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
