"""Connectors by name: sources, readers of slices, readers of external tables, captured databases.

`register` adds connectors of other packages. WATERSMEET_CONNECTORS lists the modules that call it, divided by commas.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa

from watersmeet.catalog import LAKES, External, Input, MessageFormat, Relation
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.base.rates import LimitedSource, rate_limit
from watersmeet.connectors.base.readers import Condition, Reader
from watersmeet.connectors.base.sources import DeadLetterSink, Source, SourceRows, SourceSpec, Unavailable
from watersmeet.connectors.clickhouse.tables import ClickhouseReader
from watersmeet.connectors.databases.captures import System
from watersmeet.connectors.datagen.source import DatagenSource, DatagenSpec, read_datagen_slice
from watersmeet.connectors.files.options import FileSpec, absolute_path
from watersmeet.connectors.files.reading import read_file_slice
from watersmeet.connectors.files.source import FileSource
from watersmeet.connectors.files.tables import FileReader
from watersmeet.connectors.http import HttpReader
from watersmeet.connectors.iceberg.tables import IcebergReader
from watersmeet.connectors.kafka.options import KafkaSpec
from watersmeet.connectors.kafka.reading import expect_messages, read_messages
from watersmeet.connectors.kafka.source import KafkaSource, begun
from watersmeet.connectors.lakes.options import LakeSpec
from watersmeet.connectors.lakes.reading import read_lake_slice
from watersmeet.connectors.lakes.source import LakeSource
from watersmeet.connectors.lakes.source import begun as lake_begun
from watersmeet.connectors.mysql.capture import MysqlSystem
from watersmeet.connectors.mysql.tables import MysqlReader
from watersmeet.connectors.objects.tables import ObjectReader
from watersmeet.connectors.postgres.capture import PostgresSystem
from watersmeet.connectors.postgres.tables import PostgresReader
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.convert import convert
from watersmeet.formats.registry import with_kept_schema
from watersmeet.objectstores.access import check_objects
from watersmeet.serialization import kinds
from watersmeet.slices import (
    AsideSlice,
    EventSlice,
    FileSlice,
    JumpSlice,
    LakeSlice,
    MessageSlice,
    RenamingSlice,
    Slice,
    SourceSlice,
    VersionSlice,
)
from watersmeet.types import Field, Schema, arrow_schema
from watersmeet.units import SECOND_US, length_us

Made = TypeVar("Made", bound=Input)

CONNECTORS: Final[dict[str, Callable[[Relation], Source]]] = {
    "azblob": FileSource,
    "datagen": DatagenSource,
    "delta": LakeSource,
    "deltalake": LakeSource,
    "file": FileSource,
    "gcs": FileSource,
    "iceberg": LakeSource,
    "kafka": KafkaSource,
    "posix_fs": FileSource,
    "s3": FileSource,
    "s3_v2": FileSource,
}


#: The classes of `Source.spec()` by their kind.
_SPECS: Final[dict[str, type[SourceSpec]]] = {cls.kind: cls for cls in (FileSpec, DatagenSpec, KafkaSpec, LakeSpec)}
kinds(SourceSpec, _SPECS)


@dataclass(frozen=True)
class Connector:
    """A connector of sources that is not part of this package.

    name: in lower case, as `WITH (connector = ...)` has it. open: the source of a relation; CONNECTOR_OPTION for
    options or columns that can't work. spec: the class of `Source.spec()`, a frozen dataclass with a `kind` of its own.
    slices: the class of the source's slices. read: as `read_slice`, for those.
    """

    name: str
    open: Callable[[Relation], Source]
    spec: type[SourceSpec]
    slices: type[SourceSlice]
    read: Callable[[Any, Any, Sequence[Field], DeadLetterSink], SourceRows]


_OUTSIDE: Final[dict[type[SourceSpec], Connector]] = {}


def register(connector: Connector) -> None:
    """Adds a connector in this process. Processes that read its slices import its module by WATERSMEET_CONNECTORS.

    INVALID_PARAMETER if its name or the kind of its spec is taken.
    """
    if connector.name in CONNECTORS or connector.spec.kind in _SPECS:
        raise error("INVALID_PARAMETER", f'there is a connector "{connector.name}" already')
    CONNECTORS[connector.name] = connector.open
    _SPECS[connector.spec.kind] = connector.spec
    _OUTSIDE[connector.spec] = connector


def open_source(relation: Relation) -> Source:
    """The source of `relation`, which gives all columns that are `given`.

    CONNECTOR_OPTION for options or columns that can't work.
    """
    name = relation.connector.get("connector", "")
    make = CONNECTORS.get(name.lower())
    if make is None:
        refuse(
            f'there is no connector "{name}"',
            hint=did_you_mean(name, CONNECTORS) or "There are " + ", ".join(sorted(CONNECTORS)) + ".",
        )
    limit = rate_limit(relation.connector)
    source = make(replace(relation, columns=relation.given))
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
    if relation.connector["connector"].lower() in LAKES:
        return replace(relation, connector=lake_begun(relation.as_stored))
    check_objects(relation.connector)
    if relation.connector["connector"].lower() == "kafka":
        return replace(relation, connector=begun(relation.connector))
    paths = {n: absolute_path(v) for n, v in relation.connector.items() if n in ("path", "posix_fs.root")}
    return replace(relation, connector={**relation.connector, **paths})


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
    if isinstance(piece, (FileSlice, AsideSlice, RenamingSlice)) and isinstance(spec, FileSpec):
        return read_file_slice(piece, spec, columns, dead_letters)
    if isinstance(piece, EventSlice) and isinstance(spec, DatagenSpec):
        return read_datagen_slice(piece, spec, columns)
    if isinstance(piece, (MessageSlice, JumpSlice)) and isinstance(spec, KafkaSpec):
        return read_messages(piece, spec, columns, dead_letters)
    if isinstance(piece, (LakeSlice, VersionSlice)) and isinstance(spec, LakeSpec):
        return read_lake_slice(piece, spec, columns, dead_letters)
    if type(spec) in _OUTSIDE and isinstance(piece, _OUTSIDE[type(spec)].slices):
        return _OUTSIDE[type(spec)].read(piece, spec, columns, dead_letters)
    raise error("INTERNAL_ERROR", f"there is no reader for slices of kind {piece.kind} of a {spec.kind} source")


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


class GivenReader(Reader):
    """Rows that a test gives in place of another system's. rows: as texts."""

    def __init__(self, columns: Schema, rows: Sequence[Sequence[str | None]]) -> None:
        self._columns = columns
        self._rows = [tuple(row) for row in rows]

    def columns(self) -> Schema | None:
        return self._columns

    def version(self) -> Any:
        return self._rows

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:  # noqa: ARG002
        places = {c.name: i for i, c in enumerate(self._columns)}
        if missing := [c.name for c in columns if c.name not in places]:
            refuse(f'the external table has no column "{missing[0]}"', hint=did_you_mean(missing[0], places))
        texts = [pa.array([row[places[c.name]] for row in self._rows], pa.string()) for c in columns]
        done = convert(texts, [c.type for c in columns])
        for column, found in zip(columns, done, strict=True):
            if found.bad is not None and found.bad.any():
                raise error("INVALID_VALUE", f'a value of column "{column.name}" is not {column.type.sql}')
        return pa.Table.from_arrays([d.column for d in done], schema=arrow_schema(columns, positional=False))


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
