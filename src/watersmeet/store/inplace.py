"""The content of a relation as streams of Arrow, read from its files while DuckDB scans it; nothing is loaded.

The content is the sum of changes: the levels of a snapshot and the later changes. Rows of changes with deletions are
compared by hash: rows whose hash a deletion has are held back, and their sum with the deletions is the end of the
stream. All other rows pass at once, so memory holds the deletions and the rows that they cancel.

Changes are read piece by piece (`changes`). Only the columns that a query reads are decompressed, and none if it needs
no more than the number of rows. If a query has conditions, the index of a change excludes pieces without fetching or
decompressing them; the columns in conditions come first, and others only where a row satisfies them. Two changes of an
equal row satisfy the same conditions, so this also holds with deletions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Relation
from watersmeet.connectors.base.sources import Condition
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns, mix
from watersmeet.kernel.runs.delta import Delta, are_ones, consolidate, taken
from watersmeet.kernel.runs.run import may_have
from watersmeet.store.changes import INDEX_END_BYTES, ChangeIndex, Diff, RelationChange, fitted, quoted
from watersmeet.store.checkpoints import Checkpoint, Snapshot, expired, load_checkpoint, newest_checkpoint
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.readers import ATTEMPTS, Reader, deleted_early, low_water_number
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.blobs import BlobRef
from watersmeet.system.duckdbs import ARRIVAL, arrival_view
from watersmeet.values.types import arrow_schema

#: The maximum rows of a batch.
_BATCH_ROWS: Final = 1 << 16

#: The number of pieces that are decoded at a time; the first of a stream is decoded without others.
_AT_ONCE: Final = 2

#: The maximum number of pieces that are fetched from an object store at a time. The first fetch has one piece, each
#: further one twice as many, so that LIMIT fetches little.
_MOST_FETCHED: Final = 32

#: The maximum number of indexes that are fetched from an object store at a time.
_INDEXES: Final = 16

#: The number of places per hash in the first, coarse test of hashes, and the maximum number of its bits.
_PLACES: Final = 32

_MOST_BITS: Final = 26

#: Arrow's functions of the comparisons, with a value or several, that are evaluated before other columns are decoded.
_COMPARED: Final[dict[str, Callable[[pa.Array, Any], pa.Array]]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal, "IN": pc.is_in,
}  # fmt: skip

#: The same comparisons of integers, dates and times without NULL.
_COMPARED_WORDS: Final[dict[str, Callable[[npt.NDArray[Any], npt.NDArray[Any]], col.Mask]]] = {
    "=": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "IN": np.isin,
}  # fmt: skip

#: The sums of hashes are modulo this number.
_WORD: Final = 1 << 64

#: It separates the second hash of a row from the first.
_OTHER: Final = np.uint64(0xA5B85C5E198ED849)

Value = TypeVar("Value")
Changes = Callable[..., dict[str, list[RelationChange]]]


class Part(NamedTuple):
    """A change whose rows are added up. source: a stored blob, or rows and diffs in memory. sign: -1 takes it back.

    deletes: whether a diff times `sign` may be negative. begin, end: the bytes of a piece of the blob. is_own: whether
    the piece belongs to the share that is read.
    """

    source: BlobRef | tuple[pa.Table, Diff]
    deletes: bool
    sign: int = 1
    begin: int = 0
    end: int = 0
    is_own: bool = True


class Share(NamedTuple):
    """One of `total` disjoint parts of the rows of a relation: every `total`-th piece. The first share also has the
    rows that deletions may cancel.

    checkpoint: the number of the checkpoint from which all shares are read. Others divide the rows into other pieces.
    """

    number: int
    total: int
    checkpoint: int

    def has(self, piece: int) -> bool:
        """Whether the share has a piece, by its number."""
        return piece % self.total == self.number


@dataclass(frozen=True)
class Needed:
    """The columns, conditions and order with which a query reads a relation. columns: their stored names, None for
    all; without columns only the number of rows counts.

    conditions: rows that do not satisfy them have no effect. arrival: whether it needs the order of arrival. once:
    whether DuckDB scans the rows at most once.
    """

    columns: frozenset[str] | None = None
    conditions: tuple[Condition, ...] = ()
    arrival: bool = False
    once: bool = False

    def joined(self, other: Needed) -> Needed:
        """The needs of two scans that show the same rows."""
        whole = self.columns is None or other.columns is None
        columns = None if whole else (self.columns or frozenset()) | (other.columns or frozenset())
        return Needed(columns, (), self.arrival or other.arrival)


@dataclass(frozen=True, slots=True)
class ContentHash:
    """A hash of a bag of rows that does not depend on their order: equal bags have equal hashes.

    The hash of a sum of changes is the sum of their hashes, so changes need not be consolidated. Two different bags
    have equal hashes with a probability of about 2^-64. rows: the number of rows. first, second: sums of the hashes of
    all rows, modulo 2^64. Equal bags of different column types may differ.
    """

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: ContentHash) -> ContentHash:
        return ContentHash(
            self.rows + other.rows, (self.first + other.first) % _WORD, (self.second + other.second) % _WORD
        )

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"


def content_hash(columns: Sequence[col.Column], diff: Diff) -> ContentHash:
    """The hash of a change: `diff` says how often each row is added (+) or removed (-)."""
    hashes, times = hash_columns(columns, len(diff), as_key=False), diff.astype(np.int64).view(np.uint64)
    first = int((hashes * times).sum(dtype=np.uint64))
    second = int((mix(hashes ^ _OTHER) * times).sum(dtype=np.uint64))
    return ContentHash(int(diff.sum()), first, second)


class StoredRows:
    """The rows of a relation at one moment, of which DuckDB reads any number of streams at a time.

    failure: the error that ended a stream, which DuckDB would turn into its own.
    """

    def __init__(
        self,
        segments: SegmentFiles,
        relation: Relation,
        parts: Sequence[Part],
        count: int,
        needed: Needed,
        share: Share | None = None,
    ) -> None:
        """count: the number of rows of the content. An insert-only relation ends after as many rows of `parts`.

        share: the part of the rows that is read, of a moment that is not before its checkpoint.
        """
        self.relation = relation
        self.failure: Exception | None = None
        self.segments = segments
        self._parts = parts
        self._count = count
        self._needed = needed
        self._share = share
        self._tests = _tests(needed.conditions)
        stored = relation.as_stored
        names = self.names = [c.name for c in stored.columns]
        self._places = [i for i, n in enumerate(names) if needed.columns is None or n in needed.columns]
        self._fills = stored.fills
        self._stored = arrow_schema(stored.columns, positional=False)
        self._keys = [names.index(k) for k in stored.primary_key] or list(range(len(names)))
        # DuckDB lets Arrow filter columns. Arrow can't filter its extension type of JSON, so JSON columns are text.
        fields = [pa.field(f"c{i}", relation.columns[i].type.arrow) for i in self._places]
        self.schema = pa.schema([*fields, pa.field("_n", pa.int64())] if needed.arrival else fields)

    def show(self, connection: duckdb.DuckDBPyConnection, name: str, source: str) -> None:
        """Creates a temporary view of these rows, in which columns that are not read are NULL. source: the name of a
        view of this object, which the caller unregisters.
        """
        if not self.schema.names:
            source = f"range({self._count})"
        else:
            # DuckDB reads a capsule itself. For other objects it imports Arrow's data sets, and with them pandas.
            connection.register(source, self._stream() if self._needed.once else self)
        columns = ", ".join(
            f"CAST({f'c{i}' if i in self._places else 'NULL'} AS {column.type.duckdb}) AS {quoted(column.name)}"
            for i, column in enumerate(self.relation.columns)
        )
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {source}")
        if self._needed.arrival:
            select = f"SELECT {columns}, _n AS {quoted(ARRIVAL)} FROM {source}"
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(arrival_view(name))} AS {select}")

    def _stream(self) -> object:
        """The rows as a capsule, which is read once. Those of a single local piece are read now: if rows are few,
        passing them between threads takes longer than reading them.
        """
        if self._tests and not self.segments.are_remote and self._share is None:
            pieces = list(islice(self._pieces(self._parts), 2))
            if len(pieces) < 2:
                self._parts = pieces
                read = pa.RecordBatchReader.from_batches(self.schema, list(self.batches()))
                return read.__arrow_c_stream__()
        return self.__arrow_c_stream__()

    def content_hash(self) -> ContentHash:
        """The hash of the rows, which need all columns and no conditions."""
        found = ContentHash()
        if any(p.deletes for p in self._parts):
            for change in self._ahead(lambda part: content_hash(*self.read(part, self._places)), self._parts):
                found += change
            return found
        for batch in self.batches():
            rows = pa.Table.from_batches([batch]).select(range(len(self._places)))
            arrays = [c.cast(self._stored.field(i).type) for i, c in enumerate(rows.columns)]
            found += content_hash(arrays, np.ones(rows.num_rows, np.int64))
        return found

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns of `schema`."""
        try:
            if not self._places:
                yield from self._numbered()
                return
            first, left = 0, self._count
            for rows in (
                self._remaining() if any(p.deletes for p in self._parts) else self._ahead(self._all, self._parts)
            ):
                arrays = [rows.columns.column(i) for i in range(rows.columns.num_columns)]
                if not are_ones(rows.diff):
                    arrays = col.gather_all(
                        [col.flat(a) for a in arrays], np.repeat(np.arange(rows.num_rows), rows.diff)
                    )
                count = len(arrays[0])
                if self._needed.arrival:
                    arrays.append(pa.array(np.arange(first, first + count)))
                table = pa.Table.from_arrays(arrays, schema=self.schema)
                # only insert-only relations without conditions have rows that are not counted: the last ones
                counts = not self._needed.conditions and self._share is None
                yield from (table.slice(0, left) if counts else table).to_batches(_BATCH_ROWS)
                first, left = first + count, left - count
                if left <= 0 and counts:
                    return
        except Exception as cause:
            self.failure = cause
            raise

    def _numbered(self) -> Iterator[pa.RecordBatch]:
        """Batches with only the order of arrival."""
        for start in range(0, self._count, _BATCH_ROWS):
            numbers = pa.array(np.arange(start, min(start + _BATCH_ROWS, self._count)))
            yield pa.RecordBatch.from_arrays([numbers], schema=self.schema)

    def _all(self, part: Part) -> Delta:
        """The rows of a part that satisfy the conditions."""
        read = _Decoded(self, part)
        rows = read.satisfying(self._needed.conditions)
        return read.delta(self._places, rows)

    def _remaining(self) -> Iterator[Delta]:
        """The rows that no deletion cancels."""
        deleting = [p for p in self._parts if p.deletes]
        held = [d for d in self._ahead(self._deleted, deleting, whole=True) if d.num_rows]
        hashes = _HashSet([self._hash(d.columns.columns) for d in held])
        whole = self._share is None or self._share.number == 0
        for passed, some in self._ahead(lambda part: self._inserted(part, hashes), self._parts, whole=whole):
            held += [some] if some.num_rows else []
            yield passed
        if held and whole:
            left = consolidate(Delta.concat(held))
            if bool((left.diff < 0).any()) and not self._needed.conditions:
                raise error("DATABASE_DAMAGED", f'the changes of "{self.relation.name}" delete rows that are not there')
            yield left.take(np.flatnonzero(left.diff > 0)).select(self._places)

    def _deleted(self, part: Part) -> Delta:
        """The deletions of a part, with all columns."""
        read = _Decoded(self, part)
        rows = read.satisfying(self._needed.conditions)
        chosen = read.diff < 0 if rows is None else read.diff[rows] < 0
        return read.delta(range(len(self._stored)), np.flatnonzero(chosen) if rows is None else rows[chosen])

    def _inserted(self, part: Part, deleted: _HashSet) -> tuple[Delta, Delta]:
        """(the inserted rows of a part that are not in `deleted`, the others with all columns). Rows of the former kind
        only count in pieces of the share.
        """
        read = _Decoded(self, part)
        rows = read.satisfying(self._needed.conditions)
        if part.deletes:
            chosen = read.diff > 0 if rows is None else read.diff[rows] > 0
            rows = np.flatnonzero(chosen) if rows is None else rows[chosen]
        keys = read.delta(self._keys, rows)
        held = deleted.contains(self._hash(keys.columns.columns)) if keys.num_rows else np.zeros(0, np.bool_)
        every = np.arange(len(held)) if rows is None else rows
        if not part.is_own:
            return read.delta(self._places, every[:0]), read.delta(range(len(self._stored)), every[held])
        if not held.any():
            return read.delta(self._places, rows), keys.take(np.zeros(0, np.int64))
        return read.delta(self._places, every[~held]), read.delta(range(len(self._stored)), every[held])

    def _hash(self, columns: Sequence[col.Column]) -> Hashes:
        """The hashes of rows by the key, or by all columns. columns: these, or all."""
        if len(columns) > len(self._keys):
            columns = [columns[i] for i in self._keys]
        return hash_columns(columns, as_key=False)

    def _ahead(self, work: Callable[[Part], Value], parts: Sequence[Part], *, whole: bool = False) -> Iterator[Value]:
        """The results of `work` for each piece of the parts that conditions do not exclude, in order, with few of them
        computed in advance. whole: also for pieces of other shares.
        """
        pieces = self._fetched(parts, whole=whole)
        for piece in pieces:
            yield work(piece)
            break
        waiting: deque[Future[Value]] = deque()
        pool: ThreadPoolExecutor | None = None
        try:
            for piece in pieces:
                pool = pool or ThreadPoolExecutor(_AT_ONCE, "watersmeet-reading")
                waiting.append(pool.submit(work, piece))
                if len(waiting) > _AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, parts: Sequence[Part], *, whole: bool) -> Iterator[Part]:
        """The pieces of parts, fetched from an object store."""
        pieces, number = (p for p in self._shared(self._pieces(parts)) if whole or p.is_own), 1
        if not self.segments.are_remote:
            yield from pieces
            return
        while some := list(islice(pieces, number)):
            self.segments.fetch([(p.source, p.begin, p.end) for p in some if isinstance(p.source, BlobRef)])
            yield from some
            number = min(2 * number, _MOST_FETCHED)

    def _shared(self, pieces: Iterator[Part]) -> Iterator[Part]:
        """Pieces, marked by the share."""
        if self._share is None:
            return pieces
        has = self._share.has
        return (piece._replace(is_own=has(number)) for number, piece in enumerate(pieces))

    def _pieces(self, parts: Sequence[Part]) -> Iterator[Part]:
        """The pieces of parts that may have rows which satisfy the conditions."""
        conditions, first = self._needed.conditions, 0
        number = _INDEXES if conditions else 1
        while some := parts[first : first + number]:
            refs = [p.source for p in some if isinstance(p.source, BlobRef) and not p.end]
            self.segments.fetch([(r, max(0, r.length_bytes - INDEX_END_BYTES), r.length_bytes) for r in refs])
            indexes = [self.segments.index(ref) for ref in refs]
            chosen = [_within_all(self._tests, len(i.ends), i.kinds, i.bounds) for i in indexes]
            filtered = [
                (at, t) for at, i in enumerate(indexes) if len(chosen[at]) for t in self._tests if t.filtered(i)
            ]
            self.segments.fetch([(refs[at], *indexes[at].filter_span(t.name)) for at, t in filtered])
            for at, test in filtered:
                chosen[at] = self._passed(refs[at], test, chosen[at])
            found = zip(indexes, chosen, strict=True)
            for part in some:
                if not isinstance(part.source, BlobRef) or part.end:
                    yield part
                    continue
                index, places = next(found)
                for place in places.tolist():
                    yield part._replace(begin=int(index.begins[place]), end=int(index.ends[place]))
            first, number = first + number, min(2 * number, _INDEXES)

    def _passed(self, ref: BlobRef, test: _Test, places: col.Positions) -> col.Positions:
        """Those of the pieces at `places` whose filter has a value of a condition."""
        filters, hashes = self.segments.filters(ref, test.name), test.hashes
        had = may_have(filters, np.repeat(places, len(hashes)), np.tile(hashes, len(places)))
        return places[had.reshape(len(places), len(hashes)).any(axis=1)]

    def read(self, part: Part, places: Sequence[int]) -> tuple[list[pa.Array], Diff]:
        """Columns of a piece in the types of the relation, and its diffs."""
        schema = pa.schema([self._stored.field(i) for i in places])
        if isinstance(part.source, BlobRef):
            rows, diff = self.segments.read_piece(part.source, part.begin, part.end, schema.names)
            columns = fitted(rows, schema, self._fills).columns
        else:
            table, diff = part.source
            columns = [table.column(i) for i in places]
        arrays = [col.flat(c if c.type == f.type else c.cast(f.type)) for c, f in zip(columns, schema, strict=True)]
        return arrays, diff if part.sign > 0 else -diff


