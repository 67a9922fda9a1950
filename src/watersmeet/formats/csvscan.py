"""Where the rows of a CSV text begin and end.

Quotes count as such only at the beginning of a field; inside, a doubled quote is a quote. A row that
breaks these rules (a quote that is never closed, text behind a closing quote, a carriage return on its own) is
one *physical line*: the rows after it are found again, it alone is set aside.

Well-formed text is scanned with numpy; from the first odd place on, a regular expression takes over, which defines
the rules. Both give the same rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_LF, _CR = 10, 13
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowIndex:
    """Rows of a text: row i is bytes [starts[i], ends[i]), its line end included.

    bad: numbers of the rows that break the rules of quoting. complete: the end of the last complete row.
    quoted: whether there may be newlines in rows.
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
    """The special characters, and how long a row can be. quote: empty for none.

    max_row_bytes: a quoted field that isn't closed within so many bytes of its row's beginning never will be.
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
    # A field may end with the quote that closes it, or that quote is the first half of a doubled one to come.
    unfinished = rb"(?:%b%b)*+%b%b\Z" % (field, delimiter, quote, inside)
    return _Rules(re.compile(row), re.compile(unfinished))


def scan_rows(data: bytes, dialect: Dialect, *, final: bool) -> RowIndex:
    """The rows of `data`, which begins with a row.

    final: nothing will follow, so that a last line without newline is a row and an open quote is an error.
    Otherwise rows that may still change are left out, and `complete` says where they begin.
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
    """As `scan_rows`, but every line is a row: JSON lines."""
    ends = np.nonzero(np.frombuffer(data, np.uint8) == _LF)[0].astype(np.int64, copy=False) + 1
    if final and data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    return RowIndex(starts, ends, np.zeros(0, np.int64), int(ends[-1]) if len(ends) else 0, quoted=False)


def _quoted_ends(array: npt.NDArray[np.uint8], newlines: Offsets, dialect: Dialect) -> tuple[Offsets, int]:
    """(row ends, place up to which they are right): quotes taken in pairs, if each stands where it may."""
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
    """The place of the first carriage return, outside quotes, that no newline follows; the size if there is none."""
    size = len(array)
    returns = np.nonzero(array == _CR)[0]
    lone = returns[array[np.minimum(returns + 1, size - 1)] != _LF]
    if quoted and len(lone):
        quotes = np.nonzero(array == ord(dialect.quote))[0]
        lone = lone[(np.searchsorted(quotes, lone) & 1) == 0]
    return int(lone[0]) if len(lone) else size


def _by_rules(data: bytes, start: int, dialect: Dialect, *, final: bool) -> tuple[list[int], list[int], int]:
    """(row ends, numbers of bad rows, end of the last row) from `start` on, row by row."""
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
