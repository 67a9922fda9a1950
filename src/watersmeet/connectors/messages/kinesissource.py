"""The source `kinesis`: a stream of Kinesis. The position in a shard is the sequence number of a record, or `@` and a
time in milliseconds since 1970 before the first record is read.

The driver reads the records once to learn where slices end, and tasks read them again: so the rate of a shard is half
of that at which it can be read, which is the rate at which it can be written.

RisingWave, "Ingest data from Kinesis".
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.connectors.base.messages import decoder_of, rows_of, rows_of_jump
from watersmeet.connectors.base.options import OptionSet
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, Unavailable
from watersmeet.connectors.messages.kinesis import (
    STREAM_OPTIONS,
    KinesisStream,
    explained,
    kinesis_client,
    kinesis_stream,
    library,
)
from watersmeet.connectors.messages.logs import (
    JUMPED,
    SLICE_MESSAGES,
    START_OPTIONS,
    LogSource,
    LogSpec,
    Look,
    Piece,
    begun_at,
    check_stream,
    log_options,
    spec_parts,
)
from watersmeet.formats.payloads import Messages
from watersmeet.values.slices import JumpSlice, LogSlice
from watersmeet.values.types import Field, arrow_schema

#: The records of a request, of which an answer has at most 10 MB.
_RECORDS: Final = 10_000
#: The maximum of answers that are read ahead of a shard, and the time between the looks at the list of shards.
_AHEAD, _SHARDS_S = 4, 10.0
#: The time after which an unread slice is given up for now, and the pause after a request that was refused as one of
#: too many.
_PATIENCE_S, _PAUSE_S = 60.0, 0.25
_TIME: Final = "@"

SOURCE_OPTIONS: Final = OptionSet("kinesis", (*STREAM_OPTIONS, *START_OPTIONS))


@dataclass(frozen=True)
class KinesisSpec(LogSpec):
    """The specification of a stream as a source."""

    kind: ClassVar[str] = "kinesis"
    stream: KinesisStream


def _spec(relation: Relation) -> KinesisSpec:
    given = SOURCE_OPTIONS.read(relation.connector)
    return KinesisSpec(*spec_parts(relation), log_options(given), kinesis_stream(given))


class _Client:
    """Requests about one stream. Raises in all methods: Unavailable, CONNECTOR_OPTION, UNDEFINED_OBJECT."""

    def __init__(self, stream: KinesisStream) -> None:
        library()
        self._stream = stream
        self._client = kinesis_client(stream)

    def ask(self, name: str, **parameters: Any) -> Any:
        """The answer of a request, which is sent again if there were too many."""
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with explained(self._stream):
                    return getattr(self._client, name)(**parameters)
            except Unavailable as cause:
                if "Exceeded" not in str(cause) or time.monotonic() > end_s:
                    raise
                time.sleep(_PAUSE_S)

    def stream_id(self) -> str:
        """The id of the stream, which differs from that of a later one with the same name: the time of its creation."""
        found = self.ask("describe_stream_summary", StreamName=self._stream.name)
        return str(found["StreamDescriptionSummary"]["StreamCreationTimestamp"])

    def shards(self) -> dict[int, tuple[int, ...]]:
        """The shards, each with those from which it was made by splitting or merging."""
        found: dict[int, tuple[int, ...]] = {}
        more: dict[str, Any] = {"StreamName": self._stream.name}
        while more:
            answer = self.ask("list_shards", **more)
            for shard in answer["Shards"]:
                parents = (shard.get(name) for name in ("ParentShardId", "AdjacentParentShardId"))
                found[_number(shard["ShardId"])] = tuple(_number(p) for p in parents if p)
            more = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
        return found

    def iterator(self, shard: int, after: str) -> str:
        """The service's iterator that begins after a position."""
        where: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
        if after.startswith(_TIME):
            where = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": int(after.removeprefix(_TIME)) / 1000}
        elif after:
            where = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        name = f"shardId-{shard:012d}"
        answer = self.ask("get_shard_iterator", StreamName=self._stream.name, ShardId=name, **where)
        return str(answer["ShardIterator"])

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class KinesisSource(LogSource):
    """See `LogSource`. A shard is read when those from which it was made have been read to their ends."""

    title = "kinesis"
    idle_us = 1_000_000  # five requests a second are allowed for a shard

    def __init__(self, relation: Relation) -> None:
        spec = _spec(relation)
        super().__init__(relation, spec, spec.stream.name)
        self._where = spec.stream
        self._client: _Client | None = None
        self._shards: dict[int, tuple[int, ...]] = {}
        self._shards_at_s, self._id = 0.0, ""
        self._ended: set[int] = set()
        self._iterators: dict[int, tuple[str, str | None]] = {}
        """By shard, the position after which the iterator begins, and the iterator; None at the end of the shard."""

    def ask(self, after: Mapping[int, str]) -> Look:
        client = self._client = self._client or _Client(self._where)
        if time.monotonic() - self._shards_at_s > _SHARDS_S or not self._id:
            self._id, self._shards = client.stream_id(), client.shards()
            self._shards_at_s = time.monotonic()
        pieces: list[Piece] = []
        for shard in sorted(self._shards):
            if shard not in self._ended and all(p in self._ended for p in self._shards[shard] if p in self._shards):
                pieces += self._ahead(client, shard, after.get(shard, ""))
        return Look(self._id, tuple(pieces), {}, dict.fromkeys(self._shards, ""))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ahead(self, client: _Client, shard: int, after: str) -> list[Piece]:
        """The records after a position that are read ahead."""
        at, iterator = self._iterators.get(shard, ("", ""))
        if at != after or iterator == "":
            iterator = client.iterator(shard, after)
        pieces: list[Piece] = []
        for _ in range(_AHEAD):
            if iterator is None:
                break
            answer = client.ask("get_records", ShardIterator=iterator, Limit=_RECORDS)
            records, iterator = answer["Records"], answer.get("NextShardIterator")
            if records:
                upto = str(records[-1]["SequenceNumber"])
                size_bytes = sum(len(r["Data"]) for r in records)
                pieces.append(Piece(shard, after, upto, len(records), size_bytes))
                after = upto
            elif not answer.get("MillisBehindLatest"):
                break
        self._iterators[shard] = (after, iterator)
        if iterator is None and not pieces:
            self._ended.add(shard)
        return pieces


