"""Frames move changes between the stages of an epoch; a spool keeps them in unnamed files if memory is too small."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.circuit.circuit import Roles
from watersmeet.circuit.operators import Exchange
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, bucket_of, hash_columns
from watersmeet.kernel.runs.delta import (
    Delta,
    RowSet,
    Sliced,
    Slicing,
    are_ones,
    consolidate,
    empties,
    joined,
    ones,
    stretches,
)
from watersmeet.kernel.runs.run import stream_pieces, streams_bytes, write_streams
from watersmeet.system.blobs import Pieces
from watersmeet.values.packing import pack_columns, packed_layout, unpack_columns

#: Bodies are cut to about this size: Spark copies a body several times, also in the JVM.
FRAME_BYTES: Final = 16 << 20

#: Smaller bodies are not packed, because the description of packed columns takes some hundred bytes.
_PACKED_BYTES: Final = 16 << 10

#: The size of larger bodies is computed in advance, so that their memory need not grow.
_MEASURED_BYTES: Final = 64 << 10

#: A sender numbers its frames of a channel, starting with its own number times this.
_SENDER: Final = 1 << 32

_DIFF: Final = "_diff"


@dataclass(frozen=True, eq=False)
class Unwritten:
    """A body that is not encoded yet. Its columns are written to a file without a copy in between."""

    batch: pa.RecordBatch

    @property
    def pieces(self) -> Pieces:
        """The bytes of `encode`."""
        return stream_pieces(self.batch)


Body: TypeAlias = pa.Buffer | bytes | Unwritten


@dataclass(frozen=True)
class Frame:
    """A piece of an operator's output, sent to a bucket.

    channel: the id of the operator (usually an `Exchange`), or a word that later stages pass on. seq: orders the frames
    of a channel over all senders. body: see `encode`.
    """

    bucket: int
    channel: str
    seq: int
    body: Body

    @property
    def pieces(self) -> Pieces:
        """The bytes of the body."""
        return _pieces_of(self.body)

    def to_bytes(self) -> bytes:
        """The body in one piece."""
        return b"".join(self.pieces)


def _pieces_of(body: Body) -> Pieces:
    return body.pieces if isinstance(body, Unwritten) else [memoryview(body).cast("B")]


def _batch(delta: Delta) -> pa.RecordBatch:
    arrays, names = [*delta.arrays], [*delta.columns.column_names]
    if not arrays or not are_ones(delta.diff):
        arrays.append(pa.array(delta.diff))
        names.append(_DIFF)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def encode(delta: Delta, *, packed: bool = False) -> pa.Buffer:
    """An Arrow IPC stream of one batch: c0, c1, … and `_diff` unless all diffs are 1.

    packed: encode large batches in fewer bytes (`packing`), which may add a second stream.
    """
    batch = _batch(delta)
    batches = pack_columns(batch) if packed and batch.nbytes >= _PACKED_BYTES else [batch]
    if batch.nbytes < _MEASURED_BYTES:
        sink = pa.BufferOutputStream()
        write_streams(sink, batches)
        return sink.getvalue()
    buffer = pa.allocate_buffer(streams_bytes(batches))
    write_streams(pa.FixedSizeBufferWriter(buffer), batches)
    return buffer


def decode(body: Body) -> Delta:
    """The inverse of `encode`. The columns may point into `body`. Raises Error INTERNAL_ERROR."""
    table = pa.Table.from_batches([body.batch]) if isinstance(body, Unwritten) else _read(body)
    names = table.column_names
    if not names or names[-1] != _DIFF:
        return Delta(table, ones(table.num_rows))
    diff = table.column(len(names) - 1).to_numpy()
    return Delta(table.select(names[:-1]), diff)


def _read(body: pa.Buffer | bytes) -> pa.Table:
    try:
        options = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
        stream = pa.BufferReader(body)
        table = pa.ipc.open_stream(stream, options=options).read_all()
        if (layout := packed_layout(table.schema)) is not None:
            texts = pa.ipc.open_stream(stream, options=options).read_all() if layout.texts else None
            table = unpack_columns(layout, table, texts)
    except (pa.ArrowException, OSError) as e:
        raise error("INTERNAL_ERROR", "a frame can't be read", detail=f"{e}.") from e
    return table


def send(
    exchange: Exchange,
    delta: Delta,
    buckets: int,
    sender: int,
    channel: str = "",
    keys: Sequence[col.Column] | None = None,
    sent: list[int] | None = None,
    roles: Roles | None = None,
    *,
    packed: bool = False,
) -> Iterator[Frame]:
    """The frames of a sender's changes: each row goes to the bucket of its keys, or to all buckets; without keys, to
    bucket 0.

    sender: the number of the task or bucket. channel: by default, the exchange. keys: the values of the keys; by
    default, the key columns. sent: for each bucket, the number of frames sent earlier on this channel, which this
    function increases. roles: those for rows of split keys. packed: as in `encode`.
    """
    if delta.num_rows == 0:
        return
    assert buckets < 1 << 16
    sent = [0] * buckets if sent is None else sent
    for bucket, part in _parts(exchange, delta, buckets, keys, roles):
        for piece in _pieces(part):
            is_small = piece.columns.nbytes < _MEASURED_BYTES
            body: Body = encode(piece, packed=packed) if packed or is_small else Unwritten(_batch(piece))
            for target in range(buckets) if bucket is None else (bucket,):
                yield Frame(target, channel or exchange.id, sender * _SENDER + sent[target], body)
                sent[target] += 1


def count_rows(body: Body) -> int:
    """The number of changes in a body."""
    if isinstance(body, Unwritten):
        return int(body.batch.num_rows)
    return sum(batch.num_rows for batch in pa.ipc.open_stream(pa.BufferReader(body)))


def receive(frames: Iterable[Frame]) -> Delta:
    """The changes of all frames of a channel, by `seq`."""
    return Delta.concat([decode(f.body) for f in sorted(frames, key=lambda f: f.seq)])


def _parts(
    exchange: Exchange, delta: Delta, buckets: int, keys: Sequence[col.Column] | None, roles: Roles | None
) -> Iterator[tuple[int | None, Delta]]:
    if exchange.mode == "broadcast":
        yield None, delta
        return
    if not exchange.keys:
        yield 0, delta
        return
    if exchange.mode == "partial":
        emptied = empties(delta)
        if emptied.any():
            yield None, delta.take(np.flatnonzero(emptied))
            delta = delta.take(np.flatnonzero(~emptied))
    hashes = hash_columns([delta.columns.column(i) for i in exchange.keys] if keys is None else keys)
    if roles is not None and roles.copied:
        copied = np.isin(hashes, np.array(roles.copied, np.uint64))
        if copied.any():
            yield None, delta.take(np.flatnonzero(copied))
            delta, hashes = delta.take(np.flatnonzero(~copied)), hashes[~copied]
    targets = bucket_of(hashes, buckets)
    if roles is not None and roles.split:
        rows = np.flatnonzero(np.isin(hashes, np.array(roles.split, np.uint64)))
        whole = hash_columns([col.gather(col.flat(c), rows) for c in delta.columns.columns], len(rows))
        targets[rows] = bucket_of(whole, buckets)
    delta = Delta(col.positional(delta.arrays), delta.diff)  # joins columns once instead of for each bucket
    for bucket, rows in enumerate(_by_bucket(targets, buckets)):
        if len(rows):
            yield bucket, delta.take(rows)


#: The rows of so few buckets are found one bucket at a time.
_FEW_BUCKETS: Final = 4


def _by_bucket(targets: col.Positions, buckets: int) -> list[col.Positions]:
    """The ascending rows of each bucket."""
    if buckets <= _FEW_BUCKETS:
        return [np.flatnonzero(targets == bucket) for bucket in range(buckets)]
    order = np.argsort(targets.astype(np.uint16), kind="stable")  # 16 bits, for a radix sort
    return np.split(order, np.cumsum(np.bincount(targets, minlength=buckets))[:-1])


def _pieces(delta: Delta) -> Iterator[Delta]:
    size = delta.columns.nbytes
    step = max(1, int(delta.num_rows * FRAME_BYTES / max(1, size)))
    if step >= delta.num_rows:
        yield delta
        return
    for start in range(0, delta.num_rows, step):
        yield Delta(delta.columns.slice(start, step), delta.diff[start : start + step])


_HashesOf = Callable[[Delta], Hashes]
_ALIGNMENT: Final = 64

#: The number of equal ranges of hashes; neighboring ranges are consolidated together.
_RANGES: Final = 1 << 12


class Spool:
    """A temporary file of blobs: `add` writes them, then `buffers` maps them, so they take disk, not memory.

    directory: None for the system's folder. The file has no name, so the system deletes it after its last reader.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed when it is mapped
        self._places: list[tuple[int, int]] = []
        self._end_bytes = 0

    def add(self, blob: Body) -> int:
        """Writes a blob; returns its number."""
        pieces = _pieces_of(blob)
        padding = -self._end_bytes % _ALIGNMENT
        for piece in (bytes(padding), *pieces):
            self._file.write(piece)
        start, size = self._end_bytes + padding, sum(map(len, pieces))
        self._places.append((start, size))
        self._end_bytes = start + size
        return len(self._places) - 1

    def buffers(self) -> list[pa.Buffer]:
        """The blobs in order. After this, none can be added."""
        with self._file:
            self._file.flush()
            if not self._end_bytes:
                return []
            mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), self._end_bytes, access=mmap.ACCESS_READ))
        return [mapped.slice(start, size) for start, size in self._places]


