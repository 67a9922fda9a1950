"""Which files of a source were read, and how far: the source's memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from watersmeet.errors import error
from watersmeet.sources.base import Slice
from watersmeet.sources.saving import write_atomically

PRINT_BYTES: Final = 4096
"""Bytes at the beginning and before the place read that tell whether a file is still the same."""

Print = tuple[int, str]
"""(length in bytes, fingerprint of these bytes)."""


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
    parts: (ordinal, consumed, lines) after each run of slices, for the history. aside: why the
    file, as it was then, was given up. lacks: declared columns that it does not have.
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
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    aside: str | None = None
    lacks: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """True if there is nothing left of what was there when the newest slice was cut."""
        if self.aside is not None:
            return True
        return self.consumed >= (self.size if self.total is None else self.total)

    def advance(self, piece: Slice) -> None:
        """Takes note of the file's next slice."""
        self.size, self.mtime_ns = piece["file"]
        self.aside = piece.get("aside")
        if self.aside is not None:
            return
        begin, end = piece["range"]
        if not self.parts:
            self.start, self.start_line = begin, piece["line"] - 1
            self.header = tuple(piece["header"]) if piece.get("header") is not None else None
            self.lacks = tuple(piece.get("lacks", ()))
        self.consumed = end
        self.total = piece.get("total")
        self.lines = piece["line"] - 1 + piece["lines"]
        self.unterminated = piece.get("unterminated", False)
        self.head = (piece["head"][0], piece["head"][1])
        self.tail = (piece["tail"][0], piece["tail"][1])
        part = (piece.get("ordinal", 0), end, self.lines)
        if self.parts and self.parts[-1][0] == part[0] - 1:
            self.parts[-1] = part
        else:
            self.parts.append(part)

    def copy(self) -> FileState:
        """A state of its own with the same content."""
        return replace(self, parts=list(self.parts))

    def to_json(self) -> list[Any]:
        """A JSON list from which `from_json` makes the same state."""
        return [self.size, self.mtime_ns, self.consumed, self.total, self.start, self.start_line, self.lines,
                self.unterminated, self.head, self.tail, self.header, self.parts, self.aside, self.lacks]

    @staticmethod
    def from_json(value: list[Any]) -> FileState:
        """The inverse of `to_json`."""
        state = FileState(*value)
        state.head = (value[8][0], value[8][1])
        state.tail = (value[9][0], value[9][1])
        state.header = None if value[10] is None else tuple(value[10])
        state.parts = [(p[0], p[1], p[2]) for p in value[11]]
        state.lacks = tuple(state.lacks)
        return state


class SeenFiles:
    """The memory of a file source: what the accepted slices say, nothing else.

    Rebuilt after a restart by `load` of an older save and `apply` of the slices since (or of all).
    """

    def __init__(self) -> None:
        self.files: dict[str, FileState] = {}
        self.slices = 0
        self.rows = 0
        self.bytes = 0
        self.aside: dict[str, int] = {}

    def apply(self, slices: Iterable[Slice]) -> None:
        """Takes note of slices, in order. Slices known already are ignored; a gap raises DATABASE_DAMAGED."""
        for piece in slices:
            ordinal = piece["ordinal"]
            if ordinal < self.slices:
                continue
            if ordinal > self.slices:
                raise error("DATABASE_DAMAGED", f"slices {self.slices} to {ordinal - 1} of source "
                            f"{piece['relation']} are missing", detail="A slice would be read twice or never.")
            self._apply(piece)

    def _apply(self, piece: Slice) -> None:
        self.slices += 1
        self.rows += piece["rows"]
        self.bytes += piece["bytes"]
        reason = piece.get("aside")
        if reason is not None:
            self.aside[reason] = self.aside.get(reason, 0) + 1
        self.files.setdefault(piece["path"], FileState()).advance(piece)

    def save(self, path: Path) -> None:
        """Writes the memory to `path`, atomically."""
        lines = [json.dumps({"slices": self.slices, "rows": self.rows, "bytes": self.bytes, "aside": self.aside})]
        lines += [json.dumps([name, state.to_json()], ensure_ascii=False) for name, state in self.files.items()]
        write_atomically(path, "\n".join(lines) + "\n")

    @staticmethod
    def load(path: Path) -> SeenFiles:
        """The memory that was saved to `path`. Raises DATABASE_DAMAGED."""
        seen = SeenFiles()
        try:
            with path.open(encoding="utf-8") as lines:
                counts = json.loads(next(lines))
                for line in lines:
                    name, state = json.loads(line)
                    seen.files[name] = FileState.from_json(state)
        except (ValueError, StopIteration, OSError) as problem:
            raise error("DATABASE_DAMAGED", f"the list of files read, {path.name}, can't be read",
                        detail=str(problem)) from problem
        seen.slices, seen.rows, seen.bytes = counts["slices"], counts["rows"], counts["bytes"]
        seen.aside = counts["aside"]
        return seen
