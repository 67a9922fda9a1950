"""Lowering of ASOF joins: both sides are arranged by the key, or the right side is kept as versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from watersmeet.algebra.nodes import AsofJoin, Node, Scan, TopN, Versions
from watersmeet.algebra.retention import of_asof
from watersmeet.algebra.scalars import Scalar
from watersmeet.circuit import operators
from watersmeet.circuit.operators import InputColumn, Operator, SortKey
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.sharing import Sharing, Side
from watersmeet.planner.sides import Arranging, Input, Keep, one_type, unarranged
from watersmeet.planner.streams import Stream, at, of_operator
from watersmeet.planner.texts import position, sql
from watersmeet.planner.written import kept_versions
from watersmeet.types import BIGINT, Field
from watersmeet.watermarks import Watermark

_Ids = frozenset[str]
#: The id of the compared value, on either side.
_VALUE: Final = "$value"


class AsofLowering(Arranging):
    """Lowers ASOF joins of the view `view` into the builder."""

    def __init__(
        self, builder: Builder, sharing: Sharing, lower_input: Callable[[Node, frozenset[str]], Stream], view: str
    ) -> None:
        super().__init__(builder, sharing, lower_input)
        self.view = view

    def lower(self, node: AsofJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        pairs = [one_type(k) for k in node.keys]
        reads = needed if node.residual is None else needed | node.residual.columns
        # Rows decided on arrival are not kept.
        keep = unarranged if node.arrival else _keeping(of_asof(node, grows=False)[0], newest=False)
        left = self._input(
            node.left, reads, [k.left for k in pairs], keep=keep, movable=False, more={_VALUE: node.left_value}
        )
        keys, found = [k.right for k in pairs], reads.union(node.ties)
        right = (
            self._versions(node, node.right, keys)
            if isinstance(node.right, Versions)
            else self._right(node, found, keys)
        )
        one, other, order = self._arranged((left, right), [k.null_safe for k in pairs])
        ties = tuple(dict.fromkeys(other.positions[c.id] for c in node.right.columns if c.id in (node.ties or found)))
        return self._joined(
            node,
            needed,
            (one, other),
            tuple(pairs[i].null_safe for i in order),
            () if isinstance(node.right, Versions) else ties,
        )

    def _joined(
        self, node: AsofJoin, needed: _Ids, sides: tuple[Side, Side], null_safe: tuple[bool, ...], ties: tuple[int, ...]
    ) -> Stream:
        left, right = sides
        places = {i: InputColumn(0, left.positions[i]) for i in needed & node.left.ids}
        places |= {i: InputColumn(1, right.positions[i]) for i in needed & node.right.ids}
        output = tuple(sorted(set(places.values()))) or (InputColumn(0, left.keys[0]),)
        fields = [sides[c.input].operator.schema[c.column] for c in output]
        extended = (False, node.kind == "left")
        schema = positional((f.type, f.nullable or extended[c.input]) for f, c in zip(fields, output, strict=True))
        kind: Callable[..., operators.AsofJoin] = operators.AsofJoin
        append_only = False  # a later right row may be nearer
        if node.arrival:
            append_only = left.operator.append_only
            versions = kept_versions(node)
            kind = partial(
                operators.ArrivalAsofJoin, depth=None if versions is None else versions.limit, history=self.view
            )
        made = self.builder.add(
            kind(
                (left.operator.id, right.operator.id),
                schema,
                append_only=append_only,
                join_kind=node.kind,
                left_keys=left.keys,
                right_keys=right.keys,
                null_safe=null_safe,
                comparison=node.comparison,
                left_value=left.positions[_VALUE],
                right_value=right.positions[_VALUE],
                ties=ties,
                output=output,
                residual=None if node.residual is None else _residual(node.residual, left, right),
            )
        )
        return Stream(made, {i: at(made, output.index(c)) for i, c in places.items()})

    def _right(self, join: AsofJoin, reads: _Ids, keys: list[Scalar]) -> Input:
        versions = kept_versions(join)
        if versions is not None:
            below = self._input(versions.input, reads, keys, movable=False, more={_VALUE: join.right_value})
            return replace(below, keep=_best(versions, join.ties))
        given = self._input(join.right, reads, keys, movable=False, more={_VALUE: join.right_value})
        _, asked = of_asof(join, grows=given.stream.operator.append_only)
        return replace(given, keep=_keeping(asked, newest=True))

    def _versions(self, join: AsofJoin, node: Versions, keys: list[Scalar]) -> Input:
        """The changes of a table, in order, and the positions of their columns in the versions."""
        _, retain = of_asof(join, grows=True)  # a version that goes leaves a mark at its time
        value = join.right_value
        op = self._changes(node.scan)
        fields = positional((c.type, c.nullable) for c in node.columns)
        places = {c.id: i for i, c in enumerate(node.columns)}
        time = places[node.time]

        def keep(builder: Builder, side: Side, keys: tuple[int, ...], _: tuple[bool, ...], stage: int) -> Operator:
            return builder.add(
                operators.Versions(
                    (side.operator.id,),
                    fields,
                    append_only=False,
                    keys=keys,
                    time=time,
                    source=node.scan.relation_id,
                    stage=stage,
                    retain=retain,
                )
            )

        stream = of_operator(op, [(c, places[c.id]) for c in node.scan.columns])
        chosen = tuple(stream.resolve(k) for k in keys)
        return Input(
            stream, frozenset(), chosen, keep, movable=False, places={**places, _VALUE: places[value.column or ""]}
        )

    def _changes(self, scan: Scan) -> Operator:
        """The further input of an upsert if a connector feeds the table."""
        fields = tuple(Field(n, c.type, c.nullable) for n, c in zip(scan.source_names, scan.outputs, strict=True))
        read = next(
            (
                o
                for o in self.builder.operators.values()
                if isinstance(o, operators.Scan) and o.ordered and o.relation_id == scan.relation_id
            ),
            None,
        )
        return read or self.builder.add(
            operators.Scan(
                (),
                (*fields, Field("_seq", BIGINT, nullable=False)),
                append_only=False,
                relation_id=scan.relation_id,
                names=scan.source_names,
                ordered=True,
            )
        )


def _keeping(bound: Watermark, *, newest: bool) -> Keep | None:
    """The arrangement of the rows that are still needed; None for one of all rows."""
    if not bound:
        return None

    def keep(builder: Builder, side: Side, keys: tuple[int, ...], null_safe: tuple[bool, ...], stage: int) -> Operator:
        return builder.arrange(
            side.operator, keys, null_safe, stage, time=side.positions[_VALUE], retain=bound, newest=newest
        )

    return keep


def _best(versions: TopN, ties: tuple[str, ...]) -> Keep:
    """The arrangement of the versions that a join on arrival keeps."""

    def keep(builder: Builder, side: Side, keys: tuple[int, ...], null_safe: tuple[bool, ...], stage: int) -> Operator:
        order = (SortKey(side.positions[_VALUE], descending=True), *(SortKey(side.positions[i]) for i in ties))
        return builder.arrange(side.operator, keys, null_safe, stage, depth=versions.limit or 0, order=order)

    return keep


def _residual(residual: Scalar, left: Side, right: Side) -> str:
    places = {i: position(p, "l") for i, p in left.positions.items()} | {
        i: position(p, "r") for i, p in right.positions.items()
    }
    return sql(residual.substitute({i: p for i, p in places.items() if i != _VALUE}).expression)