def spooled(slices: Iterable[Delta], slicing: Slicing) -> list[Delta]:
    """The non-empty slices, in a file."""
    spool = Spool(slicing.directory)
    for piece in slices:
        if piece.num_rows:
            spool.add(encode(piece))
    return [decode(b) for b in spool.buffers()]


def whole(slices: Iterable[Delta], schema: pa.Schema, slicing: Slicing) -> Delta:
    """The changes of all slices, with columns in a file. schema: that of the columns."""
    found = spooled(slices, slicing)
    if not found:
        return Delta.empty(schema)
    rows = sum(d.num_rows for d in found)
    diff = ones(rows) if all(are_ones(d.diff) for d in found) else joined([d.diff for d in found])
    return Delta(pa.concat_tables([d.columns for d in found]), diff)


def contiguous(slices: Iterable[Delta], schema: pa.Schema, slicing: Slicing) -> Delta:
    """Like `whole`, with one array for each column. Needs memory for one column at a time.

    Raises INTERNAL_ERROR if the strings of a column do not fit in one array (2 GiB).
    """
    chunked = whole(slices, schema, slicing)
    spool = Spool(slicing.directory)
    none = ones(chunked.num_rows)
    for column in chunked.columns.columns:
        spool.add(encode(Delta(col.positional([col.flat(column)]), none)))
    arrays = [decode(b).arrays[0] for b in spool.buffers()]
    return Delta(col.positional(arrays), chunked.diff)


