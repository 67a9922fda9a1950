"""Reads ranges of partitions in workers, by one consumer for each topic, which is kept between epochs.

A consumer continues fetching after the end of a range, so that most of the partition's next range has arrived when an
epoch needs it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.messages import decoder_of, new_decoder, rows_of, rows_of_jump
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, Unavailable
from watersmeet.connectors.kafka.client import (
    Brokers,
    KafkaOptions,
    KafkaSpec,
    client_config,
    failure,
    is_lasting,
    is_unknown_topic,
    library,
)
from watersmeet.errors import Error, error
from watersmeet.formats.payloads import HEADERS, Decoder, Messages
from watersmeet.values.slices import JumpSlice, MessageSlice
from watersmeet.values.types import Field, arrow_schema

#: The number of messages taken from the client in one call. Each is briefly a Python object; with ten times as many,
#: garbage collection took as long as all other work.
_TAKE: Final = 2_000

#: The maximum number of messages that are decoded together.
_TOGETHER: Final = 40_000

#: The maximum number of fetched messages of a partition that wait for a range.
_MOST_WAITING: Final = 200_000

#: The time without messages after which reading fails and is tried again.
_PATIENCE_S: Final = 10.0

#: A consumer has one fetch in progress for each partition that it keeps.
_MOST_CONSUMERS: Final = 16

#: A consumer that is unused for this long is closed when another one is used.
_IDLE_S: Final = 60.0

Offsets = npt.NDArray[np.int64]


class _Chunk(NamedTuple):
    """Messages of one partition, ordered by offset."""

    offsets: Offsets
    times_ms: Offsets | None
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.ListArray | None

    def slice(self, begin: int, end: int) -> _Chunk:
        """The messages at the indexes [begin, end)."""
        size = end - begin
        return _Chunk(
            self.offsets[begin:end],
            None if self.times_ms is None else self.times_ms[begin:end],
            self.keys.slice(begin, size),
            self.values.slice(begin, size),
            None if self.headers is None else self.headers.slice(begin, size),
        )

    def at(self, indexes: Offsets) -> _Chunk:
        """The messages at some indexes."""
        rows = pa.array(indexes)
        return _Chunk(
            self.offsets[indexes],
            None if self.times_ms is None else self.times_ms[indexes],
            self.keys.take(rows),
            self.values.take(rows),
            None if self.headers is None else self.headers.take(rows),
        )

    @staticmethod
    def joined(chunks: Sequence[_Chunk]) -> _Chunk:
        """The messages of all chunks in order."""
        if len(chunks) == 1:
            return chunks[0]
        times_ms = [c.times_ms for c in chunks if c.times_ms is not None]
        headers = [c.headers for c in chunks if c.headers is not None]
        return _Chunk(
            np.concatenate([c.offsets for c in chunks]),
            np.concatenate(times_ms) if times_ms else None,
            pa.concat_arrays([c.keys for c in chunks]),
            pa.concat_arrays([c.values for c in chunks]),
            pa.concat_arrays(headers) if headers else None,
        )


#: The messages of a range in batches, and the ranges of offsets that expired before they could be read.
Found = tuple[list[Messages], list[tuple[int, int]]]


class _Partition:
    """The fetched messages of a partition. upto: the offset below which all messages were fetched or taken."""

    def __init__(self, begin: int) -> None:
        self.begin = self.upto = begin
        self.chunks: list[_Chunk] = []
        self.lost: list[tuple[int, int]] = []
        """Ranges of offsets that expired before they could be read."""

    @property
    def waiting(self) -> int:
        """The number of waiting messages."""
        return sum(len(c.offsets) for c in self.chunks)

    def take(self, end: int) -> list[_Chunk]:
        """The messages below `end`, all of which are fetched."""
        taken: list[_Chunk] = []
        while self.chunks:
            chunk = self.chunks[0]
            index = int(np.searchsorted(chunk.offsets, end))
            if index == len(chunk.offsets):
                taken.append(self.chunks.pop(0))
                continue
            if index:
                taken.append(chunk.slice(0, index))
                self.chunks[0] = chunk.slice(index, len(chunk.offsets))
            break
        self.begin = end
        return taken


class TopicReader:
    """A consumer of a topic. Not thread-safe: only one task at a time may use it."""

    def __init__(self, options: KafkaOptions, topic_id: str, *, headers: bool, times: bool) -> None:
        self._kafka = kafka = library()
        self._topic, self._servers = options.topic, options.servers
        self._headers, self._times = headers, times
        self._eof = kafka.KafkaError._PARTITION_EOF
        self._here: dict[int, _Partition] = {}
        config = client_config(
            options.properties,
            group_id=f"{options.group_prefix}-watersmeet",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="error",
            enable_partition_eof=True,
            fetch_queue_backoff_ms=10,
            fetch_error_backoff_ms=50,
            queued_max_messages_kbytes=32 << 10,
        )
        self._check(options, topic_id)
        with self._explained():
            self._consumer = kafka.Consumer(config)

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._consumer.close()

    def expect(self, ranges: Iterable[MessageSlice]) -> None:
        """Begins to fetch ranges that are read next. Raises the errors of `read`."""
        begins: dict[int, int] = {}
        for piece in ranges:
            begins[piece.partition] = min(piece.begin, begins.get(piece.partition, piece.begin))
        with self._explained():
            self._assign({p: b for p, b in begins.items() if p not in self._here or self._here[p].begin != b})

    def read(self, piece: MessageSlice) -> Found:
        """The messages of a range.

        Raises Unavailable if the brokers temporarily don't return them, else the errors of `failure`.
        """
        with self._explained():
            here = self._here.get(piece.partition)
            if here is None or here.begin != piece.begin:
                self._assign({piece.partition: piece.begin})
                here = self._here[piece.partition]
            self._fetch(here, piece)
        batches = [
            Messages(self._topic, piece.partition, c.keys, c.values, c.offsets, c.times_ms, c.headers)
            for c in _together(here.take(piece.end))
        ]
        lost = [(begin, min(end, piece.end)) for begin, end in here.lost if begin < piece.end]
        here.lost = [(max(begin, piece.end), end) for begin, end in here.lost if end > piece.end]
        return batches, lost

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the client to errors of the source, so that other sources need not wait."""
        try:
            yield
        except self._kafka.KafkaException as cause:
            raise failure(cause.args[0], self._topic, self._servers) from cause

    def _fetch(self, here: _Partition, piece: MessageSlice) -> None:
        """Waits until all messages of the range are fetched."""
        last_s, wait_s = time.monotonic(), 0.005
        while here.upto < piece.end:
            found = self._consumer.consume(min(_TAKE, piece.end - here.upto), wait_s)
            if found:
                last_s, wait_s = time.monotonic(), 0.005
                self._sort(found)
                self._let_go(piece.partition)
                continue
            wait_s = min(0.1, wait_s * 2)
            here.upto = max(here.upto, self._position(piece.partition))
            if time.monotonic() - last_s > _PATIENCE_S:
                raise Unavailable(
                    f"the Kafka brokers at {self._servers} gave nothing of partition {piece.partition} of topic "
                    f"{self._topic} for {_PATIENCE_S:g} s"
                )

    def _position(self, partition: int) -> int:
        (partition_at,) = self._consumer.position([self._kafka.TopicPartition(self._topic, partition)])
        return int(partition_at.offset)  # a negative offset means that nothing was read yet

    def _sort(self, found: list[Any]) -> None:
        """Adds the client's messages to the partitions."""
        if any(problems := list(map(self._kafka.Message.error, found))):
            events = [m for m, problem in zip(found, problems, strict=True) if problem is not None]
            found = [m for m, problem in zip(found, problems, strict=True) if problem is None]
        else:
            events = []
        if found:
            self._add(found)
        for event in events:  # processed after the messages, because an end is reported after all earlier messages
            self._heed(event)

    def _add(self, found: list[Any]) -> None:
        message = self._kafka.Message
        count = len(found)
        partitions = np.fromiter(map(message.partition, found), np.int32, count)
        offsets = np.fromiter(map(message.offset, found), np.int64, count)
        times_ms = None
        if self._times:
            times_ms = np.fromiter(map(itemgetter(1), map(message.timestamp, found)), np.int64, count)
        keys = pa.array(list(map(message.key, found)), pa.binary())
        values = pa.array(list(map(message.value, found)), pa.binary())
        headers = pa.array([_pairs(h) for h in map(message.headers, found)], HEADERS) if self._headers else None
        whole = _Chunk(offsets, times_ms, keys, values, headers)
        for partition in np.unique(partitions).tolist():
            here = self._here.get(partition)
            if here is None:
                continue  # the partition was released
            chosen = np.flatnonzero((partitions == partition) & (offsets >= here.upto))
            if not len(chosen):
                continue
            chunk = whole if len(chosen) == len(found) else whole.at(chosen)
            here.chunks.append(chunk)
            here.upto = int(chunk.offsets[-1]) + 1

    def _heed(self, event: Any) -> None:
        """Handles events of the client other than messages."""
        problem = event.error()
        here = self._here.get(event.partition())
        if problem.code() == self._eof:
            if here is not None:
                here.upto = max(here.upto, event.offset())
            return
        if problem.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            if here is not None:
                self._skip_expired(event.partition(), here)
            return
        if is_unknown_topic(problem) or problem.fatal():
            raise failure(problem, self._topic, self._servers)
        if is_lasting(problem):
            raise Unavailable(failure(problem, self._topic, self._servers).message)
        # other problems may be temporary: reading fails only if no message arrives for too long

    def _skip_expired(self, partition: int, here: _Partition) -> None:
        """Continues with the first existing message; the requested range counts missing messages as lost."""
        first, _ = self._consumer.get_watermark_offsets(
            self._kafka.TopicPartition(self._topic, partition), timeout=_PATIENCE_S
        )
        begin = max(first, here.upto)
        here.lost.append((here.upto, begin))
        self._assign({partition: begin}, kept=here)

    def _assign(self, begins: dict[int, int], *, kept: _Partition | None = None) -> None:
        """Reads partitions from some offsets on. kept: the partitions whose fetched messages stay."""
        partition_of = self._kafka.TopicPartition
        again = [p for p in begins if p in self._here]
        if again:
            self._consumer.incremental_unassign([partition_of(self._topic, p) for p in again])
        for partition, begin in begins.items():
            if kept is None:
                self._here[partition] = _Partition(begin)
            else:
                kept.upto = begin
        if begins:
            self._consumer.incremental_assign([partition_of(self._topic, p, b) for p, b in begins.items()])

    def _let_go(self, reading: int) -> None:
        """Drops partitions with too many unused messages. A later request fetches the messages again."""
        gone = [p for p, here in self._here.items() if p != reading and here.waiting > _MOST_WAITING]
        if gone:
            self._consumer.incremental_unassign([self._kafka.TopicPartition(self._topic, p) for p in gone])
            for partition in gone:
                del self._here[partition]

    def _check(self, options: KafkaOptions, topic_id: str) -> None:
        """Checks that the topic is the one whose offsets were planned."""
        try:
            found = Brokers(options.properties, answer_s=_PATIENCE_S).topic_id(self._topic)
        except Error as problem:
            if problem.condition == "UNDEFINED_OBJECT":
                raise
            raise Unavailable(problem.message) from problem
        if found != topic_id:
            raise error(
                "CONNECTOR_OPTION",
                f'topic "{self._topic}" was deleted and made anew',
                detail="What was planned to be read is gone.",
                hint="Drop the source and create it again.",
            )


