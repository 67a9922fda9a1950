"""Connectors by name: sources, readers of slices, readers of external tables, captured databases.

`register_source` adds connectors of other packages. WATERSMEET_CONNECTORS lists the modules that call it, divided by
commas.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from watersmeet.catalog import External, Input, MessageFormat, Relation
from watersmeet.connectors import datagen
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.base.sources import (
    DeadLetterSink,
    LimitedSource,
    Reader,
    Source,
    SourceConnector,
    SourceRows,
    SourceSpec,
    Unavailable,
    rate_limit,
)
from watersmeet.connectors.clickhouse.client import ClickhouseReader
from watersmeet.connectors.databases.captures import System
from watersmeet.connectors.datagen import DatagenSource, DatagenSpec, read_datagen_slice
from watersmeet.connectors.delta import DeltaLog
from watersmeet.connectors.files.options import FileSpec, files_begun, source_options, store_specs
from watersmeet.connectors.files.reading import read_file_slice
from watersmeet.connectors.files.source import FileSource
from watersmeet.connectors.files.tables import FileReader
from watersmeet.connectors.http import HttpReader
from watersmeet.connectors.iceberg.tables import IcebergLog, IcebergReader
from watersmeet.connectors.kafka.client import SOURCE_OPTIONS, KafkaSpec
from watersmeet.connectors.kafka.reading import expect_messages, read_messages
from watersmeet.connectors.kafka.source import KafkaSource
from watersmeet.connectors.kafka.source import begun as kafka_begun
from watersmeet.connectors.lakes.client import DELTA_SOURCE, ICEBERG_SOURCE
from watersmeet.connectors.lakes.source import lake_connector
from watersmeet.connectors.mysql.capture import MysqlSystem
from watersmeet.connectors.mysql.client import MysqlReader
from watersmeet.connectors.objects import ObjectReader
from watersmeet.connectors.postgres.capture import PostgresSystem
from watersmeet.connectors.postgres.client import PostgresReader
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.registry import with_kept_schema
from watersmeet.values.serialization import kinds
from watersmeet.values.slices import (
    AsideSlice,
    EventSlice,
    FileSlice,
    JumpSlice,
    MessageSlice,
    RenamingSlice,
    Slice,
    SourceSlice,
)
from watersmeet.values.times import SECOND_US, length_us
from watersmeet.values.types import Field, Schema

Made = TypeVar("Made", bound=Input)

_FILES: Final = SourceConnector(
    FileSource,
    FileSpec,
    (FileSlice, AsideSlice, RenamingSlice),
    read_file_slice,
    source_options("file"),
    files_begun,
)
_DELTA: Final = lake_connector(DeltaLog, DELTA_SOURCE)
#: By connector.
SOURCES: Final[dict[str, SourceConnector]] = {
    "datagen": SourceConnector(DatagenSource, DatagenSpec, (EventSlice,), read_datagen_slice, datagen.SOURCE_OPTIONS),
    "delta": _DELTA,
    "deltalake": _DELTA,
    "file": _FILES,
    "iceberg": lake_connector(IcebergLog, ICEBERG_SOURCE),
    "kafka": SourceConnector(
        KafkaSource,
        KafkaSpec,
        (MessageSlice, JumpSlice),
        read_messages,
        SOURCE_OPTIONS,
        lambda relation: kafka_begun(relation.connector),
    ),
    "posix_fs": _FILES,
    **{
        name: replace(_FILES, options=source_options(name, store_specs({"connector": name})))
        for name in ("azblob", "gcs", "s3", "s3_v2")
    },
}
#: Those of this package.
BUILT_IN: Final = frozenset(SOURCES)
#: The classes of `Source.spec()` by their kind.
_SPECS: Final[dict[str, type[SourceSpec]]] = {c.spec.kind: c.spec for c in SOURCES.values()}
kinds(SourceSpec, _SPECS)
_BY_SPEC: Final[dict[type[SourceSpec], SourceConnector]] = {c.spec: c for c in SOURCES.values()}


def register_source(name: str, connector: SourceConnector) -> None:
    """Adds a connector in this process. Processes that read its slices import its module by WATERSMEET_CONNECTORS.

    name: in lower case, as `WITH (connector = ...)` has it. INVALID_PARAMETER if it, or the kind of the spec, is taken.
    """
    if name in SOURCES or connector.spec.kind in _SPECS:
        raise error("INVALID_PARAMETER", f'there is a connector "{name}" already')
    SOURCES[name] = connector
    _SPECS[connector.spec.kind] = connector.spec
    _BY_SPEC[connector.spec] = connector


def source_connector(connector: Mapping[str, str]) -> SourceConnector:
    """The connector that options name. CONNECTOR_OPTION if there is none of that name."""
    name = connector.get("connector", "")
    found = SOURCES.get(name.lower())
    if found is None:
        refuse(
            f'there is no connector "{name}"',
            hint=did_you_mean(name, SOURCES) or "There are " + ", ".join(sorted(SOURCES)) + ".",
        )
    return found


def open_source(relation: Relation) -> Source:
    """The source of `relation`, which gives all columns that are `given`.

    CONNECTOR_OPTION for options or columns that can't work.
    """
    connector = source_connector(relation.connector)
    limit = rate_limit(relation.connector)
    source = connector.open(replace(relation, columns=relation.given))
    return source if limit is None else LimitedSource(source, limit)


def _with_kept_schema(form: MessageFormat) -> MessageFormat:
    """The format with the schema of its file. RUNTIME_UNAVAILABLE if that can't be read for now."""
    try:
        return replace(form, options=with_kept_schema(form.options))
    except OSError as cause:
        raise error("RUNTIME_UNAVAILABLE", f"option schema.location: {cause}") from cause


