"""The connectors of NATS JetStream, MQTT, Kinesis and Redis under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.sources import SourceConnector
from watersmeet.connectors.base.targets import connector_for
from watersmeet.connectors.messages import kinesis, kinesissource, mqtt, nats, natssource, redis
from watersmeet.values.slices import JumpSlice, LogSlice

SOURCES: Final = {
    "kinesis": SourceConnector(
        kinesissource.KinesisSource,
        kinesissource.KinesisSpec,
        (LogSlice, JumpSlice),
        kinesissource.read_kinesis,
        kinesissource.SOURCE_OPTIONS,
        kinesissource.begun,
    ),
    "nats": SourceConnector(
        natssource.NatsSource,
        natssource.NatsSpec,
        (LogSlice, JumpSlice),
        natssource.read_nats,
        natssource.SOURCE_OPTIONS,
        natssource.begun,
    ),
}

SINKS: Final = {
    "kinesis": connector_for(
        kinesis.KinesisTarget,
        kinesis.SINK_OPTIONS,
        "Check aws.region, endpoint and the network.",
        remembers=False,
    ),
    "mqtt": connector_for(
        mqtt.MqttTarget, mqtt.SINK_OPTIONS, "Check that it runs, and the option url.", remembers=False
    ),
    "nats": connector_for(
        nats.NatsTarget, nats.SINK_OPTIONS, "Check that it runs, and the option server_url.", remembers=False
    ),
    "redis": connector_for(redis.RedisTarget, redis.SINK_OPTIONS, "Check that it runs, and the option redis.url."),
}
