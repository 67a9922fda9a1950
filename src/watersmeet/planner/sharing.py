"""Arrangements that joins of several views read: which ones exist, which one a join can read, which columns a new one
holds.

An arrangement can serve any join that needs the same relation by the same key, and no column that it lacks: joins pick
the columns they need, and filters can be applied to their output. The rules for a new arrangement are:

- It holds what its view needs. A view that shares with nobody never pays for sharing.
- An index by the join's key announces further joins. Then it holds the index's columns (all columns without INCLUDE).
- If another view keeps the same relation by the same key but lacks a column, there are further joins. Then it holds all
columns, and every later view reads it. So any number of views costs at most two copies.
- An arrangement that forgets rows behind a watermark serves only joins that need no others: equal ones, which have the
same operator anyway.
- With a filter below the join, a view keeps only the rows that pass, in an arrangement of its own. It reads an
arrangement of all rows only if the key is unique in it: then at most one unneeded row matches each row of the other
side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from watersmeet.algebra.scalars import Scalar
from watersmeet.catalog import Catalog, Index, Relation
from watersmeet.circuit.operators import Arrange, Exchange, Map, Operator, Scan
from watersmeet.planner.builder import Builder
from watersmeet.planner.streams import Stream, plain
from watersmeet.planner.texts import column_at, index_of, position


@dataclass(frozen=True)
class Side:
    """One input of a join: the operator, the position of each column id, the positions of the keys.

    pending: filters over the operator's columns that are still to be applied.
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
    """Looks for arrangements among the operators of `builder`, including those of other views.

    produced: for operators that are the content of a relation, its id and the names of its columns.
    catalog: for keys, indexes and columns of relations; nothing is known of relations that it lacks.
    enabled: False gives every view arrangements of its own (equal ones are still the same operator).
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
        """The arrangements that have all rows of `stream` by `keys` (over the operator's columns), and the columns
        `reads`.

        The oldest comes first. Filters pending in the stream are pending in the side.
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
        """The side with more columns than `reads`, if others will read its arrangement; else None."""
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
        """What a join needs of a relation's rows; None if the stream is more than the rows and filters of a
        relation.
        """
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
        """The rows of `op` with the given columns of its relation."""
        relation = self._catalog.relations.get(op.relation_id) if isinstance(op, Scan) else None
        if not isinstance(op, Scan) or relation is None:
            return op
        fields = tuple(relation.column(n) for n in columns)
        return self._builder.add(Scan((), fields, op.append_only, op.relation_id, columns))

    def _content(self, op: Operator) -> _Content:
        """The relation whose rows an operator has. It may be an arrangement, an exchange or a selection of columns of
        it.
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
    """What a join needs of a relation: columns by id, key columns in the join's order, columns of filters."""

    content: _Content
    reads: Mapping[str, str]
    keys: tuple[str, ...]
    filters: frozenset[str]

    @property
    def columns(self) -> frozenset[str]:
        """All column names that an arrangement must have."""
        return self.filters.union(self.keys, self.reads.values())

    def order(self, content: _Content, held: Arrange) -> tuple[int, ...]:
        """For each key of an arrangement by the same columns, its place among `keys`."""
        return tuple(self.keys.index(content.columns[k]) for k in held.keys)
