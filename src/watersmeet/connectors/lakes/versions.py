"""Versions of a lake table, as listed in its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from watersmeet.connectors.base.sources import Inquiry, Notification, save_state, saved_state
from watersmeet.connectors.files.parquet import type_problem
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.values.slices import LakeFile, LakeRole, LakeSlice, SourceSlice, VersionSlice
from watersmeet.values.types import Schema


class LakeProblem(Exception):  # noqa: N818 - a state, not a defect
    """The reason why a table can't be read. passes: whether polling again may succeed without any action."""

    def __init__(self, message: str, *, passes: bool) -> None:
        super().__init__(message)
        self.message = message
        self.passes = passes


class Mark(NamedTuple):
    """A version that was read: its number, or the id of a snapshot (0: no snapshot).

    print: the fingerprint of its entry in the log; empty: unknown.
    """

    version: int
    print: str


@dataclass(frozen=True)
class Step:
    """The changes of a version, or its whole content if it is the first one that is read.

    added, removed: files whose rows were inserted or deleted. changes: files with the changed rows; then `added` and
    `removed` are empty. left, came: removed and added files without changed rows. is_change: whether it removes rows.
    problem: the reason why it can't be read. All files are in the order of their paths.
    """

    mark: Mark
    added: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    changes: tuple[LakeFile, ...] = ()
    left: tuple[str, ...] = ()
    came: tuple[LakeFile, ...] = ()
    is_change: bool = False
    problem: str | None = None


class LakeLog(Protocol):
    """The log of a table. All methods raise LakeProblem. Only one thread at a time may use it."""

    @property
    def what(self) -> str:
        """The table, for messages."""

    def named(self, version: int) -> str:
        """The name of a version, for messages."""

    def ids(self) -> Mapping[str, int]:
        """The ids of the columns of the newest version; empty if columns are identified by names."""

    def schema(self) -> pa.Schema:
        """The columns of the newest version. Also raises UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""

    def newest(self) -> int:
        """The newest version."""

    def snapshot(self, version: int | None) -> Step:
        """The whole content of a version; None: of the newest one."""

    def after(self, mark: Mark, most: int) -> list[Step]:
        """At most `most` versions after the last read one. Raises LakeProblem if the table no longer has that version
        or a later one.
        """


def made_anew(log: LakeLog, version: int) -> LakeProblem:
    """The problem of a table that was created again, so that a read version now has different content."""
    return LakeProblem(f"{log.what} was made anew: {log.named(version)} is another one", passes=False)


def check_columns(what: str, columns: Schema, there: pa.Schema) -> None:
    """Checks that the table has the columns of a source. Raises UNDEFINED_COLUMN, DATATYPE_MISMATCH."""
    for column in columns:
        if column.name not in there.names:
            raise error(
                "UNDEFINED_COLUMN",
                f'{what} has no column "{column.name}"',
                hint=did_you_mean(column.name, there.names) or "It has " + ", ".join(there.names) + ".",
            )
        found = there.field(column.name).type
        if type_problem(column, found) is not None:
            raise error(
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of {what} has type {found}',
                detail=f"It is declared as {column.type.sql}.",
            )


def column_problem(columns: Sequence[str], schema: pa.Schema) -> str | None:
    """The reason why a version can't be read because it lacks a column of the source, or None."""
    gone = [name for name in columns if name not in schema.names]
    return f'column "{gone[0]}" is no longer there' if gone else None


#: The maximum number of versions per poll.
MOST_STEPS: Final = 100

#: The delays after which a local table, and an unreadable table, are polled again.
_NEAR_US: Final = 100_000

RETRY_US: Final = 2_000_000


