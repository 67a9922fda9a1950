"""Run: an immutable sorted piece of an arrangement, its stored form, and the index of a large one.

The index finds the rows of a hash without reading the others. It follows the run in its blob: filters, the first hash
of each block of `BLOCK_ROWS` rows, and a trailer. The columns of a run are consecutive, so that they can be mapped; a
block is that many rows of each column, not a range of bytes. A filter is a bloom filter of the hashes of one block.
With ten bits a hash, of which each hash sets four, 1.2 % of the missing hashes of a block appear to be present.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns, is_bijective
from watersmeet.kernel.runs.delta import Delta, Diffs, are_ones, canonical_rows, ones, stretches
from watersmeet.system.blobs import Pieces

#: Runs of at least this size have an index.
INDEXED_BYTES: Final = 1 << 20

BLOCK_ROWS: Final = 1024
_MAGIC: Final = b"WMINDEX\n"

#: The trailer: rows of a block, number of blocks, bytes of a filter.
_END: Final = struct.Struct("<III4x8s")

END_BYTES: Final = _END.size
_HASH_BYTES: Final = 8
_BITS: Final = 10
_PLACES: Final = 4

#: Filters are built for this many blocks at a time, so that they fit in a core's own cache.
_AT_ONCE: Final = 32

_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))


@dataclass(frozen=True)
class IndexLayout:
    """The position of the index in a blob.

    filter_bytes: the size of one block's filter, 0 without filters. hashes_at,
    filters_at: where the first hashes and the filters begin.
    """

    rows: int
    blocks: int
    filter_bytes: int
    filters_at: int
    hashes_at: int


def index_layout(end: bytes, size_bytes: int) -> IndexLayout | None:
    """Parses the last `END_BYTES` of a blob of that size; None if it has no index."""
    rows, blocks, filter_bytes, magic = _END.unpack(end)
    hashes_at = size_bytes - END_BYTES - _HASH_BYTES * blocks
    filters_at = hashes_at - filter_bytes * blocks
    if magic != _MAGIC or filters_at < 0:
        return None
    return IndexLayout(rows, blocks, filter_bytes, filters_at, hashes_at)


def index_bytes(hashes: Hashes, *, filters: bool) -> int:
    """The size of the index."""
    blocks = -(-len(hashes) // BLOCK_ROWS)
    return blocks * (_HASH_BYTES + (_filter_bytes(hashes) if filters else 0)) + END_BYTES


def write_index(target: memoryview, hashes: Hashes) -> None:
    """Writes the index of a run with these ascending hashes. The size of `target` determines whether it has filters."""
    firsts = np.ascontiguousarray(hashes[::BLOCK_ROWS])
    size = len(target) - firsts.nbytes - END_BYTES
    filter_bytes = size // max(1, len(firsts))
    if filter_bytes:
        _write_filters(np.frombuffer(target[:size], np.uint8).reshape(-1, filter_bytes), hashes)
    target[size : size + firsts.nbytes] = firsts.tobytes()
    target[size + firsts.nbytes :] = _END.pack(BLOCK_ROWS, len(firsts), filter_bytes, _MAGIC)


def may_have(filters: npt.NDArray[np.uint8], blocks: npt.NDArray[np.int64], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """For pairs of a block and a hash, whether the block may contain the hash. filters: one row for each block."""
    found = np.ones(len(hashes), np.bool_)
    for bit in _bits(hashes, 8 * filters.shape[1]):
        found &= (filters[blocks, bit >> 3] >> (bit & 7).astype(np.uint8)) & 1 > 0
    return found


def filter_of(hashes: Hashes, size_bytes: int) -> npt.NDArray[np.uint8]:
    """A filter of hashes in any order."""
    bits = np.zeros(8 * size_bytes, np.bool_)
    for bit in _bits(hashes, 8 * size_bytes):
        bits[bit] = True
    return np.packbits(bits, bitorder="little")


def filter_bytes(hashes: int) -> int:
    """The size of a filter of that many distinct hashes, a multiple of 8."""
    return -(-hashes * _BITS // 64) * 8


def _filter_bytes(hashes: Hashes) -> int:
    """The bytes of a filter: enough for the block with the most distinct hashes."""
    if not len(hashes):
        return 0
    starts, _ = stretches(hashes)
    most = int(np.bincount(starts // BLOCK_ROWS).max()) + 1  # one more may continue from the previous block
    return filter_bytes(most)


def _write_filters(filters: npt.NDArray[np.uint8], hashes: Hashes) -> None:
    width = 8 * filters.shape[1]
    for begin in range(0, len(filters), _AT_ONCE):
        some = hashes[begin * BLOCK_ROWS : (begin + _AT_ONCE) * BLOCK_ROWS]
        is_new = np.ones(len(some), np.bool_)  # new in its block; equal hashes have equal bits
        np.not_equal(some[1:], some[:-1], out=is_new[1:])
        is_new[::BLOCK_ROWS] = True
        rows = np.flatnonzero(is_new)
        places = rows // BLOCK_ROWS * width
        bits = np.zeros(-(-len(some) // BLOCK_ROWS) * width, np.bool_)
        for bit in _bits(some[rows], width):
            bits[places + bit] = True
        filters[begin : begin + _AT_ONCE] = np.packbits(bits, bitorder="little").reshape(-1, width // 8)


def _bits(hashes: Hashes, width: int) -> Iterator[npt.NDArray[np.int64]]:
    """The bits of each hash in a filter of `width` bits. Even similar hashes have distant bits."""
    mixed = hashes * _MIX[0]
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX[1]
    mixed ^= mixed >> np.uint64(29)
    low = np.uint64(0xFFFFFFFF)
    place, step = mixed & low, (mixed >> np.uint64(32)) | np.uint64(1)
    for _ in range(_PLACES):
        yield ((place * np.uint64(width)) >> np.uint64(32)).astype(np.int64)
        place = (place + step) & low


_META: Final = b"watersmeet.run"


class Merging(NamedTuple):
    """The merge that takes the rows of a run. Merged rows are no longer in the run.

    number: identifies the merge in the trace; its runs are neighbors. made: whether it has output chunks, which precede
    its runs. whole: whether there were no older runs when it began.
    """

    number: int
    made: bool
    whole: bool


class Run:
    """Changes sorted by the hash of the key columns. Never modified.

    hash: uint64, ascending. columns: c0, c1, …, one chunk each, floats in one form. weights: int64 diffs, none 0, or
    None if all are 1. keys: positions of the key columns. pure: whether rows with equal hashes have equal keys, so that
    one comparison suffices for all. ref: where the run is stored; None if it is not. continues: whether it is a further
    chunk, with higher hashes, of a large result whose first chunks precede it. note: JSON about its rows that is stored
    with the run, or None; merged runs don't inherit it. merging: the merge that will take the rows of this run or part;
    usually None. The order of rows with equal hashes depends only on the history of the relation's changes.
    """

    __slots__ = ("__dict__", "columns", "continues", "hash", "keys", "merging", "note", "pure", "ref", "weights")

    def __init__(
        self,
        hashes: Hashes,
        columns: pa.Table,
        weights: Diffs | None,
        keys: tuple[int, ...],
        *,
        pure: bool,
        ref: Any = None,
        continues: bool = False,
        note: Any = None,
        merging: Merging | None = None,
    ) -> None:
        self.hash = hashes
        self.columns = columns
        self.weights = weights
        self.keys = keys
        self.pure = pure
        self.ref = ref
        self.continues = continues
        self.note = note
        self.merging = merging

    @property
    def num_rows(self) -> int:
        """The number of entries."""
        return len(self.hash)

    @property
    def all_ones(self) -> bool:
        """True if every diff is 1."""
        return self.weights is None

    @property
    def diff(self) -> Diffs:
        """The diffs, int64, read-only; if all are 1 they take no memory."""
        return ones(len(self.hash)) if self.weights is None else self.weights

    @cached_property
    def has_negative(self) -> bool:
        """True if some diff is below 0."""
        return self.weights is not None and bool((self.weights < 0).any())

    @cached_property
    def stretches(self) -> tuple[col.Positions, col.Positions]:
        """The starts and lengths of the stretches of rows with equal hashes."""
        return stretches(self.hash)

    @cached_property
    def arrays(self) -> Sequence[pa.Array]:
        """The columns as arrays."""
        return tuple(col.flat(c) for c in self.columns.columns)

    def gather(self, positions: Sequence[int], rows: col.Positions) -> list[pa.Array]:
        """The values of the columns at `positions` in some rows."""
        return col.gather_all([self.arrays[i] for i in positions], rows)

    def unordered(self, position: int) -> tuple[pa.Array, col.Positions | slice]:
        """(a column without gathering it, the index of the run's rows in it)."""
        return self.arrays[position], slice(None)

    @property
    def shape(self) -> tuple[pa.Schema, int]:
        """(the schema of the columns, their number of rows). They are not read for that."""
        return self.columns.schema, self.columns.num_rows

    def column_bytes(self, position: int) -> int:
        """The approximate bytes of a column, which is not read for that."""
        return int(self.columns.column(position).nbytes)

    @property
    def parts(self) -> tuple[Run, ...]:
        """Pure runs with the same rows: the run itself, unless different keys share a hash."""
        return (self,) if self.pure else self._parts

    @cached_property
    def _parts(self) -> tuple[Run, ...]:
        return tuple(_split(self))

    @cached_property
    def key_arrays(self) -> tuple[pa.Array, ...]:
        """The key columns as arrays."""
        return tuple(self.arrays[i] for i in self.keys)

    def take(self, rows: col.Positions) -> Run:
        """The run of some rows, given in ascending order."""
        weights = None if self.weights is None else self.weights[rows]
        columns = col.gather_table(self.columns, rows)
        return Run(self.hash[rows], columns, weights, self.keys, pure=self.pure, merging=self.merging)

    def lazily(self, rows: col.Positions) -> Run:
        """The run of some rows, given in ascending order, whose columns are gathered when they are read."""
        weights = None if self.weights is None else self.weights[rows]
        return Unsorted(self.hash[rows], Ordered(self.arrays, rows), weights, self.keys, pure=self.pure)

    def slice(self, start: int, stop: int) -> Run:
        """The run of rows [start, stop), without a copy."""
        weights = None if self.weights is None else self.weights[start:stop]
        columns = self.columns.slice(start, stop - start)
        return Run(self.hash[start:stop], columns, weights, self.keys, pure=self.pure, merging=self.merging)

    def part(self, start: int, stop: int) -> Run:
        """The run of rows [start, stop), without a copy, with the reference of this run.

        It keeps the note, although that describes more rows.
        """
        part = self.slice(start, stop)
        part.ref, part.continues, part.note = self.ref, self.continues, self.note
        return part

    def behind(self, place: int) -> Run:
        """The part from a row on, with a reference to it. No earlier row has the hash of that row."""
        rest = self.part(place, self.num_rows)
        if self.ref is not None:
            rest.ref = self.ref.behind(int(self.hash[place]), rest.num_rows)
        return rest

    @cached_property
    def size_bytes(self) -> int:
        """The number of bytes of the values; equal for equal rows, stored or not."""
        weights = 0 if self.weights is None else 8
        return (8 + weights) * len(self.hash) + sum(col.data_bytes(a) for a in self.arrays)

    def delta(self) -> Delta:
        """The rows of the run as changes."""
        return Delta(self.columns, self.diff)

    def expect(self, hashes: Hashes) -> None:
        """Raises INTERNAL_ERROR if rows with one of the sorted distinct `hashes` may be missing (`cold.near`)."""

    def stored(self, *, filters: bool = False) -> Pieces:
        """The stored form: an Arrow IPC stream of one batch with `_h`, c0, …, and `_diff` unless all diffs are 1.
        Columns are not copied.

        An index follows if the run is large. filters: the index has filters, for runs that may be read remotely.
        """
        arrays = [col.fixed(self.hash, pa.uint64()), *(_defined(a) for a in self.arrays)]
        names = ["_h", *(f"c{i}" for i in range(len(self.arrays)))]
        if self.weights is not None:
            arrays.append(col.fixed(self.weights, pa.int64()))
            names.append("_diff")
        facts = {"keys": self.keys, "pure": self.pure, "negative": self.has_negative, "continues": self.continues}
        facts["bytes"] = self.size_bytes
        meta = json.dumps(facts if self.note is None else {**facts, "note": self.note}, separators=(",", ":"))
        batch = pa.RecordBatch.from_arrays(arrays, names=names).replace_schema_metadata({_META: meta.encode()})
        found = stream_pieces(batch)
        if sum(map(len, found)) >= INDEXED_BYTES:
            index = memoryview(bytearray(index_bytes(self.hash, filters=filters)))
            write_index(index, self.hash)
            found.append(index)
        return found

    @staticmethod
    def from_ipc(buffer: pa.Buffer, ref: Any = None) -> Run:
        """The inverse of `stored`; the columns point into `buffer` (preferably aligned to 64 bytes). Raises
        STATE_DAMAGED.
        """
        try:
            with pa.ipc.open_stream(pa.BufferReader(buffer)) as reader:
                meta = json.loads(reader.schema.metadata[_META])
                table = pa.Table.from_batches([reader.read_next_batch()])
        except (pa.ArrowException, StopIteration, KeyError, TypeError, ValueError, OSError) as e:
            raise error("STATE_DAMAGED", "a stored run can't be read", detail=f"{e} ({ref}).") from e
        names = table.column_names
        hashes = col.words(col.flat(table.column(0)))
        weights = col.words(col.flat(table.column("_diff"))) if names[-1] == "_diff" else None
        columns = table.select([n for n in names if n not in ("_h", "_diff")]).replace_schema_metadata(None)
        run = Run(
            hashes,
            columns,
            weights,
            tuple(meta["keys"]),
            pure=meta["pure"],
            ref=ref,
            continues=meta["continues"],
            note=meta.get("note"),
        )
        # Known without reading the rows.
        run.has_negative = meta["negative"]
        run.size_bytes = meta["bytes"]
        return run


class Ordered(Sequence[pa.Array]):
    """Columns whose rows are in another order; each is gathered when it is first read as a whole.

    order: for each row, its position in `arrays`. more: further columns, which are in order.
    """

    def __init__(self, arrays: Sequence[pa.Array], order: col.Positions, more: Sequence[pa.Array] = ()) -> None:
        self.arrays: list[pa.Array | None] = [*arrays, *(None for _ in more)]
        self.order = order
        self._found: dict[int, pa.Array] = dict(enumerate(more, len(arrays)))

    def __len__(self) -> int:
        return len(self.arrays)

    @overload
    def __getitem__(self, position: int) -> pa.Array: ...
    @overload
    def __getitem__(self, position: slice) -> list[pa.Array]: ...
    def __getitem__(self, position: int | slice) -> pa.Array | list[pa.Array]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        place = range(len(self))[position]
        if place not in self._found:
            self._found[place] = col.gather(self.arrays[place], self.order)
            self.arrays[place] = None  # not needed any more
        return self._found[place]

    def gather(self, positions: Sequence[int], rows: col.Positions) -> list[pa.Array]:
        """The values of the columns at `positions` in some rows."""
        there = rows if all(i in self._found for i in positions) else self.order[rows]
        return [
            col.gather(self._found[i], rows) if i in self._found else col.gather(self.arrays[i], there)
            for i in positions
        ]

    def column_bytes(self, position: int) -> int:
        """The approximate bytes of a column."""
        array = self._found[position] if position in self._found else self.arrays[position]
        assert array is not None
        return int(array.nbytes) * len(self.order) // max(1, len(array))

    def unordered(self, position: int) -> tuple[pa.Array, col.Positions | slice]:
        """As `Run.unordered`."""
        array = self.arrays[position]
        return (self._found[position], slice(None)) if array is None else (array, self.order)

    @property
    def schema(self) -> pa.Schema:
        """The types of the columns c0, c1, …"""
        kinds = [(self._found[i] if a is None else a).type for i, a in enumerate(self.arrays)]
        return pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])

    def before(self, count: int) -> tuple[Sequence[pa.Array], col.Positions]:
        """The first `count` columns as they were, and the position of each row in them."""
        arrays = [a for a in self.arrays[:count] if a is not None]
        return (arrays, self.order) if len(arrays) == count else (self[:count], np.arange(len(self.order)))

    def part(self, rows: col.Positions | slice) -> Ordered:
        """The columns of some rows."""
        if self._found:
            return Ordered([self[i] for i in range(len(self))], np.arange(len(self.order))[rows])
        return Ordered([a for a in self.arrays if a is not None], self.order[rows])


