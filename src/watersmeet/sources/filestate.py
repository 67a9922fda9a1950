"""How far a file of a source was read."""

from __future__ import annotations

import hashlib
from typing import BinaryIO, Final, NamedTuple

from watersmeet.objectstores.access import ObjectFile
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
    """The fingerprint of the first bytes of [0, end) or, with `tail`, of its last bytes.

    An object has its tag instead: nothing is read.
    """
    if isinstance(file, ObjectFile):
        return (0, "") if tail else (file.size_bytes, file.etag or "")
    length = min(PRINT_BYTES, end)
    file.seek(end - length if tail else 0)
    return length, fingerprint(file.read(length))


class FileState(NamedTuple):
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

    def advanced(self, piece: FileSlice | AsideSlice) -> FileState:
        """The state with the file's next slice."""
        size, mtime_ns, inode = piece.version
        now = self._replace(size=size, mtime_ns=mtime_ns, inode=inode)
        if isinstance(piece, AsideSlice):
            return now._replace(aside=piece.reason)
        if not self.is_read:
            now = now._replace(start=piece.begin, start_line=piece.line - 1, header=piece.header, lacks=piece.lacks)
        lines = piece.line - 1 + piece.lines
        follows = self.is_read and self.run[0] == piece.ordinal - 1
        return now._replace(
            aside=None,
            consumed=piece.end,
            total=piece.total,
            lines=lines,
            unterminated=piece.unterminated,
            head=piece.head,
            tail=piece.tail,
            runs=self.runs + (not follows),
            run=(piece.ordinal, piece.end, lines),
        )


def identity_key(identity: Identity, inode: int, size: int, mtime_ns: int) -> Key | None:
    """By what a file is found among those that were seen when its name is new; None: it can't be."""
    if identity == "path" or (identity == "inode" and not inode):
        return None
    return inode if identity == "inode" else (size, mtime_ns)