def _together(chunks: Iterable[_Chunk]) -> list[_Chunk]:
    """The messages in fewer chunks, with about `_TOGETHER` messages in each."""
    groups: list[list[_Chunk]] = []
    size = _TOGETHER
    for chunk in chunks:
        if size >= _TOGETHER:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += len(chunk.offsets)
    return [_Chunk.joined(group) for group in groups]


def _pairs(headers: list[tuple[str, bytes | None]] | None) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": k, "value": v} for k, v in headers]


class _Kept(NamedTuple):
    """A reader, and the time of its last use."""

    reader: TopicReader
    at_s: float


_READERS: Final[dict[tuple[Any, ...], _Kept]] = {}


def reader_of(options: KafkaOptions, topic_id: str, *, headers: bool, times: bool) -> TopicReader:
    """The reader of a topic in this process. Readers unused for a minute are closed: they would continue fetching
    although their source may have been dropped.
    """
    key = (options.topic, topic_id, tuple(sorted(options.properties.items())), headers, times)
    now_s = time.monotonic()
    found = _READERS.pop(key, None)
    while _READERS:
        oldest = next(iter(_READERS))
        if len(_READERS) < _MOST_CONSUMERS and _READERS[oldest].at_s > now_s - _IDLE_S:
            break
        _READERS.pop(oldest).reader.close()
    reader = TopicReader(options, topic_id, headers=headers, times=times) if found is None else found.reader
    _READERS[key] = _Kept(reader, now_s)  # newest last
    return reader


