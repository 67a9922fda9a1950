"""Lowering of joins that match by time: ASOF joins and process-time temporal joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from watersmeet.algebra.nodes import AsofJoin, Clock, Cut, Filter, Node, Project, Scan, TemporalJoin, TopN, Versions
from watersmeet.algebra.properties import arrivals_below, identity, is_single_row, revision
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.watermarks import of_asof, of_partition
from watersmeet.circuit import operators
from watersmeet.circuit.operators import InputColumn, Operator, SortKey
from watersmeet.errors import error
from watersmeet.planner.builder import Builder, Sharing, Side, Stream, at, of_operator, positional
from watersmeet.planner.display import position, sql
from watersmeet.planner.distribution import key_columns, shows_place
from watersmeet.planner.sides import Arranging, Input, Keep, one_type, unarranged
from watersmeet.values.types import BIGINT, Field
from watersmeet.values.watermarks import Watermark


def is_last_written(node: TopN, needed: _Ids) -> bool:
    """Whether a node returns the last row of each key, by an order whose columns are not read.

    The rows must be append-only and their order known. In a backfill this does not hold if rows can be deleted, because
    existing rows have no order.
    """
    arrivals = arrivals_below(node.input)
    if arrivals is None or not (_is_cut(node.input) or (arrivals.scan.append_only and not arrivals.moment)):
        return False
    age = [c.id for c in arrivals.age]
    by_age = [k.value.column for k in node.order] == age and not any(k.descending for k in node.order)
    plain = bool(node.partition) and all(k.column in node.input.ids for k in node.partition)
    return by_age and plain and (node.limit, node.offset, node.with_ties) == (1, 0, False) and not needed & set(age)


def kept_versions(join: AsofJoin) -> TopN | None:
    """The right side of a join on arrival, if only the rows of each key with the greatest values are needed; `ties`
    breaks ties.

    The rows must never be deleted, so that no other row can become a partner later.
    """
    top = join.right
    if not join.arrival or not isinstance(top, TopN) or top.limit is None or top.offset or top.with_ties:
        return None
    if (
        arrivals_below(top.input) is None
        or of_partition(top) is not None
        or any(k.left.type != k.right.type for k in join.keys)
    ):
        return None
    value, *rest = top.order
    by_value = value.value == join.right_value and value.descending and not value.nulls_first
    by_ties = tuple(k.value.column for k in rest) == join.ties and not any(k.descending for k in rest)
    return top if by_value and by_ties and set(top.partition) == {k.right for k in join.keys} else None


def _is_cut(node: Node) -> bool:
    while isinstance(node, (Filter, Project)):
        node = node.input
    return isinstance(node, Cut)


_Ids = frozenset[str]

#: The id of the compared value on both sides.
_VALUE: Final = "$value"


class AsofLowering(Arranging):
    """Lowers the ASOF joins of the view `view` into the builder."""

    def __init__(
        self, builder: Builder, sharing: Sharing, lower_input: Callable[[Node, frozenset[str]], Stream], view: str
    ) -> None:
        super().__init__(builder, sharing, lower_input)
        self.view = view

    def lower(self, node: AsofJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        pairs = [one_type(k) for k in node.keys]
        reads = needed if node.residual is None else needed | node.residual.columns
        # Joins on arrival don't keep their left rows.
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
        _, retain = of_asof(join, grows=True)  # a deleted version leaves a mark at its time
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
        """The scan of a table's changes in order. If a connector feeds the table, it is an additional input of an
        upsert.
        """
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
    """A function that adds the operator that arranges only needed rows; None if all rows are arranged."""
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


_KEY_HINT: Final = (
    "Use DESCRIBE <table_name> to view the table's key information.\n"
    "You can create an index on the lookup table to facilitate the temporal join if necessary."
)


class TemporalLowering(Arranging):
    """Lowers the temporal joins of the view `view` into the builder."""

    def __init__(
        self, builder: Builder, sharing: Sharing, lower_input: Callable[[Node, _Ids], Stream], view: str
    ) -> None:
        super().__init__(builder, sharing, lower_input)
        self.view = view

    def lower(self, node: TemporalJoin, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`. Raises TEMPORAL_KEY, TEMPORAL_KIND."""
        pairs = [one_type(k) for k in node.keys]
        _check_keys(node)
        reads = needed | (node.residual.columns if node.residual is not None else _Ids())
        whole = node.left.ids if revision(node.left) is not None else _Ids()
        inputs = (
            self._input(node.left, reads | whole, [k.left for k in pairs], keep=unarranged),
            self._input(node.right, reads, [k.right for k in pairs], movable=False),
        )
        memo = not inputs[0].stream.operator.append_only
        assert whole or not memo  # otherwise, pruning has removed columns that distinguish left rows
        if memo and node.waits:
            raise error(
                "TEMPORAL_KIND",
                "rows can wait for their first match only if none is deleted, and the left side deletes rows",
                span=node.span,
                hint="Write an inner join, or a left side that only grows.",
            )
        clock = isinstance(node.right, Clock)
        if memo and not pairs and not clock:
            raise error(
                "TEMPORAL_KIND",
                "Nested-loop Temporal join requires the left hash side to be append only",
                span=node.span,
                hint="Please ensure the left hash side is append only.",
            )
        left, right, order = (
            self._arranged(inputs, [k.null_safe for k in pairs]) if pairs else self._copied(inputs, keeps=memo)
        )
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
                clock=clock,
            )
        )
        return Stream(made, {i: at(made, output.index(c)) for i, c in places.items()})

    def _remembered(self, node: TemporalJoin, left: Side, output: Sequence[InputColumn]) -> tuple[int, ...]:
        """The positions of the left columns that a memo keeps. They also determine the bucket of a row."""
        found = identity(node.left)
        if found is None:
            return ()
        buckets = key_columns(self.builder.placement.distribution(left.operator.id), exact=True) or ()
        shown = {*left.keys, *(c.column for c in output if c.input == 0), *(c for key in buckets for c in key)}
        return tuple(sorted(shown.union(left.positions[i] for i in found)))

    def _copied(self, inputs: tuple[Input, Input], *, keeps: bool) -> tuple[Side, Side, Sequence[int]]:
        """A join whose right side is copied to every bucket. The left side stays in its buckets, but in no earlier
        stage. keeps: whether a left row must always come to the same bucket, because a memo keeps it.
        """
        left, right = (self._side(i, ()) for i in inputs)
        placement = self.builder.placement
        stays = placement.stage(left.operator.id) > placement.stage(right.operator.id)
        stays = stays and not (keeps and not shows_place(placement.distribution(left.operator.id)))
        left = left if stays else replace(left, operator=self.builder.spread(left.operator))
        right = replace(right, operator=self.builder.broadcast(right.operator))
        stage = max(placement.arrival(s.operator.id) for s in (left, right))
        return left, self._kept(right, inputs[1], (), (), stage), ()


def _check_keys(node: TemporalJoin) -> None:
    """Checks that right rows can be looked up by a prefix of a key or index, or by any columns."""
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
