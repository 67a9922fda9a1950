"""Reads row groups of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows
from watersmeet.connectors.files.rows import (
    DamagedError,
    FilePlace,
    Problems,
    concat,
    gather,
    lacking_problem,
    match_names,
    not_null_names,
    nothing,
)
from watersmeet.formats.typemapping import can_read, retyped
from watersmeet.values.types import Field

ROWS_PER_BYTE: Final = 1 << 16

"""The maximum number of rows per byte of the file; a footer with more is invalid."""

UNREADABLE: Final = (pa.ArrowException, OSError, ValueError)

"""Arrow's errors for damaged files; ValueError is also raised for names that are not UTF-8."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The content of a footer. rows, sizes: the number of rows and the uncompressed bytes of each row group. names: the
    names of the file's columns.
    """

    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]


def read_footer(file: BinaryIO, size: int) -> Footer | None:
    """The footer of a file of `size` bytes; None if it is invalid."""
    if size < 12:
        return None
    file.seek(size - 4)
    if file.read(4) != b"PAR1":
        return None
    file.seek(0)
    try:
        return checked_footer(pq.read_metadata(pa.PythonFile(file, mode="r")), size)
    except UNREADABLE:
        return None


def checked_footer(metadata: Any, size: int) -> Footer | None:
    """The decoded footer; None if its numbers contradict each other or the file's size in bytes.

    It does not check column chunks, because pyarrow's `RowGroupMetaData.column` ends the process if the chunk's size
    statistics are damaged (parquet::ParquetException, "Definition level histogram size mismatch"). Readers raise an
    error instead.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = tuple(group.num_rows for group in groups)
    sizes = tuple(group.total_byte_size for group in groups)
    names = tuple(metadata.schema.to_arrow_schema().names)
    if metadata.num_rows != sum(rows) or min((*rows, *sizes), default=0) < 0 or sum(rows) > size * ROWS_PER_BYTE:
        return None
    return Footer(rows, sizes, names)


_BATCH_ROWS: Final = 1 << 20
_FIELD_ID: Final = b"PARQUET:field_id"


class RowGroups(NamedTuple):
    """The row groups [begin, end) of a file with a size. rows: the estimated number of rows. line: the number of the
    first row, from 1.
    """

    size_bytes: int
    begin: int
    end: int
    rows: int
    line: int


@dataclass(frozen=True)
class ParquetReader:
    """The conversion of row groups of a source's files to rows. fields: all declared columns (see `TextReader`).
    may_lack: whether a file may have none of them. ids: the field ids of columns in the files, if columns are found by
    ids instead of names. place: the location of the file, if columns show it.
    """

    fields: Sequence[Field]
    key: Sequence[str]
    requested: Sequence[Field]
    file: str
    dead_letters: DeadLetterSink
    place: FilePlace | None = None
    may_lack: bool = False
    ids: Mapping[str, int] | None = None

    def read(self, file: BinaryIO, piece: RowGroups) -> SourceRows:
        """The rows of the row groups of a slice.

        All declared columns are decoded regardless of the request, so that all readers reject the same records. A row
        group that can't be decoded is rejected as a whole, so that the result doesn't depend on the slices. Raises
        DamagedError for a file that can't be decoded.
        """
        try:
            # Nanoseconds in 64 bits, the default for INT96, only cover the years 1677 to 2262.
            parquet = pq.ParquetFile(
                file, pre_buffer=False, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
            )
            schema = parquet.schema_arrow
            footer = checked_footer(parquet.metadata, piece.size_bytes)
        except UNREADABLE as failure:
            raise DamagedError(str(failure)) from failure
        if footer is None:
            raise DamagedError("the numbers of its footer contradict each other")
        not_null = not_null_names(self.fields, self.key)
        if self.ids is None:
            places, problem = match_names(self.fields, footer.names, not_null, may_lack=self.may_lack)
        else:
            places, problem = _match_ids(self.fields, self.ids, schema, not_null)
        for column in self.fields:
            if problem is None and column.name in places:
                problem = type_problem(column, schema.field(places[column.name]).type)
        if problem is not None:
            self.dead_letters.add(self.file, None, problem, "", max(1, piece.rows))
            return nothing(self.requested)
        present = {f.name: footer.names[places[f.name]] for f in self.fields if f.name in places}
        parts: list[SourceRows] = []
        first = 0
        for group in range(piece.begin, piece.end):
            try:
                parts.append(self._group(parquet, group, present, footer.rows[group], first, piece.line))
            except DamagedError as failure:
                begin, count = piece.line + first, footer.rows[group]
                reason, text = f"damaged: row group {group}: {failure}", f"rows {begin} to {begin + count - 1}"
                self.dead_letters.add(self.file, None, reason, text, max(1, count))
            first += footer.rows[group]
        return concat(parts, self.requested)

    def _group(
        self, parquet: pq.ParquetFile, group: int, present: Mapping[str, str], count: int, first: int, line: int
    ) -> SourceRows:
        """The rows of a row group.

        present: the file's names of the declared columns that it has. count: the number of rows of the row group.
        first: the number of earlier rows in the slice. line: the number of the slice's first row. Raises DamagedError.
        """
        fields = [f for f in self.fields if f.name in present]
        raw = _decode(parquet, group, list(present.values()), count)
        try:
            columns = [retyped(column, f.type) for column, f in zip(raw, fields, strict=True)]
        except UNREADABLE as failure:
            raise DamagedError(str(failure)) from failure
        rows = np.arange(first, first + count, dtype=np.int64)
        problems = Problems()
        wrong = problems.add_columns(fields, columns, not_null_names(self.fields, self.key), rows)
        if problems.reasons:
            shown = dict(zip(present, raw, strict=True))
            problems.write(
                self.dead_letters,
                self.file,
                lambda row: line + row,
                lambda row: str({name: _shown(array, row - first) for name, array in shown.items()}),
            )
        done = {f.name: c.column for f, c in zip(fields, columns, strict=True)}
        if self.place is not None:
            done |= self.place.columns(self.requested, lambda: line + rows, lambda: line - 1 + rows, count)
        missing = [f.name for f in self.fields if f.name not in present]
        return gather(self.requested, done, ~wrong if wrong.any() else None, rows, missing)


