"""Writes rows of statements to a Kafka topic in one Kafka transaction per statement.

Parts of messages may be computed from the rows: message_key and sharding_expr (Timeplus, "Kafka Sink").
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.catalog import ComputedPart, MessageFormat, Relation
from watersmeet.database.assignment import bound_value, positional
from watersmeet.database.sessions.context import Session
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.queries import read_expression
from watersmeet.errors import Error, error
from watersmeet.formats.encoders import (
    BROKERS_OWN,
    COMPUTED_KEY,
    COMPUTED_PARTITION,
    Destination,
    Encoded,
    open_encoder,
)
from watersmeet.kernel.evaluation.expressions import generated_values
from watersmeet.kernel.metrics import Counters
from watersmeet.system.process import lazy_import
from watersmeet.values.types import Field, Schema

if TYPE_CHECKING:
    from watersmeet.connectors.kafka import client as kafkaclient
    from watersmeet.connectors.kafka import cluster as kafkacluster
else:
    kafkaclient = lazy_import("watersmeet.connectors.kafka.client")
    kafkacluster = lazy_import("watersmeet.connectors.kafka.cluster")

_KEY_COLUMN: Final = "_tp_message_key"


class _Setting(NamedTuple):
    part: str
    kind: str
    takes: tuple[str, ...]


_SETTINGS: Final = {
    "message_key": _Setting(COMPUTED_KEY, "a string", ("varchar",)),
    "sharding_expr": _Setting(COMPUTED_PARTITION, "a whole number", ("smallint", "integer", "bigint", "numeric")),
}

#: The default of the setting.
_ANY_PARTITION: Final = "rand()"


def take_computed_parts(
    session: Session, settings: dict[str, str], name: str, columns: Schema
) -> tuple[ComputedPart, ...]:
    """Removes the settings with computed parts of the stream `name` from `settings` and returns these parts.

    columns: the declared columns. Raises CONNECTOR_OPTION, DATATYPE_MISMATCH, and errors of the expressions.
    """
    made = []
    for setting, (part, kind, takes) in _SETTINGS.items():
        text = settings.pop(setting, "").strip()
        if not text or (part == COMPUTED_PARTITION and text.lower().replace(" ", "") == _ANY_PARTITION):
            continue
        if _KEY_COLUMN in [c.name for c in columns]:
            raise error(
                "CONNECTOR_OPTION",
                f"setting {setting} can't be combined with the column {_KEY_COLUMN}",
                hint=f"Leave one of both out: the column is the key of messages, and {setting} says it too."
                if part == COMPUTED_KEY
                else "Leave one of both out: messages with a key go to the partition of its hash.",
            )
        language = language_named(session.dialect)
        tree = read_expression(tokenize(text, language), text, language.grammar)
        value = bound_value(tree, columns, name, text, f"setting {setting}")
        if value.type.name not in takes or value.type.scale:
            raise error("DATATYPE_MISMATCH", f"setting {setting} must give {kind}, not {value.type.sql}")
        made.append(ComputedPart(Field(f"?{setting}", value.type), part, positional(value, columns)))
    return tuple(made)


def unwritten(stream: Relation) -> set[str]:
    """The columns of an external stream that writers don't set: those that brokers fill, and a computed key."""
    computed = [c.part for c in stream.computed_parts]
    parts = (*BROKERS_OWN, "key") if COMPUTED_KEY in computed else BROKERS_OWN
    return {column for column, part in stream.message_parts.items() if part in parts}


def with_computed_parts(rows: pa.Table, parts: Sequence[ComputedPart], title: str) -> pa.Table:
    """The rows with a column for each part. title: the title of the stream. Raises INVALID_VALUE if an expression
    raises an error.
    """
    for part in parts:
        counters = Counters()
        values = generated_values(rows, part.column, part.value.reads, part.value.sql, counters)
        if counters.expression_errors:
            raise error(
                "INVALID_VALUE",
                f"setting {part.column.name[1:]} of {title} can't be computed",
                detail=f"Its expression raises an error in {counters.expression_errors} of {rows.num_rows} rows.",
            )
        rows = rows.append_column(part.column.name, values)
    return rows


#: The encodings that Watersmeet can read but not write.
_READ_ONLY: Final = ("csv", "tsv", "xml", "protobuf")

_TIMEOUT_S: Final = 60.0

#: The maximum time for which a statement waits until readers see its commit, and the poll interval.
_VISIBLE_S: Final = 2.0

_POLL_S: Final = 0.005

#: The number of messages that are passed to the client before their delivery is checked.
_BATCH: Final = 10_000


def produce(relation: Relation, rows: pa.Table, now_us: int) -> None:
    """Writes rows of a relation with connector kafka to its topic, atomically.

    rows: have the relation's columns. now_us: the time of the statement. Raises RUNTIME_UNAVAILABLE without brokers,
    CONNECTOR_OPTION if the brokers reject it, INVALID_VALUE for rows that can't be encoded.
    """
    message_format = relation.format or MessageFormat()
    if relation.topic is not None and message_format.encoding in _READ_ONLY:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"writing records in {message_format.encoding.upper()} is not supported",
            detail=f'Topic "{relation.shown}" can only be read.',
        )
    options = kafkaclient.kafka_options(relation.connector)
    computed = relation.computed_parts
    encoder = open_encoder(
        (*relation.columns, *(c.column for c in computed)),
        (),
        message_format,
        Destination(options.topic, relation.schema, relation.name),
        parts=relation.message_parts | {c.column.name: c.part for c in computed},
    )
    rows = with_computed_parts(rows, computed, relation.title)
    try:
        messages = encoder.encode(rows, np.ones(rows.num_rows, np.int64), now_us)
    except OSError as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause)) from cause
    producer = _producer_of(options.properties)
    with producer.lock:
        producer.write(options.topic, messages)


