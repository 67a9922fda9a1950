"""The options of connector kafka, under RisingWave's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from watersmeet.sources.options import Options, refuse

#: Options that no statement says: CREATE resolves them, so that a later start begins where CREATE would have.
START: Final = "start.offsets"
TOPIC_ID: Final = "topic.id"

#: RisingWave's names of client properties that librdkafka has under another name.
_RENAMED: Final = {"bootstrap.server": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}
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

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return self.properties["bootstrap.servers"]


def kafka_options(given: Mapping[str, str]) -> KafkaOptions:
    """The options of a statement. CONNECTOR_OPTION."""
    options = Options(given)
    options.text("connector")
    topic = options.text("topic", "kafka.topic")
    if not topic:
        refuse('connector kafka needs the option "topic"', hint="Write topic = '…'.")
    servers = options.text("properties.bootstrap.server", "properties.bootstrap.servers", "kafka.brokers")
    if not servers:
        refuse(
            'connector kafka needs the option "properties.bootstrap.server"',
            hint="Write properties.bootstrap.server = 'host:9092'.",
        )
    mode = options.choice(
        "scan.startup.mode", "kafka.scan.startup.mode", among=("earliest", "latest"), default="earliest"
    )
    millis = options.integer("scan.startup.timestamp.millis", "kafka.time.offset", minimum=0)
    on_data_loss = options.choice("on_data_loss", among=("stop", "skip"), default="stop")
    on_error = options.choice("on_error", among=("skip", "stop"), default="skip")
    prefix = options.text("group.id.prefix") or "rw-consumer"
    starts = options.text(START)
    topic_id = options.text(TOPIC_ID) or ""
    shards = options.text("shards")
    properties = {_RENAMED.get(name, name): value for name, value in options.under("properties.").items()}
    for name in _OWN:
        if name in properties:
            refuse(f'option "properties.{name}" can\'t be given', detail="Watersmeet keeps track of offsets itself.")
    properties["bootstrap.servers"] = servers
    options.finish("kafka")
    return KafkaOptions(
        topic,
        properties,
        "latest" if mode == "latest" else "earliest",
        millis,
        None if starts is None else {int(p): offset for p, offset in json.loads(starts).items()},
        topic_id,
        "skip" if on_data_loss == "skip" else "stop",
        "stop" if on_error == "stop" else "skip",
        prefix,
        _shards(shards),
    )


def _shards(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(sorted({int(p) for p in text.split(",")}))
    except ValueError:
        return refuse(f'option shards can\'t be "{text}"', hint="It is a list of partitions, such as 0,2.")
