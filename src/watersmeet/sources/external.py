"""Content outside of the database as a whole: what external tables and dictionaries show. One reader for each kind.

A new connector is one class and one line in READERS. Readers work on the driver alone; what they bring is committed to
the database, and tasks read it from there, so that nothing outside needs to be reachable for executors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from watersmeet.catalog import External, Table
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.convert import convert
from watersmeet.sources.base import DeadLetterSink
from watersmeet.sources.files import FileSource
from watersmeet.sources.listing import Listing
from watersmeet.sources.options import refuse
from watersmeet.sources.postgrestables import PostgresReader
from watersmeet.sources.reading import read_slice
from watersmeet.types import Field, Schema, arrow_schema

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


class Reader(Protocol):
    """The content of one external table."""

    def columns(self) -> Schema | None:
        """Its columns; None if they have to be declared."""

    def version(self) -> Any:
        """Something that is equal as long as the content surely is the same. Cheap."""

    def read(self, columns: Schema) -> pa.Table:
        """All rows, with `columns` by name in their Arrow types.

        Raises an error that says what is wrong with the content.
        """


class FileReader:
    """Files of a path: the file connector's formats and options, as they are now."""

    def __init__(self, external: External) -> None:
        self._external = external

    def columns(self) -> Schema | None:
        return None

    def version(self) -> Any:
        listing = Listing(self._source(()).options)
        listing.look(time.time_ns() // 1000, set(), full=True)
        if listing.problem is not None:
            raise error("CONNECTOR_OPTION", f"can't read {listing.problem}")
        return sorted(listing.files.items())

    def read(self, columns: Schema) -> pa.Table:
        return read_files(self._source(columns), columns, _Refusing())

    def _source(self, columns: Schema) -> FileSource:
        return present_files(self._external.name, columns, self._external.options)


def present_files(name: str, columns: Schema, options: Mapping[str, str]) -> FileSource:
    """Files as they are now: nobody is expected to write them. options: of the file connector. CONNECTOR_OPTION."""
    return FileSource(Table("external", name, columns, connector={"settle_ms": "0", **options}))


def read_files(source: FileSource, columns: Schema, dead: DeadLetterSink) -> pa.Table:
    """All rows of `source`, with `columns` by name in their Arrow types. dead: takes the records that can't be read."""
    spec = source.spec()
    everything = (1 << 62, 1 << 62)
    parts = [arrow_schema(columns, positional=False).empty_table()]
    position: Any = None
    while True:
        poll = source.poll(position, *everything, now_us=time.time_ns() // 1000, fresh=position is None)
        parts += [read_slice(piece, spec, columns, dead).table for piece in poll.slices]
        source.accept(poll.slices)
        position = poll.position
        if not poll.more:
            return pa.concat_tables(parts)


class _Refusing:
    """Where a table of which a part is missing would be worse than none."""

    def add(self, file: str, line: int | None, reason: str, text: str = "", rows: int = 1) -> None:  # noqa: ARG002
        """See `DeadLetterSink`."""
        where = file if line is None else f"{file}, line {line}"
        raise error(
            "INVALID_VALUE",
            f"a record can't be read: {reason}",
            detail=f"It is in {where}." + (f" It says: {text[:200]}" if text else ""),
        )

    def add_rows(self, file: str, lines: Sequence[int], reasons: Sequence[str], texts: Sequence[str]) -> None:
        """See `DeadLetterSink`."""
        if lines:
            self.add(file, lines[0], reasons[0], texts[0])

    def add_messages(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        reasons: Sequence[str],
        keys: Sequence[bytes | None],  # noqa: ARG002
        values: Sequence[bytes | None],
    ) -> None:
        """See `DeadLetterSink`."""
        for offset, reason, value in zip(offsets, reasons, values, strict=True):
            self.add(f"{topic}/{partition}", offset, reason, (value or b"").decode(errors="backslashreplace"))

    def add_lost(self, topic: str, partition: int, begin: int, end: int, reason: str) -> None:
        """See `DeadLetterSink`."""
        self.add(f"{topic}/{partition}", begin, reason, rows=end - begin)


class GivenReader:
    """Rows that a test gives in place of another system's. rows: as texts."""

    def __init__(self, columns: Schema, rows: Sequence[Sequence[str | None]]) -> None:
        self._columns = columns
        self._rows = [tuple(row) for row in rows]

    def columns(self) -> Schema | None:
        return self._columns

    def version(self) -> Any:
        return self._rows

    def read(self, columns: Schema) -> pa.Table:
        places = {c.name: i for i, c in enumerate(self._columns)}
        if missing := [c.name for c in columns if c.name not in places]:
            refuse(f'the external table has no column "{missing[0]}"', hint=did_you_mean(missing[0], places))
        texts = [pa.array([row[places[c.name]] for row in self._rows], pa.string()) for c in columns]
        done = convert(texts, [c.type for c in columns])
        for column, found in zip(columns, done, strict=True):
            if found.bad is not None and found.bad.any():
                raise error("INVALID_VALUE", f'a value of column "{column.name}" is not {column.type.sql}')
        return pa.Table.from_arrays([d.column for d in done], schema=arrow_schema(columns, positional=False))


READERS: Final[dict[str, Callable[[External], Reader]]] = {"file": FileReader, "postgresql": PostgresReader}


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


#: ClickHouse's formats as options of the file connector.
_FORMATS: Final[dict[str, dict[str, str]]] = {
    "csv": {"format": "csv", "header": "false"},
    "csvwithnames": {"format": "csv", "header": "true"},
    "tsv": {"format": "csv", "header": "false", "delimiter": "\\t"},
    "tsvwithnames": {"format": "csv", "header": "true", "delimiter": "\\t"},
    "tabseparated": {"format": "csv", "header": "false", "delimiter": "\\t"},
    "tabseparatedwithnames": {"format": "csv", "header": "true", "delimiter": "\\t"},
    "jsoneachrow": {"format": "json"},
    "json": {"format": "json"},
    "parquet": {"format": "parquet"},
}


def file_connector(options: dict[str, str]) -> dict[str, str]:
    """The file connector's options for those of a statement: `format` and `data_format` are ClickHouse's.

    CONNECTOR_OPTION.
    """
    found = dict(options)
    said = [found.pop(n) for n in ("format", "data_format") if n in found]
    if not said:
        return {"connector": "file", **found}
    if said[0].lower() not in _FORMATS or len(said) > 1:
        refuse(
            f'format "{said[-1]}" of files is not supported',
            hint="It must be CSV, CSVWithNames, TSV, TSVWithNames, JSONEachRow or Parquet.",
        )
    return {"connector": "file", **_FORMATS[said[0].lower()], **found}


def declared(reader: Reader, columns: Schema) -> tuple[Field, ...]:
    """The columns that were declared, or those that the reader knows. CONNECTOR_OPTION if there are none."""
    found = columns or reader.columns()
    if not found:
        refuse("the columns have to be declared", hint="Write them after the name: (id int, name string).")
    return tuple(found)
