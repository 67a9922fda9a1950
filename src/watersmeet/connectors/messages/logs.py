"""The driver's side of sources whose systems keep messages in shards, each in an order: NATS JetStream and Kinesis.

A thread asks the system for the messages after the position of each shard, in pieces; each piece becomes a slice.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from watersmeet.catalog import MessageFormat, Relation
from watersmeet.connectors.base.messages import ON_ERROR, MessageSpec
from watersmeet.connectors.base.options import Options, OptionSpec
from watersmeet.connectors.base.sources import (
    History,
    Inquiry,
    Notification,
    Poll,
    Unavailable,
    check_position,
    is_known_slice,
    newest_first,
    no_withdrawal,
    save_state,
    saved_state,
)
from watersmeet.errors import Error, error
from watersmeet.values.slices import JumpSlice, LogSlice, SourceSlice
from watersmeet.values.types import Schema

#: The maximum number of messages of a slice.
SLICE_MESSAGES: Final = 50_000
#: The estimated size of a message before it is read.
MESSAGE_BYTES: Final = 200
#: The options with the stream's id at CREATE, and with the positions after which reading began.
STREAM_ID, STARTS = "stream.id", "start.positions"

START_OPTIONS: Final = (
    OptionSpec(
        "scan.startup.mode",
        "Where reading begins.",
        "choice",
        among=("earliest", "latest", "timestamp"),
        default="earliest",
    ),
    OptionSpec(
        "scan.startup.timestamp.millis",
        "With scan.startup.mode = timestamp: reading begins at the first message of this time or a later one.",
        "integer",
        minimum=0,
        unit="ms since 1970",
    ),
    OptionSpec(
        "on_data_loss",
        "The handling of messages that were deleted unread, and of a stream that was created again.",
        "choice",
        among=("stop", "skip"),
        default="stop",
    ),
    ON_ERROR,
    OptionSpec(STREAM_ID, "The id of the stream at CREATE.", is_internal=True),
    OptionSpec(STARTS, "The positions after which reading began.", is_internal=True),
)


@dataclass(frozen=True)
class Piece:
    """Messages of a shard that can be read; see `LogSlice`."""

    shard: int
    after: str
    upto: str
    rows: int
    size_bytes: int = 0


@dataclass(frozen=True)
class Look:
    """The messages of a system after the positions of a source.

    stream_id: see `LogSlice`. pieces: by shard in order, each beginning at the end of the previous one. lost: by shard
    with deleted messages, the numbers of the next expected message and of the first existing one. firsts: by shard, the
    position before its first message. problem: the reason why the system can't be asked now.
    """

    stream_id: str = ""
    pieces: tuple[Piece, ...] = ()
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    firsts: Mapping[int, str] = field(default_factory=dict)
    problem: Error | None = None


@dataclass(frozen=True)
class LogOptions:
    """The options of a source. starts: the positions after which reading begins, by shard; other shards are
    read from their first message. stream_id: empty before CREATE has determined it.
    """

    mode: Literal["earliest", "latest", "timestamp"]
    millis: int
    on_data_loss: Literal["stop", "skip"]
    on_error: Literal["skip", "stop"]
    stream_id: str
    starts: Mapping[int, str]


def log_options(options: Options) -> LogOptions:
    """The options of a statement. Raises CONNECTOR_OPTION."""
    mode = options.choice("scan.startup.mode")
    millis = options.integer("scan.startup.timestamp.millis")
    if mode == "timestamp" and millis is None:
        raise error("CONNECTOR_OPTION", "scan.startup.mode = 'timestamp' needs scan.startup.timestamp.millis")
    starts = (part.split("=") for part in options.text(STARTS).split(",") if part)
    return LogOptions(
        "timestamp" if mode == "timestamp" else "latest" if mode == "latest" else "earliest",
        millis or 0,
        "skip" if options.choice("on_data_loss") == "skip" else "stop",
        "stop" if options.choice("on_error") == "stop" else "skip",
        options.text(STREAM_ID),
        {int(shard): after for shard, after in starts},
    )


def begun_at(connector: Mapping[str, str], stream_id: str, starts: Mapping[int, str]) -> dict[str, str]:
    """The options that CREATE stores, with the positions at which reading begins."""
    return {**connector, STREAM_ID: stream_id, STARTS: ",".join(f"{s}={a}" for s, a in sorted(starts.items()))}


@dataclass(frozen=True)
class LogSpec(MessageSpec):
    """The specification of a stream as a source. options: those of all systems; each subclass adds its own."""

    options: LogOptions

    @property
    def stops_on_error(self) -> bool:
        """See `SourceSpec`."""
        return self.options.on_error == "stop"


def spec_parts(relation: Relation) -> tuple[Schema, tuple[str, ...], MessageFormat, Mapping[str, str]]:
    """The first fields of the specification of a relation."""
    return relation.columns, relation.primary_key, relation.format or MessageFormat(), relation.message_parts


#: The reasons of dead letters for lost messages.
JUMPED: Final = {"expired": "it was deleted unread", "recreated": "the stream was deleted and created again"}


def check_stream(piece: LogSlice, stream_id: str) -> None:
    """Raises CONNECTOR_OPTION unless a stream is the one whose messages were planned to be read."""
    if stream_id != piece.stream_id:
        raise error(
            "CONNECTOR_OPTION",
            f'stream "{piece.stream}" was deleted and created again',
            detail="The messages that were planned to be read no longer exist.",
            hint="Drop the source and create it again.",
        )


class LogSource(abc.ABC):
    """The messages of a stream, in the order of each shard.

    Laws: each message from the start on is read once, or counted as lost with a reason. Lost messages, or a stream that
    was created again, stop only this source (`on_data_loss`). See `base.sources.Source` for the life of a source.

    idle_us: the time between two questions while nothing arrives.
    """

    title: ClassVar[str]
    idle_us: ClassVar[int] = 100_000

    def __init__(self, relation: Relation, spec: LogSpec, stream: str) -> None:
        self.relation_id = relation.id
        self._spec = spec
        self._stream = stream
        statement = relation.connector_altered("on_data_loss = 'skip'")
        self._to_skip = f"To go on with what is there: {statement}"
        self._inquiry: Inquiry[Look] = Inquiry(self.title, f"{self.title} {stream}")
        self._asked_us = 0
        self._seen = Look()
        self._slices = self._rows = self._lost = 0
        self._stream_id = spec.options.stream_id
        self._next: dict[int, str] = dict(spec.options.starts)
        #: By shard, the pieces that were read, joined while they are small.
        self._read: dict[int, list[Piece]] = {}

    @abc.abstractmethod
    def ask(self, after: Mapping[int, str]) -> Look:
        """The messages of the system after the positions of the shards. Runs in a separate thread, one call at a time.

        Raises Unavailable and `Error`, which become the `problem`.
        """

    def spec(self) -> LogSpec:
        return self._spec

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        expected = 0 if position is None else position["slices"]
        check_position(self.relation_id, expected, self._slices)
        self._look(now_us, fresh=fresh)
        seen = self._seen
        later = Poll((), self._position(0), next_us=now_us + self.idle_us)
        if seen.problem is not None or not seen.stream_id:
            return later
        if (jump := self._jump(seen)) is not None:
            if self._spec.options.on_data_loss == "stop":
                return later
            return Poll((jump.at(self._slices),), self._position(1), more=True)
        found: list[LogSlice] = []
        more = False
        for piece in self._unread(seen):
            if found and (budget_rows < piece.rows or budget_bytes < piece.size_bytes):
                more = True
                break
            budget_rows -= piece.rows
            budget_bytes -= piece.size_bytes
            found.append(self._slice(seen.stream_id, piece, self._slices + len(found)))
        if not found:
            return later
        return Poll(tuple(found), self._position(len(found)), more, next_us=None if more else now_us + self.idle_us)

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection; the next poll opens another one."""

    def listen(self, notification: Notification) -> None:
        self._inquiry.listen(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        for piece in slices:
            if is_known_slice(self.relation_id, piece, self._slices, "Messages"):
                continue
            self._slices += 1
            if isinstance(piece, JumpSlice):
                self._accept_jump(piece)
                continue
            assert isinstance(piece, LogSlice)
            self._stream_id = piece.stream_id
            self._rows += piece.rows
            self._next[piece.shard] = piece.upto
            self._keep(Piece(piece.shard, piece.after, piece.upto, piece.rows, piece.size_bytes))

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        for piece in newest_first(slices, self._slices):
            if not isinstance(piece, LogSlice):
                raise no_withdrawal(self.relation_id, f'Stream "{self._stream}" has lost messages since.')
            self._slices -= 1
            self._rows -= piece.rows
            self._next[piece.shard] = piece.after
            last = self._read[piece.shard].pop()
            if last.after != piece.after:
                self._read[piece.shard].append(replace(last, upto=piece.after, rows=last.rows - piece.rows))

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        pieces = [piece for shard in sorted(self._read) for piece in self._read[shard]]
        index = cursor or 0
        found: list[LogSlice] = []
        while index < len(pieces):
            piece = pieces[index]
            if found and (budget_rows < piece.rows or budget_bytes < piece.size_bytes):
                break
            budget_rows -= piece.rows
            budget_bytes -= piece.size_bytes
            found.append(self._slice(self._stream_id, piece, index))
            index += 1
        return History(tuple(found), index if index < len(pieces) else None)

    def save(self, path: Path) -> None:
        state = {
            "slices": self._slices,
            "rows": self._rows,
            "lost": self._lost,
            "stream_id": self._stream_id,
            "next": sorted(self._next.items()),
            "read": [[p.shard, p.after, p.upto, p.rows, p.size_bytes] for s in self._read.values() for p in s],
        }
        save_state(path, state)

    def load(self, path: Path) -> None:
        with saved_state(path) as state:
            self._slices, self._rows, self._lost = state["slices"], state["rows"], state["lost"]
            self._stream_id, self._next = state["stream_id"], dict(state["next"])
            self._read = {}
            for shard, after, upto, rows, size_bytes in state["read"]:
                self._read.setdefault(shard, []).append(Piece(shard, after, upto, rows, size_bytes))

    def status(self) -> dict[str, Any]:
        """The status as JSON: planned and unread messages, the state with its reason, and the position in each shard.

        state: `running`; `waiting` for the system; `stalled` until a statement resumes it.
        """
        state, reason = self._state()
        return {
            "rows_planned": self._rows,
            "topic": self._stream,
            "partitions": len(self._seen.firsts) or len(self._next),
            "offsets": sorted(self._next.items()),
            "backlog_messages": 0 if state == "stalled" else sum(p.rows for p in self._unread(self._seen)),
            "lost_messages": self._lost,
            "state": state,
            "reason": reason,
            "problem": reason if state in ("waiting", "stalled") else None,
        }

    def _look(self, now_us: int, *, fresh: bool) -> None:
        after = dict(self._next)

        def ask() -> Look:
            try:
                return self.ask(after)
            except Error as problem:
                return Look(problem=problem)
            except (OSError, Unavailable) as problem:
                return Look(problem=error("RUNTIME_UNAVAILABLE", str(problem)))

        if fresh:
            answer = self._inquiry.now(ask)
            if answer is None:
                answer = Look(problem=error("RUNTIME_UNAVAILABLE", f"{self._stream} of {self.title} does not answer"))
            self._seen, self._asked_us = answer, now_us
        elif (answer := self._inquiry.take()) is not None:
            self._seen = answer
        elif self._inquiry.is_idle and now_us - self._asked_us >= self.idle_us and not self._unread(self._seen):
            self._asked_us = now_us
            self._inquiry.begin(ask)

    def _unread(self, seen: Look) -> list[Piece]:
        """The pieces after the current positions, without those that were planned meanwhile."""
        found, ends = [], dict(self._next)
        for piece in seen.pieces:
            if piece.after == ends.get(piece.shard, ""):
                found.append(piece)
                ends[piece.shard] = piece.upto
        return found

    def _position(self, more: int) -> dict[str, int]:
        return {"slices": self._slices + more}

    def _slice(self, stream_id: str, piece: Piece, ordinal: int) -> LogSlice:
        return LogSlice(
            relation=self.relation_id,
            rows=piece.rows,
            size_bytes=piece.size_bytes or piece.rows * MESSAGE_BYTES,
            ordinal=ordinal,
            stream=self._stream,
            stream_id=stream_id,
            shard=piece.shard,
            after=piece.after,
            upto=piece.upto,
        )

    def _keep(self, piece: Piece) -> None:
        """Remembers what was read, for histories."""
        known = self._read.setdefault(piece.shard, [])
        if known and known[-1].upto == piece.after and known[-1].rows + piece.rows <= SLICE_MESSAGES:
            last = known.pop()
            piece = replace(piece, after=last.after, rows=last.rows + piece.rows)
        known.append(piece)

    def _jump(self, seen: Look) -> JumpSlice | None:
        """The positions at which to continue if messages are lost, else None."""
        if self._stream_id not in ("", seen.stream_id):
            moves = tuple((shard, 0, int(after or 0) + 1) for shard, after in sorted(seen.firsts.items()))
            return self._jump_slice(seen, "recreated", moves)
        gone = tuple((shard, before, now) for shard, (before, now) in sorted(seen.lost.items()))
        return self._jump_slice(seen, "expired", gone) if gone else None

    def _jump_slice(
        self, seen: Look, reason: Literal["expired", "recreated"], moves: tuple[tuple[int, int, int], ...]
    ) -> JumpSlice:
        return JumpSlice(
            relation=self.relation_id, topic=self._stream, topic_id=seen.stream_id, reason=reason, offsets=moves
        )

    def _accept_jump(self, piece: JumpSlice) -> None:
        self._seen = replace(self._seen, lost={})
        if piece.reason == "recreated":
            self._stream_id, self._read = piece.topic_id, {}
            self._next = {shard: self._before(now) for shard, _, now in piece.offsets}
            return
        for shard, before, now in piece.offsets:
            self._lost += now - before
            self._next[shard] = self._before(now)

    def _before(self, number: int) -> str:
        """The position before a message."""
        return str(number - 1) if number > 1 else ""

    def _state(self) -> tuple[Literal["running", "waiting", "stalled"], str | None]:
        seen = self._seen
        if seen.problem is not None:
            gone = seen.problem.condition == "UNDEFINED_OBJECT"
            return ("stalled" if gone else "waiting"), seen.problem.message
        jump = self._jump(seen) if seen.stream_id else None
        if jump is None or self._spec.options.on_data_loss == "skip":
            return "running", None
        if jump.reason == "recreated":
            return "stalled", f'stream "{self._stream}" was deleted and created again. {self._to_skip}'
        shard, before, now = jump.offsets[0]
        return "stalled", (
            f'messages of stream "{self._stream}" were deleted before they were read: {before} to {now - 1} '
            f"of shard {shard}. {self._to_skip}"
        )
