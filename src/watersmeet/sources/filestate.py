"""How far a file of a source was read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

from watersmeet.slices import Aside, AsideSlice, FileSlice, Print
from watersmeet.sources.fileoptions import Identity

PRINT_BYTES: Final = 4096
"""Bytes at the beginning and before the place read that tell whether a file is still the same."""

Run = tuple[int, int, int]
"""What a run of slices of one file ends with: (ordinal, consumed, lines)."""

Key = int | tuple[int, int]


def fingerprint(data: bytes) -> str:
    """16 hex digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def print_at(file: BinaryIO, end: int, *, tail: bool) -> Print:
    """The fingerprint of the first bytes of [0, end) or, with `tail`, of its last bytes."""
    length = min(PRINT_BYTES, end)
    file.seek(end - length if tail else 0)
    return length, fingerprint(file.read(length))


@dataclass(slots=True)
class FileState:
    """How far one file was read.

    size, mtime_ns: as they were when the newest slice was cut. consumed: bytes (Parquet: row groups)
    taken. total: row groups of a Parquet file, 1 of a gzip file, None if the file may grow. start, start_line: where
    the rows begin (behind a header) and the lines before. lines: newlines before `consumed`.
    unterminated: the newest slice ended without a newline. head, tail: fingerprints at `consumed`.
    runs: how many runs of slices that follow each other it gave; run: the last of them. aside: why the
    file, as it was then, was given up. lacks: declared columns that it does not have. inode: 0 if it isn't known.
    """

    size: int = 0
    mtime_ns: int = 0
    consumed: int = 0
    total: int | None = None
    start: int = 0
    start_line: int = 0
    lines: int = 0
    unterminated: bool = False
    head: Print = (0, "")
    tail: Print = (0, "")
    header: tuple[str, ...] | None = None
    runs: int = 0
    run: Run = (0, 0, 0)
    aside: Aside | None = None
    lacks: tuple[str, ...] = ()
    inode: int = 0

    @property
    def is_taken(self) -> bool:
        """True if something of the file was read, or it was looked at and set aside."""
        return self.is_read or self.aside == "damaged"

    @property
    def is_read(self) -> bool:
        """True if something of the file was read."""
        return self.runs > 0

    @property
    def is_done(self) -> bool:
        """True if there is nothing left of what was there when the newest slice was cut."""
        if self.aside is not None:
            return True
        return self.consumed >= (self.size if self.total is None else self.total)

    def advance(self, piece: FileSlice | AsideSlice) -> None:
        """Takes note of the file's next slice."""
        self.size, self.mtime_ns, self.inode = piece.version
        if isinstance(piece, AsideSlice):
            self.aside = piece.reason
            return
        self.aside = None
        if not self.is_read:
            self.start, self.start_line = piece.begin, piece.line - 1
            self.header, self.lacks = piece.header, piece.lacks
        self.consumed = piece.end
        self.total = piece.total
        self.lines = piece.line - 1 + piece.lines
        self.unterminated = piece.unterminated
        self.head, self.tail = piece.head, piece.tail
        if not self.is_read or self.run[0] != piece.ordinal - 1:
            self.runs += 1
        self.run = (piece.ordinal, self.consumed, self.lines)

    def copy(self) -> FileState:
        """A state of its own with the same content."""
        return replace(self)

    def to_json(self) -> list[Any]:
        """A JSON list from which `from_json` makes the same state."""
        return [
            self.size,
            self.mtime_ns,
            self.consumed,
            self.total,
            self.start,
            self.start_line,
            self.lines,
            self.unterminated,
            self.head,
            self.tail,
            self.header,
            self.runs,
            self.run,
            self.aside,
            self.lacks,
            self.inode,
        ]

    @staticmethod
    def from_json(value: list[Any]) -> FileState:
        """The inverse of `to_json`."""
        state = FileState(*value)
        state.head = (value[8][0], value[8][1])
        state.tail = (value[9][0], value[9][1])
        state.header = None if value[10] is None else tuple(value[10])
        state.run = (state.run[0], state.run[1], state.run[2])
        state.lacks = tuple(state.lacks)
        return state


def identity_key(identity: Identity, inode: int, size: int, mtime_ns: int) -> Key | None:
    """By what a file is found among those that were seen when its name is new; None: it can't be."""
    if identity == "path" or (identity == "inode" and not inode):
        return None
    return inode if identity == "inode" else (size, mtime_ns)