class Unsorted(Run):
    """A run whose columns are in another order until they are read: those of rows that are neither stored nor output
    are never gathered.
    """

    def __init__(
        self, hashes: Hashes, columns: Ordered, weights: Diffs | None, keys: tuple[int, ...], *, pure: bool
    ) -> None:
        self.hash, self.weights, self.keys, self.pure = hashes, weights, keys, pure
        self.ref, self.continues, self.note, self.merging = None, False, None, None
        self.arrays: Ordered = columns

    def __getattr__(self, name: str) -> Any:
        """Gathers all columns when `columns` is first read."""
        if name != "columns":
            raise AttributeError(name)
        self.columns = col.positional(list(self.arrays))
        return self.columns

    def gather(self, positions: Sequence[int], rows: col.Positions) -> list[pa.Array]:
        return self.arrays.gather(positions, rows)

    def unordered(self, position: int) -> tuple[pa.Array, col.Positions | slice]:
        return self.arrays.unordered(position)

    @property
    def shape(self) -> tuple[pa.Schema, int]:
        return self.arrays.schema, len(self.arrays.order)

    def column_bytes(self, position: int) -> int:
        return self.arrays.column_bytes(position)

    def take(self, rows: col.Positions) -> Run:
        weights = None if self.weights is None else self.weights[rows]
        columns = col.positional(self.gather(range(len(self.arrays)), rows))
        return Run(self.hash[rows], columns, weights, self.keys, pure=self.pure, merging=self.merging)

    def lazily(self, rows: col.Positions) -> Run:
        weights = None if self.weights is None else self.weights[rows]
        return Unsorted(self.hash[rows], self.arrays.part(rows), weights, self.keys, pure=self.pure)

    def slice(self, start: int, stop: int) -> Run:
        weights = None if self.weights is None else self.weights[start:stop]
        some = self.arrays.part(slice(start, stop))
        return Unsorted(self.hash[start:stop], some, weights, self.keys, pure=self.pure)


