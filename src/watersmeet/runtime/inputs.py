"""The inputs of epochs: transactions and slices of sources, the sources' memory, their status file and their backoff.

The memory of sources consists of a file for each relation, and the number of the commit up to which all of them are
valid. Only files of the newest writer count. A source that could not be read is in backoff while the others are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from watersmeet.catalog import QuerySource, Relation
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.deadletters import forget_dead_letters
from watersmeet.connectors.base.sources import FedSource, Notification, Poll, Source
from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.runtime.engine import Database
from watersmeet.runtime.taskcontract import InputSpec
from watersmeet.store.backup import memory_of
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout, WriterFile, writer_file, writer_files
from watersmeet.store.manifests import Backfill, Filling, Frontier, Progress
from watersmeet.store.positions import StatusFile
from watersmeet.system import files
from watersmeet.system.blobs import BlobRef
from watersmeet.system.process import scratch_folder
from watersmeet.values.slices import ChangeSlice, Slice, SourceSlice

#: The minimum time between writes of the file; longer in an object store, because an epoch waits for the request.
_INTERVAL_US: Final = 1_000_000

_REMOTE_INTERVAL_US: Final = 10_000_000
_NAME: Final = "STATUS.json"


class SourceStatusFile:
    """The status of the sources in a file, for other processes: the writer's side. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._status_file = StatusFile(db.layout, _NAME)
        self._interval_us = _REMOTE_INTERVAL_US if db.layout.directory is None else _INTERVAL_US
        self._next_us = 0

    def publish(self, status: Callable[[], dict[str, dict[str, Any]]], now_us: int, *, there_are: bool) -> None:
        """Write changes of the sources' status, if there are sources. Never raises an error, because nothing depends on
        the file.
        """
        if now_us < self._next_us or not (there_are or self._status_file.is_written):
            return
        self._next_us = now_us + self._interval_us
        self._status_file.write(status())


def read_source_status(db: Database) -> dict[str, dict[str, Any]]:
    """The sources' last published status, by relation id; empty without a file."""
    return StatusFile(db.layout, _NAME).read()


#: The first and the longest pause of a source; each pause is twice as long as the last one.
_FIRST_US: Final = 1_000_000

_LONGEST_US: Final = 30_000_000


@dataclass(frozen=True)
class Backoff:
    """The pause of a source after an error. cause: the error, with the id of the source. pause_us: the length of the
    pause. until_us: its end; if None, it lasts until `Backoffs.retry_stopped`.
    """

    cause: Error
    pause_us: int
    until_us: int | None


class Backoffs:
    """The sources in backoff. Not thread-safe."""

    def __init__(self) -> None:
        self._backoffs: dict[str, Backoff] = {}

    def back_off(self, cause: Error, now_us: int) -> None:
        """Pause the source of `cause`; after SOURCE_STOPPED, until `retry_stopped`."""
        assert cause.source is not None
        before = self._backoffs.get(cause.source)
        pause_us = _FIRST_US if before is None else min(2 * before.pause_us, _LONGEST_US)
        until_us = None if cause.condition == "SOURCE_STOPPED" else now_us + pause_us
        self._backoffs[cause.source] = Backoff(cause, pause_us, until_us)

    def causes(self) -> dict[str, Error]:
        """The error of the last read of each source."""
        return {relation_id: held.cause for relation_id, held in self._backoffs.items()}

    def is_paused(self, relation_id: str, now_us: int) -> bool:
        """Whether the source must not be polled now."""
        held = self._backoffs.get(relation_id)
        return held is not None and (held.until_us is None or held.until_us > now_us)

    def clear(self, relation_ids: Iterable[str]) -> None:
        """Record that these sources could be read."""
        for relation_id in relation_ids:
            self._backoffs.pop(relation_id, None)

    def retry_stopped(self) -> None:
        """Poll stopped sources again, because a user may have fixed them."""
        for held in [h for h in self._backoffs.values() if h.until_us is None]:
            self._end(held)

    def retry_all(self) -> None:
        """Poll all sources again."""
        for held in list(self._backoffs.values()):
            self._end(held)

    def _end(self, held: Backoff) -> None:
        assert held.cause.source is not None
        self._backoffs[held.cause.source] = replace(held, until_us=0)


_COMMIT: Final = "COMMIT"


