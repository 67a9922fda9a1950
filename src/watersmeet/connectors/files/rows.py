"""Parts of all file readers: they turn converted columns into `SourceRows`, and rejected rows into dead letters.

`read_document` reads files that are read as a whole: XML, and Avro's container files.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows
from watersmeet.connectors.files.options import FileSpec, Format
from watersmeet.errors import Error
from watersmeet.formats.avropayloads import count_records, read_records
from watersmeet.formats.payloads import Read
from watersmeet.formats.valuetexts import Converted, Mask
from watersmeet.formats.xmltext import XmlReader
from watersmeet.values.types import Field

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FilePlace:
    """The location of rows, which columns may show. parts: see `FileSpec`. name: the path of the file below the
    source's directory. root: the prefix of the names of objects.
    """

    parts: Mapping[str, str]
    name: str
    mtime_ns: int
    root: str = ""

    def columns(
        self, requested: Sequence[Field], lines: Callable[[], Rows], offsets: Callable[[], Rows], count: int
    ) -> dict[str, pa.Array]:
        """The requested columns that show a part of the location. lines, offsets: the values of each row; see
        `FileSpec`.
        """
        return {f.name: self._column(f, lines, offsets, count) for f in requested if f.name in self.parts}

    def _column(self, column: Field, lines: Callable[[], Rows], offsets: Callable[[], Rows], count: int) -> pa.Array:
        part = self.parts[column.name]
        if part in ("line", "offset"):
            return pa.array(lines() if part == "line" else offsets(), pa.int64()).cast(column.type.arrow)
        names = {"name": self.name, "file": self.root + self.name, "base": self.name.rpartition("/")[2]}
        if part in names:
            return pa.repeat(pa.scalar(names[part], column.type.arrow), count)
        moment = pa.scalar(self.mtime_ns // 1_000_000 * 1000, pa.timestamp("us")).cast(column.type.arrow)
        return pa.repeat(moment, count)


class DamagedError(Exception):
    """A file can't be decoded, so the slice is rejected as a whole. The message contains the reason."""


@dataclass
class Problems:
    """The rejected rows of a slice, each with the first reason for it."""

    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, row: int, reason: str) -> None:
        """Rejects a row."""
        self.reasons.setdefault(int(row), reason)

    def add_columns(
        self, fields: Sequence[Field], columns: Sequence[Converted], not_null: set[str], rows: Rows
    ) -> Mask:
        """Rejects the rows (numbers `rows[i]`) with invalid values; returns the mask of these."""
        wrong = np.zeros(len(rows), np.bool_)
        for column, done in zip(fields, columns, strict=True):
            if done.bad is not None:
                for i in np.nonzero(done.bad)[0]:
                    self.add(rows[i], f'value: column "{column.name}" is not {column.type.sql}')
                wrong |= done.bad
            if column.name in not_null and done.column.null_count:
                nulls = done.column.is_null().to_numpy(zero_copy_only=False) & ~wrong
                for i in np.nonzero(nulls)[0]:
                    self.add(rows[i], f'null: column "{column.name}" is NULL')
                wrong |= nulls
        return wrong

    def write(
        self, dead_letters: DeadLetterSink, file: str, line: Callable[[int], int], text: Callable[[int], str]
    ) -> None:
        """Passes the rejected rows on in order. `line` and `text` return the line and the text of a row number."""
        rows = sorted(self.reasons)
        dead_letters.add_rows(file, [line(r) for r in rows], [self.reasons[r] for r in rows], [text(r) for r in rows])


def not_null_names(fields: Sequence[Field], key: Sequence[str]) -> set[str]:
    """The columns that must have a value."""
    return {f.name for f in fields if not f.nullable} | set(key)


def match_names(
    fields: Sequence[Field], names: Sequence[str], not_null: set[str], *, may_lack: bool = False
) -> tuple[dict[str, int], str | None]:
    """The index of each declared column among the file's names, and the problem of the file, or None.

    Names must be equal, else equal without regard to case. may_lack: whether a file with none of the columns is valid.
    """
    exact = {name: i for i, name in reversed(list(enumerate(names)))}
    folded: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        folded.setdefault(name.lower(), []).append(i)
    places: dict[str, int] = {}
    for column in fields:
        if column.name in exact:
            if names.count(column.name) > 1:
                return {}, f'schema: the file has several columns "{column.name}"'
            places[column.name] = exact[column.name]
        elif column.name.lower() in folded:
            found = folded[column.name.lower()]
            if len(found) > 1:
                return {}, f'schema: the file has several columns like "{column.name}"'
            places[column.name] = found[0]
    if fields and not places and not may_lack:
        return {}, "schema: the file has none of the declared columns"
    problem = lacking_problem(not_null, places)
    return ({}, problem) if problem else (places, None)


