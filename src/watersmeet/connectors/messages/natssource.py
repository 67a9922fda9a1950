"""The source `nats`: a stream of JetStream. Its position is the number of a message in the stream.

RisingWave, "Ingest data from NATS JetStream".
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.connectors.base.messages import decoder_of, rows_of, rows_of_jump
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows
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
from watersmeet.connectors.messages.nats import SERVER_OPTIONS, NatsClient, NatsServer, nats_server
from watersmeet.errors import error
from watersmeet.formats.payloads import HEADERS, Messages
from watersmeet.values.slices import JumpSlice, LogSlice
from watersmeet.values.types import Field, arrow_schema

#: The messages of a request, and the time limit of the next one.
_FETCH, _FETCH_S = 1_000, 10.0
#: After this time the server forgets a reader that has gone.
_FORGOTTEN_S: Final = 60.0

SOURCE_OPTIONS: Final = OptionSet(
    "nats",
    (
        *(replace(s, doc="The subjects, separated by commas.") if s.name == "subject" else s for s in SERVER_OPTIONS),
        OptionSpec("stream", "The stream that stores the subjects.", is_needed=True),
        *START_OPTIONS,
        OptionSpec("consumer.", "A setting of a stored consumer; readers here have none.", "prefix", is_idle=True),
    ),
)


@dataclass(frozen=True)
class NatsSpec(LogSpec):
    """The specification of a stream as a source. subjects: those that are read; they may have * and >."""

    kind: ClassVar[str] = "nats"
    server: NatsServer
    stream: str
    subjects: tuple[str, ...]


def _spec(relation: Relation) -> NatsSpec:
    given = SOURCE_OPTIONS.read(relation.connector)
    subjects = tuple(part.strip() for part in given.needed("subject").split(",") if part.strip())
    return NatsSpec(*spec_parts(relation), log_options(given), nats_server(given), given.needed("stream"), subjects)


class NatsSource(LogSource):
    """See `LogSource`. A stream has one shard."""

    title = "nats"

    def __init__(self, relation: Relation) -> None:
        spec = _spec(relation)
        super().__init__(relation, spec, spec.stream)
        self._server = spec.server
        self._client: NatsClient | None = None

    def ask(self, after: Mapping[int, str]) -> Look:
        try:
            client = self._client or NatsClient(self._server)
            self._client = client
            info = stream_info(client, self._stream)
        except BaseException:
            self.close()
            raise
        first, last = info.state.first_seq, info.state.last_seq
        known = after.get(0, "")
        begin = int(known or 0) + 1
        lost = {0: (begin, first)} if known and first > begin else {}
        if not known:
            begin = max(begin, first)
        bounds = range(begin, last + 1, SLICE_MESSAGES)
        at, pieces = known, []
        for low in bounds:
            upto = min(low + SLICE_MESSAGES - 1, last)
            pieces.append(Piece(0, at, str(upto), upto - low + 1))
            at = str(upto)
        return Look(_id(info), () if lost else tuple(pieces), lost, {0: str(first - 1) if first > 1 else ""})

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def stream_info(client: NatsClient, stream: str) -> Any:
    """The server's answer about a stream. Raises UNDEFINED_OBJECT if it is missing, Unavailable, CONNECTOR_OPTION."""
    missing = client.not_found

    async def ask() -> Any:
        try:
            return await client.streams.stream_info(stream)
        except missing:
            return None

    found = client.run(ask)
    if found is None:
        raise error(
            "UNDEFINED_OBJECT",
            f'there is no stream "{stream}" on {client.server.shown}',
            hint="Create it first, or correct the option stream.",
        )
    return found


def _id(info: Any) -> str:
    """The id of a stream, which differs from that of a later one with the same name: the time of its creation."""
    return str(info.created)


