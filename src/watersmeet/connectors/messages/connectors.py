"""The connectors of NATS JetStream, MQTT, Kinesis and Redis under the names and uses of the registry."""

from __future__ import annotations

from typing import Final

from watersmeet.connectors.base.targets import connector_for
from watersmeet.connectors.messages import kinesis, mqtt, nats, redis

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
