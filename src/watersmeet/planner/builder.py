"""The operators of one view while it is lowered: streams, and arrangements that joins share.

A stream is an operator with pending filters and projections. When an operator needs real columns, they become one Map
with exactly these columns. So Maps are never stacked, run before exchanges, and drop unread columns.

An arrangement can serve any join that needs the same relation by the same key, if it has all required columns: joins
pick the columns they need, and filters can be applied to their output. The rules for a new arrangement are:

- It has the columns that its view needs. A view that shares with no other never pays for sharing.
- If there is an index by the join's key, further joins are expected, so it has the index's columns (all columns without
  INCLUDE).
- If another view keeps the same relation by the same key but lacks a column, it has all columns, and every later view
  reads it. So any number of views costs at most two copies.
- An arrangement that deletes rows below a watermark only serves joins that need an equal one, which is the same
  operator.
- With a filter below the join, a view keeps only the rows that pass, in a separate arrangement. It reads an arrangement
  of all rows only if the key is unique in it, so that at most one unneeded row matches each row of the other side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Node, OfScan
from watersmeet.algebra.nodes import Scan as ScanNode
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.algebra.trees import cast, walk
from watersmeet.catalog import Catalog, Index, Relation
from watersmeet.circuit.operators import Arrange, Exchange, LateRowFilter, Map, Operator, Scan, Sink, SortKey
from watersmeet.planner.display import column_at, index_of, position, sql
from watersmeet.planner.distribution import Placement, key_columns
from watersmeet.values.types import BOOLEAN, Field, Schema, SqlType
from watersmeet.values.watermarks import LateSide, Watermark


def positional(fields: Iterable[tuple[SqlType, bool]]) -> Schema:
    """A schema with the names c0, c1, …, so that the names of columns don't distinguish operators."""
    return tuple(Field(f"c{i}", kind, nullable) for i, (kind, nullable) in enumerate(fields))


class Builder:
    """The operators by id, and their placement.

    late: for new scans of each relation, the number in `Scan`. left_out: late-row filters that have dropped rows or
    passed them as late; new filters are different operators.
    """

    def __init__(self) -> None:
        self.operators: dict[str, Operator] = {}
        self.late: Mapping[str, int] = {}
        self.left_out: frozenset[str] = frozenset()
        self._sides: dict[str, LateSide] = {}
        self.placement = Placement(self.operators)

    def add(self, op: Operator) -> Operator:
        """Adds the operator. Returns it, or an equal existing one."""
        if isinstance(op, Scan) and op.relation_id in self.late:
            op = replace(op, late=self.late[op.relation_id])
        while isinstance(op, LateRowFilter) and op.id in self.left_out:
            op = replace(op, apart=op.apart + 1)
        return self.operators.setdefault(op.id, op)

    def with_present_late_rows(self, operator_id: str) -> str:
        """The id of an operator over new scans, if its scans are older than late rows that a new view will read as
        history. The state of a shared arrangement lacks these rows.
        """
        op = self.operators[operator_id]
        if not isinstance(op, (Exchange, Map, Scan)):
            return operator_id
        return self.add(replace(op, inputs=tuple(map(self.with_present_late_rows, op.inputs)))).id

    def exchange(self, op: Operator, keys: Sequence[int], mode: Literal["hash", "partial"] = "hash") -> Operator:
        """`op`, whose rows are sent to the buckets of columns `keys`; without keys, all to bucket 0. mode: see
        `Exchange`.
        """
        return self.add(Exchange((op.id,), _canonical(op), op.append_only, tuple(keys), mode))

    def broadcast(self, op: Operator) -> Operator:
        """`op`, whose rows are copied to every bucket."""
        return self.add(Exchange((op.id,), _canonical(op), op.append_only, (), "broadcast"))

    def spread(self, op: Operator) -> Operator:
        """`op`, whose rows are spread evenly over the buckets, for consumers without a key."""
        return self.exchange(op, range(len(op.schema)))

    def arrange(
        self,
        op: Operator,
        keys: tuple[int, ...],
        null_safe: tuple[bool, ...],
        stage: int,
        *,
        time: int | None = None,
        retain: Watermark = (),
        newest: bool = False,
        depth: int = 1,
        order: tuple[SortKey, ...] = (),
    ) -> Operator:
        """The arrangement of `op` by `keys` in `stage`.

        time, retain, newest, depth, order: see `Arrange`. The first three have no effect without `retain`.
        """
        return self.add(
            Arrange(
                (op.id,),
                _canonical(op),
                op.append_only,
                keys,
                null_safe,
                stage,
                time if retain else None,
                retain,
                newest and bool(retain),
                depth if retain or order else 1,
                order,
            )
        )

    def drops_late(
        self,
        op: Operator,
        read: Node,
        columns: Iterable[tuple[Column, int]],
        time: str,
        without: Collection[str],
    ) -> None:
        """Records that `op` drops late rows of the node `read`, with these columns at their positions, except those
        `without`. time: the id of the column that decides which rows are late.
        """
        kept = [(c, place) for c, place in columns if c.id not in without]
        known = self._sides.get(op.id)
        if known is not None:
            at = {place: c.id for c, place in kept}
            if at.keys() >= set(known.positions):
                node = (time, *(at[place] for place in known.positions))
                self._sides[op.id] = replace(known, nodes=tuple(dict.fromkeys((*known.nodes, node))))
            return
        names: list[str] = []
        for column, _ in kept:
            name = column.name
            while name in names:
                name = f"_{name}"
            names.append(name)
        scans = [n.scan if isinstance(n, OfScan) else n for n in walk(read)]
        self._sides[op.id] = LateSide(
            op.id,
            tuple(place for _, place in kept),
            tuple(Field(name, c.type) for name, (c, _) in zip(names, kept, strict=True)),
            ((time, *(c.id for c, _ in kept)),),
            tuple(dict.fromkeys(s.relation_id for s in scans if isinstance(s, ScanNode))),
        )

    def sink(self, top: Operator, relation: Relation) -> Operator:
        """The operator that publishes the rows of `top` as those of a relation."""
        distribution = self.placement.distribution(top.id)
        # No operator relies on the bucket of such rows, or on a key that is no longer a column (`Lowering`).
        keys = key_columns(distribution) if distribution is not None and all(distribution) else None
        late = tuple(self._sides.values())
        return self.add(Sink((top.id,), relation.columns, top.append_only, relation.id, keys, late))

    def closure(self, top: Operator) -> tuple[Operator, ...]:
        """`top` and all operators that it reads, inputs first."""
        found: dict[str, Operator] = {}

        def visit(op: Operator) -> None:
            if op.id not in found:
                for i in op.inputs:
                    visit(self.operators[i])
                found[op.id] = op

        visit(top)
        return tuple(found.values())


