"""Payloads in CSV and TSV."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.base import Numbers
from watersmeet.formats.convert import convert
from watersmeet.formats.csvscan import Dialect, RowIndex, scan_rows
from watersmeet.formats.csvtable import csv_table
from watersmeet.formats.payloads import Read, as_texts, joined, moved, nothing, of_rows, option_error
from watersmeet.formats.scalars import Converted
from watersmeet.types import Field

_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class CsvReader:
    r"""Rows whose fields are the columns, in their order. An empty field without quotes is NULL.

    tabs: fields are between tabs, without quotes and with backslashes; \N is NULL (TSV). many_rows: a payload may have
    several rows. Source: RisingWave, ENCODE CSV; RFC 4180.
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
                # A quote that is not closed takes what follows with it: the halves are read without each other.
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
            blank = (index.ends - index.starts == 1)[rows]  # Arrow reads NULLs there
            table, rows = table.filter(pa.array(~blank)), rows[~blank]
        empty = np.bincount(places[rows], minlength=count) == 0
        for place in np.flatnonzero(empty).tolist():
            reasons.setdefault(place, "csv: no row")
        if not self._many_rows:
            several = np.flatnonzero(np.bincount(places, minlength=count) > 1)
            reasons |= dict.fromkeys(several.tolist(), "csv: several rows in a message")
        texts = [self._unescaped(_flat(column)) for column in table.columns[:width]]
        columns = convert(texts, [f.type for f in self._fields])
        found = Read(columns, places[rows], reasons)
        if not reasons:
            return found
        keep = ~np.isin(found.places, list(reasons))
        cut = [Converted(of_rows(c.column, keep), None if c.bad is None else c.bad[keep]) for c in columns]
        return Read(cut, found.places[keep], reasons)

    def _unescaped(self, texts: pa.StringArray) -> pa.StringArray:
        """TSV: what backslashes mean, in the few fields that have some."""
        if not self._tabs:
            return texts
        escaped = pc.fill_null(pc.match_substring(texts, "\\"), fill_value=False)
        if not pc.any(escaped).as_py():
            return texts
        said = [_ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), t) for t in texts.filter(escaped).to_pylist()]
        return pc.replace_with_mask(texts, escaped, pa.array(said, pa.string()))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        return array.chunk(0) if array.num_chunks else pa.array([], pa.string())
    return array
