"""The two sides of any join (regular, ASOF or temporal) as operators: in one stage, with equal keys in one bucket, and
with shared arrangements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from watersmeet.algebra.nodes import KeyPair, Node
from watersmeet.algebra.rewrites.conditions import paired
from watersmeet.algebra.scalars import Scalar
from watersmeet.circuit.operators import Operator
from watersmeet.errors import error
from watersmeet.planner.builder import Builder, Found, Sharing, Side, Stream, emit, identity, plain
from watersmeet.planner.distribution import matching

_Ids = frozenset[str]
_Hits = tuple[Found | None, Found | None]


class Keep(Protocol):
    """A function that adds the operator of a side that a join reads. keys: the side's keys in the join's order."""

    def __call__(
        self, builder: Builder, side: Side, keys: tuple[int, ...], null_safe: tuple[bool, ...], stage: int, /
    ) -> Operator: ...


@dataclass(frozen=True)
class Input:
    """One input of a join before it is an operator: its rows, the columns to read, and its keys.

    keep: adds the operator that the join reads; by default, this is an arrangement of all rows, which other views may
    share. movable: whether pending filters may be applied to the join's output. places: if set, the operator is used
    unchanged, and these are the positions of its columns in the result of `keep`.
    """

    stream: Stream
    reads: _Ids
    keys: tuple[Scalar, ...]
    keep: Keep | None = None
    movable: bool = True
    places: Mapping[str, int] | None = None


class Arranging:
    """Lowers the sides of joins into `builder`. `sharing` finds arrangements; `lower_input` lowers the inputs."""

    def __init__(self, builder: Builder, sharing: Sharing, lower_input: Callable[[Node, _Ids], Stream]) -> None:
        self.builder = builder
        self.sharing = sharing
        self.lower_input = lower_input

    def _input(
        self,
        node: Node,
        reads: _Ids,
        keys: Sequence[Scalar],
        *,
        keep: Keep | None = None,
        movable: bool = True,
        more: Mapping[str, Scalar] | None = None,
    ) -> Input:
        """The input for `node`. more: further values over its columns, by their new ids."""
        reads &= node.ids
        extra = more or {}
        stream = self.lower_input(node, reads.union(*[k.columns for k in keys], *[v.columns for v in extra.values()]))
        values = {**stream.values, **{i: stream.resolve(v) for i, v in extra.items()}}
        return Input(
            replace(stream, values=values), reads | extra.keys(), tuple(stream.resolve(k) for k in keys), keep, movable
        )

    def _arranged(
        self, inputs: tuple[Input, Input], null_safe: Sequence[bool], spread: Sequence[int] = ()
    ) -> tuple[Side, Side, Sequence[int]]:
        """The operators of both sides, in one stage, and the order in which their keys have the join's key pairs.

        spread: the keys that determine the bucket of rows if both sides are exchanged; all keys if it is empty.
        """
        left, right = (self._side(i, null_safe) for i in inputs)
        met = meeting(self.builder, left, right, null_safe, spread)
        placed = [replace(s, operator=o) for s, o in zip((left, right), met, strict=True)]
        stage = max(self.builder.placement.arrival(s.operator.id) for s in placed)
        found = [
            [*(self.sharing.find(i.stream, i.reads, i.keys, null_safe) if _may_share(i) else ()), None] for i in inputs
        ]
        for one, other in product(*found):
            sides = (
                None
                if one is other
                else self._meeting_at((one, other), (left, right), inputs, null_safe, spread, stage)
            )
            if sides is not None:
                return sides
        safe = tuple(null_safe)
        made = [self._kept(s, i, s.keys, safe, stage) for s, i in zip(placed, inputs, strict=True)]
        return made[0], made[1], range(len(safe))

    def _side(self, given: Input, null_safe: Sequence[bool]) -> Side:
        """The rows of an input with the columns of its arrangement."""
        stream, values = given.stream, given.stream.values
        if given.places is not None:
            keys = [plain(stream.operator, k) for k in given.keys]
            assert not stream.pending
            return Side(stream.operator, given.places, tuple(k for k in keys if k is not None))
        wide = self.sharing.widened(stream, given.reads, given.keys, null_safe) if given.keep is None else None
        if wide is not None:
            return wide
        op, positions = emit(self.builder, stream, [*(values[i] for i in sorted(given.reads)), *given.keys])
        return Side(
            op,
            {i: positions[identity(values[i])] for i in given.reads},
            tuple(positions[identity(k)] for k in given.keys),
        )

    def _kept(self, side: Side, given: Input, keys: tuple[int, ...], null_safe: tuple[bool, ...], stage: int) -> Side:
        """The side with the operator that the join reads, arranged by `keys`, which are its own keys in some order."""
        op = (
            given.keep(self.builder, side, keys, null_safe, stage)
            if given.keep is not None
            else self.builder.arrange(side.operator, keys, null_safe, stage)
        )
        return replace(side, operator=op, keys=keys)

    def _meeting_at(
        self,
        hits: _Hits,
        sides: tuple[Side, Side],
        inputs: tuple[Input, Input],
        null_safe: Sequence[bool],
        wanted: Sequence[int],
        stage: int,
    ) -> tuple[Side, Side, Sequence[int]] | None:
        """Both sides of a join that uses the arrangements in `hits`; None if they can't be read in one stage up to
        `stage`.

        A side without an arrangement is sent to the stage of the other. wanted: the keys by which rows must be
        distributed if a downstream join relies on them.
        """
        found = [f for f in hits if f is not None]
        order, placement = found[0].order, self.builder.placement
        safe = tuple(null_safe[i] for i in order)
        there = placement.stage(found[0].side.operator.id)
        spread = [matching(placement.distribution(f.side.operator.id), f.side.keys, safe) for f in found]
        alike = all(f.order == order and placement.stage(f.side.operator.id) == there for f in found)
        if there > stage or not alike or spread[0] is None or spread[0] != spread[-1]:
            return None
        if wanted and [order[i] for i in spread[0]] != list(wanted):
            return None
        met = []
        for hit, side, given in zip(hits, sides, inputs, strict=True):
            if hit is not None:
                met.append(hit.side)
                continue
            keys = tuple(side.keys[i] for i in order)
            op = self._brought(side.operator, keys, safe, spread[0], there)
            if op is None:
                return None
            met.append(self._kept(replace(side, operator=op), given, keys, safe, there))
        return met[0], met[1], order

    def _brought(
        self, op: Operator, keys: tuple[int, ...], null_safe: tuple[bool, ...], spread: list[int], stage: int
    ) -> Operator | None:
        """`op`, spread by its `keys[i]` for i in `spread` and readable in `stage`; None if it is only readable
        later.
        """
        placement = self.builder.placement
        if placement.stage(op.id) == stage and matching(placement.distribution(op.id), keys, null_safe) == spread:
            return op
        return self.builder.exchange(op, [keys[i] for i in spread]) if placement.stage(op.id) < stage else None


def unarranged(
    _builder: Builder, side: Side, _keys: tuple[int, ...], _null_safe: tuple[bool, ...], _stage: int
) -> Operator:
    """A side whose rows look up rows of the other side when they arrive, and are not kept."""
    return side.operator


def _may_share(given: Input) -> bool:
    return given.keep is None and (given.movable or not given.stream.pending)


def meeting(
    builder: Builder, left: Side, right: Side, null_safe: Sequence[bool], spread: Sequence[int]
) -> tuple[Operator, Operator]:
    """The cheapest way to bring equal keys together: prefers the earliest stage, then the fewest exchanges, then moving
    the right side.

    spread: the keys that determine the bucket of rows if both sides are exchanged; all keys if it is empty.
    """
    placement = builder.placement
    stages = placement.stage(left.operator.id), placement.stage(right.operator.id)
    orders = [matching(placement.distribution(s.operator.id), s.keys, null_safe) for s in (left, right)]
    if orders[0] is not None and orders[0] == orders[1]:
        if stages[0] == stages[1]:
            return left.operator, right.operator
        late = stages.index(max(stages))
        sent = [builder.exchange(s.operator, [s.keys[i] for i in orders[0]]) for s in (left, right)]
        return (left.operator, sent[1]) if late == 0 else (sent[0], right.operator)
    options = [(max(stages) + 1, 2, list(spread or range(len(left.keys))), (True, True))]
    for stays, order in enumerate(orders):
        if order:
            target = max(stages[stays], stages[1 - stays] + 1)
            moves = stages[stays] < target
            options.append((target, 1 + moves, order, (moves or stays == 1, moves or stays == 0)))
    _, _, order, moving = min(options, key=lambda o: (o[0], o[1]))
    one, other = (
        builder.exchange(s.operator, [s.keys[i] for i in order]) if moves else s.operator
        for s, moves in zip((left, right), moving, strict=True)
    )
    return one, other


def one_type(pair: KeyPair) -> KeyPair:
    """The pair, with both sides converted to one type. Raises DATATYPE_MISMATCH."""
    if pair.left.type == pair.right.type:
        return pair
    same = paired(pair.left, pair.right, null_safe=pair.null_safe)
    if same is None:
        raise error("DATATYPE_MISMATCH", f"a join cannot compare {pair.left.type.sql} with {pair.right.type.sql}")
    return same