def lacking_problem(not_null: set[str], places: Mapping[str, int]) -> str | None:
    """The problem of a file that lacks a NOT NULL column, or None."""
    lacking = sorted(not_null - places.keys())
    return f'schema: the file lacks column "{lacking[0]}", which can\'t be NULL' if lacking else None


def gather(
    requested: Sequence[Field],
    done: Mapping[str, pa.Array],
    keep: Mask | None,
    ordinals: Rows,
    missing: Sequence[str] = (),
) -> SourceRows:
    """The requested columns of the rows to keep; columns that the file lacks are NULL."""
    arrays = [done[f.name] if f.name in done else pa.nulls(len(ordinals), f.type.arrow) for f in requested]
    schema = pa.schema([pa.field(f.name, f.type.arrow) for f in requested])
    table = pa.Table.from_arrays(arrays, schema=schema)
    if keep is not None and not keep.all():
        # Without columns a table has no rows to filter.
        table = table.filter(pa.array(keep)) if requested else table
        ordinals = ordinals[keep]
    return SourceRows(table, ordinals, tuple(missing))


def concat(parts: Sequence[SourceRows], requested: Sequence[Field]) -> SourceRows:
    """The concatenation of consecutive parts of one slice."""
    if not parts:
        return nothing(requested)
    if len(parts) == 1:
        return parts[0]
    return SourceRows(
        pa.concat_tables([p.table for p in parts]),
        np.concatenate([p.ordinals for p in parts]),
        parts[0].missing_columns,
    )


def nothing(requested: Sequence[Field]) -> SourceRows:
    """No rows."""
    return gather(requested, {}, None, np.zeros(0, np.int64))


#: The minimum bytes of an XML row and the maximum compression ratio, for an upper bound of rows.
_XML_ROW_BYTES: Final = 4

_GZIP_FACTOR: Final = 1000


def document_rows(file: BinaryIO, form: Format, *, is_gzip: bool) -> int:
    """The number of rows of a file; for XML an upper bound."""
    file.seek(0)
    if form == "avro":
        try:
            return count_records(file)
        except Exception:  # the reader reports the problem of the file
            return 1
    size = file.seek(0, 2)
    return max(1, size * (_GZIP_FACTOR if is_gzip else 1) // _XML_ROW_BYTES)


def read_document(
    file: BinaryIO, place: FilePlace, spec: FileSpec, requested: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a file. Raises DamagedError for an unreadable file."""
    found = _read(file, place.name, spec)
    count = len(found.places)
    columns = [Converted(c.column) for c in found.columns] if spec.options.null_for_bad else found.columns
    rows = np.arange(count, dtype=np.int64)
    problems = Problems()
    wrong = problems.add_columns(spec.columns, columns, not_null_names(spec.columns, spec.key), rows)
    done = {f.name: c.column for f, c in zip(spec.columns, columns, strict=True)}
    done |= place.columns(requested, lambda: rows + 1, lambda: rows, count)
    if problems.reasons:
        problems.write(dead_letters, place.name, lambda row: row + 1, lambda _: "")
    return gather(requested, done, ~wrong if wrong.any() else None, rows)


def _read(file: BinaryIO, name: str, spec: FileSpec) -> Read:
    if spec.options.format == "avro":
        try:
            return read_records(file, spec.columns)
        except (OSError, Error):
            raise
        except Exception as cause:
            raise DamagedError(str(cause) or type(cause).__name__) from cause
    try:
        data = gzip.decompress(file.read()) if name.endswith(".gz") else file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
        raise DamagedError(str(cause)) from cause
    found = XmlReader(spec.columns, dict(spec.options.reader)).read(pa.array([data], pa.large_binary()))
    if found.reasons:
        raise DamagedError(found.reasons[0])
    return found