def begun(relation: Relation) -> dict[str, str]:
    """The options with the position at which reading begins, which CREATE asks the server for."""
    spec = _spec(relation)
    if spec.options.stream_id:
        return dict(relation.connector)
    client = NatsClient(spec.server)
    try:
        info = stream_info(client, spec.stream)
        first, last = info.state.first_seq, info.state.last_seq
        start = first - 1
        if spec.options.mode == "latest":
            start = last
        elif spec.options.mode == "timestamp":
            start = _before_time(client, spec, last)
    finally:
        client.close()
    return begun_at(relation.connector, _id(info), {0: str(start) if start > 0 else ""})


def _before_time(client: NatsClient, spec: NatsSpec, last: int) -> int:
    """The number before the first message of the start time or a later one."""
    moment = dt.datetime.fromtimestamp(spec.options.millis / 1000, dt.UTC)

    async def ask() -> int:
        reader = await _reader(client, spec, deliver_policy="by_start_time", opt_start_time=moment)
        info = await reader.consumer_info()
        if not info.num_pending:
            return last
        (message,) = await reader.fetch(1, timeout=_FETCH_S)
        return int(message.metadata.sequence.stream) - 1

    return client.run(ask)


async def _reader(client: NatsClient, spec: NatsSpec, **config: Any) -> Any:
    """A reader of the server, which it forgets by itself. A server filters one subject; we filter several."""
    subject = spec.subjects[0] if len(spec.subjects) == 1 else ""
    made = client.reader_config(inactive_threshold=_FORGOTTEN_S, filter_subject=subject or None, **config)
    return await client.streams.pull_subscribe(subject, stream=spec.stream, config=made)


def read_nats(
    piece: LogSlice | JumpSlice, spec: NatsSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice. Raises Unavailable, CONNECTOR_OPTION."""
    empty = arrow_schema(tuple(columns), positional=False).empty_table()
    if isinstance(piece, JumpSlice):
        return rows_of_jump(piece, JUMPED, empty, dead_letters)
    client = NatsClient(spec.server)
    try:
        check_stream(piece, _id(stream_info(client, spec.stream)))
        found = client.run(lambda: _fetched(client, spec, piece))
    finally:
        client.close()
    batches = [_messages(found, spec)] if found else []
    return rows_of(batches, int(piece.after or 0) + 1, spec, decoder_of(spec), empty, dead_letters)


async def _fetched(client: NatsClient, spec: NatsSpec, piece: LogSlice) -> list[Any]:
    """The messages of a slice, as the library has them."""
    reader = await _reader(client, spec, deliver_policy="by_start_sequence", opt_start_seq=int(piece.after or 0) + 1)
    pending, upto, found = (await reader.consumer_info()).num_pending, int(piece.upto), []
    matches = _matcher(spec.subjects)
    while pending:
        messages = await reader.fetch(min(_FETCH, pending), timeout=_FETCH_S)
        found += [m for m in messages if m.metadata.sequence.stream <= upto and matches(m.subject)]
        pending = messages[-1].metadata.num_pending
        if messages[-1].metadata.sequence.stream >= upto:
            break
    return found


def _matcher(subjects: Sequence[str]) -> Any:
    """Whether a subject is one of those that are read: * is one word, > all words that follow."""
    if len(subjects) == 1:
        return lambda _: True
    parts = [re.escape(s).replace(r"\*", r"[^.]+").replace(r">", r".+") for s in subjects]
    return re.compile("|".join(f"(?:{p})" for p in parts)).fullmatch


def _messages(found: Sequence[Any], spec: NatsSpec) -> Messages:
    headers = None
    if spec.wants_headers:
        pairs = [[{"key": k, "value": v.encode()} for k, v in (m.headers or {}).items()] for m in found]
        headers = pa.array([p or None for p in pairs], HEADERS)
    times_ms = None
    if spec.wants_times:
        times_ms = np.array([int(m.metadata.timestamp.timestamp() * 1000) for m in found], np.int64)
    return Messages(
        spec.stream,
        0,
        pa.nulls(len(found), pa.binary()),
        pa.array([m.data for m in found], pa.binary()),
        np.array([m.metadata.sequence.stream for m in found], np.int64),
        times_ms,
        headers,
    )
