"""Reads the present content of files as a whole, for external tables, dictionaries and COPY."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from watersmeet.catalog import External, Table
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.base.sources import Condition, DeadLetterSink, Reader
from watersmeet.connectors.files.listing import Listing
from watersmeet.connectors.files.reading import read_file_slice
from watersmeet.connectors.files.source import FileSource
from watersmeet.errors import error
from watersmeet.values.slices import AsideSlice, FileSlice, RenamingSlice
from watersmeet.values.types import Schema, arrow_schema

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


class FileReader(Reader):
    """The reader of the present content of a path's files, with the formats and options of the file connector."""

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

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:  # noqa: ARG002
        return read_files(self._source(columns), columns, Refusing())

    def _source(self, columns: Schema) -> FileSource:
        return present_files(self._external.name, columns, self._external.options)


def present_files(name: str, columns: Schema, options: Mapping[str, str]) -> FileSource:
    """The present files, which must not change while they are read. options: the options of the file connector. Raises
    CONNECTOR_OPTION.
    """
    return FileSource(Table("external", name, columns, connector={"settle_ms": "0", **options}))


def read_files(source: FileSource, columns: Schema, dead: DeadLetterSink) -> pa.Table:
    """All rows of `source`, with `columns` by name in their Arrow types. dead: receives the unreadable records."""
    spec = source.spec()
    everything = (1 << 62, 1 << 62)
    parts = [arrow_schema(columns, positional=False).empty_table()]
    position: Any = None
    while True:
        poll = source.poll(position, *everything, now_us=time.time_ns() // 1000, fresh=position is None)
        for piece in poll.slices:
            assert isinstance(piece, (FileSlice, AsideSlice, RenamingSlice))
            parts.append(read_file_slice(piece, spec, columns, dead).table)
        source.accept(poll.slices)
        position = poll.position
        if not poll.more:
            _check_whole(source.status())
            return pa.concat_tables(parts)


def _check_whole(status: Mapping[str, Any]) -> None:
    """Raises RUNTIME_UNAVAILABLE if a part could not be read."""
    if status["problem"] or status["pending_files"] or status["vanished_files"]:
        reasons = [status["problem"], *(f"{name}: {why}" for name, why in status["unreadable"])]
        detail = next(filter(None, reasons), None)
        raise error("RUNTIME_UNAVAILABLE", "some files can't be read for now", detail=detail)


class Refusing:
    """A sink of dead letters that raises an error, because an incomplete table is useless."""

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


def file_connector(options: dict[str, str]) -> dict[str, str]:
    """The options of the file connector for those of a statement; `format` and `data_format` are ClickHouse's. Raises
    CONNECTOR_OPTION.

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
