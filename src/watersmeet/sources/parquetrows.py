"""Reading row groups of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from watersmeet.sources.base import DeadLetterSink, Slice, SourceRows
from watersmeet.sources.convert import Converted, convert
from watersmeet.sources.rows import DamagedError, Problems, gather, match_names, not_null_names, nothing
from watersmeet.types import Field, SqlType


@dataclass(frozen=True)
class ParquetReader:
    """How row groups of a source's files become rows. fields: all declared columns. See `TextReader`."""

    fields: Sequence[Field]
    key: Sequence[str]
    requested: Sequence[Field]
    file: str
    dead_letters: DeadLetterSink

    def read(self, file: BinaryIO, piece: Slice) -> SourceRows:
        """The rows of the slice.

        Only requested columns are decoded, and those that may hold values which the declared type can't (so that
        the same rows are set aside whatever is requested); the footer's statistics clear most of them.
        Raises DamagedError.
        """
        try:
            parquet = pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as failure:
            raise DamagedError(str(failure)) from failure
        schema = parquet.schema_arrow
        not_null = not_null_names(self.fields, self.key)
        places, problem = match_names(self.fields, schema.names, not_null)
        for column in self.fields:
            if problem is None and column.name in places:
                problem = type_problem(column, schema.field(places[column.name]).type)
        if problem is not None:
            self.dead_letters.add(self.file, None, problem, "", max(1, piece["rows"]))
            return nothing(self.requested)
        groups = list(range(*piece["range"]))
        present = [f for f in self.fields if f.name in places]
        wanted = {f.name for f in self.requested}
        risky = [f for f in present if f.name not in wanted
                 and self._is_risky(parquet, groups, places[f.name], f, f.name in not_null)]
        chosen = [f for f in present if f.name in wanted or f in risky]
        table = _decode(parquet, groups, [schema.names[places[f.name]] for f in chosen])
        rows = np.arange(sum(parquet.metadata.row_group(g).num_rows for g in groups), dtype=np.int64)
        columns = [_cast(table.column(schema.names[places[f.name]]), f.type) for f in chosen]
        problems = Problems()
        missing = [f.name for f in self.fields if f.name not in places]
        wrong = problems.add_columns(chosen, columns, not_null, rows)
        if problems.reasons:
            names = [f.name for f in chosen]
            problems.write(self.dead_letters, self.file, lambda row: piece["line"] + row,
                           lambda row: str({n: c.column[row].as_py() for n, c in zip(names, columns, strict=True)}))
        done = {f.name: c.column for f, c in zip(chosen, columns, strict=True)}
        return gather(self.requested, done, ~wrong if wrong.any() else None, rows, missing)

    def _is_risky(self, parquet: pq.ParquetFile, groups: list[int], place: int, column: Field, not_null: bool) -> bool:
        """True if a column's values may not fit the declared type, as far as the footer tells."""
        kind = parquet.schema_arrow.field(place).type
        fits = _always_fits(kind, column.type)
        if fits and not not_null:
            return False
        leaf = _leaf(parquet.metadata, parquet.schema_arrow.field(place).name)
        if leaf is None:
            return True
        for group in groups:
            statistics = parquet.metadata.row_group(group).column(leaf).statistics
            if statistics is None or (not_null and (not statistics.has_null_count or statistics.null_count)):
                return True
            if not fits and not (statistics.has_min_max and _range_fits(statistics, column.type)):
                return True
        return False


def _decode(parquet: pq.ParquetFile, groups: list[int], names: list[str]) -> pa.Table:
    """The columns `names`; raises DamagedError. Parquet's readers don't check that text is UTF-8."""
    try:
        table = parquet.read_row_groups(groups, columns=names, use_threads=False)
        for column in table.columns:
            column.validate(full=True)
    except (pa.ArrowException, OSError) as problem:
        raise DamagedError(str(problem)) from problem
    return table


def type_problem(column: Field, found: pa.DataType) -> str | None:
    """Why a file's column of type `found` can't be read as the declared one, or None."""
    if _can_read(found, column.type):
        return None
    return f'schema: column "{column.name}" is {found}, declared as {column.type.sql}'