def _canonical(op: Operator) -> Schema:
    return positional((f.type, f.nullable) for f in op.schema)


Wanted = tuple[str, str]

"""An expression of a stream, as text and type: it identifies a requested column."""


@dataclass(frozen=True)
class Stream:
    """A stream of rows. values: for each column id of the tree, its scalar over c0, c1, … of `operator`. pending:
    filters over these columns.
    """

    operator: Operator
    values: Mapping[str, Scalar]
    pending: tuple[Scalar, ...] = ()

    def resolve(self, scalar: Scalar) -> Scalar:
        """The scalar over the operator's columns that equals a scalar over column ids."""
        return scalar.substitute({i: v.expression for i, v in self.values.items()})

    def filtered(self, parts: Iterable[Scalar]) -> Stream:
        """The stream of the rows for which all `parts` (over column ids) are true."""
        return replace(self, pending=self.pending + tuple(self.resolve(p) for p in parts))


def of_operator(op: Operator, columns: Sequence[tuple[Column, int]]) -> Stream:
    """The stream of an operator. columns: those of the tree, with their positions."""
    return Stream(op, {c.id: at(op, i) for c, i in columns})


def at(op: Operator, index: int) -> Scalar:
    """The scalar that reads column `index` of `op`."""
    return Scalar(position(index), op.schema[index].type, op.schema[index].nullable)


def identity(scalar: Scalar) -> Wanted:
    """The identity of a scalar: scalars with equal ones are the same column."""
    return sql(scalar.expression), repr(scalar.type)


def emit(builder: Builder, stream: Stream, wanted: Sequence[Scalar]) -> tuple[Operator, dict[Wanted, int]]:
    """An operator with exactly the `wanted` scalars (over the operator's columns) in any order, and their positions.

    It has at least one column, because rows must be counted: TRUE if nothing is wanted.
    """
    distinct = {identity(w): w for w in wanted} or {identity(_TRUE): _TRUE}
    if not stream.pending:
        positions = {key: plain(stream.operator, w) for key, w in distinct.items()}
        found = {key: p for key, p in positions.items() if p is not None}
        if len(found) == len(distinct) and set(found.values()) == set(range(len(stream.operator.schema))):
            return stream.operator, found
    ordered = sorted(distinct.values(), key=lambda w: _order(stream.operator, w))
    return _map(builder, stream, ordered), {identity(w): i for i, w in enumerate(ordered)}


def emit_exactly(builder: Builder, stream: Stream, wanted: Sequence[Scalar]) -> Operator:
    """An operator whose columns are the `wanted` scalars in this order."""
    same = [plain(stream.operator, w) for w in wanted] == list(range(len(stream.operator.schema)))
    if same and not stream.pending:
        return stream.operator
    return _map(builder, stream, wanted)