def forget_reader(reader: TopicReader) -> None:
    """Closes a failed reader, so that the next read creates a new one."""
    for key in [k for k, kept in _READERS.items() if kept.reader is reader]:
        del _READERS[key]
    reader.close()


def forget_readers() -> None:
    """Closes all readers of this process. No other thread may read meanwhile."""
    while _READERS:
        _READERS.popitem()[1].reader.close()


_LOST: Final = "the message expired before it was read"

_JUMPED: Final = {
    "expired": _LOST,
    "recreated": "the topic was deleted and made anew",
}


def expect_messages(ranges: Sequence[MessageSlice | JumpSlice], spec: KafkaSpec) -> None:
    """Begins to fetch ranges that are read next."""
    by_id: dict[str, list[MessageSlice]] = {}
    for piece in ranges:
        if isinstance(piece, MessageSlice):
            by_id.setdefault(piece.topic_id, []).append(piece)
    for topic_id, pieces in by_id.items():
        _reader(spec, topic_id).expect(pieces)


def read_messages(
    piece: MessageSlice | JumpSlice, spec: KafkaSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice. Raises Unavailable if the brokers or a schema registry are temporarily unavailable."""
    empty = arrow_schema(tuple(columns), positional=False).empty_table()
    if isinstance(piece, JumpSlice):
        return rows_of_jump(piece, _JUMPED, empty, dead_letters)
    reader = _reader(spec, piece.topic_id)
    try:
        found = reader.read(piece)
    except BaseException:
        forget_reader(reader)
        raise
    return _decoded(piece, found, spec, decoder_of(spec), empty, dead_letters)


def _decoded(
    piece: MessageSlice,
    found: Found,
    spec: KafkaSpec,
    decoder: Decoder,
    empty: pa.Table,
    dead_letters: DeadLetterSink,
) -> SourceRows:
    """The rows of a range. empty: a table with the columns and no rows."""
    batches, lost = found
    for begin, end in lost:
        dead_letters.add_lost(piece.topic, piece.partition, begin, end, _LOST)
    return rows_of(batches, piece.begin, spec, decoder, empty, dead_letters)


def read_topic(
    ranges: Sequence[MessageSlice], spec: KafkaSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> pa.Table:
    """The rows of ranges of a topic, read by a separate consumer, so that any thread may call it while tasks read the
    topic.

    Raises Unavailable like `read_messages`.
    """
    empty = arrow_schema(tuple(columns), positional=False).empty_table()
    if not ranges:
        return empty
    reader = TopicReader(spec.options, ranges[0].topic_id, **_wanted(spec))
    decoder = new_decoder(spec)
    try:
        reader.expect(ranges)
        return pa.concat_tables([_decoded(p, reader.read(p), spec, decoder, empty, dead_letters).table for p in ranges])
    finally:
        reader.close()


def _reader(spec: KafkaSpec, topic_id: str) -> TopicReader:
    return reader_of(spec.options, topic_id, **_wanted(spec))


def _wanted(spec: KafkaSpec) -> dict[str, bool]:
    """The parts of messages that a reader keeps."""
    return {"headers": spec.wants_headers, "times": spec.wants_times}
