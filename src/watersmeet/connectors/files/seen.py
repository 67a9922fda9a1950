"""The state of a file source: the files that it has read, with the offset in each.

The state grows with the number of files that were ever read, so it is kept in a temporary SQLite database, of which a
fixed number of bytes is cached. A save writes only new entries to another database, so its cost depends only on the
changes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from watersmeet.connectors.base.sources import newest_first
from watersmeet.connectors.files.options import Identity
from watersmeet.errors import Error, error
from watersmeet.objectstores.stores import ObjectFile
from watersmeet.system import files
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.slices import Aside, AsideSlice, FileSlice, Print, RenamingSlice, SourceSlice

PRINT_BYTES: Final = 4096

"""The number of bytes at the beginning, and before the read offset, whose fingerprints identify a file."""

Run = tuple[int, int, int]

"""The end of a run of slices of one file: (ordinal, consumed, lines)."""

Key = int | tuple[int, int]


def fingerprint(data: bytes) -> str:
    """16 hex digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def print_at(file: BinaryIO, end: int, *, tail: bool) -> Print:
    """The fingerprint of the first bytes of [0, end) or, with `tail`, of its last bytes.

    For an object it is the tag, so that nothing is read.
    """
    if isinstance(file, ObjectFile):
        return (0, "") if tail else (file.size_bytes, file.etag or "")
    length = min(PRINT_BYTES, end)
    file.seek(end - length if tail else 0)
    return length, fingerprint(file.read(length))


class FileState(NamedTuple):
    """The offset up to which one file was read.

    size, mtime_ns: the size and change time when the newest slice was cut. consumed: the number of read bytes (Parquet:
    row groups). total: the number of row groups of a Parquet file, 1 for a gzip file, None if the file may grow. start,
    start_line: the offset of the first row (after a header) and the number of lines before it. lines: the number of
    newlines before `consumed`. unterminated: whether the newest slice ended without a newline. head, tail: fingerprints
    at `consumed`. runs: the number of runs of consecutive slices; run: the last of them. aside: the reason why the file
    was rejected in that state. lacks: the declared columns that it lacks. inode: 0 if unknown.
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
        """True if a part of the file was read or the file was rejected."""
        return self.is_read or self.aside == "damaged"

    @property
    def is_read(self) -> bool:
        """True if a part of the file was read."""
        return self.runs > 0

    @property
    def is_done(self) -> bool:
        """True if all content that existed at the newest slice was read."""
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
    """The key by which a renamed file is found among those that were read; None if it can't be found."""
    if identity == "path" or (identity == "inode" and not inode):
        return None
    return inode if identity == "inode" else (size, mtime_ns)


_CACHE_BYTES: Final = 2 << 20

#: `fresh`: whether the entry is not saved yet; the saved database ignores this column.
_TABLES: Final = """
CREATE TABLE {0}.file (
    name BLOB PRIMARY KEY, state TEXT NOT NULL, key TEXT, lacks TEXT, fresh INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE {0}.run (
    name BLOB, i INTEGER, ordinal INTEGER NOT NULL, consumed INTEGER NOT NULL, lines INTEGER NOT NULL,
    fresh INTEGER NOT NULL, PRIMARY KEY (name, i)
) WITHOUT ROWID;
CREATE TABLE {0}.counts (counts TEXT NOT NULL);
"""

_INDEXES: Final = """
CREATE INDEX file_key ON file (key) WHERE key IS NOT NULL;
CREATE INDEX file_lacks ON file (name) WHERE lacks IS NOT NULL;
CREATE INDEX file_fresh ON file (name) WHERE fresh = 1;
CREATE INDEX run_order ON run (ordinal, name, i);
CREATE INDEX run_fresh ON run (name, i) WHERE fresh = 1;
CREATE TABLE gone (name BLOB PRIMARY KEY) WITHOUT ROWID;
"""

_COUNTS: Final = ("slices", "rows", "bytes", "aside", "renamed", "read", "again")


