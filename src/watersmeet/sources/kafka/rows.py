"""From ranges of partitions to rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.formats.decoders import open_decoder, together
from watersmeet.formats.payloads import Decoder, Messages
from watersmeet.serialization import to_json
from watersmeet.slices import JumpSlice, MessageSlice
from watersmeet.sources.base import DeadLetterSink, SourceRows, Unavailable
from watersmeet.sources.kafka.ranges import Found, TopicReader, forget_reader, reader_of
from watersmeet.sources.specs import KafkaSpec
from watersmeet.types import Field, arrow_schema

_LOST: Final = "the message expired before it was read"
_JUMPED: Final = {
    "expired": _LOST,
    "recreated": "the topic was deleted and made anew",
}


def expect_messages(ranges: Sequence[MessageSlice], spec: KafkaSpec) -> None:
    """Begins to fetch ranges that are read next."""
    by_id: dict[str, list[MessageSlice]] = {}
    for piece in ranges:
        by_id.setdefault(piece.topic_id, []).append(piece)
    for topic_id, pieces in by_id.items():
        _reader(spec, topic_id).expect(pieces)


def read_messages(
    piece: MessageSlice | JumpSlice, spec: KafkaSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice. Unavailable if the brokers, or a schema registry, can't be reached for now."""
    empty = arrow_schema(tuple(columns), positional=False).empty_table()
    if isinstance(piece, JumpSlice):
        for partition, begin, end in piece.offsets:
            if begin < end or piece.reason == "recreated":
                dead_letters.add_lost(piece.topic, partition, begin, end, _JUMPED[piece.reason])
        return SourceRows(empty, np.zeros(0, np.int64))
    reader = _reader(spec, piece.topic_id)
    try:
        found = reader.read(piece)
    except BaseException:
        forget_reader(reader)
        raise
    return _decoded(piece, found, spec, _decoder(spec), empty, dead_letters)


def _decoded(
    piece: MessageSlice,
    found: Found,
    spec: KafkaSpec,
    decoder: Decoder,
    empty: pa.Table,
    dead_letters: DeadLetterSink,
) -> SourceRows:
    """The rows of a range. empty: no rows, with the columns."""
    batches, lost = found
    for begin, end in lost:
        dead_letters.add_lost(piece.topic, piece.partition, begin, end, _LOST)
    batches_read, tables, diffs, places = [], [empty], [], []
    for batch in batches:
        try:
            decoded = decoder.decode(batch)
        except OSError as cause:
            raise Unavailable(str(cause)) from cause
        _set_aside(batch, [u.place for u in decoded.unreadable], [u.reason for u in decoded.unreadable], dead_letters)
        batches_read.append(decoded)
        tables.append(decoded.table.select(empty.column_names))
        diffs.append(np.ones(len(decoded.places), np.int64) if decoded.diff is None else decoded.diff)
        places.append(batch.offsets[decoded.places] - piece.begin)
    diff, offsets = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (diffs, places))
    table = pa.concat_tables(tables) if empty.num_columns else empty
    numbers = np.arange(len(diff))
    if spec.format.rows.startswith("debezium"):
        # A message has one row, or one that is gone and another one.
        again = np.zeros(len(offsets), np.int64)
        again[1:] = offsets[1:] == offsets[:-1]
        numbers = MessageSlice.ROWS_OF_CHANGE * offsets + again
    return SourceRows(table, numbers, diff=diff, kept=together(batches_read))


def read_topic(
    ranges: Sequence[MessageSlice], spec: KafkaSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> pa.Table:
    """The rows of ranges of one topic, by a consumer of their own: in any thread, beside tasks that read it.

    Unavailable as `read_messages`.
    """
    empty = arrow_schema(tuple(columns), positional=False).empty_table()
    if not ranges:
        return empty
    reader = TopicReader(spec.options, ranges[0].topic_id, **_wanted(spec))
    decoder = open_decoder(spec.columns, spec.key, spec.format, spec.message_parts)
    try:
        reader.expect(ranges)
        return pa.concat_tables([_decoded(p, reader.read(p), spec, decoder, empty, dead_letters).table for p in ranges])
    finally:
        reader.close()


def _set_aside(batch: Messages, places: Sequence[int], reasons: Sequence[str], dead_letters: DeadLetterSink) -> None:
    if not places:
        return
    dead_letters.add_messages(
        batch.topic,
        batch.partition,
        batch.offsets[list(places)].tolist(),
        reasons,
        batch.keys.take(pa.array(places)).to_pylist(),
        batch.values.take(pa.array(places)).to_pylist(),
    )


def _reader(spec: KafkaSpec, topic_id: str) -> TopicReader:
    return reader_of(spec.options, topic_id, **_wanted(spec))


def _wanted(spec: KafkaSpec) -> dict[str, bool]:
    """What a reader has to keep of messages."""
    parts = spec.message_parts.values()
    return {"headers": any(p.startswith("header") for p in parts), "times": "timestamp" in parts}


def _decoder(spec: KafkaSpec) -> Decoder:
    return _opened(_Same(spec))


class _Same:
    """A spec as a key: specs have dicts in them."""

    def __init__(self, spec: KafkaSpec) -> None:
        self.spec = spec
        self._text = repr(to_json(spec))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=32)
def _opened(same: _Same) -> Decoder:
    spec = same.spec
    return open_decoder(spec.columns, spec.key, spec.format, spec.message_parts)
