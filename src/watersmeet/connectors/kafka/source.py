"""A topic as a source: its partitions, the readable offsets of each, and the problems that stop reading."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from watersmeet.catalog import MessageFormat, Relation
from watersmeet.connectors.base.sources import (
    History,
    Notification,
    Poll,
    check_position,
    is_known_slice,
    newest_first,
    no_withdrawal,
    save_state,
    saved_state,
)
from watersmeet.connectors.kafka.client import (
    START,
    TOPIC_ID,
    KafkaOptions,
    KafkaSpec,
    kafka_options,
    library,
    starting_at,
)
from watersmeet.connectors.kafka.cluster import Cluster, TopicState, cluster_of
from watersmeet.errors import Error, error
from watersmeet.values.slices import JumpSlice, MessageSlice, SourceSlice

#: The maximum number of messages of a slice, so that tasks share large reads.
SLICE_MESSAGES: Final = 100_000
#: The maximum number of slices per poll, which keeps intents small.
MAX_SLICES: Final = 1000
#: The estimated size of a message before it is read.
MESSAGE_BYTES: Final = 200
#: The time after which SHOW reports that a partition has only uncommitted messages to read.
_BLOCKED_US: Final = 2_000_000

State = Literal["running", "waiting", "blocked", "stalled"]


class KafkaSource:
    """The committed messages of a topic, in the order of offsets in each partition.

    Laws: every message from the start on is read once, or counted as lost with a reason. Expired messages or a topic
    that was created again stop only this source (`on_data_loss`). A new partition is read from its first message,
    regardless of the start of the source. See `base.sources.Source` for the life of a source.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation_id = relation.id
        self.options = kafka_options(relation.connector)
        statement = relation.connector_altered("on_data_loss = 'skip'")
        self._to_skip = f"To go on with what is there: {statement}"
        self._spec = KafkaSpec(
            relation.columns,
            relation.primary_key,
            relation.format or MessageFormat(),
            relation.message_parts,
            self.options,
        )
        library()
        self._slices = 0
        self._rows = 0
        self._lost = 0
        self._topic_id = self.options.topic_id
        self._starts: dict[int, int] = dict(self.options.starts or {})
        self._next: dict[int, int] = dict(self._starts)
        self._cluster: Cluster | None = None
        self._seen = TopicState()
        self._blocked_since_us: dict[int, int] = {}
        self._now_us = 0
        self._notification: Notification | None = None

    def spec(self) -> KafkaSpec:
        return self._spec

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        expected = 0 if position is None else position["slices"]
        check_position(self.relation_id, expected, self._slices)
        seen = self._look(fresh=fresh)
        self._note_blocked(seen, now_us)
        if seen.problem is not None or not seen.id:
            return Poll((), self._position(0))
        if (jump := self._jump(seen)) is not None:
            if self.options.on_data_loss == "stop":
                return Poll((), self._position(0))
            return Poll((jump.at(self._slices),), self._position(1), more=True)
        unread = self._unread(seen)
        pieces: list[MessageSlice] = []
        budget = max(1, min(budget_rows, budget_bytes // MESSAGE_BYTES))
        more = False
        for left, (partition, (begin, end)) in zip(range(len(unread), 0, -1), unread.items(), strict=True):
            if budget <= 0 or len(pieces) >= MAX_SLICES:
                more = True
                break
            upto = min(end, begin + max(1, budget // left))
            more |= upto < end
            budget -= upto - begin
            pieces += self._pieces(seen.id, partition, begin, upto)
        pieces = [piece.at(ordinal) for ordinal, piece in enumerate(pieces, self._slices)]
        return Poll(tuple(pieces), self._position(len(pieces)), more)

    def listen(self, notification: Notification) -> None:
        self._notification = notification
        if self._cluster is not None:
            self._cluster.tell(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        for piece in slices:
            if is_known_slice(self.relation_id, piece, self._slices, "Messages"):
                continue
            self._slices += 1
            if isinstance(piece, JumpSlice):
                self._accept_jump(piece)
                continue
            assert isinstance(piece, MessageSlice)
            self._topic_id = piece.topic_id
            self._rows += piece.rows
            self._starts.setdefault(piece.partition, piece.begin)
            self._next[piece.partition] = piece.end

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        for piece in newest_first(slices, self._slices):
            if not isinstance(piece, MessageSlice):
                raise no_withdrawal(self.relation_id, f'Topic "{self.options.topic}" has lost messages since.')
            self._slices -= 1
            self._rows -= piece.rows
            self._next[piece.partition] = piece.begin

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        partitions = sorted(p for p in self._next if self._starts[p] < self._next[p])
        index, offset, ordinal = cursor or (0, None, 0)
        if index >= len(partitions):
            return History((), None)
        seen = self._look(fresh=cursor is None)
        if seen.problem is not None:
            raise seen.problem
        if seen.id != self._topic_id:
            raise error(
                "CONNECTOR_OPTION",
                self._reason(seen) or "the topic is another one",
                hint=self._to_skip,
            )
        budget = max(1, min(budget_rows, budget_bytes // MESSAGE_BYTES))
        pieces: list[MessageSlice] = []
        while index < len(partitions) and budget > 0 and len(pieces) < MAX_SLICES:
            partition = partitions[index]
            begin = self._starts[partition] if offset is None else offset
            upto = min(self._next[partition], begin + budget)
            pieces += self._pieces(seen.id, partition, begin, upto)
            budget -= upto - begin
            index, offset = (index + 1, None) if upto == self._next[partition] else (index, upto)
        numbered = tuple(piece.at(i) for i, piece in enumerate(pieces, ordinal))
        after = [index, offset, ordinal + len(pieces)] if index < len(partitions) else None
        return History(numbered, after, self._expired(seen) if cursor is None else "")

    def _expired(self, seen: TopicState) -> str:
        """A sentence about the read messages that no longer exist; empty if all exist."""
        ends = {p: min(seen.firsts.get(p, 0), end) for p, end in sorted(self._next.items())}
        gone = [(p, self._starts[p], end) for p, end in ends.items() if self._starts[p] < end]
        if not gone:
            return ""
        partition, begin, end = gone[0]
        more = f", and of {len(gone) - 1} more partitions" if len(gone) > 1 else ""
        return (
            f'messages of topic "{self.options.topic}" that have expired since they were read: '
            f"offsets {begin} to {end - 1} of partition {partition}{more}"
        )

    def now(self) -> list[MessageSlice]:
        """The messages that are committed now, from the start offset in the options on. It stores no offset.

        Raises the problem of the topic.
        """
        seen = cluster_of(self.options.properties).ask(self.options.topic)
        unread = self._unread(seen)
        return [piece for p, (begin, end) in unread.items() for piece in self._pieces(seen.id, p, begin, end)]

    def save(self, path: Path) -> None:
        state = {
            "slices": self._slices,
            "rows": self._rows,
            "lost": self._lost,
            "topic_id": self._topic_id,
            "starts": sorted(self._starts.items()),
            "next": sorted(self._next.items()),
        }
        save_state(path, state)

    def load(self, path: Path) -> None:
        with saved_state(path) as state:
            self._slices, self._rows, self._lost = state["slices"], state["rows"], state["lost"]
            self._topic_id, self._starts, self._next = state["topic_id"], dict(state["starts"]), dict(state["next"])

    def status(self) -> dict[str, Any]:
        """The status as JSON: planned and unread messages, the state with its reason, and the offset in each partition.

        state: `running`; `waiting` for brokers; `blocked` by a transaction; `stalled` until a statement resumes it.
        """
        seen = self._seen
        state, reason = self._state(seen)
        unread = {} if state == "stalled" or not seen.id else self._unread(seen)
        return {
            "rows_planned": self._rows,
            "topic": self.options.topic,
            "partitions": len(seen.ends) or len(self._next),
            "offsets": sorted(self._next.items()),
            "backlog_messages": sum(end - begin for begin, end in unread.values()),
            "lost_messages": self._lost,
            "state": state,
            "reason": reason,
            "problem": reason if state in ("waiting", "stalled") else None,
        }

    def _look(self, *, fresh: bool) -> TopicState:
        if self._cluster is None:
            try:
                self._cluster = cluster_of(self.options.properties)
            except Error as cause:
                if cause.condition != "RUNTIME_UNAVAILABLE":  # a secret that does not exist yet
                    raise
                self._seen = TopicState(problem=cause)
                return self._seen
            self._cluster.watch(self.options.topic)
            if self._notification is not None:
                self._cluster.tell(self._notification)
            weakref.finalize(self, self._cluster.leave, self.options.topic).atexit = False
        self._seen = self._cluster.state(self.options.topic, fresh=fresh)
        if not fresh and self._seen.problem is None and self._unread(self._seen):
            self._seen = self._cluster.recent(self.options.topic)  # newer messages need not wait for another epoch
        return self._seen

    def _position(self, more: int) -> dict[str, int]:
        return {"slices": self._slices + more}

    def _unread(self, seen: TopicState) -> dict[int, tuple[int, int]]:
        """The offsets [begin, end) of unread messages by partition."""
        shards = self.options.shards
        found = {p: (self._begin(seen, p), end) for p, end in seen.ends.items() if not shards or p in shards}
        return {p: (begin, end) for p, (begin, end) in found.items() if begin < end}

    def _begin(self, seen: TopicState, partition: int) -> int:
        """The offset of the first existing message of a new partition."""
        return self._next.get(partition, seen.firsts.get(partition, 0))

    def _pieces(self, topic_id: str, partition: int, begin: int, end: int) -> list[MessageSlice]:
        return [
            MessageSlice(
                relation=self.relation_id,
                rows=min(low + SLICE_MESSAGES, end) - low,
                size_bytes=(min(low + SLICE_MESSAGES, end) - low) * MESSAGE_BYTES,
                topic=self.options.topic,
                topic_id=topic_id,
                partition=partition,
                begin=low,
                end=min(low + SLICE_MESSAGES, end),
            )
            for low in range(begin, end, SLICE_MESSAGES)
        ]

    def _jump(self, seen: TopicState) -> JumpSlice | None:
        """The offsets at which to continue if messages are lost, else None."""
        if self._topic_id not in ("", seen.id):
            moves = tuple((p, self._next.get(p, 0), seen.firsts.get(p, 0)) for p in sorted(seen.ends))
            return self._jump_slice(seen, "recreated", moves)
        expired = tuple((p, at, seen.firsts[p]) for p, at in sorted(self._next.items()) if seen.firsts.get(p, 0) > at)
        return self._jump_slice(seen, "expired", expired) if expired else None

    def _jump_slice(
        self, seen: TopicState, reason: Literal["expired", "recreated"], moves: tuple[tuple[int, int, int], ...]
    ) -> JumpSlice:
        return JumpSlice(
            relation=self.relation_id, topic=self.options.topic, topic_id=seen.id, reason=reason, offsets=moves
        )

    def _accept_jump(self, piece: JumpSlice) -> None:
        if piece.reason == "recreated":
            self._topic_id = piece.topic_id
            self._starts = {p: now for p, _, now in piece.offsets}
            self._next = dict(self._starts)
            return
        for partition, before, now in piece.offsets:
            self._lost += now - before
            self._next[partition] = now

    def _note_blocked(self, seen: TopicState, now_us: int) -> None:
        self._now_us = now_us
        held = {p for p, end in seen.ends.items() if self._next.get(p, 0) >= end and seen.written.get(p, 0) > end}
        self._blocked_since_us = {p: self._blocked_since_us.get(p, now_us) for p in held}

    def _state(self, seen: TopicState) -> tuple[State, str | None]:
        if seen.problem is not None:
            gone = seen.problem.condition == "UNDEFINED_OBJECT"
            return ("stalled" if gone else "waiting"), seen.problem.message
        if (reason := self._reason(seen)) is not None and self.options.on_data_loss == "stop":
            return "stalled", f"{reason}. {self._to_skip}"
        blocked = [p for p, since in self._blocked_since_us.items() if self._now_us - since >= _BLOCKED_US]
        if blocked:
            shown = ", ".join(map(str, sorted(blocked)[:5]))
            return "blocked", f"an open transaction of a producer holds back partition {shown}"
        return "running", None

    def _reason(self, seen: TopicState) -> str | None:
        """The reason why messages are lost; None if none are lost."""
        jump = self._jump(seen) if seen.id else None
        if jump is None:
            return None
        if jump.reason == "recreated":
            return f'topic "{self.options.topic}" was deleted and made anew: its offsets mean other messages'
        partition, before, now = jump.offsets[0]
        return (
            f'messages of topic "{self.options.topic}" expired before they were read: '
            f"in partition {partition} offsets {before} to {now - 1}"
        )


def starting_from(connector: Mapping[str, str], start: str, shards: str) -> dict[str, str]:
    """The options of a source that a query reads from its own offset on. start, shards: see `catalog.QuerySource`."""
    return {**connector, **starting_at(start), **({"shards": shards} if shards else {})}


def restarted(connector: Mapping[str, str], start: Mapping[str, str]) -> dict[str, str]:
    """The options with a new start position."""
    return {**{n: v for n, v in connector.items() if not n.startswith("scan.startup.")}, **start}


def begun(relation_connector: Mapping[str, str]) -> dict[str, str]:
    """The options of a source or table with its start offsets, which CREATE requests from the brokers.

    Raises an error for missing brokers, a missing topic or wrong credentials.
    """
    options = kafka_options(relation_connector)
    if options.starts is not None:
        return dict(relation_connector)
    cluster = cluster_of(options.properties)
    state = cluster.ask(options.topic)
    if missing := sorted(set(options.shards) - state.ends.keys()):
        raise error("CONNECTOR_OPTION", f'topic "{options.topic}" has no partition {missing[0]}')
    starts = _starts(cluster, options, state)
    return {**relation_connector, START: json.dumps(starts), TOPIC_ID: state.id}


def late_start(connector: Mapping[str, str]) -> str:
    """A sentence about the start of a source that reads all messages of its topic if the first ones have expired; else
    empty.

    connector: the result of `begun`.
    """
    options = kafka_options(connector)
    if options.mode != "earliest" or options.millis is not None or options.offsets:
        return ""
    late = [(p, offset) for p, offset in sorted((options.starts or {}).items()) if offset]
    if not late:
        return ""
    more = f", and {len(late) - 1} more begin late" if len(late) > 1 else ""
    partition, offset = late[0]
    return f'the first messages of topic "{options.topic}" have expired: partition {partition} begins at {offset}{more}'


def _starts(cluster: Cluster, options: KafkaOptions, state: TopicState) -> dict[int, int]:
    specs = library().admin.OffsetSpec
    if options.offsets:
        read = sorted(options.shards or state.ends)
        if len(options.offsets) not in (1, len(read)):
            raise error(
                "CONNECTOR_OPTION",
                f"{len(options.offsets)} offsets are given for {len(read)} partitions",
                hint="Give one for all partitions, or one for each.",
            )
        asked = options.offsets if len(options.offsets) == len(read) else options.offsets * len(read)
        return cluster.offsets(options.topic, state.ends, specs.earliest()) | dict(zip(read, asked, strict=True))
    if options.millis is not None:
        found = cluster.offsets(options.topic, state.ends, specs.for_timestamp(options.millis))
        return {p: state.ends[p] if offset < 0 else offset for p, offset in found.items()}
    if options.mode == "latest":
        return dict(state.ends)
    return cluster.offsets(options.topic, state.ends, specs.earliest())
