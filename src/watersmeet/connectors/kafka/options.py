"""The options of connector kafka, under RisingWave's names."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final, Literal

from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import SourceSpec
from watersmeet.connectors.kafka.client import properties_of
from watersmeet.values.times import ABBREVIATED, UNITS_US
from watersmeet.values.types import Schema

#: Options that no statement says: CREATE resolves them, so that a later start begins where CREATE would have.
START: Final = "start.offsets"
TOPIC_ID: Final = "topic.id"

#: A time before now.
_BACK: Final = re.compile(r"-(\d+)(ms|s|m|h|d)")
#: Properties that would break what is promised: where reading begins, what is committed and seen.
_OWN: Final = (
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
)


@dataclass(frozen=True)
class KafkaOptions:
    """How a topic is read.

    properties: of the client, under librdkafka's names. mode: where reading begins; millis: from that time on.
    starts: by partition, the offset of the first message, as CREATE found it; None: CREATE has not looked yet.
    offsets: where reading begins, one for all partitions that are read, or one for each.
    on_data_loss: what happens when messages expired before they were read, or the topic was made anew.
    on_error: what happens to messages that can't be decoded.
    """

    topic: str
    properties: Mapping[str, str]
    mode: Literal["earliest", "latest"] = "earliest"
    millis: int | None = None
    starts: Mapping[int, int] | None = None
    topic_id: str = ""
    on_data_loss: Literal["stop", "skip"] = "stop"
    on_error: Literal["skip", "stop"] = "skip"
    group_prefix: str = "rw-consumer"
    shards: tuple[int, ...] = field(default=())
    offsets: tuple[int, ...] = field(default=())

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return self.properties["bootstrap.servers"]


@dataclass(frozen=True)
class KafkaSpec(SourceSpec):
    """Of topics of Kafka. columns: all that come from messages. key: the names of those of the primary key.
    message_parts: as in `catalog.Input`.
    """

    kind: ClassVar[str] = "kafka"
    columns: Schema
    key: tuple[str, ...]
    options: KafkaOptions
    format: MessageFormat
    message_parts: Mapping[str, str]


#: The topic and the brokers, of sources and sinks.
TOPIC_OPTIONS: Final = (
    OptionSpec("topic", "The topic.", aliases=("kafka.topic",), is_needed=True),
    OptionSpec(
        "properties.bootstrap.server",
        "The brokers, as `host:port`, separated by commas.",
        aliases=("properties.bootstrap.servers", "kafka.brokers"),
        is_needed=True,
    ),
    OptionSpec("properties.", "A property of the client, under its name in librdkafka.", "prefix"),
)
SOURCE_OPTIONS: Final = OptionSet(
    "kafka",
    (
        *TOPIC_OPTIONS,
        OptionSpec(
            "scan.startup.mode",
            "Where reading begins.",
            "choice",
            aliases=("kafka.scan.startup.mode",),
            among=("earliest", "latest"),
            default="earliest",
        ),
        OptionSpec(
            "scan.startup.timestamp.millis",
            "Reading begins at the first message of this time or a later one; overrides scan.startup.mode.",
            "integer",
            aliases=("kafka.time.offset",),
            minimum=0,
            unit="ms since 1970",
        ),
        OptionSpec("scan.startup.offsets", "Reading begins at these offsets: one, or one per partition."),
        OptionSpec("shards", "The partitions that are read, as `0,2`; all if missing."),
        OptionSpec(
            "on_data_loss",
            "What happens when messages expired unread, or the topic was created again.",
            "choice",
            among=("stop", "skip"),
            default="stop",
        ),
        OptionSpec(
            "on_error",
            "Whether a message that can't be decoded becomes a dead letter, or stops the source.",
            "choice",
            among=("skip", "stop"),
            default="skip",
        ),
        OptionSpec("group.id.prefix", "The beginning of the consumer group's name.", default="rw-consumer"),
        OptionSpec(START, "The offsets at which CREATE began.", is_internal=True),
        OptionSpec(TOPIC_ID, "The id of the topic at CREATE.", is_internal=True),
    ),
)


def kafka_options(given: Mapping[str, str]) -> KafkaOptions:
    """The options of a statement. CONNECTOR_OPTION."""
    options = SOURCE_OPTIONS.read(given)
    topic, servers = options.needed("topic"), options.needed("properties.bootstrap.server")
    properties = properties_of(given)
    for name in _OWN:
        if name in properties:
            refuse(f'option "properties.{name}" can\'t be given', detail="Watersmeet keeps track of offsets itself.")
    starts = options.given(START)
    return KafkaOptions(
        topic,
        {**properties, "bootstrap.servers": servers},
        "latest" if options.choice("scan.startup.mode") == "latest" else "earliest",
        options.integer("scan.startup.timestamp.millis"),
        None if starts is None else {int(p): offset for p, offset in json.loads(starts).items()},
        options.text(TOPIC_ID),
        "skip" if options.choice("on_data_loss") == "skip" else "stop",
        "stop" if options.choice("on_error") == "stop" else "skip",
        options.text("group.id.prefix"),
        tuple(sorted(set(_numbers("shards", options.given("shards"))))),
        _numbers("scan.startup.offsets", options.given("scan.startup.offsets")),
    )


def begins_at(place: str) -> dict[str, str]:
    """The options that let reading begin at a place: `earliest`, `latest`, a time (ISO 8601, or as far back as `-2h`),
    offsets as `5,3,11`; empty: where the other options say.

    CONNECTOR_OPTION for a time that is none.
    """
    if not place:
        return {}
    if place in ("earliest", "latest"):
        return {"scan.startup.mode": place}
    if back := _BACK.fullmatch(place):
        millis = time.time_ns() // 1_000_000 - int(back[1]) * UNITS_US[ABBREVIATED[back[2]]] // 1000
        return {"scan.startup.timestamp.millis": str(max(0, millis))}
    if place.replace(",", "").replace(" ", "").isdecimal():
        return {"scan.startup.offsets": place}
    try:
        moment = datetime.fromisoformat(place)
    except ValueError:
        refuse(f'"{place}" is no time', hint="Write a time such as 2024-01-31T12:00:00Z.")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return {"scan.startup.timestamp.millis": str(max(0, int(moment.timestamp() * 1000)))}


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if not all(part.strip().isdecimal() for part in text.split(",")):
        refuse(f'option {name} can\'t be "{text}"', hint="It is a list of whole numbers, such as 0,2.")
    return tuple(int(part) for part in text.split(","))