def pin_changes(log: CommitLog, lease: Reader, commit: int) -> bool:
    """Pins commits above `commit`; False if some may have been deleted already."""
    if not log.writer:
        return lease.try_pin(commit)
    # This process's own clean-up raises `cleaned` before it reads the leases. Deletions by another writer appear as
    # missing files.
    lease.pin(commit)
    return log.cleaned <= commit


class PinnedFiles:
    """The files with the content of relations as of the newest moments, none of which is deleted until `close`."""

    def __init__(
        self, layout: Layout, log: CommitLog, segments: SegmentFiles, changes: Changes, checkpoint: int | None = None
    ) -> None:
        """changes: as in `Content`. checkpoint: the number of the checkpoint that is read, 0 for none; by default the
        newest.

        Raises HISTORY_GONE if files of the given checkpoint may have been deleted.
        """
        self._layout = layout
        self._log = log
        self._segments = segments
        self._changes = changes
        self._lease = Reader(layout)
        self._attempts = ATTEMPTS if checkpoint is None else 1
        if checkpoint is not None:
            try:
                self._checkpoint = load_checkpoint(layout, checkpoint) if checkpoint else Checkpoint()
            except FileNotFoundError:
                raise expired(layout, log, f"checkpoint {checkpoint}") from None
            if not pin_changes(log, self._lease, self._checkpoint.moment.transaction):
                raise expired(layout, log, f"checkpoint {checkpoint}")
            return
        self._checkpoint = self._pin_newest()

    def close(self) -> None:
        """Ends the lease."""
        self._lease.close()

    def stored_rows(self, relations: Sequence[Relation]) -> dict[str, int]:
        """The number of rows to read for the newest content of each relation. If files are deleted meanwhile, it begins
        again. Raises SNAPSHOT_TOO_OLD if that happens repeatedly, or to a given checkpoint.
        """
        for left in reversed(range(self._attempts)):
            upto = self._log.head()
            found = {r.id: self._snapshot(r) for r in relations}
            try:
                changes = self._changes({i: (s.upto, upto) for i, s in found.items()}, fetch=False)
                break
            except Error as cause:
                if (late := self.explain(cause)) is cause:
                    raise
                if not left:
                    raise late from cause
            self._log.head(anew=True)
            self._checkpoint = self._pin_newest()
        return {i: s.stored_rows + sum(b.rows for c in changes.get(i, ()) for b in c.blobs) for i, s in found.items()}

    def rows(
        self,
        relation: Relation,
        upto: int,
        needed: Needed,
        own: Sequence[tuple[pa.Table, Diff]] = (),
        share: Share | None = None,
    ) -> StoredRows:
        """The rows of a relation at commit `upto`, with the changes of an open transaction. share: see `StoredRows`."""
        snapshot = self._snapshot(relation)
        tests = _tests(needed.conditions)
        parts = []
        for level in snapshot.levels:
            kinds = {name: b.kind for name, b in level.bounds.items() if tests}
            bounds = {n: (np.array(level.bounds[n].lows), np.array(level.bounds[n].highs)) for n in kinds}
            places = _within_all(tests, len(level.blobs), kinds, bounds).tolist()
            parts += [Part(level.blobs[place], not level.insert_only) for place in places]
        low, high = sorted((snapshot.upto, upto))
        changes = self._changes({relation.id: (low, high)}, fetch=False).get(relation.id, [])
        count = sum(c.inserted_rows - c.deleted_rows for c in changes)
        if upto >= snapshot.upto:
            parts += [Part(blob, c.deleted_rows > 0) for c in changes for blob in c.blobs]
        elif not relation.only_grows:
            parts += [Part(blob, c.inserted_rows > 0, -1) for c in changes for blob in c.blobs]
        parts += [Part(change, bool((change[1] < 0).any())) for change in own]
        total = snapshot.rows + (count if upto >= snapshot.upto else -count) + sum(int(d.sum()) for _, d in own)
        return StoredRows(self._segments, relation, parts, total, needed, share)

    def explain(self, cause: Exception) -> Exception:
        """The error to raise for a failed stream: in an object store, a writer waits only a limited time for a reader
        of another process.
        """
        if self._layout.directory is None and low_water_number(self._layout) > self._lease.lease.commit:
            return deleted_early()
        return cause

    def _pin_newest(self) -> Checkpoint:
        """The newest checkpoint, whose commits are pinned."""
        while True:
            checkpoint = newest_checkpoint(self._layout, self._log)
            if pin_changes(self._log, self._lease, checkpoint.moment.transaction):
                return checkpoint
            if self._log.writer:
                self._log.check()  # An overtaken writer never sees a newer checkpoint.
            self._log.head(anew=True)

    def _snapshot(self, relation: Relation) -> Snapshot:
        found = self._checkpoint.relations.get(relation.id)
        if found is None and int(relation.id.lstrip("abcdefghijklmnopqrstuvwxyz")) < self._checkpoint.next_number:
            raise error("UNDEFINED_RELATION", f'relation "{relation.shown}" was dropped meanwhile')
        return found or Snapshot(self._checkpoint.moment.transaction)