def ungathered(run: Run, count: int) -> tuple[Sequence[pa.Array], col.Positions]:
    """The first `count` columns of a run before they are gathered, and the position of each row in them."""
    arrays = run.arrays
    return arrays.before(count) if isinstance(arrays, Ordered) else (arrays[:count], np.arange(run.num_rows))


def arrange(delta: Delta, keys: tuple[int, ...]) -> Run:
    """The consolidated changes, in canonical order by `keys`, as a run; those that an operator arranged by these keys,
    in its order.
    """
    known = delta.runs.get(keys)
    if isinstance(known, Run):
        return known
    arrays = delta.normal
    hashes = hash_columns([arrays[i] for i in keys], delta.num_rows)
    rows, diff = canonical_rows(arrays, delta.diff, hashes, whole_row=False)
    hashes = hashes[rows]
    pure = is_pure(hashes, [arrays[i] for i in keys], rows)
    return Unsorted(hashes, Ordered(arrays, rows), None if are_ones(diff) else diff, keys, pure=pure)


def make_run(hashes: Hashes, arrays: Sequence[pa.Array], diff: Diffs, keys: tuple[int, ...]) -> Run:
    """A run of rows that are already sorted by hash."""
    weights = None if are_ones(diff) else diff
    return Run(hashes, col.positional(arrays), weights, keys, pure=is_pure(hashes, [arrays[i] for i in keys]))