def consolidated(slices: Iterable[Delta], keys: tuple[int, ...] | None, slicing: Slicing) -> Iterator[Delta]:
    """The result of `consolidate` for all slices together, in slices: the same bytes in the same order.

    Each slice is consolidated and put into a file; then the rows of all slices are read by ranges of hashes, those of a
    hot key by ranges of row hashes. Needs memory for about one slice. keys: as in `consolidate`.
    """

    def main_hashes(piece: Delta) -> Hashes:
        return _hashes(piece, keys)

    pieces = spooled((consolidate(piece, keys) for piece in slices), slicing)
    for parts in _by_ranges(pieces, main_hashes, slicing.rows):
        for some in [parts] if keys is None else _without_hot(parts, main_hashes, slicing.rows):
            yield consolidate(Delta.concat(some), keys)


def netted(changes: Sliced, slicing: Slicing) -> Iterator[Delta]:
    """The same changes, in which no row has diffs of both signs. They have columns, and `retracts_first`.

    Rows stay in order, but retractions are last, with equal insertions. Only these are put into a file.
    """
    retracted, spool, cancel = RowSet(), Spool(slicing.directory), False
    for piece in changes:
        negative = piece.diff < 0
        if negative.any():
            below = piece.take(np.flatnonzero(negative))
            retracted.add(below.columns.columns)
            spool.add(encode(below))
            piece = piece.take(np.flatnonzero(piece.diff > 0))  # noqa: PLW2901 - the rest
        shared = retracted.maybe(piece.columns.columns)
        if len(shared):
            cancel = True
            spool.add(encode(piece.take(shared)))
            rest = np.ones(piece.num_rows, np.bool_)
            rest[shared] = False
            piece = piece.take(np.flatnonzero(rest))  # noqa: PLW2901
        yield piece
    held = [decode(b) for b in spool.buffers()]
    yield from consolidated(held, None, slicing) if cancel else held