class _Decoded:
    """The rows of a part, whose columns are decoded when they are first used."""

    def __init__(self, rows: StoredRows, part: Part) -> None:
        self._rows = rows
        self._part = part
        self._columns: dict[int, pa.Array] = {}
        self._diff: Diff | None = None

    @property
    def diff(self) -> Diff:
        if self._diff is None:
            self.columns([0])
        assert self._diff is not None
        return self._diff

    def columns(self, places: Sequence[int]) -> list[pa.Array]:
        """The columns at `places`."""
        missing = [p for p in places if p not in self._columns]
        if missing:
            arrays, self._diff = self._rows.read(self._part, missing)
            self._columns.update(zip(missing, arrays, strict=True))
        return [self._columns[p] for p in places]

    def satisfying(self, conditions: Sequence[Condition]) -> col.Positions | None:
        """The positions of rows that may satisfy all conditions; None for all rows."""
        found: col.Mask | None = None
        for condition in conditions:
            place = self._rows.names.index(condition.column.name)
            mask = _mask(self.columns([place])[0], condition)
            if mask is not None:
                found = mask if found is None else found & mask
                if not found.any():
                    break
        return None if found is None else np.flatnonzero(found)

    def delta(self, places: Sequence[int], rows: col.Positions | None) -> Delta:
        """The columns at `places` of `rows`; None for all. Columns of no rows are not decoded."""
        if rows is None:
            return Delta(col.positional(self.columns(places)), self.diff)
        if not len(rows):
            none = [pa.nulls(0, self._rows.relation.columns[p].type.arrow) for p in places]
            return Delta(col.positional(none), np.zeros(0, np.int64))
        return Delta(col.positional(col.gather_all(self.columns(places), rows)), taken(self.diff, rows))