class Saved:
    """The files with the sources' memory of one database, for its writer. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._listed: list[WriterFile] | None = None
        """All files, until one is written."""

    def save(self, relation_id: str, source: Source) -> None:
        """Save the memory of the source of a relation."""
        path = self._path(relation_id)
        local = self._local(path)
        self._listed = None
        source.save(local)
        if local != path:
            storage.replace_file(path, local.read_bytes(), durable=self._db.layout.durable)

    def load(self, relation_id: str, source: Source) -> None:
        """Load the last saved memory of the source of a relation, if there is one."""
        path = self._newest(relation_id)
        if path is not None:
            local = self._local(path)
            if local != path:
                files.make_directory(local.parent)
                files.replace_file(local, storage.read_file(path), durable=False)
            source.load(local)

    def _path(self, relation_id: str) -> AnyPath:
        return writer_file(self._db.layout.sources, relation_id, self._db.log.writer, ".saved")

    def _newest(self, relation_id: str) -> AnyPath | None:
        return next((f.path for f in reversed(self._files()) if f.id == relation_id), None)

    def _local(self, path: AnyPath) -> Path:
        """The local file that a source reads and writes. Its stored form may be in an object store."""
        return path if isinstance(path, Path) else self._db.layout.local / "sources" / path.name

    def read_commit(self) -> int:
        """As `_saved_commit`."""
        return _saved_commit(self._newest(_COMMIT))

    def write_commit(self, commit: int) -> None:
        """Record the commit up to which the memory saved by this writer is valid. Deletes these files of earlier
        writers.
        """
        layout = self._db.layout
        self._listed = None
        storage.replace_file(self._path(_COMMIT), _commit_text(commit), durable=layout.durable)
        found = self._files()
        own = {f.id for f in found if f.writer == self._db.log.writer}
        storage.remove_files(f.path for f in found if f.id in own and f.writer < self._db.log.writer)

    def forget(self, kept: Iterable[str]) -> None:
        """Delete the memory of relations not in `kept`, except files of later writers."""
        names, writer = {_COMMIT, *kept}, self._db.log.writer
        gone = [f for f in self._files() if f.id not in names and f.writer <= writer]
        if gone:
            self._listed = None
            storage.remove_files(f.path for f in gone)

    def _files(self) -> list[WriterFile]:
        if self._listed is None:
            self._listed = writer_files(self._db.layout.sources)
        return self._listed


_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """The input of one epoch. more: whether more input is left beyond the budget."""

    slices: tuple[Slice, ...]
    frontier: Frontier
    more: bool = False


class Inputs:
    """The inputs of the circuit, and the positions up to which epochs are planned.

    Slices count as taken as soon as `take` returns them; after a failed epoch, create new Inputs from the log. Not
    thread-safe.
    """

    def __init__(self, db: Database, frontier: Frontier) -> None:
        self._db = db
        self.frontier = frontier
        self._looked_at = frontier.transaction
        self._tables: frozenset[str] = frozenset()
        self._first: frozenset[str] = frozenset()
        self.sources: dict[str, Source] = {}
        self._read: dict[str, Relation] = {}
        self._histories: dict[str, Source] | None = None
        self._turn = 0
        self.backoffs = Backoffs()
        """The sources in backoff. An engine sets its own object, which outlives the inputs."""
        self._status = SourceStatusFile(db)
        self._saved = Saved(db)
        self.saved_at = self._saved.read_commit()
        self._notification: Notification | None = None

    def listen(self, notification: Notification) -> None:
        """Sources that send notifications use `notification` when they have new rows."""
        self._notification = notification
        for source in self.sources.values():
            source.listen(notification)

    def set_scanned(self, relations: Iterable[Relation], first: frozenset[str] = frozenset()) -> None:
        """Read these relations from now on. Everything taken must have been committed.

        first: relations that rows of the others look up on arrival; while these have more rows, other sources wait.
        """
        self._first = first
        by_id = {r.id: r for r in relations}
        for relation_id in self.sources.keys() - by_id.keys():
            self._saved.save(relation_id, self.sources[relation_id])
            self.backoffs.clear([relation_id])
            del self.sources[relation_id], self._read[relation_id]
        self._tables = frozenset(i for i, r in by_id.items() if not r.connector)
        opened = {i: r for i, r in by_id.items() if r.connector and not _reads_alike(self._read.get(i), r)}
        self._forget_dead_letters(opened)
        for relation_id, relation in opened.items():
            if relation_id in self.sources:  # the source was altered, and keeps its memory
                self._saved.save(relation_id, self.sources[relation_id])
                self.backoffs.clear([relation_id])
            self.sources[relation_id] = self._with_memory(relation)
            self._read[relation_id] = relation

    def take(
        self, rows: int, size_bytes: int, now_us: int, *, fresh: bool = False, sources: bool = True
    ) -> Batch | None:
        """The next input, within these limits if possible; None if there is none.

        fresh: check all sources again. sources: False for transactions only. A transaction is never cut; one that is
        larger than the budget is a separate batch.
        """
        slices, transaction, more = self._transactions(rows, size_bytes)
        rows -= sum(s.rows for s in slices)
        size_bytes -= sum(s.size_bytes for s in slices)
        positions = dict(self.frontier.sources)
        next_us: int | None = None
        moved = transaction > self.frontier.transaction and (bool(slices) or self._shows_other_rows(transaction))
        waiting = [i for i in self._in_turn() if not self.backoffs.is_paused(i, now_us)] if sources else []
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
            elif not self.backoffs.is_paused(relation_id, now_us):
                self.backoffs.clear([relation_id])
        self._status.publish(self.status, now_us, there_are=bool(self.sources))
        self.next_us = next_us
        self.more = more
        if not moved:
            return None
        self.frontier = Frontier(transaction, positions)
        return Batch(tuple(slices), self.frontier, more)

    def _shows_other_rows(self, transaction: int) -> bool:
        """Whether transactions change rows, up to one. In a fork, others only note what is replayed."""
        if self._db.feed is None:
            return True
        return any(commit.relations for commit in self._db.log.transactions(self.frontier.transaction, transaction))

    next_us: int | None = None
    """As of the last `take`, the time at which a source next creates rows by itself."""
    more: bool = False
    """Whether input was left after the last `take`."""

    def status(self) -> dict[str, dict[str, Any]]:
        """The sources' own reports. For a source in backoff, it contains the error."""
        said = {i: source.status() for i, source in self.sources.items()}
        for relation_id, cause in self.backoffs.causes().items():
            if relation_id in said:
                state, why = "waiting", cause.message
                if cause.condition == "SOURCE_STOPPED":
                    state = "stalled"
                    why = f"{why}. To set such records aside and continue: {self._to_skip(self._read[relation_id])}"
                said[relation_id] |= {"state": state, "reason": why, "problem": why}
        return said

    def _to_skip(self, relation: Relation) -> str:
        """The statement after which undecodable records don't stop a source."""
        view = self._db.catalog().relations.get(relation.owner)
        if isinstance(relation, QuerySource) and relation.strict and view is not None and not view.hidden:
            return view.query_altered("recovery_policy = 'best_effort'")
        return relation.connector_altered("on_error = 'skip'")

    def skip_to(self, transaction: int) -> None:
        """Skip transactions up to the given one, because a backfill reads them from the content."""
        self.frontier = Frontier(transaction, self.frontier.sources)
        self._looked_at = transaction

    def histories(self, known: Mapping[str, Relation], backfill: Backfill) -> Mapping[str, Source]:
        """The sources whose history a backfill reads. Beside live views these are copies as of its beginning: until
        `end_histories` the sources' memory must not be saved.
        """
        purpose = backfill.purpose
        if not (isinstance(purpose, Filling) and purpose.beside):
            return self.sources
        if self._histories is None:
            number = backfill.before[1] if backfill.round else backfill.head  # later rounds only read commits
            self._histories = {r.id: self._with_memory(r, upto=number) for r in connected(known, purpose)}
        return self._histories

    def end_histories(self) -> bool:
        """Forget the copies of `histories`. Returns whether there were any."""
        before, self._histories = self._histories, None
        return bool(before)

    def source(self, relation_id: str) -> Source:
        """An open source, or the copy of one that no live epoch reads."""
        return self.sources.get(relation_id) or (self._histories or {})[relation_id]

    def specs(self, slices: Iterable[Slice], known: Mapping[str, Relation]) -> dict[str, InputSpec]:
        """How to read slices, by their relation."""
        fills = {s.relation: r.fills for s in slices if (r := known.get(s.relation)) is not None}
        found = {i: InputSpec(f) for i, f in fills.items() if f}
        return found | {s.relation: self._spec(known[s.relation]) for s in slices if isinstance(s, SourceSlice)}

    def _spec(self, relation: Relation) -> InputSpec:
        """The specification of a connector's slices."""
        computed = {*relation.given, *(relation.column(n) for n in relation.generated)}
        return InputSpec(
            source=self.source(relation.id).spec(),
            arrivals=tuple(c.name for c in relation.columns if c not in computed),
            generated=relation.generated,
            lengths=relation.lengths,
        )

    def save(self, commit: int) -> None:
        """Save the sources' memory. Everything taken must be in commit `commit` or earlier ones."""
        for relation_id, source in self.sources.items():
            self._saved.save(relation_id, source)
        self._saved.write_commit(commit)
        self.saved_at = commit

    def forget(self, known: Iterable[str]) -> None:
        """Delete the memory of sources that are not among the relations `known`."""
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
        """The sources, starting with another one each time; but those whose rows are looked up are always first."""
        names = sorted(self.sources)
        if names:
            self._turn = (self._turn + 1) % len(names)
        return sorted(names[self._turn :] + names[: self._turn], key=lambda i: i not in self._first)

    def _forget_dead_letters(self, opened: Iterable[str]) -> None:
        """Deletes the dead letters of epochs that were never committed. Their records are read again, possibly in other
        epochs. opened: the relations that are opened now.
        """
        last = self._db.log.last_epoch()
        epoch = (last.epoch or 0) if last else 0
        with storage.Concurrently(self._db.layout.root) as requests:
            begun = [requests.begin(partial(forget_dead_letters, self._db.layout.dead(i), epoch)) for i in opened]
        for one in begun:
            one.result()

    def _with_memory(self, relation: Relation, upto: int | None = None) -> Source:
        """A source with its memory as of commit `upto`; by default with the newest one, and then it listens."""
        source = self._opened(relation)
        if self._notification is not None and upto is None:
            source.listen(self._notification)
        if relation.id not in self.frontier.sources:
            return source
        since = self.saved_at
        try:
            self._saved.load(relation.id, source)
        except Error as damage:
            # The commits contain the same, as long as all of them are kept. Otherwise the source's own check fails.
            _logger.warning("%s", damage.message)
            source, since = self._opened(relation), 0
            if self._notification is not None and upto is None:
                source.listen(self._notification)
        for commit in epochs_since(self._db.log, since):
            if upto is not None and commit.number > upto:
                break
            source.accept(commit.progress.taken.get(relation.id, ()))
        return source

    def _opened(self, relation: Relation) -> Source:
        source, feed = connectors.open_source(relation), self._db.feed
        return source if feed is None else FedSource(source, feed)

    def _poll(self, relation_id: str, rows: int, size_bytes: int, now_us: int, *, fresh: bool) -> Poll:
        """The new slices of a source; none if its memory is damaged: then it is put in backoff."""
        position = self.frontier.sources.get(relation_id)
        try:
            return self.sources[relation_id].poll(position, rows, size_bytes, now_us, fresh=fresh)
        except Error as cause:
            if cause.source != relation_id:
                raise
            self.backoffs.back_off(cause, now_us)
            return Poll((), None)


