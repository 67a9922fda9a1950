"""The inputs of epochs: transactions and slices of sources, what sources remember, which ones are left alone.

What the sources remember, on disk: a file a relation, and up to which commit they are right.

Those of the newest writer count.

Sources that are left alone because what they gave could not be read. The others go on.

The status of the sources in a file, so that other processes can show it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from watersmeet.catalog import QuerySource, Relation
from watersmeet.connectors.base.deadletters import forget_dead_letters
from watersmeet.connectors.base.sources import Notification, Poll, Source
from watersmeet.connectors.registry import open_source
from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import Place
from watersmeet.runtime.database import Database
from watersmeet.store.commits import Commit
from watersmeet.store.layout import WriterFile, writer_file, writer_files
from watersmeet.store.manifests import Frontier
from watersmeet.store.positions import Note
from watersmeet.system import files
from watersmeet.system.blobs import BlobRef
from watersmeet.values.slices import ChangeSlice, Slice

#: The file is written so often at most, in an object store less often: an epoch waits for the request.
_INTERVAL_US: Final = 1_000_000

_REMOTE_INTERVAL_US: Final = 10_000_000
_NAME: Final = "STATUS.json"


class SourceStatusFile:
    """The writer's side. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._note = Note(db.layout, _NAME)
        self._interval_us = _REMOTE_INTERVAL_US if db.layout.directory is None else _INTERVAL_US
        self._next_us = 0

    def publish(self, status: Callable[[], dict[str, dict[str, Any]]], now_us: int, *, there_are: bool) -> None:
        """Writes what is new of the sources, if there are any; never fails, as nothing depends on it."""
        if now_us < self._next_us or not (there_are or self._note.is_written):
            return
        self._next_us = now_us + self._interval_us
        self._note.write(status())


def read_source_status(db: Database) -> dict[str, dict[str, Any]]:
    """The status that the writer's sources gave last, by relation id; empty if there is nothing to read."""
    return Note(db.layout, _NAME).read()


#: How long a source is left alone: twice as long each time, up to the second number.
_FIRST_US: Final = 1_000_000

_LONGEST_US: Final = 30_000_000


@dataclass(frozen=True)
class Hold:
    """cause: why, with the id of the source. pause_us: how long it is left alone. until_us: until when, None: until it
    is asked for (see `Holds.end_stops`).
    """

    cause: Error
    pause_us: int
    until_us: int | None


