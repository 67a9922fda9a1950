"""Reads CSV and TSV: the ends of rows, columns of text, payloads of messages.

A quote has its meaning only at the beginning of a field; inside the field, a doubled quote is a quote. A row that
violates these rules (an unclosed quote, text after a closing quote, a lone carriage return) is one *physical line*, and
only this line becomes a dead letter. Well-formed text is scanned with NumPy; from the first irregular row on, the
regular expression that defines the rules is used. Both always return the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from watersmeet.formats.convert import convert
from watersmeet.formats.payloads import Numbers, Read, as_texts, joined, moved, nothing
from watersmeet.formats.registry import option_error
from watersmeet.formats.valuetexts import of_rows, one_array
from watersmeet.values.types import Field


def csv_table(
    data: bytes, width: int, include: Sequence[int], *, delimiter: str, quote: str, null: str, newlines: bool
) -> tuple[pa.Table, list[tuple[int, int]]]:
    """The columns `include` as strings, and (number, fields) of each row that doesn't have `width` fields.

    quote: empty for none. null: the unquoted text of NULL. newlines: whether fields may contain newlines.
    """
    names = [f"f{i}" for i in range(width)]
    # Arrow reads no rows without columns, so the first column is read for the number of rows.
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
            delimiter=delimiter,
            quote_char=quote or False,
            double_quote=bool(quote),
            newlines_in_values=newlines,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=included,
            check_utf8=False,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[null],
        ),
    )
    return table, wrong


_LF, _CR = 10, 13
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowIndex:
    """The bounds of rows in a text: row i is bytes [starts[i], ends[i]), including its line end.

    bad: the numbers of the rows that violate the rules of quoting. complete: the end of the last complete row. quoted:
    whether rows may contain newlines.
    """

    starts: Offsets
    ends: Offsets
    bad: Offsets
    complete: int
    quoted: bool

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class Dialect:
    """The special characters, and the maximum length of a row. quote: empty for none.

    max_row_bytes: the distance from the start of a row within which a quoted field must be closed.
    """

    delimiter: str = ","
    quote: str = '"'
    max_row_bytes: int = 16 << 20


@dataclass(frozen=True)
class _Rules:
    row: re.Pattern[bytes]
    open: re.Pattern[bytes]


@lru_cache
def _rules(dialect: Dialect) -> _Rules:
    delimiter = re.escape(dialect.delimiter.encode())
    if not dialect.quote:
        field = rb"[^%b\r\n]*+" % delimiter
        return _Rules(re.compile(rb"%b(?:%b%b)*+(?:\r?\n|\r?\Z)" % (field, delimiter, field)), re.compile(rb"(?!)"))
    quote = re.escape(dialect.quote.encode())
    inside = rb"[^%b]*+(?:%b%b[^%b]*+)*+" % (quote, quote, quote, quote)
    field = rb"(?>%b%b%b|[^%b%b\r\n][^%b\r\n]*+|)" % (quote, inside, quote, quote, delimiter, delimiter)
    row = rb"%b(?:%b%b)*+(?:\r?\n|\r?\Z)" % (field, delimiter, field)
    # A quote closes its field or is the first half of a doubled quote.
    unfinished = rb"(?:%b%b)*+%b%b\Z" % (field, delimiter, quote, inside)
    return _Rules(re.compile(row), re.compile(unfinished))


def scan_rows(data: bytes, dialect: Dialect, *, final: bool) -> RowIndex:
    """The rows of `data`, which begins with a row.

    final: whether the data is complete, so that a last line without newline is a row and an open quote is an error.
    Otherwise rows that may still change are omitted, and `complete` is their beginning.
    """
    array = np.frombuffer(data, np.uint8)
    newlines = np.nonzero(array == _LF)[0].astype(np.int64, copy=False)
    quoted = bool(dialect.quote) and dialect.quote.encode() in data
    if quoted:
        ends, trusted = _quoted_ends(array, newlines, dialect)
    else:
        ends, trusted = newlines + 1, len(data)
    if trusted and b"\r" in data:
        trusted = min(trusted, _lone_return(array, quoted, dialect))
    if len(ends) and int(np.max(np.diff(ends, prepend=0))) > dialect.max_row_bytes:
        trusted = 0
    ends = ends[: np.searchsorted(ends, trusted, side="right")]
    start = int(ends[-1]) if len(ends) else 0
    rest, bad, complete = _by_rules(data, start, dialect, final=final)
    ends = np.concatenate([ends, np.asarray(rest, dtype=np.int64)])
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    bad_rows = np.asarray(bad, dtype=np.int64) + (len(ends) - len(rest))
    return RowIndex(starts, ends, bad_rows, complete, quoted)


def scan_lines(data: bytes, *, final: bool) -> RowIndex:
    """Like `scan_rows`, but every line is a row, as in JSON lines."""
    ends = np.nonzero(np.frombuffer(data, np.uint8) == _LF)[0].astype(np.int64, copy=False) + 1
    if final and data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    return RowIndex(starts, ends, np.zeros(0, np.int64), int(ends[-1]) if len(ends) else 0, quoted=False)


def _quoted_ends(array: npt.NDArray[np.uint8], newlines: Offsets, dialect: Dialect) -> tuple[Offsets, int]:
    """The row ends by pairs of quotes, and the position up to which they are valid."""
    quotes = np.nonzero(array == ord(dialect.quote))[0].astype(np.int64, copy=False)
    opening, closing = quotes[0::2], quotes[1::2]
    size = len(array)
    before = array[np.maximum(opening - 1, 0)]
    good_open = (opening == 0) | (before == ord(dialect.delimiter)) | (before == _LF)
    doubled = np.zeros(len(opening), np.bool_)
    doubled[1:] = opening[1:] == closing[: len(opening) - 1] + 1
    after = array[np.minimum(closing + 1, size - 1)]
    second = array[np.minimum(closing + 2, size - 1)]
    good_close = (after == ord(dialect.delimiter)) | (after == _LF) | ((after == _CR) & (second == _LF))
    good_close |= closing == size - 1
    good_close[: len(opening) - 1] |= doubled[1 : len(closing) + 1][: len(good_close[: len(opening) - 1])]
    trusted = size
    wrong_open = np.nonzero(~(good_open | doubled))[0]
    wrong_close = np.nonzero(~good_close)[0]
    if len(wrong_open):
        trusted = min(trusted, int(opening[wrong_open[0]]))
    if len(wrong_close):
        trusted = min(trusted, int(opening[wrong_close[0]]))
    if len(opening) > len(closing):
        trusted = min(trusted, int(opening[-1]))
    inside = np.searchsorted(quotes, newlines) & 1
    return newlines[inside == 0] + 1, trusted


def _lone_return(array: npt.NDArray[np.uint8], quoted: bool, dialect: Dialect) -> int:
    """The position of the first carriage return outside quotes that no newline follows; the size of the text if there
    is none.
    """
    size = len(array)
    returns = np.nonzero(array == _CR)[0]
    lone = returns[array[np.minimum(returns + 1, size - 1)] != _LF]
    if quoted and len(lone):
        quotes = np.nonzero(array == ord(dialect.quote))[0]
        lone = lone[(np.searchsorted(quotes, lone) & 1) == 0]
    return int(lone[0]) if len(lone) else size


def _by_rules(data: bytes, start: int, dialect: Dialect, *, final: bool) -> tuple[list[int], list[int], int]:
    """The row ends, the numbers of bad rows and the end of the last row from `start` on, determined row by row."""
    rules = _rules(dialect)
    size = len(data)
    ends: list[int] = []
    bad: list[int] = []
    position = start
    while position < size:
        limit = min(position + dialect.max_row_bytes, size)
        match = rules.row.match(data, position, limit)
        if match is not None and (data[match.end() - 1] == _LF or (limit == size and final)):
            position = match.end()
            ends.append(position)
            continue
        if not final and limit == size and (match is not None or rules.open.match(data, position, limit)):
            break
        newline = data.find(b"\n", position)
        if newline < 0 and not final:
            break
        position = size if newline < 0 else newline + 1
        bad.append(len(ends))
        ends.append(position)
    return ends, bad, position


_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class CsvReader:
    r"""Reads rows whose fields are the columns in order. An empty unquoted field is NULL.

    tabs: whether it is TSV: fields between tabs, backslashes instead of quotes, and \N for NULL. many_rows: whether a
    payload may contain several rows. Source: RisingWave, ENCODE CSV; RFC 4180.
    """

    def __init__(
        self, fields: Sequence[Field], options: Mapping[str, str], *, tabs: bool = False, many_rows: bool = False
    ) -> None:
        self._fields = fields
        self._tabs = tabs
        self._many_rows = many_rows
        delimiter = "\t" if tabs else options.get("delimiter", ",")
        delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter
        if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
            raise option_error("delimiter", "is one character, and none of quotes and line ends")
        if options.get("without_header", "true").lower() != "true":
            raise option_error(
                "without_header", "messages have no header in CSV", "without_header = 'true', columns in their order"
            )
        self._dialect = Dialect(delimiter, "" if tabs else '"', max_row_bytes=1 << 31)

    def read(self, payloads: pa.BinaryArray) -> Read:
        texts, is_text = as_texts(payloads)
        if is_text.all():
            return self._read(texts)
        bad = dict.fromkeys(np.flatnonzero(~is_text).tolist(), "encoding: not UTF-8")
        found = moved(self._read(of_rows(texts, is_text)), np.flatnonzero(is_text))
        return Read(found.columns, found.places, {**found.reasons, **bad})

    def _read(self, texts: pa.StringArray) -> Read:
        if not len(texts):
            return nothing(self._fields)
        lines = pc.binary_join_element_wise(pc.utf8_rtrim(texts, "\r\n"), "", "\n")
        data = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "")[0]
        data = data.as_py().encode()
        found = scan_rows(data, self._dialect, final=True)
        bounds = np.cumsum(pc.binary_length(lines).to_numpy(zero_copy_only=False).astype(np.int64))
        whole = np.isin(bounds, found.ends).all()
        if len(found.bad) or not whole:
            if len(texts) > 1:
                # an unclosed quote affects the following rows, so the halves are read separately
                middle = len(texts) // 2
                halves = [(texts[:middle], 0), (texts[middle:], middle)]
                return joined([moved(self._read(t), np.arange(len(t)) + at) for t, at in halves], self._fields)
            return nothing(self._fields, {0: "csv: a quote is not closed, or followed by other text"})
        return self._rows(data, found, np.searchsorted(bounds, found.ends), len(texts))

    def _rows(self, data: bytes, index: RowIndex, places: Numbers, count: int) -> Read:
        width = len(self._fields)
        table, wrong = csv_table(
            data,
            max(width, 1),
            range(width),
            delimiter=self._dialect.delimiter,
            quote=self._dialect.quote,
            null="\\N" if self._tabs else "",
            newlines=index.quoted,
        )
        reasons = {int(places[row]): f"csv: {fields} fields instead of {width}" for row, fields in wrong}
        rows = np.delete(np.arange(len(places)), [row for row, _ in wrong])
        assert len(rows) == table.num_rows, "the CSV parser and the scanner disagree about rows"
        if width > 1:
            blank = (index.ends - index.starts == 1)[rows]  # Arrow reads NULLs for these
            table, rows = table.filter(pa.array(~blank)), rows[~blank]
        empty = np.bincount(places[rows], minlength=count) == 0
        for place in np.flatnonzero(empty).tolist():
            reasons.setdefault(place, "csv: no row")
        if not self._many_rows:
            several = np.flatnonzero(np.bincount(places, minlength=count) > 1)
            reasons |= dict.fromkeys(several.tolist(), "csv: several rows in a message")
        texts = [self._unescaped(one_array(column)) for column in table.columns[:width]]
        columns = convert(texts, [f.type for f in self._fields])
        found = Read(columns, places[rows], reasons)
        if not reasons:
            return found
        keep = ~np.isin(found.places, list(reasons))
        cut = [c.rows(keep) for c in columns]
        return Read(cut, found.places[keep], reasons)

    def _unescaped(self, texts: pa.StringArray) -> pa.StringArray:
        """Replaces the escapes of TSV in the few fields with backslashes."""
        if not self._tabs:
            return texts
        escaped = pc.fill_null(pc.match_substring(texts, "\\"), fill_value=False)
        if not pc.any(escaped).as_py():
            return texts
        said = [_ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), t) for t in texts.filter(escaped).to_pylist()]
        return pc.replace_with_mask(texts, escaped, pa.array(said, pa.string()))