def connected(known: Mapping[str, Relation], purpose: Filling) -> list[Relation]:
    """The sources that a fill beside live views reads."""
    read = (known[i] for i in purpose.beside if i in known and i not in purpose.stored)
    return [r for r in read if r.connector]


def epochs_since(log: CommitLog, number: int) -> list[Commit]:
    """The kept epoch commits above `number`, in ascending order."""
    found = []
    commit = log.last_epoch()
    while commit is not None and commit.number > number:
        found.append(commit)
        commit = log.epoch_before(commit)
    return found[::-1]


def replayable(
    log: CommitLog, purpose: Filling, backfill: Backfill, *, timed: bool
) -> Iterator[tuple[Commit, tuple[Slice, ...]]]:
    """The live epochs of a round after its cursor that can change the new views, each with its input in its order.
    timed: whether time alone can change them.
    """
    stored = frozenset(purpose.stored)
    read = frozenset(purpose.beside) - stored
    transaction, begin = backfill.before
    if backfill.cursor is not None:
        begin = backfill.cursor
        replayed = log.read(begin).frontier
        transaction = transaction if replayed is None else max(transaction, replayed.transaction)
    for number in range(begin + 1, backfill.head + 1):
        commit = log.read(number)
        if commit.epoch is None or commit.frontier is None:
            continue
        slices: list[Slice] = []
        for written in log.transactions(transaction, commit.frontier.transaction):
            slices += commit_slices(written, read)
        transaction = max(transaction, commit.frontier.transaction)
        slices += [s for i, taken in commit.progress.taken.items() if i in read for s in taken]
        slices += commit_slices(commit, stored)
        if slices or (timed and _passes_time(log, commit)):
            yield commit, tuple(slices)


