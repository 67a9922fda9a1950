"""Frames: what moves between the stages of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Exchange
from watersmeet.circuit.splitting import Roles
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import bucket_of, hash_columns
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.diffs import are_ones, ones
from watersmeet.kernel.runs.partial import empties
from watersmeet.kernel.runs.run import streams_bytes, write_streams
from watersmeet.narrowing import has_texts, is_narrowed, narrowed, widened

#: Bodies are cut to about this size: Spark copies a body several times, in the JVM too.
FRAME_BYTES: Final = 16 << 20
#: Smaller bodies are not narrowed: what says how they are to be widened takes some hundred bytes.
_NARROWED_BYTES: Final = 16 << 10
#: Of larger bodies the size is found out before they are written, so that memory for them need not grow.
_MEASURED_BYTES: Final = 64 << 10
#: A sender numbers its frames of a channel from its own number times this on.
_SENDER: Final = 1 << 32
_DIFF: Final = "_diff"


@dataclass(frozen=True)
class Frame:
    """A piece of an operator's output, on its way to a bucket.

    bucket: where it goes. channel: the id of the operator, mostly an `Exchange`, or a word that later stages pass on.
    seq: orders the frames of a channel, whoever sent them. body: changes (see `encode`).
    """

    bucket: int
    channel: str
    seq: int
    body: pa.Buffer | bytes


def encode(delta: Delta, *, narrow: bool = False) -> pa.Buffer:
    """An Arrow IPC stream of one batch: c0, c1, … and `_diff` unless all are 1.

    narrow: if it is large, in fewer bytes (`narrowing`), which may take a second stream behind the first.
    """
    arrays, names = delta.arrays, list(delta.columns.column_names)
    if not arrays or not are_ones(delta.diff):
        arrays.append(pa.array(delta.diff))
        names.append(_DIFF)
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    batches = narrowed(batch) if narrow and batch.nbytes >= _NARROWED_BYTES else [batch]
    if batch.nbytes < _MEASURED_BYTES:
        sink = pa.BufferOutputStream()
        write_streams(sink, batches)
        return sink.getvalue()
    buffer = pa.allocate_buffer(streams_bytes(batches))
    write_streams(pa.FixedSizeBufferWriter(buffer), batches)
    return buffer


def decode(body: pa.Buffer | bytes) -> Delta:
    """The inverse of `encode`. The columns may point into `body`. Raises Error INTERNAL_ERROR."""
    try:
        options = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
        stream = pa.BufferReader(body)
        table = pa.ipc.open_stream(stream, options=options).read_all()
        if is_narrowed(table.schema):
            texts = pa.ipc.open_stream(stream, options=options).read_all() if has_texts(table.schema) else None
            table = widened(table, texts)
    except (pa.ArrowException, OSError) as e:
        raise error("INTERNAL_ERROR", "a frame can't be read", detail=f"{e}.") from e
    names = table.column_names
    if not names or names[-1] != _DIFF:
        return Delta(table, ones(table.num_rows))
    diff = table.column(len(names) - 1).to_numpy()
    return Delta(table.select(names[:-1]), diff)


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
    narrow: bool = False,
) -> Iterator[Frame]:
    """The frames of a sender's changes: each row to the bucket of its keys, or to all. Without keys: bucket 0.

    sender: number of the task or bucket. channel: if not that of the exchange. keys: the values of the keys, if they
    are not those of columns. sent: by bucket, the frames that the sender has sent on this channel before; raised.
    roles: what becomes of the rows of split keys. narrow: as in `encode`.
    """
    if delta.num_rows == 0:
        return
    assert buckets < 1 << 16
    sent = [0] * buckets if sent is None else sent
    for bucket, part in _parts(exchange, delta, buckets, keys, roles):
        for piece in _pieces(part):
            body = encode(piece, narrow=narrow)
            for target in range(buckets) if bucket is None else (bucket,):
                yield Frame(target, channel or exchange.id, sender * _SENDER + sent[target], body)
                sent[target] += 1


def count_rows(body: pa.Buffer | bytes) -> int:
    """How many changes a body has."""
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
    targets = bucket_of(hashes, buckets).astype(np.uint16)
    if roles is not None and roles.split:
        rows = np.flatnonzero(np.isin(hashes, np.array(roles.split, np.uint64)))
        whole = hash_columns([col.gather(col.flat(c), rows) for c in delta.columns.columns], len(rows))
        targets[rows] = bucket_of(whole, buckets)
    order = np.argsort(targets, kind="stable")  # 16 bits: a radix sort
    delta = Delta(col.positional(delta.arrays), delta.diff)  # which are not to be joined for each bucket
    stop = 0
    for bucket, count in enumerate(np.bincount(targets, minlength=buckets).tolist()):
        start, stop = stop, stop + count
        if count:
            yield bucket, delta.take(order[start:stop])


def _pieces(delta: Delta) -> Iterator[Delta]:
    size = delta.columns.nbytes
    step = max(1, int(delta.num_rows * FRAME_BYTES / max(1, size)))
    if step >= delta.num_rows:
        yield delta
        return
    for start in range(0, delta.num_rows, step):
        yield Delta(delta.columns.slice(start, step), delta.diff[start : start + step])