class VersionPoll:
    """Polls a table for the versions after a read one. refresh_us: the interval of background polls of a remote table;
    None for a local table, which the caller polls.
    """

    def __init__(self, log: LakeLog, refresh_us: int | None) -> None:
        self._log = log
        self._refresh_us = refresh_us
        self._next_us = 0
        self._inquiry: Inquiry[tuple[Mark | None, Sequence[Step] | LakeProblem]] = Inquiry("lake", log.what)

    def listen(self, notification: Notification) -> None:
        """Registers the notification that the end of each poll sets."""
        self._inquiry.listen(notification)

    def after(self, mark: Mark | None, now_us: int, *, fresh: bool) -> Sequence[Step] | LakeProblem | None:
        """The versions after `mark`; if that is None, the newest version as a whole. None if no poll has ended since
        the last call.

        fresh: whether to poll now.
        """
        if self._refresh_us is None:
            if not fresh and now_us < self._next_us:
                return None
            return self._taken(self._polled(mark), now_us)
        if fresh:
            found = self._inquiry.now(lambda: (mark, self._asked(mark)))
            if found is None:
                return LakeProblem("the table does not answer", passes=True)
        else:
            if self._inquiry.is_idle and now_us >= self._next_us:
                self._inquiry.begin(lambda: (mark, self._asked(mark)))
            found = self._inquiry.take()
        return self._taken(found[1], now_us) if found is not None and found[0] == mark else None

    def _taken(self, found: Sequence[Step] | LakeProblem, now_us: int) -> Sequence[Step] | LakeProblem:
        if isinstance(found, LakeProblem):
            wait_us = RETRY_US
        else:
            wait_us = 0 if found else _NEAR_US if self._refresh_us is None else self._refresh_us
        self._next_us = now_us + wait_us
        return found

    def _polled(self, mark: Mark | None) -> Sequence[Step] | LakeProblem:
        try:
            return [self._log.snapshot(None)] if mark is None else self._log.after(mark, MOST_STEPS)
        except LakeProblem as problem:
            return problem
        except Error as problem:
            return LakeProblem(problem.message, passes=False)

    def _asked(self, mark: Mark | None) -> Sequence[Step] | LakeProblem:
        try:
            return self._polled(mark)
        except Exception as cause:  # the errors of libraries have no common base class
            return LakeProblem(f"{type(cause).__name__}: {cause}", passes=True)


#: The order of reading the files of a version, in which the old row of a key precedes its new row in another file.
ROLES: Final[tuple[LakeRole, ...]] = ("removed", "deleted", "added", "inserted")


class Held(NamedTuple):
    """A file that was read. groups: the number of read row groups; None: all."""

    file: LakeFile
    groups: int | None


class InVersion(NamedTuple):
    """The last read slice of an incomplete version."""

    version: int
    print: str
    role: LakeRole
    path: str
    end: int
    total: int
    next_line: int


@dataclass
class ReadFiles:
    """The accepted slices with their numbers. mark: the last complete version; None at first. within: the progress in
    the version after it. skipped: the number of skipped versions. held: the read files by path, in order of arrival.

    Files that replace others in a compaction take their places in the order, until a version is skipped, because then
    the read rows differ from the content.
    """

    slices: int = 0
    rows: int = 0
    mark: Mark | None = None
    within: InVersion | None = None
    skipped: int = 0
    held: dict[str, Held] = field(default_factory=dict)

    def apply(self, piece: SourceSlice) -> None:
        """Adds the next slice."""
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
        """Writes the state to a file."""
        state = {
            "slices": self.slices,
            "rows": self.rows,
            "mark": self.mark,
            "within": self.within,
            "skipped": self.skipped,
            "held": list(self.held.values()),
        }
        save_state(path, state)

    @staticmethod
    def load(path: Path) -> ReadFiles:
        """The inverse of `save`. Raises DATABASE_DAMAGED."""
        with saved_state(path) as state:
            mark, within = state["mark"], state["within"]
            return ReadFiles(
                state["slices"],
                state["rows"],
                None if mark is None else Mark(*mark),
                None if within is None else InVersion(*within),
                state["skipped"],
                {held.file.path: held for held in _held(state["held"])},
            )


def _held(saved: list[Any]) -> Iterator[Held]:
    for (path, size_bytes, values), groups in saved:
        yield Held(LakeFile(path, size_bytes, tuple((name, value) for name, value in values)), groups)
