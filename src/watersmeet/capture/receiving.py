"""Receives messages of brokers that keep no log: a thread for each relation stores them as rows and acknowledges them.

Law: a message is acknowledged only after the commit that has its row, or after its dead letter is on the disk. A broker
sends unacknowledged messages again, so a kill loses none, but rows of the last commits may occur twice. A fenced writer
can't commit, so it acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.capture.capturing import Captures
from watersmeet.catalog import MessageFormat, ReceivedTable
from watersmeet.connectors.base.deadletters import DeadLetterWriter, count_dead_letter_files
from watersmeet.connectors.base.sources import Allowance, Unavailable, rate_limit
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.database.secrets import with_secrets
from watersmeet.database.sessions.context import Session
from watersmeet.database.writing import deliver
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.errors import Error, error
from watersmeet.formats.payloads import Decoder, Messages
from watersmeet.system.process import fault, lazy_import
from watersmeet.system.threads import Worker, Workers

if TYPE_CHECKING:
    from watersmeet.connectors.base import messages
    from watersmeet.connectors.messages import mqtt
else:
    messages = lazy_import("watersmeet.connectors.base.messages")
    mqtt = lazy_import("watersmeet.connectors.messages.mqtt")

Created = TypeVar("Created", bound=CreateRelation)

#: The longest wait for messages before the thread checks for other work.
_POLL_S: Final = 0.05
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
#: The longest wait of a FLUSH for a broker.
_ANSWER_S: Final = 30.0
#: The errors of `deliver` that a row causes, which then becomes a dead letter.
_OF_ROWS: Final = ("INVALID_VALUE", "NOT_NULL_VIOLATION", "VALUE_TOO_LONG")


class ReceivingStatus(NamedTuple):
    """The status of a relation for SHOW SOURCES. waiting: the messages that are received and not stored."""

    state: str
    reason: str | None
    waiting: int


def decoder_of_received(table: ReceivedTable) -> Decoder:
    """The decoder of the messages of a relation. Raises the errors of columns that can't be read."""
    topics = {name: "topic" if part == "partition" else part for name, part in table.message_parts.items()}
    return messages.new_decoder(
        messages.MessageSpec(table.given, table.primary_key, table.format or MessageFormat(), topics)
    )


def client_id(database: OpenDatabase, table: ReceivedTable) -> str:
    """The name under which a broker knows the receiver of a relation."""
    return f"{database.layout.id}-{table.id}"


def checked_options(session: Session, statement: Created) -> Created:
    """The statement with references to secrets of this database. Raises CONNECTOR_OPTION for wrong options."""
    statement = with_secrets(session, statement)
    options = mqtt.SOURCE_OPTIONS.read(statement.options)
    options.check()
    options.needed("topic")
    mqtt.mqtt_broker(options)
    rate_limit(statement.options)
    if options.choice("qos") == "exactly_once":
        session.notice("qos = exactly_once is read as at_least_once: a message may be stored twice after a failure")
    return statement


def begin(session: Session, made: ReceivedTable) -> None:
    """Makes the session at the broker, which ends if the transaction is rolled back. Raises RUNTIME_UNAVAILABLE."""
    named, transaction = client_id(session.database, made), session.transaction
    assert transaction is not None
    try:
        mqtt.MqttInbox(made.options, named).close()
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause)) from None
    transaction.ends.callback(lambda: None if transaction.committed else mqtt.forget_session(made.options, named))


class Receivers(Service):
    """The receivers of an open database. It is thread-safe."""

    def __init__(self, session: Session) -> None:
        """session: a separate session without transactions."""
        self._session = session
        self._workers: Workers[_Receiving] = Workers()

    def start(self) -> None:
        self._session.database.at_close(self._workers.end)
        self.follow()

    def follow(self) -> None:
        known = self._session.database.catalog.relations
        wanted = [i for i, r in known.items() if isinstance(r, ReceivedTable) and not r.staged]
        self._workers.reconcile({i: partial(_Receiving, self._session, i) for i in wanted})

    def catch_up(self) -> list[str]:
        """Waits until the messages that brokers had before the call are stored. Returns a notice for each skipped
        relation.
        """
        return [notice for worker in self._workers.all().values() for notice in worker.flush()]

    def status(self, relation_id: str) -> ReceivingStatus | None:
        """The status of a relation; None if it is not received."""
        worker = self._workers.get(relation_id)
        return None if worker is None else worker.status()