class Holds:
    """Not thread-safe. `hold` sets a source aside; `release` when it gave something that could be read."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def hold(self, cause: Error, now_us: int) -> None:
        """The source of `cause` is not asked for a while; of SOURCE_STOPPED, until `end_stops`."""
        assert cause.source is not None
        before = self._holds.get(cause.source)
        pause_us = _FIRST_US if before is None else min(2 * before.pause_us, _LONGEST_US)
        until_us = None if cause.condition == "SOURCE_STOPPED" else now_us + pause_us
        self._holds[cause.source] = Hold(cause, pause_us, until_us)

    def causes(self) -> dict[str, Error]:
        """By source, why it could not be read when it was asked last."""
        return {relation_id: held.cause for relation_id, held in self._holds.items()}

    def is_held(self, relation_id: str, now_us: int) -> bool:
        """True if the source must not be asked now."""
        held = self._holds.get(relation_id)
        return held is not None and (held.until_us is None or held.until_us > now_us)

    def release(self, relation_ids: Iterable[str]) -> None:
        """Forgets what was wrong with these."""
        for relation_id in relation_ids:
            self._holds.pop(relation_id, None)

    def end_stops(self) -> None:
        """Sources that had stopped are asked again: what they could not read may be mended."""
        for held in [h for h in self._holds.values() if h.until_us is None]:
            self._end(held)

    def end(self) -> None:
        """All sources are asked again."""
        for held in list(self._holds.values()):
            self._end(held)

    def _end(self, held: Hold) -> None:
        assert held.cause.source is not None
        self._holds[held.cause.source] = replace(held, until_us=0)


_COMMIT: Final = "COMMIT"


class Saved:
    """The files of one database, as its writer has them. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def save(self, relation_id: str, source: Source) -> None:
        """Saves what the source of a relation remembers."""
        path = self._path(relation_id)
        local = self._local(path)
        source.save(local)
        if local != path:
            storage.replace_file(path, local.read_bytes(), durable=self._db.layout.durable)

    def load(self, relation_id: str, source: Source) -> None:
        """Lets the source of a relation remember what was saved last, if anything was."""
        path = self._newest(relation_id)
        if path is not None:
            local = self._local(path)
            if local != path:
                files.make_directory(local.parent)
                files.replace_file(local, storage.read_file(path), durable=False)
            source.load(local)

    def _path(self, relation_id: str) -> Place:
        return writer_file(self._db.layout.sources, relation_id, self._db.log.writer, ".saved")

    def _newest(self, relation_id: str) -> Place | None:
        return next((f.path for f in reversed(self._files()) if f.id == relation_id), None)

    def _local(self, path: Place) -> Path:
        """The file that sources read and write for one that may be in an object store."""
        return path if isinstance(path, Path) else self._db.layout.local / "sources" / path.name

    def read_commit(self) -> int:
        """The commit up to which what was saved is right; 0 if nothing was saved, or the file is damaged."""
        path = self._newest(_COMMIT)
        try:
            return 0 if path is None else int(json.loads(storage.read_file(path))["commit"])
        except (ValueError, KeyError, TypeError):
            _logger.warning("cannot read sources/%s of the database", path and path.name)
            return 0

    def write_commit(self, commit: int) -> None:
        """What this writer saved is right up to that commit: what writers before it saved of the same goes."""
        layout = self._db.layout
        storage.replace_file(self._path(_COMMIT), json.dumps({"commit": commit}).encode(), durable=layout.durable)
        found = self._files()
        own = {f.id for f in found if f.writer == self._db.log.writer}
        storage.remove_files(f.path for f in found if f.id in own and f.writer < self._db.log.writer)

    def forget(self, kept: Iterable[str]) -> None:
        """Deletes what was saved for relations that are not among `kept`, but by no later writer."""
        names, writer = {_COMMIT, *kept}, self._db.log.writer
        storage.remove_files(f.path for f in self._files() if f.id not in names and f.writer <= writer)

    def _files(self) -> list[WriterFile]:
        return writer_files(self._db.layout.sources)


_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """What one epoch takes.

    more: there is more than the budget allowed.
    """

    slices: tuple[Slice, ...]
    frontier: Frontier
    more: bool = False