def _can_read(found: pa.DataType, kind: SqlType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found):
        return True
    name = kind.name
    if name in ("varchar", "jsonb"):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))
    if name == "boolean":
        return bool(pa.types.is_boolean(found))
    if kind.is_integer:
        return bool(pa.types.is_integer(found))
    if kind.is_float:
        return bool(pa.types.is_floating(found) or pa.types.is_integer(found))
    if name == "numeric":
        return bool(pa.types.is_decimal(found) or pa.types.is_integer(found))
    if name == "bytea":
        return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found)
                    or pa.types.is_fixed_size_binary(found))
    if name == "date":
        return bool(pa.types.is_date(found))
    if name == "time":
        return bool(pa.types.is_time(found))
    if name in ("timestamp", "timestamptz"):
        return bool(pa.types.is_timestamp(found)) and (found.tz is not None) == (name == "timestamptz")
    if name == "array":
        assert kind.element is not None
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(is_list and _can_read(found.value_type, kind.element))
    if name == "struct":
        return bool(pa.types.is_struct(found)) and all(
            found.get_field_index(part) >= 0 and _can_read(found.field(part).type, part_kind)
            for part, part_kind in kind.fields)
    return bool(found == kind.arrow)


def _always_fits(found: pa.DataType, kind: SqlType) -> bool:
    """True if each value of the file's type is one of the declared type."""
    if kind.is_integer:
        bits = found.bit_width + pa.types.is_unsigned_integer(found) if pa.types.is_integer(found) else 128
        return bool(bits <= kind.arrow.bit_width)
    if kind.name == "numeric":
        if pa.types.is_decimal(found):
            whole = kind.arrow.precision - kind.arrow.scale
            return bool(found.scale <= kind.arrow.scale and found.precision - found.scale <= whole)
        return bool(pa.types.is_integer(found) and kind.arrow.precision - kind.arrow.scale >= 20)
    if kind.name in ("timestamp", "timestamptz"):
        return bool(pa.types.is_timestamp(found) and found.unit != "s")
    return not kind.is_nested and kind.name != "jsonb"


def _range_fits(statistics: Any, kind: SqlType) -> bool:
    if not kind.is_integer:
        return False
    limit = 1 << (kind.arrow.bit_width - 1)
    return isinstance(statistics.min, int) and -limit <= statistics.min and statistics.max < limit


def _leaf(metadata: Any, name: str) -> int | None:
    """The number of the leaf column `name`, if it's not nested."""
    for i in range(metadata.num_columns):
        if metadata.schema.column(i).path == name:
            return i
    return None


def _cast(column: pa.ChunkedArray, kind: SqlType) -> Converted:
    """The column in the declared type; values that don't fit are bad."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind.name == "jsonb":
        return convert([array.cast(pa.string())], [kind])[0]
    if array.type == kind.arrow:
        return Converted(array)
    if kind.name in ("timestamp", "timestamptz") or kind.is_float:
        # Nanoseconds are cut to microseconds; whole numbers above 2^53 are rounded, as in a cast in SQL.
        return Converted(pc.cast(array, kind.arrow, safe=False))
    try:
        return Converted(pc.cast(array, kind.arrow))
    except pa.ArrowInvalid:
        return _cast_one_by_one(array, kind)


def _cast_one_by_one(array: pa.Array, kind: SqlType) -> Converted:
    """The slow way, for columns with values that don't fit: halves until the culprits are alone."""
    bad = np.zeros(len(array), np.bool_)
    parts: list[pa.Array] = []
    open_ = [(0, len(array))]
    while open_:
        start, end = open_.pop()
        try:
            parts.append(pc.cast(array.slice(start, end - start), kind.arrow))
        except pa.ArrowInvalid:
            if end - start == 1:
                bad[start] = True
                parts.append(pa.nulls(1, kind.arrow))
            else:
                middle = (start + end) // 2
                open_ += [(middle, end), (start, middle)]
    return Converted(pa.concat_arrays(parts), bad)