class _Producer:
    """A producer of transactions, recreated after a failure."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.lock = threading.Lock()
        self._properties = properties
        self._kafka = kafkaclient.library()
        self._client: Any = None

    def write(self, topic: str, messages: Encoded) -> None:
        """Writes one transaction with all messages. The caller holds the lock."""
        kafka = self._kafka
        failed: list[Any] = []
        ends: dict[int, int] = {}

        def delivered(problem: Any, message: Any) -> None:
            if problem is not None:
                failed.append(problem)
            else:
                ends[message.partition()] = max(message.offset() + 1, ends.get(message.partition(), 0))

        committing = False
        try:
            client = self._opened()
            client.begin_transaction()
            self._send(client, topic, messages, delivered)
            client.flush(_TIMEOUT_S)
            committing = not failed
            if committing:
                client.commit_transaction(_TIMEOUT_S)
        except kafka.KafkaException as cause:
            self._give_up(committing=committing)
            raise self._refused(cause.args[0], topic, committing=committing) from cause
        except BaseException:
            self._give_up(committing=committing)
            raise
        if failed:
            self._give_up(committing=False)
            raise self._refused(failed[0], topic, committing=False)
        self._wait_until_visible(topic, ends)

    def _wait_until_visible(self, topic: str, ends: Mapping[int, int]) -> None:
        """Waits until readers see a commit, which may be later than the acknowledgement; an open transaction of another
        producer may hide it for longer than this method waits.
        """
        cluster, latest = kafkacluster.cluster_of(self._properties), self._kafka.admin.OffsetSpec.latest()
        deadline_s = time.monotonic() + _VISIBLE_S
        hidden = dict(ends)
        while hidden and time.monotonic() < deadline_s:
            try:
                seen = cluster.offsets(topic, hidden, latest)
            except Error:
                return  # it is committed, so only reads report later errors
            hidden = {p: end for p, end in hidden.items() if seen[p] < end}
            if hidden:
                time.sleep(_POLL_S)

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self._kafka.Producer(
                kafkaclient.client_config(
                    self._properties,
                    transactional_id=f"watersmeet-insert-{uuid.uuid4()}",
                    partitioner="murmur2_random",
                    linger_ms=0,
                    message_timeout_ms=int(_TIMEOUT_S * 500),
                    transaction_timeout_ms=int(_TIMEOUT_S * 1000),
                )
            )
            self._client.init_transactions(_TIMEOUT_S)
        return self._client

    def _send(self, client: Any, topic: str, messages: Encoded, delivered: Any) -> None:
        """Sends messages; waits while the client's limited buffer is full."""
        times = [0] * len(messages) if messages.times_ms is None else messages.times_ms.to_pylist()
        headers = [None] * len(messages) if messages.headers is None else messages.headers.to_pylist()
        count = 1
        if messages.partition_numbers is not None:
            count = len(client.list_topics(topic, _TIMEOUT_S).topics[topic].partitions)
        keys, values, partitions = messages.keys.to_pylist(), messages.values.to_pylist(), messages.partitions(count)
        columns = zip(keys, values, times, headers, partitions, strict=True)
        for number, (key, value, time_ms, pairs, partition) in enumerate(columns, 1):
            given: dict[str, Any] = {"timestamp": time_ms} if time_ms is not None else {}
            if pairs:
                given["headers"] = [(pair["key"], pair["value"]) for pair in pairs]
            while True:
                try:
                    client.produce(topic, value=value, key=key, partition=partition, on_delivery=delivered, **given)
                    break
                except BufferError:
                    client.poll(0.1)
            if number % _BATCH == 0:
                client.poll(0)

    def _give_up(self, *, committing: bool) -> None:
        """Aborts the open transaction; the next write creates a new client."""
        client, self._client = self._client, None
        if client is None or committing:
            return
        try:
            client.abort_transaction(_TIMEOUT_S)
        except self._kafka.KafkaException:
            client.purge()  # brokers abort uncommitted messages

    def _refused(self, problem: Any, topic: str, *, committing: bool) -> Error:
        made = kafkaclient.failure(problem, topic, self._properties["bootstrap.servers"])
        if committing:
            made.detail = "The brokers did not report whether the rows were written. " + (made.detail or "")
        elif problem.name() == "MSG_SIZE_TOO_LARGE":
            return error(
                "CONNECTOR_OPTION",
                f'a record is larger than topic "{topic}" takes',
                detail=problem.str(),
                hint="Raise max.message.bytes of the topic.",
            )
        return made


_PRODUCERS: Final[dict[tuple[tuple[str, str], ...], _Producer]] = {}
_OPENING: Final = threading.Lock()


def _producer_of(properties: Mapping[str, str]) -> _Producer:
    """The producer of this process for a cluster."""
    key = tuple(sorted(properties.items()))
    with _OPENING:
        found = _PRODUCERS.get(key)
        if found is None:
            found = _PRODUCERS[key] = _Producer(properties)
        return found
