"""What was read of a table of a lake: how far, and the data files whose rows were given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from watersmeet import files
from watersmeet.errors import error
from watersmeet.slices import LakeFile, LakeRole, LakeSlice, SourceSlice, VersionSlice
from watersmeet.sources.lakes.versions import Mark

#: The order in which the files of a version are read: of a key that moves to another file, the old row goes first.
ROLES: Final[tuple[LakeRole, ...]] = ("removed", "deleted", "added", "inserted")


class Held(NamedTuple):
    """A file whose rows were given. groups: how many of its row groups; None: all."""

    file: LakeFile
    groups: int | None


class InVersion(NamedTuple):
    """How far a version was read that is not complete: the last slice."""

    version: int
    print: str
    role: LakeRole
    path: str
    end: int
    total: int
    next_line: int


@dataclass
class ReadFiles:
    """What was accepted. slices, rows: how many. mark: the last version that is complete, None at first. within: how
    far the one after it is read. skipped: how many versions were left out. held: by path, in order of arrival.

    Files that compaction puts in place of others take theirs, until a version is left out: then what was given is
    another thing than what there is.
    """

    slices: int = 0
    rows: int = 0
    mark: Mark | None = None
    within: InVersion | None = None
    skipped: int = 0
    held: dict[str, Held] = field(default_factory=dict)

    def apply(self, piece: SourceSlice) -> None:
        """Takes note of the next slice."""
        self.slices += 1
        if isinstance(piece, VersionSlice):
            self._end(piece)
            return
        assert isinstance(piece, LakeSlice)
        path = piece.file.path
        self.rows += piece.rows
        self.within = InVersion(
            piece.version, piece.print, piece.role, path, piece.end, piece.total, piece.line + piece.rows
        )
        if piece.role == "added":
            self.held[path] = Held(piece.file, None if piece.end == piece.total else piece.end)
        elif piece.role == "removed" and piece.end == piece.total:
            self.held.pop(path, None)

    def _end(self, piece: VersionSlice) -> None:
        self.mark, self.within = Mark(piece.version, piece.print), None
        if piece.skipped:
            self.skipped += 1
        elif not self.skipped:
            for path in piece.left:
                self.held.pop(path, None)
            self.held.update({file.path: Held(file, None) for file in piece.came})

    def save(self, path: Path) -> None:
        """Writes it to a file."""
        state = {
            "slices": self.slices,
            "rows": self.rows,
            "mark": self.mark,
            "within": self.within,
            "skipped": self.skipped,
            "held": list(self.held.values()),
        }
        files.make_directory(path.parent)
        files.replace_file(path, json.dumps(state).encode(), durable=True)

    @staticmethod
    def load(path: Path) -> ReadFiles:
        """The inverse of `save`. DATABASE_DAMAGED."""
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            mark, within = state["mark"], state["within"]
            return ReadFiles(
                state["slices"],
                state["rows"],
                None if mark is None else Mark(*mark),
                None if within is None else InVersion(*within),
                state["skipped"],
                {held.file.path: held for held in _held(state["held"])},
            )
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise error(
                "DATABASE_DAMAGED", f"the state of a source, {path.name}, can't be read", detail=str(problem)
            ) from problem


def _held(saved: list[Any]) -> Iterator[Held]:
    for (path, size_bytes, values), groups in saved:
        yield Held(LakeFile(path, size_bytes, tuple((name, value) for name, value in values)), groups)
