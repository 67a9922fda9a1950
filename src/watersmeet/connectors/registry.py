"""The registry of connectors by name. Each system's package or module lists its connectors: `SOURCES`, `SINKS`,
`TABLES`, `CAPTURES`. A module is imported when one of its connectors is first used.

`register_source` and `register` add connectors of other packages. WATERSMEET_CONNECTORS lists the modules that call
them, separated by commas.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from watersmeet.catalog import Input, MessageFormat, Relation
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.base.sources import (
    SPECS,
    DeadLetterSink,
    LimitedSource,
    Reader,
    Source,
    SourceConnector,
    SourceRows,
    SourceSpec,
    TableConnector,
    Unavailable,
    rate_limit,
)
from watersmeet.connectors.base.targets import Connector, Delivery
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.registry import with_kept_schema
from watersmeet.objectstores.base import is_url
from watersmeet.values.slices import Slice, SourceSlice
from watersmeet.values.types import Field, Schema

if TYPE_CHECKING:
    from watersmeet.connectors.databases.captures import System

Made = TypeVar("Made", bound=Input)
C = TypeVar("C")


class Connectors(MutableMapping[str, C]):
    """Connectors by their names. Listing the names imports no connector."""

    def __init__(self, table: str, modules: Mapping[str, str]) -> None:
        """table: the name of the modules' table of connectors. modules: for each module within this package, the names
        of its connectors, separated by spaces.
        """
        self._table = table
        self._modules = {name: module for module, names in modules.items() for name in names.split()}
        self._found: dict[str, C] = {}

    def __getitem__(self, name: str) -> C:
        if name not in self._found:
            module = importlib.import_module(f"{__package__}.{self._modules[name]}")
            self._found[name] = getattr(module, self._table)[name]
        return self._found[name]

    def __setitem__(self, name: str, connector: C) -> None:
        self._found[name] = connector

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._found or name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter({**self._modules, **self._found})

    def __len__(self) -> int:
        return len({*self._modules, *self._found})


#: The connectors by the value of the option `connector`.
SOURCES: Final[Connectors[SourceConnector]] = Connectors(
    "SOURCES",
    {
        "datagen": "datagen",
        "delta": "delta deltalake",
        "files.connectors": "file posix_fs",
        "iceberg.target": "iceberg",
        "kafka.connectors": "kafka",
        "messages.connectors": "kinesis nats",
        "objects": "azblob gcs s3 s3_v2",
    },
)
SINKS: Final[Connectors[Connector]] = Connectors(
    "SINKS",
    {
        "clickhouse.target": "clickhouse",
        "datagen": "blackhole",
        "delta": "deltalake",
        "files.connectors": "file fs posix_fs rotating_file",
        "iceberg.target": "iceberg",
        "jdbc": "jdbc",
        "kafka.connectors": "kafka",
        "messages.connectors": "kinesis mqtt nats redis",
        "mysql.target": "mysql",
        "objects": "azblob gcs s3",
        "postgres.connectors": "postgres postgresql",
    },
)
#: The connectors by the kind of an external table or of a dictionary's source.
TABLES: Final[Connectors[TableConnector]] = Connectors(
    "TABLES",
    {
        "clickhouse.target": "clickhouse",
        "files.connectors": "file",
        "http": "http",
        "iceberg.target": "iceberg",
        "mysql.target": "mysql",
        "objects": "s3",
        "postgres.connectors": "postgresql",
    },
)
SYSTEMS: Final[Connectors[System]] = Connectors(
    "CAPTURES", {"mysql.target": "mysql-cdc", "postgres.connectors": "postgres-cdc"}
)

#: The source connectors of this package. Messages of MQTT are received by `capture.receiving`.
BUILT_IN: Final = frozenset({*SOURCES, "mqtt"})

#: For each kind of `SourceSpec`, a connector that reads its slices.
READERS: Final = {
    "datagen": "datagen",
    "file": "file",
    "kafka": "kafka",
    "kinesis": "kinesis",
    "lake": "delta",
    "nats": "nats",
}


#: The connectors of the four systems that Watersmeet lacks, with the names of the systems to which they connect.
_UNSUPPORTED: Final = {
    "adbc_snowflake": "Snowflake",
    "bigquery": "BigQuery",
    "cassandra": "Cassandra",
    "citus-cdc": "Citus",
    "doris": "Doris",
    "dynamodb": "DynamoDB",
    "elasticsearch": "Elasticsearch",
    "google_pubsub": "Google Pub/Sub",
    "mongodb": "MongoDB",
    "mongodb-cdc": "MongoDB",
    "opensearch": "OpenSearch",
    "pulsar": "Pulsar",
    "redshift": "Redshift",
    "snowflake": "Snowflake",
    "snowflake_v2": "Snowflake",
    "sqlserver": "SQL Server",
    "sqlserver-cdc": "SQL Server",
    "starrocks": "StarRocks",
    "webhdfs": "WebHDFS",
    "webhook": "HTTP",
}


def _refuse_unsupported(name: str, hint: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a connector of one of the four systems. hint: the way round, with a place for
    the system's name.
    """
    system = _UNSUPPORTED.get(name)
    if system is not None:
        raise error("FEATURE_NOT_SUPPORTED", f"connector {name} is not supported", hint=hint.format(system))