class _Receiving(Worker):
    """Receives the messages of one relation until it is stopped."""

    def __init__(self, session: Session, relation_id: str) -> None:
        super().__init__("receive", session.database.clock, _FIRST_RETRY_S, _LAST_RETRY_S)
        self._session, self._database, self._id = session, session.database, relation_id
        self._table = self._now()
        self.title = self._table.shown
        self._inbox: mqtt.MqttInbox | None = None
        self._is_known = False
        self._flushing = self._ends = self._again = 0
        self._forgotten = ""

    def run(self) -> None:
        super().run()
        if self._id not in self._database.catalog.relations and not self._database.is_closed:
            mqtt.forget_session(self._table.options, client_id(self._database, self._table))

    def status(self) -> ReceivingStatus:
        """See `Receivers.status`."""
        inbox = self._inbox
        reasons = [self._forgotten] if self._forgotten else []
        if self._again:
            reasons.append(f"{self._again} messages were sent again; their rows may occur twice")
        return ReceivingStatus(self.state, self.problem or "; ".join(reasons) or None, inbox.waiting if inbox else 0)

    def flush(self) -> list[str]:
        """See `Receivers.catch_up`."""
        with self.changed:
            self._flushing += 1
            until = self._ends + 2  # the answer to a request from before the call may come first
            try:
                over = self.changed.wait_for(
                    lambda: self.stopping.is_set() or not self._goes_on or self._ends >= until, _ANSWER_S
                )
            finally:
                self._flushing -= 1
        if over and (self._goes_on or self.stopping.is_set()):
            return []
        why = self.problem or "its broker has not sent all messages"
        return [f'source "{self.title}" was not waited for, as it is {self.state}: {why}']

    @property
    def _goes_on(self) -> bool:
        return self.state in ("starting", "running")

    def _now(self) -> ReceivedTable:
        found = self._database.catalog.relations.get(self._id)
        if not isinstance(found, ReceivedTable):
            self.stopping.set()
            raise error("UNDEFINED_RELATION", "a received relation was dropped")
        return found

    def work(self) -> None:
        try:
            if rate_limit(self._table.options) == 0:
                self.show("paused", "source_rate_limit is 0")
                self.rest()
                return
            self._receive()
        except (Error, Unavailable) as cause:
            explained = self._database.log.explain(cause) if isinstance(cause, Error) else cause
            self._wait_after(explained.message if isinstance(explained, Error) else str(cause))
        except Exception as cause:
            self._wait_after(f"{type(cause).__name__}: {cause}")

    def _wait_after(self, reason: str) -> None:
        if self.stopping.is_set() or self._database.is_closed:
            return
        self.show("waiting", self.failed(reason))
        self.back_off()

    def _receive(self) -> None:
        """Receives messages until it is stopped or fails."""
        self._database.log.check()
        self._table = self._now()
        self._decoder = decoder_of_received(self._table)
        limit = rate_limit(self._table.options)
        allowance = None if limit is None else Allowance(limit)
        inbox = mqtt.MqttInbox(self._table.options, client_id(self._database, self._table))
        try:
            if inbox.is_new and self._is_known:
                self._forgotten = "the broker has forgotten its session: messages that waited in it are lost"
            self._inbox, self._is_known = inbox, True
            self.show("running")
            while not self.stopping.is_set():
                if allowance is None or allowance.at(self._clock.now_us()):
                    found = inbox.take(_POLL_S)
                    if found:
                        self._store(found)
                        inbox.acknowledge(found)
                        fault("receiving.acknowledged")
                    if allowance is not None:
                        allowance.take(len(found))
                else:
                    self.stopping.wait(min(_POLL_S, allowance.wait_us / 1_000_000))
                self.succeeded()
                if self._flushing:
                    inbox.ask_for_end()
                if inbox.ends:
                    with self.changed:
                        self._ends += inbox.ends
                        inbox.ends = 0
                        self.changed.notify_all()
        finally:
            inbox.close()

    def _store(self, found: Sequence[Any]) -> None:
        """Commits messages as rows and dead letters."""
        self._again += sum(bool(m.dup) for m in found)
        for batch in _batches(found):
            decoded = self._decoder.decode(batch)
            fault("receiving.commit")
            with self._database.guard:
                now = self._now()
                if (now.columns, now.message_parts) != (self._table.columns, self._table.message_parts):
                    self._table, self._decoder = now, decoder_of_received(now)
                    decoded = self._decoder.decode(batch)
                self._set_aside(batch, {u.place: u.reason for u in decoded.unreadable})
                if decoded.table.num_rows:
                    self._deliver(batch, decoded.table, decoded.places)
            fault("receiving.committed")

    def _deliver(self, batch: Messages, rows: pa.Table, places: Any) -> None:
        """Commits rows; those that the table can't take become dead letters. places: their messages."""
        try:
            deliver(self._session, self._now(), rows)
        except Error as cause:
            if cause.condition not in _OF_ROWS:
                raise
            if rows.num_rows == 1:
                self._set_aside(batch, {int(places[0]): cause.message})
                return
            half = rows.num_rows // 2
            self._deliver(batch, rows.slice(0, half), places[:half])
            self._deliver(batch, rows.slice(half), places[half:])

    def _set_aside(self, batch: Messages, reasons: Mapping[int, str]) -> None:
        """Writes dead letters. The caller holds the guard."""
        if not reasons:
            return
        directory, number = self._database.layout.dead(self._id), self._database.log.head() + 1
        values = [batch.values[place].as_py() for place in reasons]
        numbers = [int(batch.numbers[place].as_py()) for place in reasons] if batch.numbers is not None else []
        with DeadLetterWriter(directory, number, count_dead_letter_files(directory, number)) as dead:
            dead.add_messages(batch.topic, 0, numbers, list(reasons.values()), [None] * len(values), values)


def _batches(found: Sequence[Any]) -> Iterator[Messages]:
    """The messages in their order, cut where the topic changes. Their offsets are the broker's numbers of packets."""
    for topic, group in groupby(found, attrgetter("topic")):
        messages = list(group)
        yield Messages(
            topic,
            0,
            pa.nulls(len(messages), pa.binary()),
            pa.array([m.payload for m in messages], pa.binary()),
            np.arange(len(messages), dtype=np.int64),
            None,
            numbers=pa.array([str(m.mid) for m in messages], pa.string()),
        )


#: The services that write the rows of other systems, each with a session of its own.
SERVICES: Final = (Captures, Receivers)
