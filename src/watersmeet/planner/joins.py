"""Lowering of joins: key columns, where the rows have to be, which columns come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from watersmeet.algebra.cardinality import is_single_row
from watersmeet.algebra.coercion import is_identity
from watersmeet.algebra.relations import Join, JoinKind, KeyPair, Relation
from watersmeet.algebra.rewrites.keys import paired
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import is_constant
from watersmeet.circuit import operators
from watersmeet.circuit.operators import Operator
from watersmeet.errors import Error, error
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.distribution import matching
from watersmeet.planner.streams import Stream, at, emit, identity
from watersmeet.planner.texts import position, sql

_Ids = frozenset[str]
_HINT: Final = (
    "The non-equal join in the query requires a nested-loop join executor, which could be very expensive to run. "
    "Consider rewriting the query to use dynamic filter as a substitute if possible.\n"
    "See also: https://docs.risingwave.com/processing/sql/dynamic-filters"
)


@dataclass(frozen=True)
class _Side:
    """One input of a join: the operator, the position of each column id, the positions of the keys."""

    operator: Operator
    positions: dict[str, int]
    keys: tuple[int, ...]


class JoinLowering:
    """Lowers joins into `builder`; `lower_input` lowers what they read."""

    def __init__(self, builder: Builder, lower_input: Callable[[Relation, _Ids], Stream]) -> None:
        self.builder = builder
        self.lower_input = lower_input

    def lower(self, node: Join, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`. JOIN_WITHOUT_EQUALITY if it would be a nested loop."""
        node = _with_broadcast(node)
        pairs = [_one_type(k) for k in node.keys]
        reads = needed | (node.residual.columns if node.residual is not None else _Ids())
        left = self._side(node.left, reads & node.left.ids, [k.left for k in pairs])
        right = self._side(node.right, reads & node.right.ids, [k.right for k in pairs])
        residual = _residual(node.residual, left, right)
        if self.builder.buckets > 1:
            left, right = self._placed(node, left, right)
        null_safe = tuple(k.null_safe for k in pairs)
        left, right = self._arranged(left, right, null_safe)
        output, values = _output(node, pairs, needed, left, right)
        sources = {"l": left.operator, "r": right.operator}
        extended = {"l": node.kind in ("right", "full"), "r": node.kind in ("left", "full")}
        fields = [sources[o[0]].schema[int(o[1:])] for o in output]
        schema = positional((f.type, f.nullable or extended[o[0]]) for f, o in zip(fields, output, strict=True))
        append_only = node.kind in ("inner", "semi") and left.operator.append_only and right.operator.append_only
        made = self.builder.add(
            operators.Join((left.operator.id, right.operator.id), schema, append_only, node.kind, left.keys, right.keys,
                           null_safe, residual, output))
        return Stream(made, {i: at(made, p) for i, p in values.items()})

    def _side(self, node: Relation, reads: _Ids, keys: Sequence[Scalar]) -> _Side:
        stream = self.lower_input(node, reads.union(*[k.columns for k in keys]))
        resolved = [stream.resolve(k) for k in keys]
        op, positions = emit(self.builder, stream, [stream.values[i] for i in sorted(reads)] + resolved)
        return _Side(op, {i: positions[identity(stream.values[i])] for i in reads},
                     tuple(positions[identity(k)] for k in resolved))

    def _arranged(self, left: _Side, right: _Side, null_safe: tuple[bool, ...]) -> tuple[_Side, _Side]:
        """The arrangements of both sides, in the later of their stages."""
        placement = self.builder.placement
        stage = max(placement.arrival(s.operator.id) for s in (left, right))
        made = [self.builder.arrange(s.operator, s.keys, null_safe, stage) for s in (left, right)]
        return replace(left, operator=made[0]), replace(right, operator=made[1])

    def _placed(self, node: Join, left: _Side, right: _Side) -> tuple[_Side, _Side]:
        """Both sides where rows that match meet."""
        if node.broadcast:
            one, other = self._copied(left.operator, right.operator)
        elif not node.keys:
            one, other = self._gathered(left.operator), self._gathered(right.operator)
        else:
            one, other = self._meeting(left, right, node)
        return replace(left, operator=one), replace(right, operator=other)

    def _meeting(self, left: _Side, right: _Side, node: Join) -> tuple[Operator, Operator]:
        """The cheapest way to meet: the earliest stage, then the fewest exchanges, then the left side stays."""
        null_safe = [k.null_safe for k in node.keys]
        placement = self.builder.placement
        stages = placement.stage(left.operator.id), placement.stage(right.operator.id)
        orders = [matching(placement.distribution(s.operator.id), s.keys, null_safe) for s in (left, right)]
        if orders[0] is not None and orders[0] == orders[1]:
            if stages[0] == stages[1]:
                return left.operator, right.operator
            late = stages.index(max(stages))
            sent = [self.builder.exchange(s.operator, [s.keys[i] for i in orders[0]]) for s in (left, right)]
            return (left.operator, sent[1]) if late == 0 else (sent[0], right.operator)
        options = [(max(stages) + 1, 2, list(node.spread or range(len(left.keys))), (True, True))]
        for stays, order in enumerate(orders):
            if order:
                target = max(stages[stays], stages[1 - stays] + 1)
                moves = stages[stays] < target
                options.append((target, 1 + moves, order, (moves or stays == 1, moves or stays == 0)))
        _, _, order, moving = min(options, key=lambda o: (o[0], o[1]))
        return self._moved(left, order, moving=moving[0]), self._moved(right, order, moving=moving[1])

    def _moved(self, side: _Side, order: Sequence[int], *, moving: bool) -> Operator:
        return self.builder.exchange(side.operator, [side.keys[i] for i in order]) if moving else side.operator

    def _copied(self, left: Operator, right: Operator) -> tuple[Operator, Operator]:
        """The right side copied to every bucket; the left one stays if it can."""
        placement = self.builder.placement
        both_single = placement.distribution(left.id) == placement.distribution(right.id) == ()
        if both_single and placement.stage(left.id) == placement.stage(right.id):
            return left, right
        arrives = placement.stage(right.id) + 1
        if placement.stage(left.id) < arrives:
            left = self._gathered(left) if placement.distribution(left.id) == () else self.builder.spread(left)
        return left, self.builder.broadcast(right)

    def _gathered(self, op: Operator) -> Operator:
        return self.builder.exchange(op, ())