def settled(builder: Builder, stream: Stream) -> Stream:
    """The same stream without pending filters and expressions, so that nothing is computed twice downstream."""
    op, positions = emit(builder, stream, list(stream.values.values()))
    return Stream(op, {i: at(op, positions[identity(v)]) for i, v in stream.values.items()})


_TRUE = Scalar(exp.true(), BOOLEAN, nullable=False)


def plain(op: Operator, scalar: Scalar) -> int | None:
    """The position of a scalar that is just a column, in the column's type."""
    if scalar.column is None:
        return None
    index = index_of(scalar.column)
    return index if op.schema[index].type == scalar.type else None


def _order(op: Operator, scalar: Scalar) -> tuple[int, Wanted]:
    """A sort key: columns precede expressions in a fixed order, so that views with the same columns share the Map."""
    index = plain(op, scalar)
    return (len(op.schema) if index is None else index), identity(scalar)


def _map(builder: Builder, stream: Stream, wanted: Sequence[Scalar]) -> Operator:
    op = stream.operator
    exprs, fields = [], []
    for scalar in wanted:
        if scalar.column is None:
            exprs.append(sql(scalar.expression))
            fields.append((scalar.type, scalar.nullable))
        else:
            column = at(op, index_of(scalar.column))
            exprs.append(sql(cast(column, scalar.type).expression))
            fields.append((scalar.type, column.nullable))
    predicate = conjunction(list(dict.fromkeys(stream.pending)))
    text = None if predicate is None else sql(predicate.expression)
    return builder.add(Map((op.id,), positional(fields), op.append_only, tuple(exprs), text))


@dataclass(frozen=True)
class Side:
    """One input of a join: the operator, the position of each column id, and the positions of the keys.

    pending: filters over the operator's columns that must still be applied.
    """

    operator: Operator
    positions: Mapping[str, int]
    keys: tuple[int, ...]
    pending: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class Found:
    """An arrangement that serves a side of a join. order: for each of its keys, the number of the join's key pair."""

    side: Side
    order: tuple[int, ...]


@dataclass(frozen=True)
class _Content:
    """The relation whose rows an operator has: `columns[i]` is its name for column i."""

    relation: str
    columns: tuple[str, ...]
    append_only: bool


