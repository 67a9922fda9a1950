"""Lowering of process-time temporal joins: the right side is arranged where left rows look it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from watersmeet.algebra.cardinality import identity, is_single_row
from watersmeet.algebra.nodes import Node, TemporalJoin
from watersmeet.algebra.revisions import revision
from watersmeet.circuit import operators
from watersmeet.circuit.operators import InputColumn
from watersmeet.errors import error
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.distribution import key_columns
from watersmeet.planner.sharing import Sharing, Side
from watersmeet.planner.sides import Arranging, Input, one_type, unarranged
from watersmeet.planner.streams import Stream, at
from watersmeet.planner.texts import position, sql

_Ids = frozenset[str]
_KEY_HINT: Final = (
    "Use DESCRIBE <table_name> to view the table's key information.\n"
    "You can create an index on the lookup table to facilitate the temporal join if necessary."
)


class TemporalLowering(Arranging):
    """Lowers temporal joins of the view `view` into the builder."""

    def __init__(
        self, builder: Builder, sharing: Sharing, lower_input: Callable[[Node, _Ids], Stream], view: str
    ) -> None:
        super().__init__(builder, sharing, lower_input)
        self.view = view

    def lower(self, node: TemporalJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`. TEMPORAL_KEY, TEMPORAL_KIND."""
        pairs = [one_type(k) for k in node.keys]
        _check_keys(node)
        reads = needed | (node.residual.columns if node.residual is not None else _Ids())
        whole = node.left.ids if revision(node.left) is not None else _Ids()
        inputs = (
            self._input(node.left, reads | whole, [k.left for k in pairs], keep=unarranged),
            self._input(node.right, reads, [k.right for k in pairs], movable=False),
        )
        memo = not inputs[0].stream.operator.append_only
        assert whole or not memo  # else pruning has removed columns that tell left rows apart
        if memo and node.waits:
            raise error(
                "TEMPORAL_KIND",
                "rows can wait for their first match only if none is deleted, and the left side deletes rows",
                span=node.span,
                hint="Write an inner join, or a left side that only grows.",
            )
        if memo and not pairs:
            raise error(
                "TEMPORAL_KIND",
                "Nested-loop Temporal join requires the left hash side to be append only",
                span=node.span,
                hint="Please ensure the left hash side is append only.",
            )
        left, right, order = self._arranged(inputs, [k.null_safe for k in pairs]) if pairs else self._copied(inputs)
        places = {i: InputColumn(0, left.positions[i]) for i in needed & node.left.ids}
        places |= {i: InputColumn(1, right.positions[i]) for i in needed & node.right.ids}
        output = tuple(sorted(set(places.values()))) or (InputColumn(0, 0),)
        fields = [(left, right)[c.input].operator.schema[c.column] for c in output]
        extended = (False, node.kind == "left")
        schema = positional((f.type, f.nullable or extended[c.input]) for f, c in zip(fields, output, strict=True))
        residual = None
        if node.residual is not None:
            columns = {i: position(p, "l") for i, p in left.positions.items()}
            columns |= {i: position(p, "r") for i, p in right.positions.items()}
            residual = sql(node.residual.substitute(columns).expression)
        made = self.builder.add(
            operators.TemporalJoin(
                (left.operator.id, right.operator.id),
                schema,
                append_only=not memo,
                join_kind=node.kind,
                left_keys=left.keys,
                right_keys=right.keys,
                null_safe=tuple(pairs[i].null_safe for i in order),
                residual=residual,
                memo=memo,
                owner=self.view,
                output=output,
                waits=node.waits,
                ttl_us=node.ttl_us,
                identity=self._remembered(node, left, output) if memo else (),
            )
        )
        return Stream(made, {i: at(made, output.index(c)) for i, c in places.items()})

    def _remembered(self, node: TemporalJoin, left: Side, output: Sequence[InputColumn]) -> tuple[int, ...]:
        """The positions of the left columns that a memo keeps. They also show in which bucket a row is."""
        found = identity(node.left)
        if found is None:
            return ()
        buckets = key_columns(self.builder.placement.distribution(left.operator.id), exact=True) or ()
        shown = {*left.keys, *(c.column for c in output if c.input == 0), *(c for key in buckets for c in key)}
        return tuple(sorted(shown.union(left.positions[i] for i in found)))

    def _copied(self, inputs: tuple[Input, Input]) -> tuple[Side, Side, Sequence[int]]:
        """The right side in every bucket. The left side stays where it is, but not in an earlier stage."""
        left, right = (self._side(i, ()) for i in inputs)
        placement = self.builder.placement
        stays = placement.stage(left.operator.id) > placement.stage(right.operator.id)
        left = left if stays else replace(left, operator=self.builder.spread(left.operator))
        right = replace(right, operator=self.builder.broadcast(right.operator))
        stage = max(placement.arrival(s.operator.id) for s in (left, right))
        return left, self._kept(right, inputs[1], (), (), stage), ()


def _check_keys(node: TemporalJoin) -> None:
    """Checks that right rows can be looked up by a prefix of a key or index, or that any columns will do."""
    if not node.keys and node.kind == "left" and not is_single_row(node.right):
        raise error(
            "TEMPORAL_KIND",
            "Temporal join requires an inner join",
            span=node.span,
            hint="Please use an inner join.",
            detail="The join has no equality between its two sides.",
        )
    if not node.keys or node.looked_up is None:
        return
    covered = {k.right.cast_column for k in node.keys}
    if not any(key[0] in covered for key in node.looked_up):
        raise error(
            "TEMPORAL_KEY",
            "Temporal join requires the equivalence join condition includes the key columns that form "
            "the distribution key of the lookup table",
            span=node.span,
            hint=_KEY_HINT,
        )
