"""Copies a database, even while another process writes it, and forks it.

A copy has one commit and everything before it: the files that the commit, its state and its history name. It is made in
an order that a crash of the writer could have left: first the positions of sources, sinks and subscriptions, then the
head of the log, then the files. So positions are never ahead of the commits, as after a crash.

A lease keeps the writer from deleting commits and snapshots meanwhile. The lease does not keep the state of earlier
epochs: if a file of the state was deleted, the copy continues with a newer commit. Files never change, so each attempt
copies only what it lacks.

The file FORMAT is written last. A directory without it is not a database, so an interrupted copy can't be opened.

A fork is a copy that shares the files of another database, the main database. It is in the folder `forks` of that
database, has its own log, catalogs, plans and positions, and reads the segment and run files with which it began from
the main database. A file next to it records their names, so that the clean-up of the main database keeps them
(`retention`). New files are in the fork's own folder, which only the fork cleans up.

CREATE FORK first records the fork without files, then copies the small files, records the names of the others, and
creates FORMAT last. DROP FORK deletes FORMAT first and the record last. So a crash leaves a record without FORMAT,
which the next writer deletes. Only the newest writer of the main database creates a fork: it checks that after the
files are recorded. A writer that takes over later reads the record before it deletes anything.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from watersmeet.catalog import (
    CacheFill,
    Catalog,
    ExternalTable,
    MaterializedView,
    TopicWriter,
    is_temporary,
)
from watersmeet.errors import Error, error
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.base import ObjectPath
from watersmeet.objectstores.storage import AnyPath
from watersmeet.store.checkpoints import Checkpoint, Moment, Snapshot, all_checkpoints, newest_checkpoint
from watersmeet.store.commits import CommitLog, load_catalog
from watersmeet.store.layout import DIRECTORIES, Layout, file_numbers, format_text, has_writer, make_root
from watersmeet.store.manifests import Commit, Frontier, Metrics, Process, Progress
from watersmeet.store.readers import (
    REPLAYED,
    Fork,
    LowWaterMark,
    Reader,
    commits_there,
    low_water_number,
    raise_low_water,
    read_fork,
    read_forks,
    read_low_water,
    record_fork,
)
from watersmeet.store.retention import state_files
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system import files
from watersmeet.values.serialization import to_json

#: The name of the main database in statements.
MAIN: Final = "main"

_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,62}\Z")

#: The ids of relations that a fork creates begin this far above those of the main database, so that an id never means
#: two relations when a fork is promoted.
_OWN_IDS: Final = 1_000_000

_FORMAT: Final = "FORMAT"

#: The position of sources is copied first: then the copied memory of sources may be newer than it, but never older.
_MEMORY: Final = "COMMIT-"

_SEGMENTS: Final = "segments/"

#: Folders with files that no commit names.
#: Sequences come later than the rows: a copy may skip numbers, but has none twice.
_OTHERS: Final = ("plans", "secrets", "low-water", "sequences")


def copy_database(source: Path | str, target: Path | str) -> int:
    """Copies the database at a path or URL to another one, which must be empty; returns the number of the commit that
    the copy has. Raises INVALID_PARAMETER, DATABASE_FORMAT.
    """
    layout, place = Layout(source, create=False), storage.path_at(target)
    check_target(layout.root, place)
    return Copy(layout, place, CommitLog(layout)).run()


class Copy:
    """One copy; `run` may be called once. A copy of a fork is a database that shares no files."""

    def __init__(self, layout: Layout, target: AnyPath, log: CommitLog) -> None:
        self._from, self._to = layout, target
        self._log = log
        self._copied: set[str] = set()
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
            for folder in self._dead_letters():
                self.copy_folder(folder)
            self._copy_rest()
            storage.create_file(self._to / "FORMAT", format_text(self._from.id), durable=True)
        return head

    def _copy_rest(self) -> None:
        """Copies the files that no commit names, except for FORMAT."""
        for folder in _OTHERS:
            self.copy_folder(folder)
        if storage.exists(self._from.root / "PARALLELISM"):
            self._copy("PARALLELISM")
        for folder in DIRECTORIES:  # a process that only reads does not create this folder
            storage.make_directory(self._to / folder)

    def _copy_positions(self, folders: Iterable[str] = ("subscriptions", "sinks")) -> None:
        names = storage.list_names(self._from.sources)
        for name in sorted(names, key=lambda name: not name.startswith(_MEMORY)):
            self._copy(f"sources/{name}", is_memory=not name.startswith(_MEMORY))
        for folder in folders:
            self.copy_folder(folder)

    def _copy_commit(self) -> int | None:
        """Copies the newest commit with all that it needs. Returns its number; None if a file was deleted meanwhile."""
        try:
            newest = newest_checkpoint(self._from, self._log)
            head = self._log.head()
            if not head:
                return 0
            last = self._log.read(head)
            segments = state_files(self._log, last, SegmentFiles(self._from.segments, path=self._from.segment))
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
                self.copy_folder("catalog", upto=f"{last.catalog}.json")
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

    def copy_folder(self, folder: str, *, upto: str | None = None) -> None:
        """Copies the files of a folder, up to a name."""
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
        if name.startswith(_SEGMENTS):
            source = self._from.segment(name.removeprefix(_SEGMENTS))
        try:
            self._transfer(source, target, is_memory=is_memory)
        except FileNotFoundError:
            if needed:
                raise
            return
        self._copied.add(name)

    def _transfer(self, source: AnyPath, target: AnyPath, *, is_memory: bool) -> None:
        """Copies a file. Raises FileNotFoundError if it is missing."""
        data = memory_of(source) if is_memory else storage.read_file(source)
        storage.make_directory(target.parent)
        storage.create_file(target, self._content(source, data), durable=True)

    def _content(self, path: AnyPath, data: bytes) -> bytes:
        """The content of the copy of a file."""
        del path
        return data


def check_target(source: AnyPath, target: AnyPath) -> None:
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


def memory_of(path: AnyPath) -> bytes:
    """The memory of a source. An SQLite file is read as of one moment, even while it is written."""
    content = storage.read_file(path)
    if not (isinstance(path, Path) and content.startswith(b"SQLite format 3")):
        return content
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as found:
        return found.serialize()


def root_of(layout: Layout, name: str) -> AnyPath:
    """The path of a fork."""
    return layout.forks / name


def forks_of(layout: Layout) -> list[Fork]:
    """The forks that exist, by name."""
    return [fork for fork in read_forks(layout) if _exists(layout, fork)]


def fork_named(layout: Layout, name: str) -> Fork:
    """The fork with that name. Raises UNDEFINED_OBJECT."""
    found = read_fork(layout, name) if _NAME.match(name) else None
    if found is None or not _exists(layout, found):
        raise error("UNDEFINED_OBJECT", f'fork "{name}" does not exist', hint="SHOW FORKS lists forks.")
    return found


def create_fork(layout: Layout, log: CommitLog, name: str) -> Fork:
    """Creates a fork of the newest commit. Only for the writer, while nothing is deleted.

    Raises INVALID_NAME, DUPLICATE_OBJECT, FEATURE_NOT_SUPPORTED in a fork, WRITER_FENCED.
    """
    reserve_fork(layout, Fork(name, log.head(), time_us=time.time_ns() // 1000))
    try:
        copy = _Fork(layout, root_of(layout, name), log)
        made = copy.fork(name)
        record_fork(layout, made, first=False)
        log.check()
        copy.finish()
    except BaseException:
        remove_fork(layout, name)
        raise
    return made


def reserve_fork(layout: Layout, fork: Fork) -> None:
    """Records a fork that will be created. Raises like `create_fork`."""
    name = fork.name
    if layout.is_fork:
        raise error("FEATURE_NOT_SUPPORTED", "a fork can't be forked", hint="Fork the main database.")
    if not _NAME.match(name) or name == MAIN:
        hint = "A name has letters, digits and _, and is not main, which means the database itself."
        raise error("INVALID_NAME", f"a fork can't be called {name[:40]!r}", hint=hint)
    if (found := read_fork(layout, name)) is not None:
        if _exists(layout, found):
            raise error("DUPLICATE_OBJECT", f'fork "{name}" already exists', hint="DROP FORK deletes it.")
    elif storage.exists(root_of(layout, name) / _FORMAT):
        hint = "Move it, or choose another name."
        raise error("DUPLICATE_OBJECT", f"there is another database at {root_of(layout, name)}", hint=hint)
    remove_fork(layout, name)  # a process that opened a fork while it was dropped may also have left files
    record_fork(layout, fork, first=True)


def begin_fork(layout: Layout, log: CommitLog, name: str, folders: Iterable[str]) -> Layout:
    """The files of a reserved fork that can be opened, but has no commit: copies of those in the folders, and
    FORMAT.
    """
    copy = _Fork(layout, root_of(layout, name), log)
    for folder in folders:
        copy.copy_folder(folder)
    for folder in DIRECTORIES:
        storage.make_directory(root_of(layout, name) / folder)
    copy.finish()
    return Layout(root_of(layout, name), create=False, durable=layout.durable, serves=False)


def first_commit(commit: Commit, epoch: Commit | None, *, filled: bool) -> Commit:
    """The first commit of a fork that begins with an earlier one. epoch: the last epoch up to that. filled: whether
    the views must be filled. The content counts as a transaction with its number, which new queries follow.
    """
    number = commit.number
    if epoch is None or epoch.frontier is None:
        process = Process(os.getpid(), socket.gethostname())
        fence = Commit("fence", commit.time_us, number=number, process=process, rejected=commit.rejected)
        return replace(fence, last_transaction=number)
    made = replace(epoch, number=number, time_us=commit.time_us, relations={}, last_epoch=number, epoch_before=0)
    made = replace(
        made, last_transaction=number, frontier=Frontier(number, epoch.frontier.sources), rejected=commit.rejected
    )
    if not filled:
        return made
    told = epoch.progress
    progress = Progress(time_us=told.time_us, watermarks=told.watermarks, late=told.late)
    return replace(made, segments={}, circuit=None, progress=progress, metrics=Metrics())


def write_first(
    fork: Layout, log: CommitLog, first: Commit, catalog: Catalog, snapshots: Mapping[str, Snapshot], moment: Moment
) -> None:
    """Writes the first commit of a begun fork, and all that it names. log: that of the main database. moment: that of
    the content.
    """
    number = first.number
    path = fork.catalog(f"{catalog.version:012d}-{log.writer}")
    storage.create_file(path, fork.seal(path, catalog.to_json()), durable=fork.durable)
    checkpoint = Checkpoint(Moment(number, number), dict(snapshots), catalog.next_number, 0, first.time_us)
    manifest = fork.snapshot_manifest(number)
    storage.create_file(manifest, fork.seal(manifest, to_json(checkpoint)), durable=fork.durable)
    made = replace(
        first,
        captured={MAIN: [moment.transaction, number]},
        catalog=path.stem,
        checkpoint=number,
        follows=catalog.follows_epochs,
        writer=log.writer,  # files of the main database that the fork has copies of are not those of a later writer
        token=log.read(log.head()).token,
    )
    if number > 1:
        before = LowWaterMark(0, ((number - 1, made.writer, made.token),))
        raise_low_water(fork, before, number - 1, ())
    note_replayed(fork, moment.transaction, number)
    if fork.durable:
        for folder in (fork.catalogs, fork.snapshots, fork.segments):
            storage.sync_directory(folder)
    storage.create_file(fork.commit(number), fork.seal(fork.commit(number), to_json(made)), durable=fork.durable)
    if fork.durable:
        storage.sync_directory(fork.commits)


class Position(NamedTuple):
    """The inputs that a fork has: the transactions and the epochs of the main database up to these commits."""

    transaction: int
    epoch: int


def position_of(layout: Layout, log: CommitLog) -> Position:
    """The inputs that a fork has."""
    head = log.head()
    noted = log.read(head).captured.get(MAIN) if head else None
    if noted is not None:
        return Position(*noted)
    fork = read_fork(Layout(layout.main, create=False, serves=False, older=True), layout.root.name)
    return Position(0, 0) if fork is None else Position(fork.commit, fork.commit)


def digests_of(catalog: Catalog) -> dict[str, str]:
    """Digests of the definitions in a catalog, by relation id, without hidden and temporary relations; "" for functions
    and schemas.
    """
    value = catalog.to_json()
    known = zip(catalog.relations.values(), value["relations"], strict=True)
    parts = {r.id: form for r, form in known if not (r.hidden or is_temporary(r.schema))}
    parts[""] = [value.get("functions"), value.get("schemas")]
    return {i: xxhash.xxh3_64_hexdigest(json.dumps(form, sort_keys=True).encode()) for i, form in parts.items()}


def writers_of(catalog: Catalog) -> dict[str, MaterializedView]:
    """The views whose rows are written to another relation of the database, by id."""
    known = catalog.relations
    views = (r for r in known.values() if isinstance(r, MaterializedView) and not isinstance(r, CacheFill))
    return {v.id: v for v in views if v.feeds in known and not is_delivered(v, catalog)}


def is_delivered(view: MaterializedView, catalog: Catalog) -> bool:
    """Whether the rows of a view that feeds a relation are delivered outside of the database, like those of a sink."""
    target = catalog.relations.get(view.feeds)
    if isinstance(view, TopicWriter):
        return target is None or bool(target.connector)
    return target is not None and target.is_written_externally


@dataclass(frozen=True)
class Own:
    """The relations whose rows a fork makes itself, while those of other tables are the rows that commits of the main
    database name.

    fork: its record. main: the catalog of the main database. written: the relations into which views write other rows
    than in the main database, because a writer or one of its inputs differs. external: the external tables that no view
    of the main database reads, which a query in the fork reads by itself.
    """

    fork: Fork
    main: Catalog
    written: frozenset[str] = frozenset()
    external: frozenset[str] = frozenset()


def own_of(layout: Layout, catalog: Catalog) -> Own:
    """The relations of which a fork makes the rows. catalog: that of the fork."""
    from_ = Layout(layout.main, create=False, serves=False, older=True)
    record = fork_named(from_, layout.root.name)
    main = load_catalog(from_, CommitLog(from_))[0]
    known, before = catalog.relations, _forms(main)
    same = {i for i, form in _forms(catalog).items() if before.get(i) == form}
    mine = {i: v.feeds for i, v in writers_of(catalog).items()}
    theirs = {
        i: v.feeds
        for i, v in writers_of(main).items()
        if i in record.definitions or (v.hidden and v.owner in record.definitions)
    }
    written = {f for i, f in {**theirs, **mine}.items() if mine.get(i) != theirs.get(i)}
    found = -1
    while found < len(written):
        found = len(written)
        for view, target in mine.items():
            read = catalog.upstream([view], writers=True)
            if read & written or not read <= same:
                written.add(target)
    external = {r.id for r in known.values() if isinstance(r, ExternalTable) and r.dictionary is None}
    views = (r.id for r in main.relations.values() if isinstance(r, MaterializedView))
    return Own(record, main, frozenset(written), frozenset(external - main.upstream(views)))


def _forms(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """The stored definitions of relations, by id, without the moment since which they have rows."""
    forms = zip(catalog.relations.values(), catalog.to_json()["relations"], strict=True)
    return {r.id: {k: v for k, v in form.items() if k not in ("since", "ready")} for r, form in forms}


def written_upto(log: CommitLog, layout: Layout, view_id: str) -> int:
    """The commit up to which the rows of a view are in the relation that it feeds.

    Commits are only deleted after they were written, so a missing commit and all earlier ones were written.
    """
    number = log.head()
    while number and storage.exists(layout.commit(number)):
        copied = log.read(number).copied
        if view_id in copied:
            return copied[view_id]
        number -= 1
    return number


def note_replayed(layout: Layout, transaction: int, epoch: int) -> None:
    """Records, in a fork, that it has the inputs of the main database up to these commits, so that the commits up to
    both can be deleted. Called after the fork has committed them.
    """
    data = json.dumps([transaction, epoch]).encode()
    storage.replace_file(layout.root / REPLAYED, data, durable=layout.durable)


def require_closed(layout: Layout, name: str) -> None:
    """Raises UNDEFINED_OBJECT; DATABASE_IN_USE if a process has the fork open for writing, which is unknown in an
    object store.
    """
    fork_named(layout, name)
    if has_writer(root_of(layout, name)):
        raise error("DATABASE_IN_USE", f'fork "{name}" is in use', hint="Close its connections.")


def drop_fork(layout: Layout, name: str) -> None:
    """Deletes a fork. Raises as `require_closed`."""
    require_closed(layout, name)
    remove_fork(layout, name)


def remove_unfinished(layout: Layout) -> None:
    """Deletes forks that were being created or dropped when the last writer ended. Only for the writer, at its
    start.
    """
    for fork in read_forks(layout):
        if not _exists(layout, fork):
            remove_fork(layout, fork.name)


def _exists(layout: Layout, fork: Fork) -> bool:
    return fork.is_complete and storage.exists(root_of(layout, fork.name) / _FORMAT)


def remove_fork(layout: Layout, name: str) -> None:
    """Deletes a fork, or the part of it that exists."""
    root = root_of(layout, name)
    storage.remove_files([root / _FORMAT])
    storage.remove_directory(root)
    storage.remove_files([layout.forks / f"{name}.json"])


class _Fork(Copy):
    """The copy of the small files of a database; it notes the names of the others."""

    def __init__(self, layout: Layout, target: AnyPath, log: CommitLog) -> None:
        super().__init__(layout, target, log)
        self._shared: set[str] = set()

    def fork(self, name: str) -> Fork:
        """Copies all but FORMAT."""
        self._copy_positions(("subscriptions",))  # sinks deliver nothing
        head = None
        while head is None:
            head = self._copy_commit()
        self._copy_rest()
        definitions = digests_of(load_catalog(self._from, self._log)[0])
        return Fork(name, head, tuple(sorted(self._shared)), time.time_ns() // 1000, definitions=definitions)

    def finish(self) -> None:
        """Makes it a database."""
        storage.create_file(self._to / _FORMAT, format_text(self._from.id, fork=True), durable=self._from.durable)

    def _copy(self, name: str, *, needed: bool = False, is_memory: bool = False) -> None:
        folder, _, file = name.partition("/")
        if folder == "segments":
            self._shared.add(file)
        else:
            super()._copy(name, needed=needed, is_memory=is_memory)

    def _content(self, path: AnyPath, data: bytes) -> bytes:
        """A fork has ids of its own."""
        if path.parent.name != "catalog":
            return data
        catalog = Catalog.from_json(self._from.unsealed(path, data))
        return self._from.seal(path, with_own_ids(catalog).to_json())


def with_own_ids(catalog: Catalog) -> Catalog:
    """The catalog of a fork, whose new relations have other ids than those of the main database."""
    return replace(catalog, next_number=catalog.next_number + _OWN_IDS)