class Sharing:
    """Finds arrangements among the operators of `builder`, including those of other views.

    produced: for operators that are the content of a relation, its id and its column names. catalog: keys, indexes and
    columns of relations; unknown relations have none. enabled: if False, every view has separate arrangements (but
    equal ones are still the same operator).
    """

    def __init__(
        self,
        builder: Builder,
        produced: Mapping[str, tuple[str, tuple[str, ...]]],
        catalog: Catalog,
        *,
        enabled: bool = True,
    ) -> None:
        self._builder = builder
        self._produced = produced
        self._catalog = catalog
        self._enabled = enabled

    def find(
        self, stream: Stream, reads: Iterable[str], keys: Sequence[Scalar], null_safe: Sequence[bool]
    ) -> list[Found]:
        """The arrangements, oldest first, with all rows of `stream` by `keys` (over the operator's columns), and with
        the columns `reads`.

        Pending filters of the stream are pending in the side.
        """
        wanted = self._wanted(stream, reads, keys)
        if wanted is None or (stream.pending and not self._is_unique(wanted)):
            return []
        found = []
        for held, content in self._same_key(wanted, null_safe):
            if wanted.columns.issubset(content.columns):
                at = {name: i for i, name in enumerate(content.columns)}
                moved = {f"c{i}": position(at[n]) for i, n in enumerate(wanted.content.columns) if n in at}
                side = Side(
                    held,
                    {i: at[n] for i, n in wanted.reads.items()},
                    held.keys,
                    tuple(p.substitute(moved) for p in stream.pending),
                )
                found.append(Found(side, wanted.order(content, held)))
        return found

    def widened(
        self, stream: Stream, reads: Iterable[str], keys: Sequence[Scalar], null_safe: Sequence[bool]
    ) -> Side | None:
        """The side with more columns than `reads`, so that other joins can use its arrangement; None if it needs no
        others.
        """
        wanted = None if stream.pending else self._wanted(stream, reads, keys)
        if wanted is None:
            return None
        held = [content.columns for _, content in self._same_key(wanted, null_safe)]
        if any(wanted.columns.issubset(columns) for columns in held):
            return None
        columns = self._index_columns(wanted)
        if columns is None and held:
            columns = self._all_columns(wanted)
        if columns is None:
            return None
        op = self._reading(stream.operator, columns)
        names = self._content(op).columns
        return Side(
            op, {i: names.index(n) for i, n in wanted.reads.items()}, tuple(names.index(k) for k in wanted.keys)
        )

    def _wanted(self, stream: Stream, reads: Iterable[str], keys: Sequence[Scalar]) -> _Wanted | None:
        """The columns of a relation that a join needs; None if the stream is not just filtered rows of a relation."""
        if not self._enabled or not keys:
            return None
        content = self._content(stream.operator)
        read = {i: plain(stream.operator, stream.values[i]) for i in reads}
        key = [plain(stream.operator, k) for k in keys]
        if None in read.values() or None in key or len(set(key)) < len(key):
            return None
        names = content.columns
        filters = {c for p in stream.pending for c in p.columns}
        return _Wanted(
            content,
            {i: names[p] for i, p in read.items() if p is not None},
            tuple(names[p] for p in key if p is not None),
            frozenset(names[index_of(c)] for c in filters),
        )

    def _same_key(self, wanted: _Wanted, null_safe: Sequence[bool]) -> Iterator[tuple[Arrange, _Content]]:
        for op in self._builder.operators.values():
            if isinstance(op, Arrange) and op.keys and op.keeps_all:
                content = self._content(op)
                names = tuple(content.columns[k] for k in op.keys)
                if (
                    (content.relation, content.append_only) == (wanted.content.relation, wanted.content.append_only)
                    and len(names) == len(wanted.keys)
                    and set(names) == set(wanted.keys)
                    and op.null_safe == tuple(null_safe[i] for i in wanted.order(content, op))
                ):
                    yield op, content

    def _relation(self, wanted: _Wanted) -> Relation | None:
        found = self._produced.get(wanted.content.relation)
        return self._catalog.relations.get(wanted.content.relation if found is None else found[0])

    def _is_unique(self, wanted: _Wanted) -> bool:
        relation = self._relation(wanted)
        return relation is not None and bool(relation.primary_key) and set(relation.primary_key) <= set(wanted.keys)

    def _index_columns(self, wanted: _Wanted) -> tuple[str, ...] | None:
        """The columns of an index by the key, if they suffice."""
        relation = self._relation(wanted)
        for index in self._catalog.relations.values():
            if (
                relation is not None
                and isinstance(index, Index)
                and index.depends_on == (relation.id,)
                and set(index.index_columns) == set(wanted.keys)
            ):
                names = tuple(c.name for c in index.columns)
                held = tuple(n for n in names if not index.included or n in index.index_columns + index.included)
                if wanted.columns.issubset(held):
                    return held
        return None

    def _all_columns(self, wanted: _Wanted) -> tuple[str, ...]:
        relation = self._relation(wanted)
        return wanted.content.columns if relation is None else tuple(c.name for c in relation.columns)

    def _reading(self, op: Operator, columns: tuple[str, ...]) -> Operator:
        """The operator that reads the rows of `op` with the given columns of its relation."""
        relation = self._catalog.relations.get(op.relation_id) if isinstance(op, Scan) else None
        if not isinstance(op, Scan) or relation is None:
            return op
        fields = tuple(relation.column(n) for n in columns)
        return self._builder.add(Scan((), fields, op.append_only, op.relation_id, columns))

    def _content(self, op: Operator) -> _Content:
        """The relation whose rows an operator has. They may be arranged, exchanged, or have only some of the
        columns.
        """
        chosen = list(range(len(op.schema)))
        while op.id not in self._produced:
            if isinstance(op, Map) and op.predicate is None and op.partitions is None:
                below = [column_at(op.exprs[i]) for i in chosen]
                if None in below:
                    break
                chosen = [i for i in below if i is not None]
            elif not isinstance(op, Arrange) and not (isinstance(op, Exchange) and op.mode == "hash"):
                break
            op = self._builder.operators[op.inputs[0]]
        if isinstance(op, Scan) and not op.ordered:
            return _Content(op.relation_id, tuple(op.names[i] for i in chosen), op.append_only)
        names = self._produced[op.id][1] if op.id in self._produced else [f"c{i}" for i in range(len(op.schema))]
        return _Content(op.id, tuple(names[i] for i in chosen), op.append_only)


@dataclass(frozen=True)
class _Wanted:
    """The columns of a relation that a join needs: those with an id, the key columns in the join's order, and those of
    filters.
    """

    content: _Content
    reads: Mapping[str, str]
    keys: tuple[str, ...]
    filters: frozenset[str]

    @property
    def columns(self) -> frozenset[str]:
        """All column names that an arrangement must have."""
        return self.filters.union(self.keys, self.reads.values())

    def order(self, content: _Content, held: Arrange) -> tuple[int, ...]:
        """For each key of an arrangement by the same columns, its index among `keys`."""
        return tuple(self.keys.index(content.columns[k]) for k in held.keys)