class RunOf(NamedTuple):
    """A run of slices of a file. before: the (bytes, lines) at the end of the previous run; None for the first run."""

    name: str
    before: tuple[int, int] | None
    consumed: int


class Files(Mapping[str, FileState]):
    """The state of each file by name."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getitem__(self, name: str) -> FileState:
        row = self._database.execute("SELECT state FROM file WHERE name = ?", (_bytes(name),)).fetchone()
        if row is None:
            raise KeyError(name)
        return from_json(FileState, json.loads(row[0]))

    def __iter__(self) -> Iterator[str]:
        return (_text(row[0]) for row in self._database.execute("SELECT name FROM file ORDER BY name"))

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM file").fetchone()[0])


class SeenFiles:
    """The state of a file source: the content of accepted slices.

    After a restart, `load` restores the last save and `apply` adds later slices (or all). read: the number of files of
    which a part was read. again: the number of slices of files that are read again, which do not affect the state of
    files. cache_bytes: its size in memory.
    """

    def __init__(self, identity: Identity = "inode", *, cache_bytes: int = _CACHE_BYTES) -> None:
        self._identity = identity
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute(f"PRAGMA cache_size = -{max(1, cache_bytes >> 10)}")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(_TABLES.format("main") + _INDEXES)
        self.files = Files(self._database)
        self._saved: Path | None = None
        """The path of the save with all entries that are not fresh."""
        self.slices = 0
        self.rows = 0
        self.bytes = 0
        self.aside: dict[str, int] = {}
        self.renamed = 0
        self.read = 0
        self.again = 0

    def names_of(self, key: Key | None) -> list[str]:
        """The sorted names of read files with an `identity_key`."""
        if key is None:
            return []
        found = self._database.execute("SELECT name FROM file WHERE key = ? ORDER BY name", (json.dumps(key),))
        return [_text(row[0]) for row in found]

    def lacking(self, most: int) -> tuple[int, list[tuple[str, tuple[str, ...]]]]:
        """The number of files that lack declared columns, and the first `most` of them with these columns."""
        count = self._database.execute("SELECT count(*) FROM file WHERE lacks IS NOT NULL").fetchone()[0]
        found = self._database.execute(
            "SELECT name, lacks FROM file WHERE lacks IS NOT NULL ORDER BY name LIMIT ?", (most,)
        )
        return int(count), [(_text(name), tuple(json.loads(lacks))) for name, lacks in found]

    def runs(self, start: int = 0) -> Iterator[RunOf]:
        """All runs in order of arrival, without the first `start`. `apply` must not be called meanwhile."""
        found = self._database.execute(
            "SELECT r.name, r.consumed, p.consumed, p.lines FROM run r LEFT JOIN run p ON p.name = r.name "
            "AND p.i = r.i - 1 ORDER BY r.ordinal, r.name, r.i LIMIT -1 OFFSET ?",
            (start,),
        )
        for name, consumed, before, lines in found:
            yield RunOf(_text(name), None if before is None else (before, lines), consumed)

    def apply(self, slices: Iterable[SourceSlice]) -> None:
        """Adds slices in order. Known slices are ignored. Raises DATABASE_DAMAGED for a gap, DISK_FULL.

        After an error the object must not be used again.
        """
        try:
            with _transaction(self._database):
                for piece in slices:
                    if piece.ordinal < self.slices:
                        continue
                    if piece.ordinal > self.slices:
                        raise error(
                            "DATABASE_DAMAGED",
                            f"slices {self.slices} to {piece.ordinal - 1} of source {piece.relation} are missing",
                            detail="A slice would be read twice or not at all.",
                        )
                    self._apply(piece)
        except sqlite3.Error as cause:
            raise _problem(cause, Path(tempfile.gettempdir())) from cause

    def _apply(self, piece: SourceSlice) -> None:
        self.slices += 1
        self.rows += piece.rows
        self.bytes += piece.size_bytes
        if isinstance(piece, RenamingSlice):
            self._rename(dict(piece.names))
            return
        assert isinstance(piece, (FileSlice, AsideSlice))
        if piece.again:
            self.again += 1
            return
        before = self.files.get(piece.path, FileState())
        state = before.advanced(piece)
        self.read += state.is_read and not before.is_read
        self.put(piece.path, state)
        if isinstance(piece, AsideSlice):
            self.aside[piece.reason] = self.aside.get(piece.reason, 0) + 1
        elif state.is_read:
            self._put_run(piece.path, state.runs - 1, state.run)

    def withdraw(self, slices: Sequence[SourceSlice]) -> dict[str, FileState]:
        """Forgets the newest slices, as `Source.withdraw`. Returns the text files of which an earlier part stays, by
        name, with their fingerprints as before.
        """
        cut: dict[str, FileSlice] = {}
        with _transaction(self._database):
            for piece in newest_first(slices, self.slices):
                self.slices -= 1
                self.rows -= piece.rows
                self.bytes -= piece.size_bytes
                assert isinstance(piece, (FileSlice, AsideSlice))
                if piece.again:
                    self.again -= 1
                elif isinstance(piece, FileSlice):
                    cut[piece.path] = piece
                else:
                    self.aside[piece.reason] -= 1
                    self._cut(piece.path, self.files[piece.path]._replace(aside=None), None)
            kept = {name: self._cut(name, self.files[name], piece) for name, piece in cut.items()}
        return {name: state for name, state in kept.items() if state is not None and state.total is None}

    def _cut(self, name: str, state: FileState, first: FileSlice | None) -> FileState | None:
        """The state of a file without its slices from `first` on; None if it was not read before."""
        runs = [r for r in self._runs_of(name) if first is None or r[0] < first.ordinal]
        if first is not None and first.begin > (runs[-1][1] if runs else state.start):
            runs.append((first.ordinal - 1, first.begin, first.line - 1))  # it was in the middle of a run
        self._database.execute("DELETE FROM run WHERE name = ?", (_bytes(name),))
        self._database.execute("INSERT OR IGNORE INTO gone VALUES (?)", (_bytes(name),))
        self.read -= state.is_read and not runs
        if not runs:
            self._database.execute("DELETE FROM file WHERE name = ?", (_bytes(name),))
            return None
        for i, run in enumerate(runs):
            self._put_run(name, i, run)
        _, consumed, lines = runs[-1]
        kept = state._replace(
            aside=None, consumed=consumed, lines=lines, unterminated=False, runs=len(runs), run=runs[-1]
        )
        self.put(name, kept)
        return kept

    def _rename(self, names: Mapping[str, str]) -> None:
        """Renames all files in one step, because two files may have swapped their names."""
        moved = {new: (self.files[old], self._runs_of(old)) for old, new in names.items()}
        for name in (*names, *names.values()):
            replaced = self.files.get(name) if name not in names else None
            self.read -= replaced is not None and replaced.is_read
            for table in ("file", "run"):
                self._database.execute(f"DELETE FROM {table} WHERE name = ?", (_bytes(name),))
            self._database.execute("INSERT OR IGNORE INTO gone VALUES (?)", (_bytes(name),))
        for name, (state, runs) in moved.items():
            self.put(name, state)
            for i, run in enumerate(runs):
                self._put_run(name, i, run)
        self.renamed += len(moved)

    def _runs_of(self, name: str) -> list[Run]:
        found = self._database.execute(
            "SELECT ordinal, consumed, lines FROM run WHERE name = ? ORDER BY i", (_bytes(name),)
        )
        return [(ordinal, consumed, lines) for ordinal, consumed, lines in found]

    def put(self, name: str, state: FileState) -> None:
        """Stores the state of a file."""
        key = identity_key(self._identity, state.inode, state.size, state.mtime_ns) if state.is_taken else None
        self._database.execute(
            "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, 1)",
            (
                _bytes(name),
                json.dumps(to_json(state)),
                None if key is None else json.dumps(key),
                json.dumps(state.lacks) if state.lacks else None,
            ),
        )

    def _put_run(self, name: str, i: int, run: Run) -> None:
        self._database.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, 1)", (_bytes(name), i, *run))

    def save(self, path: Path) -> None:
        """Writes new entries to `path` if it contains all others, otherwise all entries, atomically.

        Raises DISK_FULL, DATABASE_ACCESS.
        """
        try:
            if self._saved == path and path.exists():
                self._write(path, whole=False)
            else:
                self._write_whole(path)
        except sqlite3.Error as cause:
            raise _problem(cause, path) from cause
        except OSError as cause:
            raise files.failure(cause, path) from cause
        self._saved = path

    def _write_whole(self, path: Path) -> None:
        files.make_directory(path.parent)
        temporary = files.temporary_path(path.parent)
        try:
            files.write_new(temporary, b"")  # the file then has the rights of the directory
            self._write(temporary, whole=True)
            temporary.replace(path)
        except BaseException:
            files.discard(temporary)
            raise

    def _write(self, path: Path, *, whole: bool) -> None:
        """Writes entries to `path`. whole: whether `path` is a new database."""
        fresh = "" if whole else " WHERE fresh = 1"
        execute = self._database.execute
        execute("ATTACH ? AS saved", (str(path),))
        try:
            with _transaction(self._database):
                if whole:
                    for statement in _TABLES.format("saved").split(";"):
                        execute(statement)
                else:
                    for table in ("file", "run"):
                        execute(f"DELETE FROM saved.{table} WHERE name IN (SELECT name FROM main.gone)")
                    execute("DELETE FROM saved.counts")
                execute("INSERT INTO saved.counts VALUES (?)", (json.dumps({n: getattr(self, n) for n in _COUNTS}),))
                for table in ("file", "run"):
                    execute(f"INSERT OR REPLACE INTO saved.{table} SELECT * FROM main.{table}{fresh}")
                    execute(f"UPDATE main.{table} SET fresh = 0 WHERE fresh = 1")
                execute("DELETE FROM main.gone")
        finally:
            execute("DETACH saved")

    @staticmethod
    def load(path: Path, identity: Identity = "inode") -> SeenFiles:
        """The state that was saved to `path`. Raises DATABASE_DAMAGED."""
        seen = SeenFiles(identity)
        try:
            seen._load(path)
        except (ValueError, LookupError, TypeError, StopIteration, OSError, sqlite3.Error) as problem:
            raise error(
                "DATABASE_DAMAGED", f"the list of files read, {path.name}, can't be read", detail=str(problem)
            ) from problem
        return seen

    def _load(self, path: Path) -> None:
        execute = self._database.execute
        execute("ATTACH ? AS saved", (str(path),))
        try:
            with _transaction(self._database):
                self._set_counts(json.loads(execute("SELECT counts FROM saved.counts").fetchone()[0]))
                execute("INSERT INTO main.file SELECT name, state, key, lacks, 0 FROM saved.file")
                execute("INSERT INTO main.run SELECT name, i, ordinal, consumed, lines, 0 FROM saved.run")
        finally:
            execute("DETACH saved")
        self._saved = path

    def _set_counts(self, counts: dict[str, Any]) -> None:
        for name in _COUNTS:
            setattr(self, name, counts[name])


class _transaction:  # noqa: N801 - a block
    """A transaction: the changes in the block are applied atomically."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN")

    def __exit__(self, kind: object, *_: object) -> None:
        if self._database.in_transaction:  # SQLite may have rolled it back already
            self._database.execute("COMMIT" if kind is None else "ROLLBACK")


def _bytes(name: str) -> bytes:
    """The bytes of a name, which may contain lone surrogates for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _problem(cause: sqlite3.Error, path: Path) -> Error:
    if getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        return files.failure(OSError(errno.ENOSPC, str(cause)), path)
    return error("DATABASE_ACCESS", f"cannot write {path}: {cause}")