def is_pure(hashes: Hashes, keys: Sequence[pa.Array], order: col.Positions | None = None) -> bool:
    """True if no two different keys have the same hash. hashes: sorted. order: for each hash, the position of its key;
    None if keys are in the order of hashes.
    """
    if not keys or (len(keys) == 1 and is_bijective(keys[0].type) and keys[0].null_count == 0):
        return True
    starts, _ = stretches(hashes)
    if len(starts) == len(hashes):
        return True
    # Compare each row of a stretch with the previous row.
    same = np.ones(len(hashes), np.bool_)
    same[starts] = False
    later = np.flatnonzero(same)
    pairs = (later, later - 1) if order is None else (order[later], order[later - 1])
    one, other = (col.gather_all(keys, rows) for rows in pairs)
    return bool(col.rows_equal(one, other, len(later), as_key=True).all())


def write_streams(sink: Any, batches: Sequence[pa.RecordBatch]) -> None:
    """Writes an Arrow IPC stream of each batch."""
    for batch in batches:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)


class _Sink:
    """A file for Arrow that keeps references to written buffers."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, data: pa.Buffer | bytes) -> int:
        piece = memoryview(data).cast("B")
        self.pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        self.closed = True


def stream_pieces(batch: pa.RecordBatch) -> list[memoryview]:
    """An Arrow IPC stream in pieces; columns are not copied."""
    sink = _Sink()
    write_streams(pa.PythonFile(sink, mode="w"), [batch])
    return sink.pieces


def streams_bytes(batches: Sequence[pa.RecordBatch]) -> int:
    """The number of bytes that `write_streams` writes."""
    measure = pa.MockOutputStream()
    write_streams(measure, batches)
    return int(measure.size())


def _split(run: Run) -> list[Run]:
    """Splits a run by the distinct keys of each hash: the rows of each hash's first key, those of its second key, …"""
    parts = []
    rest = np.arange(run.num_rows)
    while len(rest):
        starts, lengths = stretches(run.hash[rest])
        firsts = np.repeat(rest[starts], lengths)
        same = col.rows_equal(
            col.gather_all(run.key_arrays, rest), col.gather_all(run.key_arrays, firsts), len(rest), as_key=True
        )
        part = run.take(rest[same])
        part.pure = True
        parts.append(part)
        rest = rest[~same]
    return parts


def _defined(array: pa.Array) -> pa.Array:
    """The same values with defined bytes for NULLs, because equal runs must have equal bytes."""
    if array.null_count == 0:
        return array
    return col.gather(array, np.arange(len(array)))
