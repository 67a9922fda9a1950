"""Clients of Kafka: the library, which is an extra, their configuration, and what their errors mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from watersmeet.errors import Error, error
from watersmeet.secretvalues import revealed

#: Where librdkafka's own messages go, in place of stderr.
LOGGER: Final = logging.getLogger("watersmeet.kafka")
LOGGER.addHandler(logging.NullHandler())  # nothing on stderr unless the user wants it

#: What every client has unless an option says otherwise.
_COMMON: Final = {
    "client.id": "watersmeet",
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 2_000,
    "allow.auto.create.topics": False,
}
#: RisingWave's names of properties that librdkafka has under another name.
_RENAMED: Final = {"bootstrap.server": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}
#: Codes of librdkafka for credentials and certificates that are wrong.
_REFUSED: Final = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")
_FORBIDDEN: Final = ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
_UNKNOWN: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")


def library() -> ModuleType:
    """confluent_kafka. LIBRARY_MISSING if it is not installed."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as cause:
        raise error(
            "LIBRARY_MISSING",
            "connector kafka needs the library confluent-kafka, which is not installed",
            hint='Install it with: pip install "watersmeet[kafka]"',
        ) from cause
    return confluent_kafka  # type: ignore[no-any-return]


def client_config(properties: Mapping[str, str], **own: Any) -> dict[str, Any]:
    """The configuration of a client, secrets among it. properties: as librdkafka calls them; own: what this client must
    have.
    """
    known = {name: revealed(value) for name, value in properties.items()}
    return {**_COMMON, **known, **{name.replace("_", "."): value for name, value in own.items()}, "logger": LOGGER}


def properties_of(options: Mapping[str, str]) -> dict[str, str]:
    """The configuration that the options `properties.…` of a statement ask for, under librdkafka's names."""
    given = {n.removeprefix("properties."): v for n, v in options.items() if n.startswith("properties.")}
    return {_RENAMED.get(name, name): value for name, value in given.items()}


def is_refusal(problem: Any) -> bool:
    """True for a KafkaError that does not pass by itself: credentials, certificates."""
    return problem.name() in (*_REFUSED, "_SSL")


def is_lasting(problem: Any) -> bool:
    """True for a KafkaError that somebody has to do something about, whatever the topic."""
    return problem.name() in (*_REFUSED, *_FORBIDDEN, "_SSL")


def is_unknown_topic(problem: Any) -> bool:
    """True for a KafkaError that says that the topic or partition is not there."""
    return problem.name() in _UNKNOWN


def failure(problem: Any, topic: str, servers: str) -> Error:
    """What a KafkaError means to who wrote the statement. It never has a secret."""
    name, text = problem.name(), problem.str()
    if name in _UNKNOWN:
        return error(
            "CONNECTOR_OPTION",
            f'there is no topic "{topic}" on {servers}',
            hint="Create it first, or correct the option topic.",
        )
    if name in _REFUSED:
        return error(
            "CONNECTOR_OPTION",
            f"the Kafka brokers at {servers} refuse the credentials",
            detail=text,
            hint="Check properties.sasl.mechanism, properties.sasl.username and properties.sasl.password.",
        )
    if name in _FORBIDDEN:
        return error(
            "CONNECTOR_OPTION",
            f'the Kafka brokers at {servers} do not allow this user to use topic "{topic}"',
            detail=text,
            hint="Ask for the rights to describe and read the topic, or use another properties.sasl.username.",
        )
    if name == "_SSL":
        return error(
            "CONNECTOR_OPTION",
            f"no TLS connection to the Kafka brokers at {servers}",
            detail=text,
            hint="Check properties.security.protocol and properties.ssl.ca.location.",
        )
    return error(
        "RUNTIME_UNAVAILABLE",
        f"the Kafka brokers at {servers} can't be reached",
        detail=f"{name}: {text}",
        hint="Check that they run, and the option properties.bootstrap.server.",
    )
