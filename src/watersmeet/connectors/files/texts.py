"""Reading CSV and JSON lines from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.deadletters import MAX_TEXT
from watersmeet.connectors.base.rows import FilePlace, Problems, Rows, concat, gather, match_names, not_null_names
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows
from watersmeet.connectors.files.cutting import text_rows
from watersmeet.connectors.files.options import FileOptions
from watersmeet.errors import Error
from watersmeet.formats.convert import convert, json_objects
from watersmeet.formats.csvtext import RowIndex, csv_table
from watersmeet.formats.jsonpayloads import JsonPathReader, message_rules
from watersmeet.formats.payloads import moved
from watersmeet.formats.valuetexts import Converted
from watersmeet.values.types import Field

_ARRAY: Final = "json: an array; a file of JSON has one object in each line, without an array around them"
_JSON_SPACE: Final = b" \t\r\n"
LETTER_BYTES: Final = 4 * MAX_TEXT
"""The bytes of a record that are read for its dead letter."""


@dataclass(frozen=True)
class TextReader:
    """How the text of a source's files becomes rows.

    fields: all declared columns; each is converted, so that which rows are set aside doesn't depend on
    `requested`. header: the file's own column names, or None. place: of the file.
    """

    options: FileOptions
    fields: Sequence[Field]
    key: Sequence[str]
    requested: Sequence[Field]
    header: Sequence[str] | None
    place: FilePlace
    dead_letters: DeadLetterSink

    def schema_problem(self) -> str | None:
        """What is wrong with the file as a whole, if anything."""
        return self._places[1]

    def read(self, data: bytes, first_line: int, first_ordinal: int = 0, first_byte: int = 0) -> tuple[SourceRows, int]:
        """(the rows of `data`, which holds whole rows; how many rows it holds, good or bad).

        first_byte: where it begins in the file.

        Whatever is wrong with a record sets aside that record alone, an error that nobody thought of among it.
        """
        text = _Text(data, first_line, self.options, first_byte)
        problems = Problems()
        try:
            found = self._decode(text, problems, first_ordinal)
        except (OSError, Error, duckdb.InterruptException):
            raise  # of the machine, the options and the user, not of a record
        except Exception as cause:
            if len(text.index) > 1:
                return self._halves(text, first_ordinal), text.count
            problems = Problems({0: f"unexpected: {type(cause).__name__}: {str(cause)[:MAX_TEXT]}"})
            found = gather(self.requested, {}, None, np.zeros(0, np.int64), self._missing)
        if problems.reasons:
            problems.write(self.dead_letters, self.place.name, text.line, text.text)
        return found, text.count

    def _decode(self, text: _Text, problems: Problems, first_ordinal: int) -> SourceRows:
        rows, columns = self._csv(text, problems) if self.options.format == "csv" else self._json(text, problems)
        fields = self._present
        if self.options.null_for_bad:
            columns = [Converted(c.column) for c in columns]
        wrong = problems.add_columns(fields, columns, not_null_names(self.fields, self.key), rows)
        done = {f.name: c.column for f, c in zip(fields, columns, strict=True)}
        done |= self.place.columns(
            self.requested, lambda: text.line_numbers(rows), lambda: text.offsets(rows), len(rows)
        )
        keep = ~wrong if wrong.any() else None
        ordinals = rows
        if self.options.reader:  # a line may have several rows
            ordinals = np.arange(len(rows), dtype=np.int64)
            text.count = max(text.count, len(rows))
        return gather(self.requested, done, keep, ordinals + first_ordinal, self._missing)

    def _halves(self, text: _Text, first_ordinal: int) -> SourceRows:
        """The rows, read half by half."""
        middle = len(text.index) // 2
        parts = [
            self.read(part.data, part.line(0), first_ordinal + first, part.first_byte)[0]
            for first, part in ((0, text.part(0, middle)), (middle, text.part(middle, len(text.index))))
        ]
        return concat(parts, self.requested)

    def set_aside_long(self, beginning: bytes, size: int, line: int) -> None:
        """Sets aside a record that is too long to be read."""
        self.dead_letters.add(self.place.name, line, _too_long(size, self.options), _readable(beginning))

    @cached_property
    def _places(self) -> tuple[dict[str, int], str | None]:
        if self.options.format == "json" or self.header is None:
            return {f.name: i for i, f in enumerate(self.fields)}, None
        return match_names(self.fields, self.header, not_null_names(self.fields, self.key))

    @property
    def _missing(self) -> list[str]:
        return [f.name for f in self.fields if f not in self._present] if self.header is not None else []

    @cached_property
    def _present(self) -> list[Field]:
        """The declared columns that the file has."""
        return [f for f in self.fields if f.name in self._places[0]]

    def _csv(self, text: _Text, problems: Problems) -> tuple[Rows, list[Converted]]:
        """(numbers of the rows that have the right shape, their columns)."""
        places = self._places[0]
        width = len(self.header) if self.header is not None else len(self.fields)
        data, rows = text.well_formed(problems)
        table, wrong = csv_table(
            data,
            width,
            [places[f.name] for f in self._present],
            delimiter=self.options.delimiter,
            quote=self.options.quote,
            null=self.options.null,
            newlines=b"\n" in text.quoted,
        )
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
        if self.options.reader:
            return self._by_paths(text, lines, problems)
        names, types = [f.name for f in self.fields], [f.type for f in self.fields]
        columns, wrong = json_objects(lines, names, types)
        for row in np.nonzero(wrong)[0].tolist():
            if text.bytes_of(row).strip(_JSON_SPACE):
                is_array = text.bytes_of(row).lstrip(_JSON_SPACE).startswith(b"[")
                problems.add(row, _ARRAY if is_array else "json: not a JSON object")
        return np.nonzero(~wrong)[0], columns

    def _by_paths(self, text: _Text, lines: pa.StringArray, problems: Problems) -> tuple[Rows, list[Converted]]:
        """As `_json`, where rows and columns are at paths: a line may have several rows."""
        there = np.flatnonzero([bool(text.bytes_of(row).strip(_JSON_SPACE)) for row in range(len(lines))])
        there = there[lines.is_valid().to_numpy(zero_copy_only=False)[there]]
        reader = JsonPathReader(self.fields, message_rules({}), dict(self.options.reader))
        found = moved(reader.read(lines.take(pa.array(there)).cast(pa.binary())), there)
        for row, reason in found.reasons.items():
            problems.add(row, reason)
        return found.places, list(found.columns)


class _Text:
    """A piece of a text file that holds whole rows; looks for their bounds only when somebody asks."""

    def __init__(self, data: bytes, first_line: int, options: FileOptions, first_byte: int) -> None:
        self.data = data
        self.first_byte = first_byte
        self._first_line = first_line
        self._options = options
        self._count: int | None = None
        quote = options.quote.encode() if options.format == "csv" else b""
        self.quoted = data if quote and quote in data else b""

    @cached_property
    def index(self) -> RowIndex:
        """The rows."""
        return text_rows(self.data, self._options, final=True)

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
        return self.data.startswith((b"\n", b"\r")) or b"\n\n" in self.data or b"\n\r" in self.data

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
        return np.nonzero(np.frombuffer(self.data, np.uint8) == 10)[0]

    def part(self, first: int, end: int) -> _Text:
        """The rows from `first` to before `end` as a text of their own."""
        data = self.data[self.index.starts[first] : self.index.ends[end - 1]]
        return _Text(data, self.line(first), self._options, self.first_byte + int(self.index.starts[first]))

    def bytes_of(self, row: int) -> bytes:
        """A row as it stands in the file."""
        return self.data[self.index.starts[row] : self.index.ends[row]]

    def text(self, row: int) -> str:
        """A row for people to read."""
        begin, end = int(self.index.starts[row]), int(self.index.ends[row])
        return _readable(self.data[begin : min(end, begin + LETTER_BYTES)])

    def line(self, row: int) -> int:
        """The number of the row's first line in the file."""
        return int(self.line_numbers(np.array([row]))[0])

    def line_numbers(self, rows: Rows) -> Rows:
        """As `line`, of several rows."""
        return self._first_line + np.searchsorted(self._newlines, self.index.starts[rows])

    def offsets(self, rows: Rows) -> Rows:
        """Where rows begin in the file."""
        return self.first_byte + self.index.starts[rows]

    def well_formed(self, problems: Problems) -> tuple[bytes, Rows | None]:
        """(the rows that are well-formed UTF-8 CSV, their numbers or None if it's all of them)."""
        is_text = _is_utf8(self.data)
        self._note_long(problems)
        odd = (
            bool(problems.reasons)
            or self.quoted
            or (b"\r" in self.data and self.data.count(b"\r") != self.data.count(b"\r\n"))
        )
        if is_text and not (odd and len(self.index.bad)):
            return self.data, None
        quote = self._options.quote.encode()
        for row in self.index.bad.tolist():
            problems.add(
                row,
                "quotes: not closed, or followed by other text"
                if quote and quote in self.bytes_of(row)
                else "line end: a carriage return inside a line",
            )
        if not is_text:
            self._note_encoding(problems)
        good = [row for row in range(len(self.index)) if row not in problems.reasons]
        return b"".join(self.bytes_of(row) for row in good), np.asarray(good, dtype=np.int64)

    def lines(self, problems: Problems) -> pa.Array:
        """The lines as strings (with their ends), NULL for those that are no text."""
        offsets = np.concatenate([np.zeros(1, np.int32), self.index.ends.astype(np.int32)])
        validity = None
        self._note_long(problems)
        if not _is_utf8(self.data):
            self._note_encoding(problems)
        if problems.reasons:
            valid = np.ones(len(self.index), np.bool_)
            valid[list(problems.reasons)] = False
            validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        array = pa.StringArray.from_buffers(len(self.index), pa.py_buffer(offsets), pa.py_buffer(self.data), validity)
        return array if validity is None else array.take(pa.array(np.arange(len(array))))

    def _note_long(self, problems: Problems) -> None:
        if len(self.data) > self._options.max_record_bytes:
            sizes = self.index.ends - self.index.starts
            for row in np.nonzero(sizes > self._options.max_record_bytes)[0]:
                problems.add(int(row), _too_long(int(sizes[row]), self._options))

    def _note_encoding(self, problems: Problems) -> None:
        for row in range(len(self.index)):
            try:
                self.bytes_of(row).decode()
            except UnicodeDecodeError:
                problems.add(row, "encoding: not UTF-8")


def _too_long(size: int, options: FileOptions) -> str:
    return f"length: {size} bytes, more than max_record_bytes = {options.max_record_bytes}"


def _readable(record: bytes) -> str:
    return record.decode("utf-8", errors="replace").rstrip("\r\n")


def _is_utf8(data: bytes) -> bool:
    whole = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _flat(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