def register_source(name: str, connector: SourceConnector) -> None:
    """Adds a connector in this process. Processes that read its slices import its module by WATERSMEET_CONNECTORS.

    name: the value in `WITH (connector = ...)`, in lower case. Raises INVALID_PARAMETER if it, or the kind of the spec,
    is taken.
    """
    kind = connector.spec.kind
    if name in SOURCES or kind in READERS:
        raise error("INVALID_PARAMETER", f'there is a connector "{name}" already')
    SOURCES[name] = connector
    READERS[kind] = name


def _reader_of(spec: SourceSpec) -> SourceConnector | None:
    """A connector that reads the slices of sources with a spec."""
    name = READERS.get(spec.kind)
    return None if name is None else SOURCES[name]


def _spec_of(kind: str) -> type[SourceSpec]:
    """The class of the specs of a kind. Raises KeyError."""
    return SOURCES[READERS[kind]].spec


SPECS.find = _spec_of


def register(name: str, connector: Connector) -> None:
    """Adds a sink connector in this process, or replaces the one with the same name."""
    SINKS[name] = connector


def connector_of(delivery: Delivery) -> Connector:
    """The connector of a delivery; the one of objects for a file path that is a URL. Raises CONNECTOR_OPTION."""
    name = delivery.connector.get("connector", "").lower()
    found = connector_named(name)
    is_object = is_url(delivery.connector.get("path", "")) and found is SINKS["file"]
    return SINKS["s3"] if is_object else found


def connector_named(name: str) -> Connector:
    """The sink connector with a name. Raises CONNECTOR_OPTION."""
    if name not in SINKS:
        _refuse_unsupported(name, "Write a Kafka topic, and let a Kafka Connect sink for {} read it.")
        refuse(
            f'there is no connector "{name}" of sinks',
            hint=did_you_mean(name, SINKS) or f"The connectors are: {', '.join(sorted(SINKS))}.",
        )
    return SINKS[name]


def source_connector(connector: Mapping[str, str]) -> SourceConnector:
    """The source connector in the options. Raises CONNECTOR_OPTION for an unknown name."""
    name = connector.get("connector", "")
    found = SOURCES.get(name.lower())
    if found is None:
        webhooks = "Requests are rows of a table: CREATE TABLE t (data jsonb) WITH (connector = 'webhook')."
        topics = "Read a Kafka topic that a Kafka Connect source for {} fills."
        _refuse_unsupported(name.lower(), webhooks if name.lower() == "webhook" else topics)
        refuse(
            f'there is no connector "{name}"',
            hint=did_you_mean(name, SOURCES) or "There are " + ", ".join(sorted(SOURCES)) + ".",
        )
    return found


def late_start(connector: Mapping[str, str]) -> str:
    """A sentence about expired input of a source, for the options that CREATE stores; empty if there is none."""
    found = SOURCES.get(connector.get("connector", "").lower())
    return "" if found is None or found.late_start is None else found.late_start(connector)


def open_source(relation: Relation) -> Source:
    """The source of `relation`, which returns all its `given` columns.

    Raises CONNECTOR_OPTION for invalid options or columns.
    """
    connector = source_connector(relation.connector)
    limit = rate_limit(relation.connector)
    source = connector.open(replace(relation, columns=relation.given))
    return source if limit is None else LimitedSource(source, limit)


