"""Copies a database, even while another process writes it.

A copy has one commit and everything before it: the files that the commit, its state and its history name. It is made in
an order that a crash of the writer could have left: first the positions of sources, sinks and subscriptions, then the
head of the log, then the files. So positions are never ahead of the commits, as after a crash.

A lease keeps the writer from deleting commits and snapshots meanwhile. The lease does not keep the state of earlier
epochs: if a file of the state was deleted, the copy continues with a newer commit. Files never change, so each attempt
copies only what it lacks.

The file FORMAT is written last. A directory without it is not a database, so an interrupted copy can't be opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from watersmeet.errors import Error, error
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.base import ObjectPath
from watersmeet.objectstores.storage import AnyPath
from watersmeet.store.checkpoints import all_checkpoints, newest_checkpoint
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import DIRECTORIES, Layout, file_numbers, make_root
from watersmeet.store.readers import Reader, commits_there, low_water_number, read_low_water
from watersmeet.store.retention import state_files
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system import files

#: The position of sources is copied first: then the copied memory of sources may be newer than it, but never older.
_MEMORY: Final = "COMMIT-"

#: Folders with files that no commit names.
#: Sequences come later than the rows: a copy may skip numbers, but has none twice.
_OTHERS: Final = ("plans", "secrets", "low-water", "sequences")


def copy_database(source: Path | str, target: Path | str) -> int:
    """Copies the database at a path or URL to another one, which must be empty; returns the number of the commit that
    the copy has. Raises INVALID_PARAMETER, DATABASE_FORMAT.
    """
    return _Copy(Layout(source, create=False), target).run()


class _Copy:
    """One copy; `run` may be called once."""

    def __init__(self, layout: Layout, target: Path | str) -> None:
        self._from, self._to = layout, storage.path_at(target)
        self._log = CommitLog(layout)
        self._copied: set[str] = set()
        _check_target(layout.root, self._to)
        if isinstance(self._to, Path):
            private = layout.directory is None or not layout.directory.stat().st_mode & 0o077
            make_root(self._to, "private" if private else "umask")

    def run(self) -> int:
        """Copies the database; returns the number of the copied commit."""
        with closing(Reader(self._from)) as reader:
            while not reader.try_pin(low_water_number(self._from)):
                pass
            self._copy_positions()
            while (head := self._copy_commit()) is None:
                pass
            for folder in (*_OTHERS, *self._dead_letters()):
                self._copy_folder(folder)
            if storage.exists(self._from.root / "PARALLELISM"):
                self._copy("PARALLELISM")
            for folder in DIRECTORIES:  # a process that only reads does not create this folder
                storage.make_directory(self._to / folder)
            self._copy("FORMAT")
        return head

    def _copy_positions(self) -> None:
        names = storage.list_names(self._from.sources)
        for name in sorted(names, key=lambda name: not name.startswith(_MEMORY)):
            self._copy(f"sources/{name}", is_memory=not name.startswith(_MEMORY))
        for folder in ("subscriptions", "sinks"):
            self._copy_folder(folder)

    def _copy_commit(self) -> int | None:
        """Copies the newest commit with all that it needs. Returns its number; None if a file was deleted meanwhile."""
        try:
            newest = newest_checkpoint(self._from, self._log)
            head = self._log.head()
            if not head:
                return 0
            last = self._log.read(head)
            segments = state_files(self._log, last, SegmentFiles(self._from.segments))
            for name in sorted(segments):
                self._copy(f"segments/{name}", needed=True)
            mark = read_low_water(self._from)
            numbers = [n for n in commits_there(self._from, mark) if n <= head]
            for number in numbers:
                if (commit := self._log.find(number)) is not None:
                    segments |= commit.changed_files
            snapshots = [c for c in all_checkpoints(self._from, newest) if c.moment.head <= head]
            for checkpoint in snapshots:
                segments |= checkpoint.files
            for name in sorted(segments):
                self._copy(f"segments/{name}", needed=True)
            for checkpoint in snapshots:
                self._copy(f"snapshots/{checkpoint.moment.head:012d}.json", needed=True)
            if last.catalog:
                self._copy(f"catalog/{last.catalog}.json", needed=True)
                self._copy_folder("catalog", upto=f"{last.catalog}.json")
            for number in file_numbers(self._from.commits):
                if number <= head:
                    self._copy(f"commits/{number:012d}.json", needed=number > mark.number)
        except FileNotFoundError:
            return None
        except Error as err:
            if err.condition not in ("STATE_DAMAGED", "DATABASE_DAMAGED") or self._log.head() == head:
                raise
            return None
        return head

    def _copy_folder(self, folder: str, *, upto: str | None = None) -> None:
        for name in storage.list_names(self._from.root / folder):
            if upto is None or name <= upto:
                self._copy(f"{folder}/{name}")

    def _dead_letters(self) -> Iterator[str]:
        for directory in self._from.dead_directories():
            yield f"dead/{directory.name}"

    def _copy(self, name: str, *, needed: bool = False, is_memory: bool = False) -> None:
        """Copies a file, unless it was copied. Raises FileNotFoundError if it is `needed` and missing."""
        if name in self._copied:
            return
        source, target = (_below(root, name) for root in (self._from.root, self._to))
        try:
            data = _memory(source) if is_memory and isinstance(source, Path) else storage.read_file(source)
        except FileNotFoundError:
            if needed:
                raise
            return
        storage.make_directory(target.parent)
        storage.create_file(target, data, durable=True)
        self._copied.add(name)


def _check_target(source: AnyPath, target: AnyPath) -> None:
    """Raises INVALID_PARAMETER for a target that has files, or is inside the database."""
    if isinstance(target, ObjectPath):
        is_free = databasefiles.is_empty(target)
    else:
        is_free = not target.exists() or (target.is_dir() and not files.list_names(target))
        if isinstance(source, Path) and target.resolve().is_relative_to(source.resolve()):
            raise error("INVALID_PARAMETER", f"{target} is inside the database")
    if not is_free:
        raise error(
            "INVALID_PARAMETER",
            f"{target} is not empty",
            hint="Choose a path that does not exist, or an empty directory. What an interrupted backup left can be "
            "deleted.",
        )


def _below(root: AnyPath, name: str) -> AnyPath:
    path = root
    for part in name.split("/"):
        path = path / part
    return path


def _memory(path: Path) -> bytes:
    """The memory of a source. An SQLite file is read as of one moment, even while it is written."""
    content = storage.read_file(path)
    if not content.startswith(b"SQLite format 3"):
        return content
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as found:
        return found.serialize()
