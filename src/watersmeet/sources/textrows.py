"""Reading CSV and JSON lines from memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from watersmeet.sources.base import DeadLetterSink, SourceRows
from watersmeet.sources.convert import Converted, convert, json_objects
from watersmeet.sources.csvscan import Dialect, RowIndex, scan_lines, scan_rows
from watersmeet.sources.fileoptions import FileOptions
from watersmeet.sources.rows import Problems, Rows, gather, match_names, not_null_names
from watersmeet.types import Field

_LONG_NUMBER: Final = r"[0-9][0-9.]{15}"
"""Digits that a double may not hold."""


@dataclass(frozen=True)
class TextReader:
    """How the text of a source's files becomes rows.

    fields: all declared columns; each is converted, so that which rows are set aside doesn't depend on
    `requested`. header: the file's own column names, or None. file: its name for dead letters.
    """

    options: FileOptions
    fields: Sequence[Field]
    key: Sequence[str]
    requested: Sequence[Field]
    header: Sequence[str] | None
    file: str
    dead_letters: DeadLetterSink

    def schema_problem(self) -> str | None:
        """What is wrong with the file as a whole, if anything."""
        return self._places[1]

    def read(self, data: bytes, first_line: int, first_ordinal: int = 0) -> tuple[SourceRows, int]:
        """(the rows of `data`, which holds whole rows; how many rows it holds, good or bad)."""
        text = _Text(data, first_line, self.options)
        problems = Problems()
        if self.options.format == "csv":
            rows, columns = self._csv(text, problems)
        else:
            rows, columns = self._json(text, problems)
        fields = self._present
        wrong = problems.add_columns(fields, columns, not_null_names(self.fields, self.key), rows)
        if problems.reasons:
            problems.write(self.dead_letters, self.file, text.line, text.text)
        done = {f.name: c.column for f, c in zip(fields, columns, strict=True)}
        missing = [f.name for f in self.fields if f not in fields] if self.header is not None else []
        keep = ~wrong if wrong.any() else None
        return gather(self.requested, done, keep, rows + first_ordinal, missing), text.count

    @cached_property
    def _places(self) -> tuple[dict[str, int], str | None]:
        if self.options.format == "json" or self.header is None:
            return {f.name: i for i, f in enumerate(self.fields)}, None
        return match_names(self.fields, self.header, not_null_names(self.fields, self.key))

    @cached_property
    def _present(self) -> list[Field]:
        """The declared columns that the file has."""
        return [f for f in self.fields if f.name in self._places[0]]

    def _csv(self, text: _Text, problems: Problems) -> tuple[Rows, list[Converted]]:
        """(numbers of the rows that have the right shape, their columns)."""
        places = self._places[0]
        width = len(self.header) if self.header is not None else len(self.fields)
        data, rows = text.well_formed(problems)
        table, wrong = _parse(data, width, [places[f.name] for f in self._present], self.options, b"\n" in text.quoted)
        if rows is None and (wrong or text.has_blank or text.quoted):
            rows = np.arange(len(text.index), dtype=np.int64)
        if rows is None:
            rows = np.arange(table.num_rows, dtype=np.int64)
            text.count = table.num_rows
        for number, actual in wrong:
            problems.add(rows[number], f"fields: {actual} instead of {width}")
        rows = np.delete(rows, [number for number, _ in wrong])
        assert len(rows) == table.num_rows, "the CSV parser and the scanner disagree about rows"
        if text.has_blank and width > 1:
            filled = ~text.blank[rows]
            table, rows = table.filter(pa.array(filled)), rows[filled]
        columns = [_flat(c) for c in table.columns]
        return rows, convert(columns, [f.type for f in self._present])

    def _json(self, text: _Text, problems: Problems) -> tuple[Rows, list[Converted]]:
        lines = text.lines(problems)
        names, types = [f.name for f in self.fields], [f.type for f in self.fields]
        if any(_has_numeric(f.type) for f in self.fields):
            lines = _exact_numbers(lines, {f.name for f in self.fields if f.type.name == "jsonb"})
        columns, wrong = json_objects(lines, names, types)
        rows = np.arange(len(lines), dtype=np.int64)
        if wrong.any():
            for row in np.nonzero(wrong)[0].tolist():
                if text.bytes_of(row).strip():
                    problems.add(row, "json: not a JSON object")
            keep = ~wrong
            chosen = pa.array(keep)
            columns = [Converted(c.column.filter(chosen), None if c.bad is None else c.bad[keep]) for c in columns]
            rows = rows[keep]
        return rows, columns


class _Text:
    """A piece of a text file that holds whole rows; looks for their bounds only when somebody asks."""

    def __init__(self, data: bytes, first_line: int, options: FileOptions) -> None:
        self._data = data
        self._first_line = first_line
        self._options = options
        self._count: int | None = None
        quote = options.quote.encode() if options.format == "csv" else b""
        self.quoted = data if quote and quote in data else b""

    @cached_property
    def index(self) -> RowIndex:
        """The rows."""
        if self._options.format == "csv":
            return scan_rows(self._data, Dialect(self._options.delimiter, self._options.quote), final=True)
        return scan_lines(self._data, final=True)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.index) if self._count is None else self._count

    @count.setter
    def count(self, value: int) -> None:
        self._count = value

    @cached_property
    def has_blank(self) -> bool:
        """True if there may be empty lines between rows."""
        return self._data.startswith((b"\n", b"\r")) or b"\n\n" in self._data or b"\n\r" in self._data

    @cached_property
    def blank(self) -> npt.NDArray[np.bool_]:
        """The rows that are empty lines."""
        sizes = self.index.ends - self.index.starts
        result = np.zeros(len(sizes), np.bool_)
        for row in np.nonzero(sizes <= 2)[0]:
            result[row] = not self.bytes_of(int(row)).strip(b"\r\n")
        return result

    @cached_property
    def _newlines(self) -> npt.NDArray[np.int64]:
        return np.nonzero(np.frombuffer(self._data, np.uint8) == 10)[0]

    def bytes_of(self, row: int) -> bytes:
        """A row as it stands in the file."""
        return self._data[self.index.starts[row]:self.index.ends[row]]

    def text(self, row: int) -> str:
        """A row for people to read."""
        return self.bytes_of(row).decode("utf-8", errors="replace").rstrip("\r\n")

    def line(self, row: int) -> int:
        """The number of the row's first line in the file."""
        return self._first_line + int(np.searchsorted(self._newlines, self.index.starts[row]))

    def well_formed(self, problems: Problems) -> tuple[bytes, Rows | None]:
        """(the rows that are well-formed UTF-8 CSV, their numbers or None if it's all of them)."""
        is_text = _is_utf8(self._data)
        odd = self.quoted or (b"\r" in self._data and self._data.count(b"\r") != self._data.count(b"\r\n"))
        if is_text and not (odd and len(self.index.bad)):
            return self._data, None
        quote = self._options.quote.encode()
        for row in self.index.bad.tolist():
            problems.add(row, "quotes: not closed, or followed by other text" if quote and quote in self.bytes_of(row)
                         else "line end: a carriage return inside a line")
        if not is_text:
            self._note_encoding(problems)
        good = [row for row in range(len(self.index)) if row not in problems.reasons]
        return b"".join(self.bytes_of(row) for row in good), np.asarray(good, dtype=np.int64)

    def lines(self, problems: Problems) -> pa.Array:
        """The lines as strings (with their ends), NULL for those that are no text."""
        offsets = np.concatenate([np.zeros(1, np.int32), self.index.ends.astype(np.int32)])
        validity = None
        if not _is_utf8(self._data):
            self._note_encoding(problems)
            valid = np.ones(len(self.index), np.bool_)
            valid[list(problems.reasons)] = False
            validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        array = pa.StringArray.from_buffers(len(self.index), pa.py_buffer(offsets), pa.py_buffer(self._data), validity)
        return array if validity is None else array.take(pa.array(np.arange(len(array))))

    def _note_encoding(self, problems: Problems) -> None:
        for row in range(len(self.index)):
            try:
                self.bytes_of(row).decode()
            except UnicodeDecodeError:
                problems.add(row, "encoding: not UTF-8")