class _HashSet:
    """A set of hashes, with a coarse test that few others pass."""

    def __init__(self, parts: Sequence[Hashes]) -> None:
        self._sorted = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
        bits = min(_MOST_BITS, (len(self._sorted) * _PLACES).bit_length())
        self._low = np.uint64((1 << bits) - 1)
        self._known = np.zeros(1 << bits, np.bool_)
        self._known[(self._sorted & self._low).view(np.int64)] = True

    def contains(self, hashes: Hashes) -> col.Mask:
        """For each hash, whether it is in the set."""
        found: col.Mask = self._known[(hashes & self._low).view(np.int64)]
        rows = np.flatnonzero(found)
        if len(rows):
            some = hashes[rows]
            at = np.minimum(np.searchsorted(self._sorted, some), len(self._sorted) - 1)
            found[rows] = self._sorted[at] == some
        return found


@dataclass(frozen=True)
class _Test:
    """A comparison that bounds or filters may exclude. kind: the type of the column. values: the constants in it."""

    name: str
    kind: pa.DataType
    shown_kind: str
    operator: str
    values: pa.Array

    @cached_property
    def numbers(self) -> npt.NDArray[Any]:
        """The values as bounds have them."""
        return col.words(self.values)

    @cached_property
    def hashes(self) -> Hashes:
        """The values as filters have them."""
        return hash_columns([self.values])

    def filtered(self, index: ChangeIndex) -> bool:
        """Whether the filters of a change may exclude it."""
        return self.operator in ("=", "IN") and self.name in index.filters and index.kinds[self.name] == self.shown_kind

    def within(self, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """For each pair of bounds, False if they exclude it."""
        numbers, operator = self.numbers, self.operator
        if len(numbers) != 1:
            low, high = low[:, None], high[:, None]
        if operator in ("=", "IN"):
            found = (low <= numbers) & (numbers <= high)
        elif operator in ("<", "<="):
            found = low < numbers if operator == "<" else low <= numbers
        else:
            found = high > numbers if operator == ">" else high >= numbers
        within: npt.NDArray[np.bool_] = found & (low <= high)
        return within if len(numbers) == 1 else np.asarray(np.any(within, axis=1))


def _tests(conditions: Sequence[Condition]) -> list[_Test]:
    found = []
    for condition in conditions:
        kind = condition.column.type.arrow
        values = _values(condition, kind) if condition.operator in _COMPARED else None
        if values is not None:
            found.append(_Test(condition.column.name, kind, str(kind), condition.operator, values))
    return found


def _within_all(
    tests: Sequence[_Test],
    count: int,
    kinds: Mapping[str, str],
    bounds: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
) -> col.Positions:
    """Those of `count` pieces or blobs whose bounds do not exclude the conditions. kinds, bounds: as in an index."""
    found = np.ones(count, np.bool_)
    for test in tests:
        stored = kinds.get(test.name, "")
        # bounds of a column whose type was a narrower integer are still comparable
        if test.name in bounds and (
            stored == test.shown_kind or (stored.startswith("int") and pa.types.is_integer(test.kind))
        ):
            found &= test.within(*bounds[test.name])
    return np.flatnonzero(found)


def _values(condition: Condition, kind: pa.DataType) -> pa.Array | None:
    """The constants of a condition in the type of its column; None if one has no such value.

    Conversion by Arrow would import pandas if that is installed, which takes longer than most look-ups.
    """
    values = condition.values
    try:
        if pa.types.is_integer(kind) and all(isinstance(v, int) for v in values):
            return col.fixed(np.array(values, kind.to_pandas_dtype()), kind)
        if kind == pa.date32():
            return col.fixed(np.array(values, "datetime64[D]").astype(np.int32), kind)
        if kind == pa.timestamp("us"):
            return col.fixed(np.array(values, "datetime64[us]"), kind)
        if kind == pa.string():
            texts = [str(v).encode() for v in values]
            ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
            return pa.Array.from_buffers(kind, len(texts), buffers)
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None  # such as a number beyond the type of the column


def _mask(array: pa.Array, condition: Condition) -> col.Mask | None:
    """Whether each value satisfies a condition; None if that is left to DuckDB."""
    values = _values(condition, array.type) if condition.operator in _COMPARED else None
    if values is None:
        return None
    kind, nulls = array.type, array.null_count + values.null_count
    if not nulls and (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        # NumPy: the first call of a function of Arrow takes as long as the rest of a look-up
        return _COMPARED_WORDS[condition.operator](col.words(array), col.words(values))
    found = _COMPARED[condition.operator](array, values if condition.operator == "IN" else values[0])
    return col.words(found.fill_null(False) if found.null_count else found).astype(np.bool_)
