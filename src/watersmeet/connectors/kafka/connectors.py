"""The connectors of Kafka under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import SourceConnector
from watersmeet.connectors.kafka.client import SOURCE_OPTIONS, KafkaSpec
from watersmeet.connectors.kafka.reading import expect_messages, read_messages
from watersmeet.connectors.kafka.source import KafkaSource, begun, late_start
from watersmeet.connectors.kafka.target import CONNECTOR
from watersmeet.values.slices import JumpSlice, MessageSlice

SOURCES: Final = {
    "kafka": SourceConnector(
        KafkaSource,
        KafkaSpec,
        (MessageSlice, JumpSlice),
        read_messages,
        SOURCE_OPTIONS,
        lambda relation: begun(relation.connector),
        expect=expect_messages,
        late_start=late_start,
    )
}
SINKS: Final = {"kafka": CONNECTOR}
