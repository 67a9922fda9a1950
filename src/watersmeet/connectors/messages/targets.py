"""The shared part of targets that take messages one by one and store no offset."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target
from watersmeet.errors import error
from watersmeet.formats.encoders import Destination, open_encoder
from watersmeet.system.process import fault

#: The messages that are sent before waiting for their acknowledgements.
TOGETHER = 1_000


class MessageTarget(Target):
    """See `base.targets.Target`. The system stores no offset: after a crash it receives the last batches again.

    title: the connector's name. takes: the forms of rows that it can write.
    """

    title: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, delivery: Delivery, database_id: str, topic: str) -> None:
        if delivery.format.rows not in self.takes:
            kind = {"upsert": "upsert", "debezium": "debezium"}.get(delivery.format.rows, delivery.format.rows)
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"connector {self.title} of sinks with type = '{kind}' is not supported",
                detail="Its messages have no key, so a reader could not tell which row one changes.",
                hint="type = 'append-only' is; add force_append_only = 'true' if rows are updated or deleted.",
            )
        self._delivery = delivery
        self._name = f"{database_id}-{delivery.target_id}"
        self._encoder = open_encoder(
            delivery.columns,
            delivery.key,
            delivery.format,
            Destination(topic, "", delivery.title),
            force_append_only=delivery.force_append_only,
        )

    def look(self) -> None:
        try:
            self._connect()
        finally:
            self.close()

    def open(self, generation: int) -> SinkOffset | None:  # noqa: ARG002 - it keeps no offset
        self.close()
        self._connect()
        return None

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        for batch in batches:
            encoded = self._encoder.encode(batch.rows, batch.diff, batch.time_us)
            for begin in range(0, len(encoded), TOGETHER):
                keys, values = (c.slice(begin, TOGETHER) for c in (encoded.keys, encoded.values))
                self._send(keys, values, f"{self._name}-{_place(batch)}-{begin}")
                fault("messages.sent")

    @abc.abstractmethod
    def _connect(self) -> None:
        """Connects, and checks that the system takes the messages. Raises Unavailable, CONNECTOR_OPTION and others."""

    @abc.abstractmethod
    def _send(self, keys: pa.BinaryArray, values: pa.BinaryArray, name: str) -> None:
        """Sends messages in order, and waits until all are acknowledged. name: the same whenever these are sent again,
        and different for others. Raises Unavailable, DELIVERY_REFUSED.
        """


def _place(batch: SinkBatch) -> str:
    """The place of a batch in the history of its relation."""
    offset = batch.offset
    return f"{offset.generation}-{offset.commit}-{offset.rows - len(batch.rows)}"