def _match_ids(
    fields: Sequence[Field], ids: Mapping[str, int], schema: pa.Schema, not_null: set[str]
) -> tuple[dict[str, int], str | None]:
    """Like `match_names`, but by field ids."""
    found = {}
    for place, field in enumerate(schema):
        text = (field.metadata or {}).get(_FIELD_ID)
        if text is None:
            return {}, f'schema: column "{field.name}" of the file has no field id'
        found[int(text)] = place
    places = {f.name: found[ids[f.name]] for f in fields if ids[f.name] in found}
    return places, lacking_problem(not_null, places)


def _decode(parquet: pq.ParquetFile, group: int, names: list[str], count: int) -> list[pa.Array]:
    """The columns `names` of a row group, without dictionaries. Raises DamagedError.

    It reads batches, because a reader allocates as many rows as the file claims, which may be wrong.
    """
    try:
        batches = list(
            parquet.iter_batches(min(max(count, 1), _BATCH_ROWS), row_groups=[group], columns=names, use_threads=False)
        )
        found = sum(batch.num_rows for batch in batches)
        if found != count:
            raise DamagedError(f"{found} rows instead of {count}")
        for batch in batches:
            batch.validate()
        places = [parquet.schema_arrow.get_field_index(name) for name in names]
        kinds = [parquet.schema_arrow.field(place).type for place in places]
        return [
            _joined([b.column(b.schema.get_field_index(n)) for b in batches], k)
            for n, k in zip(names, kinds, strict=True)
        ]
    except UNREADABLE as problem:
        raise DamagedError(str(problem)) from problem


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        parts, kind = [part.dictionary_decode() for part in parts], kind.value_type
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.array([], kind)


def _shown(array: pa.Array, row: int) -> Any:
    """A value for messages, also a text that is not UTF-8, or a time that Python can't represent."""
    try:
        return array[row].as_py()
    except UnicodeDecodeError:
        is_text = not pa.types.is_nested(array.type)
        return array.slice(row, 1).cast(pa.binary(), safe=False)[0].as_py() if is_text else "not UTF-8"
    except (ValueError, OverflowError):
        return f"beyond what {array.type} can be shown as"


def type_problem(column: Field, found: pa.DataType) -> str | None:
    """The reason why a file's column of type `found` can't be read as the declared type, or None."""
    if can_read(found, column.type):
        return None
    return f'schema: column "{column.name}" is {found}, declared as {column.type.sql}'