def _passes_time(log: CommitLog, commit: Commit) -> bool:
    """Whether the epoch is a live one in which time passed."""
    before = log.epoch_before(commit)
    if before is None or before.frontier is None or commit.frontier is None:
        return True
    old, new = before.frontier.backfill, commit.frontier.backfill
    if old is None or new is None or (old.started, old.round, old.read) != (new.started, new.round, new.read):
        return False  # a piece of history
    then, now = before.progress, commit.progress
    return (then.time_us, then.watermarks) != (now.time_us, now.watermarks)


def progress_before(log: CommitLog, commit: Commit) -> Progress:
    """The progress as of the epoch before an epoch."""
    before = log.epoch_before(commit)
    return Progress() if before is None else before.progress


def save_past(layout: Layout, log: CommitLog, relations: Sequence[Relation], number: int, fork: Layout) -> None:
    """Saves in a fork the memory of sources as of an earlier commit, after which all commits are kept.

    Raises FEATURE_NOT_SUPPORTED if the memory of a source can't be determined.
    """
    newest = {f.id: f.path for f in writer_files(layout.sources)}
    epochs = epochs_since(log, min(_saved_commit(newest.get(_COMMIT)), number)) if relations else []
    with scratch_folder("sources") as folder:
        place = Path(folder) / "memory"
        for relation in relations:
            source = connectors.open_source(relation)
            if relation.id in newest:
                files.replace_file(place, memory_of(newest[relation.id]), durable=False)
                source.load(place)
            for commit in epochs:
                if commit.number <= number:
                    source.accept(commit.progress.taken.get(relation.id, ()))
            later = [c.progress.taken.get(relation.id, ()) for c in epochs if c.number > number]
            source.withdraw([piece for slices in later for piece in slices])
            source.save(place)
            path = writer_file(fork.sources, relation.id, log.writer, ".saved")
            storage.create_file(path, place.read_bytes(), durable=fork.durable)
            files.discard(place)
    path = writer_file(fork.sources, _COMMIT, log.writer, ".saved")
    storage.create_file(path, _commit_text(number), durable=fork.durable)


