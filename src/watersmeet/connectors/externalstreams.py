"""Converts the settings of Timeplus' external streams of type kafka to options of the connector kafka.

Timeplus, "Kafka Source", "Kafka Sink".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from watersmeet.catalog import MessageFormat
from watersmeet.catalog.parts import Encoding
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.errors import did_you_mean
from watersmeet.values.types import JSONB, TIMESTAMP, VARCHAR, Field, Schema, SqlType

TIME: Final = "_tp_time"
#: The columns that every such stream has: the part of a message, and the default type.
VIRTUAL: Final[dict[str, tuple[str, SqlType]]] = {
    TIME: ("timestamp", TIMESTAMP),
    "_tp_message_key": ("key", VARCHAR),
    "_tp_message_headers": ("headers", JSONB),
    "_tp_sn": ("offset", SqlType("bigint")),
    "_tp_shard": ("partition", SqlType("integer")),
}

#: For each data format, the encoding, and whether the value of a message may contain several rows.
_FORMATS: Final[dict[str, tuple[Encoding, bool]]] = {
    "jsoneachrow": ("json", True),
    "csv": ("csv", True),
    "tsv": ("tsv", True),
    "tabseparated": ("tsv", True),
    "rawblob": ("string", False),
    "avro": ("avro", False),
    "protobufsingle": ("protobuf", False),
    "protobuf": ("protobuf", True),
}
_NAMES: Final = "JSONEachRow, CSV, TSV, RawBLOB, Avro, ProtobufSingle, Protobuf"
#: The form of values in JSON: times as texts, numbers as numbers.
WRITTEN: Final = {
    "timestamp.handling.mode": "string",
    "date.handling.mode": "string",
    "time.handling.mode": "string",
    "numeric.handling.mode": "number",
    "jsonb.handling.mode": "dynamic",
}
#: The settings that are properties of the client.
_PROPERTIES: Final = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
    "ssl_ca_cert_file": "ssl.ca.location",
    "ssl_ca_cert_pem": "ssl.ca.pem",
    "ssl_ca_pem": "ssl.ca.pem",
}
#: The strategies for subjects that have another name.
_STRATEGIES: Final = {
    "topicname": "topic_name_strategy",
    "recordname": "record_name_strategy",
    "topicrecordname": "topic_record_name_strategy",
}


STREAM_OPTIONS: Final = OptionSet(
    "kafka of external streams",
    (
        OptionSpec("brokers", "The brokers, as `host:port`, separated by commas.", is_needed=True),
        OptionSpec("topic", "The topic.", is_needed=True),
        OptionSpec("security_protocol", "The protocol of the brokers: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
        OptionSpec("sasl_mechanism", "How the user is authenticated."),
        OptionSpec("username", "The user."),
        OptionSpec("password", "The password of the user.", secret=True),
        OptionSpec("ssl_ca_cert_file", "The file with the certificates of authorities."),
        OptionSpec("ssl_ca_cert_pem", "The certificates of authorities."),
        OptionSpec("ssl_ca_pem", "The certificates of authorities."),
        OptionSpec("skip_ssl_cert_check", "Whether certificates of brokers are not verified.", "flag"),
        OptionSpec("properties", "Properties of the client, as `name=value;name=value`."),
        OptionSpec("config_file", "A file with properties of the client, one per line."),
        OptionSpec("data_format", f"The format of messages: {_NAMES}."),
        OptionSpec("format_schema", "The schema of messages, as `schema:Message`."),
        OptionSpec("kafka_schema_registry_url", "The URL of the schema registry."),
        OptionSpec("kafka_schema_registry_credentials", "Its user and password, as `user:password`.", secret=True),
        OptionSpec("subject_name_strategy", "How subjects of the registry are named."),
        OptionSpec("schema_subject_name", "The subject of the schema of values, instead of that of the strategy."),
        OptionSpec("format_csv_delimiter", "The character between the fields of CSV."),
        OptionSpec("one_message_per_row", "Accepted without effect: each row is one message.", "flag", is_idle=True),
    ),
)


def stream_columns(declared: Schema) -> tuple[Schema, dict[str, str], tuple[str, ...]]:
    """All columns of a stream, the part of a message in each column, and the columns that `*` omits."""
    names = [c.name for c in declared]
    added = tuple(Field(name, kind, nullable=True) for name, (_, kind) in VIRTUAL.items() if name not in names)
    parts = {name: part for name, (part, _) in VIRTUAL.items()}
    return (*declared, *added), parts, tuple(c.name for c in added if c.name != TIME)


def kafka_connector(settings: Mapping[str, str], declared: Schema) -> tuple[dict[str, str], MessageFormat]:
    """The options of the connector, and the format of messages.

    settings: the settings without `type`. declared: the columns of the statement. Raises CONNECTOR_OPTION.
    """
    options = STREAM_OPTIONS.read(settings)
    options.check()
    servers, topic = options.needed("brokers"), options.needed("topic")
    found = _file(options.given("config_file")) | _pairs(options.text("properties"))
    for name, property_ in _PROPERTIES.items():
        if (value := options.given(name)) is not None:
            found[property_] = value
    if "sasl" in found.get("security.protocol", "").lower():
        found.setdefault("sasl.mechanism", "PLAIN")
    if options.flag("skip_ssl_cert_check"):
        found["enable.ssl.certificate.verification"] = "false"
    form = _format(options, declared)
    connector = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": servers}
    return connector | {f"properties.{name}": value for name, value in found.items()}, form


def _format(options: Options, declared: Schema) -> MessageFormat:
    values = [c for c in declared if c.name not in VIRTUAL]
    raw = len(values) == 1 and values[0].type == VARCHAR
    named = options.given("data_format")
    name = (named or ("RawBLOB" if raw else "JSONEachRow")).lower()
    if name not in _FORMATS:
        refuse(
            f'there is no data_format "{named}" of messages', hint=did_you_mean(name, _FORMATS) or f"It is {_NAMES}."
        )
    encoding, many_rows = _FORMATS[name]
    if name == "rawblob" and not raw:
        refuse("data_format RawBLOB needs one column of type string", hint="Or choose JSONEachRow.")
    known = {
        "message": options.given("format_schema"),
        "schema.registry": options.given("kafka_schema_registry_url"),
        "schema.registry.name.strategy": _strategy(options.given("subject_name_strategy")),
        "schema.registry.subject": options.given("schema_subject_name"),
        "delimiter": _delimiter(options.given("format_csv_delimiter"), name),
    }
    credentials = options.given("kafka_schema_registry_credentials")
    if credentials is not None:
        user, _, password = credentials.partition(":")
        known |= {"schema.registry.username": user, "schema.registry.password": password}
    kept = {n: v for n, v in known.items() if v} | (WRITTEN if encoding == "json" else {})
    return MessageFormat("plain", encoding, None, kept, "dead letter", many_rows, defaults=True)


def _delimiter(text: str | None, form: str) -> str | None:
    if text is not None and form != "csv":
        refuse("setting format_csv_delimiter needs data_format CSV")
    return text


def _strategy(text: str | None) -> str | None:
    if text is None:
        return None
    plain = text.lower().replace("_", "").removesuffix("strategy")
    if plain not in _STRATEGIES:
        refuse(
            f'setting subject_name_strategy can\'t be "{text}"',
            hint="It is TopicNameStrategy, RecordNameStrategy or TopicRecordNameStrategy.",
        )
    return _STRATEGIES[plain]


def _pairs(text: str) -> dict[str, str]:
    """The pairs in `k=v;k=v`."""
    found = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, sign, value = part.partition("=")
        if not sign or not name.strip():
            refuse(f'setting properties has "{part}", which is no pair', hint="It is written 'name=value;name=value'.")
        found[name.strip()] = value.strip()
    return found


def _file(path: str | None) -> dict[str, str]:
    """The properties in the file of an option."""
    return {} if path is None else properties_file("config_file", path)


def properties_file(option: str, path: str) -> dict[str, str]:
    """The properties in a file with lines `name=value`. Raises CONNECTOR_OPTION if it can't be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        refuse(f"the file of option {option} can't be read", detail=str(cause))
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    return {name.strip(): value.strip() for name, _, value in pairs}