def _number(shard_id: str) -> int:
    return int(shard_id.rpartition("-")[2])


def begun(relation: Relation) -> dict[str, str]:
    """The options with the positions at which reading begins, which CREATE asks the service for."""
    spec = _spec(relation)
    options = spec.options
    if options.stream_id:
        return dict(relation.connector)
    client = _Client(spec.stream)
    try:
        millis = options.millis if options.mode == "timestamp" else time.time_ns() // 1_000_000
        start = "" if options.mode == "earliest" else f"{_TIME}{millis}"
        return begun_at(relation.connector, client.stream_id(), dict.fromkeys(client.shards(), start))
    finally:
        client.close()


def read_kinesis(
    piece: LogSlice | JumpSlice, spec: KinesisSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice. Raises Unavailable, CONNECTOR_OPTION, UNDEFINED_OBJECT."""
    empty = arrow_schema(tuple(columns), positional=False).empty_table()
    if isinstance(piece, JumpSlice):
        return rows_of_jump(piece, JUMPED, empty, dead_letters)
    client = _Client(spec.stream)
    try:
        check_stream(piece, client.stream_id())
        found = _records(client, piece)
    finally:
        client.close()
    if len(found) < piece.rows:
        reason = f"it expired before it was read (after sequence number {piece.after or 0})"
        dead_letters.add_lost(piece.stream, piece.shard, 0, piece.rows - len(found), reason)
    batches = [_messages(found[i : i + SLICE_MESSAGES], piece, i, spec) for i in range(0, len(found), SLICE_MESSAGES)]
    return rows_of(batches, 0, spec, decoder_of(spec), empty, dead_letters)


def _records(client: _Client, piece: LogSlice) -> list[Any]:
    """The records of a slice, as the library has them."""
    iterator: str | None = client.iterator(piece.shard, piece.after)
    upto, found = int(piece.upto), []
    end_s = time.monotonic() + _PATIENCE_S
    while iterator is not None:
        answer = client.ask("get_records", ShardIterator=iterator, Limit=_RECORDS)
        records, iterator = answer["Records"], answer.get("NextShardIterator")
        found += [r for r in records if int(r["SequenceNumber"]) <= upto]
        if (records and int(records[-1]["SequenceNumber"]) >= upto) or (
            not records and not answer.get("MillisBehindLatest")
        ):
            break
        if time.monotonic() > end_s:
            raise Unavailable(f"shard {piece.shard} of stream {piece.stream} gave not all of a slice in time")
    return found


def _messages(found: Sequence[Any], piece: LogSlice, begin: int, spec: KinesisSpec) -> Messages:
    times_ms = None
    if spec.wants_times:
        times_ms = np.array([int(r["ApproximateArrivalTimestamp"].timestamp() * 1000) for r in found], np.int64)
    return Messages(
        piece.stream,
        piece.shard,
        pa.array([r["PartitionKey"].encode() for r in found], pa.binary()),
        pa.array([r["Data"] for r in found], pa.binary()),
        np.arange(begin, begin + len(found)),
        times_ms,
        numbers=pa.array([r["SequenceNumber"] for r in found], pa.string()),
    )