def check_connector(relation: Made) -> Made:
    """The relation as the catalog should keep it, with absolute paths, and the offsets at which reading begins: for
    CREATE.

    Raises CONNECTOR_OPTION if `open_source` would, or if objects can't be listed; RUNTIME_UNAVAILABLE if their store,
    or a schema of messages, can't be reached.
    """
    open_source(relation)
    if relation.format is not None:
        relation = replace(relation, format=_with_kept_schema(relation.format))
    return replace(relation, connector=dict(source_connector(relation.connector).begun(relation)))


def expect(pieces: Iterable[Slice], specs: Mapping[str, SourceSpec]) -> None:
    """Says which slices are read next, in this order, so that what has to be fetched comes meanwhile.

    specs: by relation.
    """
    topics: dict[str, list[MessageSlice]] = {}
    for piece in pieces:
        if isinstance(piece, MessageSlice):
            topics.setdefault(piece.relation, []).append(piece)
    for relation_id, ranges in topics.items():
        spec = specs[relation_id]
        assert isinstance(spec, KafkaSpec)
        with suppress(Unavailable, Error):  # reading says so, and of which source
            expect_messages(ranges, spec)


def read_slice(
    piece: SourceSlice, spec: SourceSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice: `columns` by name.

    spec: `Source.spec()` of the slice's source. Which rows are set aside never depends on `columns`,
    so views that read different columns of a source see the same rows. Raises OSError if a
    file can't be read for now, `base.Unavailable` if a broker or schema registry can't be reached, RUNTIME_UNAVAILABLE
    if the directory of a file source is not reachable.
    """
    found = _BY_SPEC.get(type(spec))
    if found is None or not isinstance(piece, found.slices):
        raise error("INTERNAL_ERROR", f"there is no reader for slices of kind {piece.kind} of a {spec.kind} source")
    return found.read(piece, spec, columns, dead_letters)


MAX_AGE: Final = "lookup_max_age"

#: What other systems can be named, so that one whose connector is missing is told from one that does not exist.
KINDS: Final = (
    "bigquery",
    "clickhouse",
    "executable",
    "executable_pool",
    "file",
    "http",
    "iceberg",
    "kafka",
    "log",
    "mongodb",
    "mysql",
    "odbc",
    "postgresql",
    "pulsar",
    "python",
    "redis",
    "s3",
    "timeplus",
)


READERS: Final[dict[str, Callable[[External], Reader]]] = {
    "clickhouse": ClickhouseReader,
    "file": FileReader,
    "http": HttpReader,
    "iceberg": IcebergReader,
    "mysql": MysqlReader,
    "postgresql": PostgresReader,
    "s3": ObjectReader,
}


def taken_max_age_us(options: dict[str, str]) -> int:
    """The option that says how old answers of look-ups may be, which is taken out of `options`. CONNECTOR_OPTION."""
    name = next((n for n in options if n.lower() == MAX_AGE), None)
    if name is None:
        return 0
    text = options.pop(name)
    found = int(text) * SECOND_US if text.isdecimal() else length_us(text)
    if found is None or found < 0:
        refuse(f'option {name} can\'t be "{text}"', hint="It is a number of seconds, or a length of time such as 5m.")
    return found


def check_kind(kind: str, known: Sequence[str], what: str) -> None:
    """CONNECTOR_OPTION for a kind that does not exist, FEATURE_NOT_SUPPORTED for one that has no connector here.

    known: those that have.
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
    """The columns that were declared, or those that the reader knows. CONNECTOR_OPTION if there are none."""
    found = columns or reader.columns()
    if not found:
        refuse("the columns have to be declared", hint="Write them after the name: (id int, name string).")
    return tuple(found)


SYSTEMS: Final[dict[str, System]] = {s.connector: s for s in (PostgresSystem(), MysqlSystem())}


def system_of(connector: str) -> System:
    """The system of a connector. FEATURE_NOT_SUPPORTED for one that is none of theirs."""
    found = SYSTEMS.get(connector.lower())
    if found is None:
        raise error("FEATURE_NOT_SUPPORTED", f"connector {connector} is not supported")
    return found


# Last, as these modules import this one.
for _module in filter(None, os.environ.get("WATERSMEET_CONNECTORS", "").split(",")):
    importlib.import_module(_module.strip())
