"""Lowering of process-time temporal joins: the right side is arranged where left rows look it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from watersmeet.algebra.relations import Relation, TemporalJoin
from watersmeet.algebra.scalars import Scalar
from watersmeet.circuit import operators
from watersmeet.errors import error
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.joins import meeting, one_type
from watersmeet.planner.sharing import Side
from watersmeet.planner.streams import Stream, at, emit, identity
from watersmeet.planner.texts import position, sql

_Ids = frozenset[str]
_KEY_HINT: Final = ("Use DESCRIBE <table_name> to view the table's key information.\n"
                    "You can create an index on the lookup table to facilitate the temporal join if necessary.")


class TemporalLowering:
    """Lowers temporal joins of the view `view` into `builder`; `lower_input` lowers what they read."""

    def __init__(self, builder: Builder, lower_input: Callable[[Relation, _Ids], Stream], view: str) -> None:
        self.builder = builder
        self.lower_input = lower_input
        self.view = view

    def lower(self, node: TemporalJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`. TEMPORAL_KEY, TEMPORAL_KIND."""
        pairs = [one_type(k) for k in node.keys]
        _check_keys(node)
        reads = needed | (node.residual.columns if node.residual is not None else _Ids())
        left = self._side(node.left, reads & node.left.ids, [k.left for k in pairs])
        right = self._side(node.right, reads & node.right.ids, [k.right for k in pairs])
        memo = not left.operator.append_only
        if memo and not pairs:
            raise error("TEMPORAL_KIND", "Nested-loop Temporal join requires the left hash side to be append only",
                        span=node.span, hint="Please ensure the left hash side is append only.")
        null_safe = tuple(k.null_safe for k in pairs)
        if self.builder.buckets > 1:
            one, other = meeting(self.builder, left, right, null_safe, ()) if pairs else self._copied(left, right)
            left, right = replace(left, operator=one), replace(right, operator=other)
        arrival = self.builder.placement.arrival
        arranged = self.builder.arrange(right.operator, right.keys, null_safe, max(arrival(s.operator.id) for s in (left, right)))
        places = {i: ("l", left.positions[i]) for i in needed & node.left.ids}
        places |= {i: ("r", right.positions[i]) for i in needed & node.right.ids}
        tokens = sorted(set(places.values())) or [("l", 0)]
        schemas = {"l": left.operator.schema, "r": arranged.schema}
        schema = positional((schemas[s][p].type, schemas[s][p].nullable or (s == "r" and node.kind == "left")) for s, p in tokens)
        residual = None
        if node.residual is not None:
            columns = {i: position(p, "l") for i, p in left.positions.items()}
            columns |= {i: position(p, "r") for i, p in right.positions.items()}
            residual = sql(node.residual.substitute(columns).expression)
        made = self.builder.add(operators.TemporalJoin(
            (left.operator.id, arranged.id), schema, append_only=not memo, join_kind=node.kind, left_keys=left.keys,
            right_keys=right.keys, null_safe=null_safe, residual=residual, memo=memo, owner=self.view if memo else "",
            output=tuple(f"{s}{p}" for s, p in tokens)))
        return Stream(made, {i: at(made, tokens.index(t)) for i, t in places.items()})

    def _side(self, node: Relation, reads: _Ids, keys: Sequence[Scalar]) -> Side:
        stream = self.lower_input(node, reads.union(*[k.columns for k in keys]))
        resolved = [stream.resolve(k) for k in keys]
        op, positions = emit(self.builder, stream, [*(stream.values[i] for i in sorted(reads)), *resolved])
        return Side(op, {i: positions[identity(stream.values[i])] for i in reads}, tuple(positions[identity(k)] for k in resolved))

    def _copied(self, left: Side, right: Side) -> tuple[operators.Operator, operators.Operator]:
        """The right side in every bucket; the left one wherever it is, but not before that."""
        placement = self.builder.placement
        copied = self.builder.broadcast(right.operator)
        stays = placement.stage(left.operator.id) > placement.stage(right.operator.id)
        return left.operator if stays else self.builder.spread(left.operator), copied


def _check_keys(node: TemporalJoin) -> None:
    """Rows of the right side must be looked up by the beginning of a key or index of it, or all be looked at."""
    if not node.keys and node.kind == "left":
        raise error("TEMPORAL_KIND", "Temporal join requires an inner join", span=node.span, hint="Please use an inner join.",
                    detail="The join has no equality between its two sides.")
    if not node.keys or node.looked_up is None:
        return
    covered = {k.right.cast_column for k in node.keys}
    if not any(key[0] in covered for key in node.looked_up):
        raise error("TEMPORAL_KEY", "Temporal join requires the equivalence join condition includes the key columns that form "
                    "the distribution key of the lookup table", span=node.span, hint=_KEY_HINT)