def _hashes(piece: Delta, keys: tuple[int, ...] | None) -> Hashes:
    columns = piece.arrays if keys is None else [piece.arrays[i] for i in keys]
    return hash_columns(columns, piece.num_rows, as_key=keys is not None)


def _by_ranges(pieces: Sequence[Delta], hashes: _HashesOf, limit: int) -> Iterator[list[Delta]]:
    """The rows of pieces sorted by `hashes`, in ranges of hashes: about `limit` rows at a time, or one range."""
    if not pieces:
        return
    least = min(_hash_at(p, 0, hashes) for p in pieces)
    greatest = max(_hash_at(p, -1, hashes) for p in pieces)
    # Only the existing hashes are divided into ranges: those of a bucket are a part of all.
    bounds = np.array([least + (greatest + 1 - least) * i // _RANGES for i in range(1, _RANGES)], np.uint64)
    places = np.array([[0, *np.searchsorted(hashes(p), bounds).tolist(), p.num_rows] for p in pieces])
    ends = np.cumsum(np.diff(places, axis=1).sum(axis=0))
    begin = 0
    while begin < _RANGES:
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        if found := _between(pieces, places[:, begin], places[:, end]):
            yield found
        begin = end


def _hash_at(piece: Delta, row: int, hashes: _HashesOf) -> int:
    return int(hashes(piece.take(np.array([row % piece.num_rows])))[0])


def _without_hot(parts: list[Delta], hashes: _HashesOf, limit: int) -> Iterator[list[Delta]]:
    """The same rows in the same order. If they are many, those of the hottest key are separate, in ranges of row
    hashes.
    """
    if sum(p.num_rows for p in parts) <= 2 * limit:
        yield parts
        return
    starts, lengths = stretches(hashes(largest := max(parts, key=lambda p: p.num_rows)))
    hottest = hashes(largest)[starts[lengths.argmax()]]
    first, last = (np.array([np.searchsorted(hashes(p), hottest, side) for p in parts]) for side in ("left", "right"))
    if below := _between(parts, np.zeros_like(first), first):
        yield from _without_hot(below, hashes, limit)
    yield from _by_ranges(_between(parts, first, last), lambda p: _hashes(p, None), limit)
    if above := _between(parts, last, np.array([p.num_rows for p in parts])):
        yield from _without_hot(above, hashes, limit)


def _between(pieces: Sequence[Delta], first: col.Positions, last: col.Positions) -> list[Delta]:
    """Rows [first[i], last[i]) of each non-empty piece i."""
    return [
        Delta(p.columns.slice(a, b - a), p.diff[a:b])
        for p, a, b in zip(pieces, first.tolist(), last.tolist(), strict=True)
        if a < b
    ]