class Inputs:
    """The inputs of the circuit, and how far epochs have been planned over them.

    What was given by `take` counts as taken at once; when an epoch fails, make new Inputs from the log.
    Not thread-safe.
    """

    def __init__(self, db: Database, frontier: Frontier) -> None:
        self._db = db
        self.frontier = frontier
        self._looked_at = frontier.transaction
        self._tables: frozenset[str] = frozenset()
        self._first: frozenset[str] = frozenset()
        self.sources: dict[str, Source] = {}
        self._read: dict[str, Relation] = {}
        self._turn = 0
        self.holds = Holds()
        """Sources that are not asked now. An engine gives its own: they outlive the inputs."""
        self._status = SourceStatusFile(db)
        self._saved = Saved(db)
        self.saved_at = self._saved.read_commit()
        self._notification: Notification | None = None

    def listen(self, notification: Notification) -> None:
        """From now on it is told when sources have something, by those that learn that by themselves."""
        self._notification = notification
        for source in self.sources.values():
            source.listen(notification)

    def set_scanned(self, relations: Iterable[Relation], first: frozenset[str] = frozenset()) -> None:
        """From now on these relations are read. Everything taken must have been committed.

        first: those that rows of the others look up when they come: other sources wait while these have more.
        """
        self._first = first
        by_id = {r.id: r for r in relations}
        for relation_id in self.sources.keys() - by_id.keys():
            self._saved.save(relation_id, self.sources[relation_id])
            self.holds.release([relation_id])
            del self.sources[relation_id], self._read[relation_id]
        self._tables = frozenset(i for i, r in by_id.items() if not r.connector)
        for relation_id, relation in by_id.items():
            if relation.connector and not _reads_alike(self._read.get(relation_id), relation):
                if relation_id in self.sources:  # it was altered: what it remembers goes on
                    self._saved.save(relation_id, self.sources[relation_id])
                    self.holds.release([relation_id])
                self.sources[relation_id] = self._open(relation)
                self._read[relation_id] = relation

    def take(
        self, rows: int, size_bytes: int, now_us: int, *, fresh: bool = False, sources: bool = True
    ) -> Batch | None:
        """What comes next, at most so much if possible; None if there is nothing.

        fresh: look again at everything. sources: False to take transactions alone. A transaction is never cut: one that
        is larger than the budget comes alone.
        """
        slices, transaction, more = self._transactions(rows, size_bytes)
        rows -= sum(s.rows for s in slices)
        size_bytes -= sum(s.size_bytes for s in slices)
        positions = dict(self.frontier.sources)
        next_us: int | None = None
        moved = transaction > self.frontier.transaction
        waiting = [i for i in self._in_turn() if not self.holds.is_held(i, now_us)] if sources else []
        for left, relation_id in zip(range(len(waiting), 0, -1), waiting, strict=True):
            if rows <= 0 or size_bytes <= 0 or (more and self._first and relation_id not in self._first):
                more = True
                break
            source = self.sources[relation_id]
            poll = self._poll(relation_id, max(1, rows // left), max(1, size_bytes // left), now_us, fresh=fresh)
            more |= poll.more
            if poll.next_us is not None:
                next_us = poll.next_us if next_us is None else min(next_us, poll.next_us)
            if poll.slices:
                source.accept(poll.slices)
                slices += poll.slices
                rows -= poll.rows
                size_bytes -= poll.size_bytes
                positions[relation_id] = poll.position
                moved = True
            elif not self.holds.is_held(relation_id, now_us):
                self.holds.release([relation_id])
        self._status.publish(self.status, now_us, there_are=bool(self.sources))
        self.next_us = next_us
        self.more = more
        if not moved:
            return None
        self.frontier = Frontier(transaction, positions)
        return Batch(tuple(slices), self.frontier, more)

    next_us: int | None = None
    """When a source has something if nothing else happens, as of the last `take`."""
    more: bool = False
    """Whether there was more than the last `take` could take."""

    def status(self) -> dict[str, dict[str, Any]]:
        """What the sources say of themselves; of one that could not be read, why."""
        said = {i: source.status() for i, source in self.sources.items()}
        for relation_id, cause in self.holds.causes().items():
            if relation_id in said:
                state, why = "waiting", cause.message
                if cause.condition == "SOURCE_STOPPED":
                    state = "stalled"
                    why = f"{why}. To set such records aside and go on: {self._to_skip(self._read[relation_id])}"
                said[relation_id] |= {"state": state, "reason": why, "problem": why}
        return said

    def _to_skip(self, relation: Relation) -> str:
        """The statement after which records of a source that can't be decoded do not stop it."""
        view = self._db.catalog().relations.get(relation.owner)
        if isinstance(relation, QuerySource) and relation.strict and view is not None and not view.hidden:
            return view.query_altered("recovery_policy = 'best_effort'")
        return relation.connector_altered("on_error = 'skip'")

    def skip_to(self, transaction: int) -> None:
        """Takes transactions up to that one as read: a backfill reads them from the content."""
        self.frontier = Frontier(transaction, self.frontier.sources)
        self._looked_at = transaction

    def save(self, commit: int) -> None:
        """Saves what the sources remember. Everything taken must be reflected by commit `commit`."""
        for relation_id, source in self.sources.items():
            self._saved.save(relation_id, source)
        self._saved.write_commit(commit)
        self.saved_at = commit

    def forget(self, known: Iterable[str]) -> None:
        """Drops the memory of sources that are not among the relations `known`."""
        kept = set(known)
        self.frontier = Frontier(
            self.frontier.transaction, {i: p for i, p in self.frontier.sources.items() if i in kept}
        )
        self._saved.forget(kept)

    def _transactions(self, rows: int, size_bytes: int) -> tuple[list[Slice], int, bool]:
        """(slices, number of the last transaction in them, whether there are more)."""
        log = self._db.log
        slices: list[Slice] = []
        transaction = self.frontier.transaction
        head = log.head()
        for commit in log.transactions(self._looked_at, head):
            found = list(commit_slices(commit, self._tables))
            rows -= sum(s.rows for s in found)
            size_bytes -= sum(s.size_bytes for s in found)
            if slices and found and (rows < 0 or size_bytes < 0):
                return slices, transaction, True
            slices += found
            transaction = self._looked_at = commit.number
        self._looked_at = head
        return slices, transaction, False

    def _in_turn(self) -> list[str]:
        """The sources, each time another one first, but those that are looked up before all others."""
        names = sorted(self.sources)
        if names:
            self._turn = (self._turn + 1) % len(names)
        return sorted(names[self._turn :] + names[: self._turn], key=lambda i: i not in self._first)

    def _open(self, relation: Relation) -> Source:
        source = open_source(relation)
        # Those of epochs that were never committed: what they read comes again, maybe in another epoch.
        last = self._db.log.last_epoch()
        forget_dead_letters(self._db.layout.dead(relation.id), (last.epoch or 0) if last else 0)
        if self._notification is not None:
            source.listen(self._notification)
        if relation.id not in self.frontier.sources:
            return source
        since = self.saved_at
        try:
            self._saved.load(relation.id, source)
        except Error as damage:
            # The commits tell the same as long as all of them are kept. If not, the source's own check fails.
            _logger.warning("%s", damage.message)
            source, since = open_source(relation), 0
            if self._notification is not None:
                source.listen(self._notification)
        for commit in self._epochs_since(since):
            source.accept(commit.progress.taken.get(relation.id, ()))
        return source

    def _epochs_since(self, number: int) -> list[Commit]:
        """The epoch commits above `number` that are kept, rising."""
        found = []
        commit = self._db.log.last_epoch()
        while commit is not None and commit.number > number:
            found.append(commit)
            commit = self._db.log.find(commit.epoch_before) if commit.epoch_before else None
        return found[::-1]

    def _poll(self, relation_id: str, rows: int, size_bytes: int, now_us: int, *, fresh: bool) -> Poll:
        """The new slices of a source. If its own memory is damaged: none, and it is not polled for a while."""
        position = self.frontier.sources.get(relation_id)
        try:
            return self.sources[relation_id].poll(position, rows, size_bytes, now_us, fresh=fresh)
        except Error as cause:
            if cause.source != relation_id:
                raise
            self.holds.hold(cause, now_us)
            return Poll((), None)


def _reads_alike(before: Relation | None, now: Relation) -> bool:
    """True if a source that was opened for a relation is right for it as it is now."""
    return before is not None and (before.columns, before.connector, before.format) == (
        now.columns,
        now.connector,
        now.format,
    )


def commit_slices(commit: Commit, tables: frozenset[str], first_blob: int = 0) -> Iterator[ChangeSlice]:
    """The changes of `tables` in a commit, as slices; blobs are counted over all of these tables."""
    blobs = []
    for relation_id, change in commit.relations.items():
        if relation_id in tables:
            starts = accumulate((b.rows for b in change.blobs), initial=0)
            blobs += [(relation_id, blob, first) for blob, first in zip(change.blobs, starts, strict=False)]
    for relation_id, blob, first in blobs[first_blob:]:
        yield blob_slice(relation_id, blob, first)


def blob_slice(relation_id: str, blob: BlobRef, first: int = 0) -> ChangeSlice:
    """A blob of a change or a snapshot as a slice. first: how many rows of the change come before it."""
    return ChangeSlice(
        relation=relation_id,
        rows=blob.rows,
        size_bytes=blob.length_bytes,
        file=blob.file,
        offset_bytes=blob.offset_bytes,
        first=first,
    )