def _is_utf8(data: bytes) -> bool:
    whole = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _parse(data: bytes, width: int, include: Sequence[int], options: FileOptions,
           newlines: bool) -> tuple[pa.Table, list[tuple[int, int]]]:
    """(the columns `include` as strings, (number, fields) of the rows without `width` fields)."""
    names = [f"f{i}" for i in range(width)]
    # Arrow reads no row of no column: the first one stands for the number of rows.
    included = [names[i] for i in include] or names[:1]
    if not data:
        return pa.table({n: pa.array([], pa.string()) for n in included}), []
    wrong: list[tuple[int, int]] = []

    def skip(row: Any) -> str:
        wrong.append((row.number - 1, row.actual_columns))
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        parse_options=pacsv.ParseOptions(
            delimiter=options.delimiter, quote_char=options.quote or False, double_quote=bool(options.quote),
            newlines_in_values=newlines, ignore_empty_lines=False, invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=included, check_utf8=False,
            strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[options.null]))
    return table, wrong


def _flat(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


def _has_numeric(kind: Any) -> bool:
    if kind.name == "numeric":
        return True
    return (kind.element is not None and _has_numeric(kind.element)) or any(_has_numeric(k) for _, k in kind.fields)


def _exact_numbers(lines: pa.Array, json_names: set[str]) -> pa.Array:
    """The lines with long fractions as strings, so that they don't pass through a double (not inside jsonb)."""
    long = pc.fill_null(pc.match_substring_regex(lines, _LONG_NUMBER), fill_value=False)
    rows = np.nonzero(long.to_numpy(zero_copy_only=False))[0]
    if not len(rows):
        return lines
    changed = []
    for row in rows:
        line = lines[int(row)].as_py()
        try:
            exact, plain = json.loads(line, parse_float=str), json.loads(line)
        except ValueError:
            changed.append(line)
            continue
        if isinstance(exact, dict):
            exact.update({name: plain[name] for name in json_names & exact.keys()})
        changed.append(json.dumps(exact, ensure_ascii=False))
    return pc.replace_with_mask(lines, long, pa.array(changed, pa.string()))