def _with_kept_schema(form: MessageFormat) -> MessageFormat:
    """The format with the schema of its file. Raises RUNTIME_UNAVAILABLE if the file is temporarily unreadable."""
    try:
        return replace(form, options=with_kept_schema(form.options))
    except OSError as cause:
        raise error("RUNTIME_UNAVAILABLE", f"option schema.location: {cause}") from cause


def check_options(relation: Input) -> None:
    """Raises CONNECTOR_OPTION for invalid options of a source. It contacts no other system."""
    connector = source_connector(relation.connector)
    if connector.columns is None:
        open_source(relation)
    else:
        connector.options.read(relation.connector).check()


def check_connector(relation: Made) -> Made:
    """The relation in the form that CREATE stores, with absolute paths and the start offsets.

    Raises CONNECTOR_OPTION like `open_source` or if objects can't be listed, and RUNTIME_UNAVAILABLE if a store or a
    schema of messages is unavailable.
    """
    open_source(relation)
    if relation.format is not None:
        relation = replace(relation, format=_with_kept_schema(relation.format))
    return replace(relation, connector=dict(source_connector(relation.connector).begun(relation)))


def expect(pieces: Iterable[Slice], specs: Mapping[str, SourceSpec]) -> None:
    """Begins to fetch the slices that are read next, in order. specs: the specifications by relation."""
    by_relation: dict[str, list[SourceSlice]] = {}
    for piece in pieces:
        if isinstance(piece, SourceSlice):
            by_relation.setdefault(piece.relation, []).append(piece)
    for relation_id, expected in by_relation.items():
        spec = specs[relation_id]
        connector = _reader_of(spec)
        if connector is not None and connector.expect is not None:
            with suppress(Unavailable, Error):  # reading reports the error with the source
                connector.expect(expected, spec)


def read_slice(
    piece: SourceSlice, spec: SourceSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice: `columns` by name. spec: `Source.spec()` of the slice's source.

    Law: the set of dead letters never depends on `columns`, so views that read different columns see the same rows.
    Raises OSError if a file is temporarily unreadable, Unavailable if a broker or schema registry is unavailable,
    RUNTIME_UNAVAILABLE if the directory of a file source is unavailable.
    """
    found = _reader_of(spec)
    if found is None or not isinstance(piece, found.slices):
        raise error("INTERNAL_ERROR", f"there is no reader for slices of kind {piece.kind} of a {spec.kind} source")
    return found.read(piece, spec, columns, dead_letters)


#: The kinds of external systems in the dialects. A listed kind without a connector is not supported; all other kinds
#: are unknown.
KINDS: Final = (
    *("bigquery", "clickhouse", "executable", "executable_pool", "file", "http", "iceberg", "kafka", "log", "mongodb"),
    *("mysql", "odbc", "postgresql", "pulsar", "python", "redis", "s3", "timeplus"),
)


def check_kind(kind: str, known: Sequence[str], what: str) -> None:
    """Raises CONNECTOR_OPTION for an unknown kind, FEATURE_NOT_SUPPORTED for a kind without a connector. known: the
    supported kinds.
    """
    if kind in known:
        return
    hint = f"Here {what} can be of kind {', '.join(known)}."
    if kind in KINDS:
        raise error(
            "FEATURE_NOT_SUPPORTED", f"{what} of kind {kind} is not supported: there is no connector for it", hint=hint
        )
    refuse(f'there is no kind "{kind}" of {what}', hint=did_you_mean(kind, KINDS) or hint)


def declared(reader: Reader, columns: Schema) -> tuple[Field, ...]:
    """The declared columns, else those that the reader reports. Raises CONNECTOR_OPTION if there are none."""
    found = columns or reader.columns()
    if not found:
        refuse("the columns have to be declared", hint="Write them after the name: (id int, name string).")
    return tuple(found)


def system_of(connector: str) -> System:
    """The captured system of a connector. Raises FEATURE_NOT_SUPPORTED for other connectors."""
    found = SYSTEMS.get(connector.lower())
    if found is None:
        raise error("FEATURE_NOT_SUPPORTED", f"connector {connector} is not supported")
    return found


# These imports come last, because the modules import this one.
for _module in filter(None, os.environ.get("WATERSMEET_CONNECTORS", "").split(",")):
    importlib.import_module(_module.strip())