def _saved_commit(path: AnyPath | None) -> int:
    """The commit up to which the saved memory is valid; 0 without one, or if the file is damaged."""
    try:
        return 0 if path is None else int(json.loads(storage.read_file(path))["commit"])
    except (ValueError, KeyError, TypeError):
        _logger.warning("cannot read sources/%s of the database", path and path.name)
        return 0


def _commit_text(number: int) -> bytes:
    return json.dumps({"commit": number}).encode()


def _reads_alike(before: Relation | None, now: Relation) -> bool:
    """Whether a source that was opened for a relation still fits its current definition."""
    return before is not None and (before.columns, before.connector, before.format) == (
        now.columns,
        now.connector,
        now.format,
    )


def commit_slices(commit: Commit, tables: frozenset[str], first_blob: int = 0) -> Iterator[ChangeSlice]:
    """The changes of `tables` in a commit, as slices. Blobs are counted over all these tables."""
    blobs = []
    for relation_id, change in commit.relations.items():
        if relation_id in tables:
            starts = accumulate((b.rows for b in change.blobs), initial=0)
            blobs += [(relation_id, blob, first) for blob, first in zip(change.blobs, starts, strict=False)]
    for relation_id, blob, first in blobs[first_blob:]:
        yield blob_slice(relation_id, blob, first)


def blob_slice(relation_id: str, blob: BlobRef, first: int = 0) -> ChangeSlice:
    """A blob of a change or a snapshot, as a slice. first: the number of the change's rows in earlier blobs."""
    return ChangeSlice(
        relation=relation_id,
        rows=blob.rows,
        size_bytes=blob.length_bytes,
        file=blob.file,
        offset_bytes=blob.offset_bytes,
        first=first,
    )