def _with_broadcast(node: Join) -> Join:
    """A join without keys as one whose right side is copied, or the error that it can't be."""
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
        return Join(node.right, node.left, kind, (), node.residual, broadcast=True)
    raise _nested_loop(node)


def _nested_loop(node: Join) -> Error:
    return error("JOIN_WITHOUT_EQUALITY", "streaming nested-loop join", hint=_HINT, span=node.span,
                 detail="The join has no equality between its two sides, so every row would meet every other.")


def _one_type(pair: KeyPair) -> KeyPair:
    if pair.left.type == pair.right.type:
        return pair
    same = paired(pair.left, pair.right, null_safe=pair.null_safe)
    if same is None:
        raise error("DATATYPE_MISMATCH",
                    f"a join cannot compare {pair.left.type.sql} with {pair.right.type.sql}")
    return same


def _residual(residual: Scalar | None, left: _Side, right: _Side) -> str | None:
    if residual is None:
        return None
    places = {i: position(p, "l") for i, p in left.positions.items()}
    places |= {i: position(p, "r") for i, p in right.positions.items()}
    return sql(residual.substitute(places).expression)


def _output(node: Join, pairs: Sequence[KeyPair], needed: _Ids, left: _Side,
            right: _Side) -> tuple[tuple[str, ...], dict[str, int]]:
    """Which columns come out, each once, and where each needed column id is among them.

    Of two columns that an inner join makes equal only the left one comes out.
    """
    tokens = {i: f"l{left.positions[i]}" for i in needed & node.left.ids}
    if node.kind not in ("semi", "anti"):
        tokens |= {i: f"r{right.positions[i]}" for i in needed & node.right.ids}
    if node.kind == "inner":
        same = {f"r{r}": f"l{p}" for p, r, k in zip(left.keys, right.keys, pairs, strict=True)
                if is_identity(k.left.type)}
        kept_left = set(tokens.values())
        tokens = {i: same[t] if same.get(t) in kept_left else t for i, t in tokens.items()}
    output = sorted(set(tokens.values()), key=lambda t: (t[0], int(t[1:]))) or [f"l{left.keys[0] if left.keys else 0}"]
    return tuple(output), {i: output.index(t) for i, t in tokens.items()}
