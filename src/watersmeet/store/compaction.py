"""Compaction: from time to time, the content of every relation is written as a snapshot; then old files are deleted.

A relation's snapshot consists of a few levels of geometrically decreasing size, each a consolidated change: the changes
since the last checkpoint are a new level, merged with previous levels that are not at least twice as large. So a large
relation is rewritten only when its changes are as large. Large blobs of insert-only relations are never rewritten: the
snapshot names the originals.

This module also computes the rows and bytes of each stored relation, from checkpoints and manifests only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog, Relation
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.columns import gather_table
from watersmeet.kernel.runs.delta import RowSet
from watersmeet.store.changes import INDEX_END_BYTES, ChangeWriter, Diff, RelationChange, fitted, merged
from watersmeet.store.checkpoints import (
    BlobBounds,
    Checkpoint,
    Level,
    Moment,
    Named,
    Snapshot,
    checkpoint_upto,
    moment_at,
    named_by,
    newest_checkpoint,
    save_checkpoint,
)
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.readers import Reader, low_water_number
from watersmeet.store.retention import Cleaner, Keep, no_history, prefetched
from watersmeet.store.segmentfiles import KEPT_COMMITS, SegmentFiles
from watersmeet.store.segments import SegmentWriter, file_snapshot, snapshot_prefix
from watersmeet.system.blobs import BlobRef
from watersmeet.values.types import arrow_schema

#: A checkpoint is due after this many commits …
COMMITS: Final = 256

#: … or when the changes since the last checkpoint have more bytes than it, and at least these.
MIN_BYTES: Final = 64 << 20

#: If content and changes have more bytes, a flush does not wait for a checkpoint, which may rewrite much of them.
_INLINE_BYTES: Final = 16 << 20

#: Levels with at most this many rows in total are always merged.
SMALL_ROWS: Final = 1 << 15

#: A blob of this size in a separate file is not rewritten.
_LARGE_ROWS: Final = 1 << 17

_LARGE_BYTES: Final = 4 << 20

#: Smaller blobs share a segment with other relations, and stay as long as it does.
_OWN_FILE_BYTES: Final = 1 << 16

#: The nice value added to the thread's: a tenth of the weight. At the maximum (19), the thread got no time at all on a
#: busy machine, and files accumulated.
_NICER: Final = 10

_POLL_S: Final = 1.0
_RETRY_S: Final = 30.0
_logger = logging.getLogger(__name__)
Parts = Iterator[tuple[pa.Table, Diff]]


class Compactor:
    """Creates checkpoints and cleans up, in the process with the writer lock. catalog: returns the newest catalog.
    idle_bytes: as in `Cleaner`. history: the history to keep. after: called after each run. first: called once, before
    the first run.

    `run` works in the caller's thread, `start` in a separate one; meanwhile commits continue. `run_if_due` works in a
    separate one if there is much to do. After a stop or a crash, the next start deletes unreferenced files.
    """

    def __init__(
        self,
        layout: Layout,
        log: CommitLog,
        segments: SegmentFiles,
        catalog: Callable[[], Catalog],
        *,
        commits: int = COMMITS,
        min_bytes: int = MIN_BYTES,
        idle_bytes: int | None = None,
        history: Callable[[Catalog], Iterable[Keep]] = no_history,
        after: Callable[[], None] = lambda: None,
        first: Callable[[], None] | None = None,
    ) -> None:
        self._layout = layout
        self._first = first
        self._log = log
        self._segments = segments
        self._cleaner = Cleaner(layout, log, segments, idle_bytes=idle_bytes, check_stop=self._check_stop)
        self._history = history
        self._catalog = catalog
        self._commits = commits
        self._min_bytes = min_bytes
        self._after = after
        self._running = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = newest_checkpoint(layout, log)
        self._counted = self._last.moment.transaction
        self._change_bytes = 0
        self.last_error: Exception | None = None

    @property
    def last(self) -> Checkpoint:
        """The newest checkpoint; an empty one if there is none."""
        return self._last

    def due(self) -> bool:
        """Whether a checkpoint is worthwhile now. Reads the commits since the last call."""
        moment = moment_at(self._log, self._catalog(), filling=True)
        for number in prefetched(self._log, range(self._counted + 1, moment.head + 1)):
            self._change_bytes += self._log.read(number).change_bytes
        self._counted = moment.head
        # Commits above the transaction can't be deleted yet, so a checkpoint would not help.
        if moment.transaction - self._last.moment.transaction >= self._commits:
            return True
        return self._change_bytes > max(self._min_bytes, self._last.size_bytes)

    def run_if_due(self) -> None:
        """Runs if a checkpoint is due: in the caller's thread if all content is small, otherwise in a separate one."""
        if (self._thread is not None and self._thread.is_alive()) or not self.due():
            return
        if self._last.size_bytes + self._change_bytes <= _INLINE_BYTES:
            self.run()
            return
        self._thread = threading.Thread(target=self._run_once, name="watersmeet-compaction", daemon=True)
        self._thread.start()

    def run(self) -> Checkpoint:
        """Creates and returns a checkpoint of the newest moment, and deletes files that are no longer needed."""
        with self._running, self._log.explaining():
            self._run(frozenset())
            return self._last

    def clean_up_first(self) -> None:
        """Calls `first` if nothing has run yet. Errors are left to the next writer."""
        with self._running, contextlib.suppress(Error, OSError):
            self._begin()

    def _begin(self) -> None:
        if self._first is not None:
            self._first()
            self._first = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which nothing is compacted or deleted."""
        with self._running:
            yield

    def settle(self, relations: frozenset[str]) -> bool:
        """Creates a checkpoint in which `relations` have one level, without deleted rows, unless they have that
        already.

        False if the newest commit already has a checkpoint: try again after the next commit.
        """
        with self._running, self._log.explaining():
            return self._is_settled(relations) or self._run(relations)

    def replace(self, sources: Mapping[str, str]) -> bool:
        """Creates a checkpoint in which relations have the content of others. sources: the other relation's id, by id.
        False as in `settle`.
        """
        with self._running, self._log.explaining():
            return self._run(frozenset(), sources)

    def _is_settled(self, relations: frozenset[str]) -> bool:
        last = self._last
        if not all(level.insert_only for i in relations & last.relations.keys() for level in last.relations[i].levels):
            return False
        later = (self._log.read(n).relations for n in range(last.moment.transaction + 1, self._log.head() + 1))
        return not any(change.deleted_rows for changes in later for i, change in changes.items() if i in relations)

    def _run(self, whole: frozenset[str], sources: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Runs once. Returns whether there is a new checkpoint. whole: relations that get one level in it. sources: as
        in `replace`.
        """
        self._log.check()
        self._begin()
        # The head is read first: a relation that is missing from the catalog, which is read later, has no change up to
        # it.
        head = self._log.head()
        catalog = self._catalog()
        now = moment_at(self._log, catalog, head, filling=True)
        last = self._last
        # Moments never go back, even when the first view after a time without views becomes ready.
        moment = Moment(now.head, max(now.transaction, last.moment.transaction))
        # There is one checkpoint per commit, because file names contain its number. The commit that names the last
        # checkpoint changes nothing.
        named = moment.head == last.moment.head + 1 and self._log.read(head).kind == "checkpoint"
        if made := moment.head > last.moment.head and not named:
            checkpoint = self._checkpoint(catalog, moment, last, whole, sources)
            save_checkpoint(self._layout, self._log, checkpoint)
            self._last = checkpoint
            self._change_bytes = 0
            # Commits in the checkpoint are not counted again, because they may be deleted at any moment.
            self._counted = max(self._counted, moment.head)
        self._cleaner.run(self._last, self._history(catalog))
        self._segments.age(self._log.head(), KEPT_COMMITS)
        self._after()
        return made

    def start(self) -> None:
        """Runs in a thread, whenever a checkpoint is due, until `stop`."""
        self._thread = threading.Thread(target=self._loop, name="watersmeet-compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, even during a run. May be called again."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop.clear()

    def _loop(self) -> None:
        _yield_to_others()
        pause_s = _POLL_S
        while not self._stop.wait(pause_s):
            self._run_once()
            pause_s = _POLL_S if self.last_error is None else _RETRY_S

    def _run_once(self) -> None:
        """Runs if a checkpoint is due, in a separate thread."""
        try:
            if self.due():
                self.run()
            self.last_error = None
        except _StoppedError:
            pass
        except Exception as cause:
            # Commits continue without compaction. A full disk or a damaged file is reported once, and compaction is
            # tried again.
            if self.last_error is None:
                _logger.warning("compaction failed: %s", cause)
            self.last_error = cause

    def _checkpoint(
        self, catalog: Catalog, moment: Moment, last: Checkpoint, whole: frozenset[str], sources: Mapping[str, str]
    ) -> Checkpoint:
        relations = [r for r in catalog.relations.values() if r.is_stored]
        changes, named = self._changes(relations, moment, last)
        prefix = snapshot_prefix(moment.head, self._log.writer)
        writer = SegmentWriter(
            self._layout.segments, prefix, durable=self._layout.durable, own_file_bytes=_OWN_FILE_BYTES
        )
        found = {}
        for relation in relations:
            source = sources.get(relation.id, relation.id)
            before = last.relations.get(source, Snapshot(0))
            found[relation.id] = self._snapshot(
                writer, relation, moment, before, changes[source], whole=relation.id in whole
            )
        segment = writer.finish()
        found = {i: self._bounded(snapshot.within(segment)) for i, snapshot in found.items()}
        return Checkpoint(moment, found, catalog.next_number, last.moment.head, time.time_ns() // 1000, tuple(named))

    def _changes(
        self, relations: list[Relation], moment: Moment, last: Checkpoint
    ) -> tuple[dict[str, list[RelationChange]], list[Named]]:
        """(for each relation the changes between its last snapshot and `moment`, the files named by commits since
        `last`).
        """
        found: dict[str, list[RelationChange]] = {r.id: [] for r in relations}
        bounds = {}
        for r in relations:
            before = last.relations.get(r.id)
            bounds[r.id] = (before.upto if before else 0, moment.upto(r))
        named = []
        # Not from commit 1, because a relation without a snapshot was created after the last checkpoint.
        for number in prefetched(self._log, range(last.moment.transaction + 1, moment.head + 1)):
            self._check_stop()
            commit = self._log.read(number)
            for relation_id, change in commit.relations.items():
                after, upto = bounds.get(relation_id, (0, 0))
                if after < number <= upto:
                    found[relation_id].append(change)
            if number > last.moment.head:
                named.append(named_by(commit))
        return found, named

    def _snapshot(
        self,
        writer: SegmentWriter,
        relation: Relation,
        moment: Moment,
        before: Snapshot,
        changes: list[RelationChange],
        *,
        whole: bool,
    ) -> Snapshot:
        upto = max(moment.upto(relation), before.upto)
        rows = before.rows + sum(c.inserted_rows - c.deleted_rows for c in changes)
        fresh = [b for c in changes for b in c.blobs]
        fresh_rows = sum(b.rows for b in fresh)
        if not fresh_rows and (not whole or len(before.levels) < 2):
            return Snapshot(upto, before.rows, before.levels)
        kept, merging = ((), before.levels) if whole else _split(before.levels, fresh_rows)
        inserts = all(level.insert_only for level in merging) and not any(c.deleted_rows for c in changes)
        blobs = [*(b for level in merging for b in level.blobs), *fresh]
        if inserts:
            made = self._appended(writer, relation, blobs)
        else:
            deleting = [b for level in merging if not level.insert_only for b in level.blobs]
            deleting += [b for c in changes if c.deleted_rows for b in c.blobs]
            made = self._merged(writer, relation, blobs, deleting)
        if not kept and made.deleted_rows:
            raise error("DATABASE_DAMAGED", f'the changes of "{relation.name}" delete rows that are not there')
        levels = (*kept, Level(made.blobs, inserts or not kept)) if made.blobs else tuple(kept)
        return Snapshot(upto, rows, levels)

    def _bounded(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the bounds of new levels of several blobs."""
        levels = (
            level if level.bounds or len(level.blobs) < 2 else replace(level, bounds=self._bounds(level.blobs))
            for level in snapshot.levels
        )
        return replace(snapshot, levels=tuple(levels))

    def _bounds(self, blobs: Sequence[BlobRef]) -> dict[str, BlobBounds]:
        """The bounds of the columns that have bounds and the same type in all blobs."""
        self._segments.fetch([(b, max(0, b.length_bytes - INDEX_END_BYTES), b.length_bytes) for b in blobs])
        indexes = [self._segments.index(blob) for blob in blobs]
        first, found = indexes[0], {}
        for name in first.bounds:
            if all(name in i.bounds and i.kinds[name] == first.kinds[name] for i in indexes):
                bounds = [i.whole_bounds(name) for i in indexes]
                found[name] = BlobBounds(
                    first.kinds[name], tuple(low for low, _ in bounds), tuple(high for _, high in bounds)
                )
        return found

    def _appended(self, writer: SegmentWriter, relation: Relation, blobs: list[BlobRef]) -> RelationChange:
        """Insert-only rows, in their order. Neighboring small blobs become one, large ones are kept."""
        found: list[BlobRef] = []
        for large, group in groupby(blobs, _is_large):
            some = list(group)
            if large or (len(some) == 1 and file_snapshot(some[0].file) is not None):
                found += some
                continue
            written = ChangeWriter(writer, unread=True, lasting=True)
            for table, diff in self._parts(relation, some):
                written.add(table, diff)
            found += written.finish().blobs
        return RelationChange(tuple(found), sum(b.rows for b in found), 0)

    def _merged(
        self, writer: SegmentWriter, relation: Relation, blobs: list[BlobRef], deleting: list[BlobRef]
    ) -> RelationChange:
        """Rows and deletions. Only rows that may be deleted are added up; all others keep their order, and large blobs
        of only such rows are kept. deleting: the blobs that may have deletions.
        """
        schema = arrow_schema(relation.columns, positional=False)
        deleted = self._deleted(relation, deleting)
        written = ChangeWriter(writer, unread=True, lasting=True)
        kept: list[BlobRef] = []

        def summed() -> Parts:
            for blob in blobs:
                ((table, diff),) = self._parts(relation, [blob])
                shared = deleted.maybe(table.columns)
                if not len(shared) and _is_large(blob) and bool((diff > 0).all()):
                    kept.append(blob)
                    continue
                rest = np.ones(table.num_rows, np.bool_)
                rest[shared] = False
                if not rest.all():
                    yield gather_table(table, shared), diff[shared]
                    table, diff = gather_table(table, np.flatnonzero(rest)), diff[rest]
                written.add(table, diff)

        for table, diff in merged(summed(), schema):
            self._check_stop()
            written.add(table, diff)
        made = written.finish()
        rows = sum(b.rows for b in kept)
        return made._replace(blobs=(*kept, *made.blobs), inserted_rows=made.inserted_rows + rows)

    def _deleted(self, relation: Relation, blobs: list[BlobRef]) -> RowSet:
        """The rows with a negative diff."""
        found = RowSet()
        for blob in blobs:
            if (self._segments.read_change(blob, ())[1] < 0).any():
                ((table, diff),) = self._parts(relation, [blob])
                found.add(gather_table(table, np.flatnonzero(diff < 0)).columns)
        return found

    def _parts(self, relation: Relation, blobs: list[BlobRef]) -> Parts:
        schema = arrow_schema(relation.columns, positional=False)
        for blob in blobs:
            self._check_stop()
            table, diff = self._segments.read_change(blob)
            yield fitted(table, schema, relation.fills).cast(schema), diff

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _StoppedError


def past_snapshots(
    layout: Layout, log: CommitLog, segments: SegmentFiles, relations: Iterable[Relation], moment: Moment, into: Layout
) -> dict[str, Snapshot]:
    """The content of relations at a past moment, after which all commits are kept, as snapshots up to it: levels of a
    checkpoint, and a level of the changes since, or of later changes undone, which is written into another database.
    """
    base = checkpoint_upto(layout, log, moment.head)
    if base.moment.transaction < low_water_number(layout):
        base = newest_checkpoint(layout, log)
    writer = SegmentWriter(into.segments, snapshot_prefix(moment.head, log.writer), durable=into.durable)
    found = {}
    for relation in relations:
        before = base.relations.get(relation.id, Snapshot(base.moment.transaction))
        bounds = before.upto, moment.upto(relation)
        sign = 1 if before.upto < moment.upto(relation) else -1
        changes = [log.read(n).relations.get(relation.id) for n in range(min(bounds) + 1, max(bounds) + 1)]
        blobs = [b for change in changes if change is not None for b in change.blobs]
        schema = arrow_schema(relation.as_stored.columns, positional=False)
        written = ChangeWriter(writer, unread=False)
        if blobs:
            for table, diff in merged(_signed(segments, blobs, sign, schema, relation), schema):
                written.add(table.rename_columns(schema.names), diff)
        change = written.finish()
        levels = before.levels
        if change.blobs:
            levels = (*levels, Level(change.blobs, insert_only=not change.deleted_rows))
        found[relation.id] = Snapshot(moment.head, before.rows + change.inserted_rows - change.deleted_rows, levels)
    segment = writer.finish()
    return {i: snapshot.within(segment) for i, snapshot in found.items()}


def _signed(
    segments: SegmentFiles, blobs: Iterable[BlobRef], sign: int, schema: pa.Schema, relation: Relation
) -> Parts:
    """The rows of blobs. sign: -1 to undo them."""
    for blob in blobs:
        table, diff = segments.read_change(blob)
        yield fitted(table, schema, relation.as_stored.fills).cast(schema), sign * diff


class _StoppedError(Exception):
    """`stop` was called in the middle of a run."""


def _is_large(blob: BlobRef) -> bool:
    """Whether a blob is too large to be worth rewriting, and is in a separate file, so that it keeps no other blob."""
    return blob.file.endswith(".run") and (blob.rows >= _LARGE_ROWS or blob.length_bytes >= _LARGE_BYTES)


def _split(levels: tuple[Level, ...], fresh_rows: int) -> tuple[tuple[Level, ...], tuple[Level, ...]]:
    """(levels that stay, levels to merge with `fresh_rows` new rows)."""
    rows = fresh_rows
    count = len(levels)
    while count and (levels[count - 1].rows <= 2 * rows or levels[count - 1].rows + rows <= SMALL_ROWS):
        count -= 1
        rows += levels[count].rows
    return levels[:count], levels[count:]


def _yield_to_others() -> None:
    """Lowers the priority of the calling thread, because snapshots took a quarter of the processor during a backlog.

    Linux schedules each thread separately; on other systems this does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(nice + _NICER, 19))


@dataclass(frozen=True, slots=True)
class RelationSize:
    """The size of a relation. rows: those of the content, counting duplicates. size_bytes: the bytes on disk of its
    snapshot and of the changes since then.
    """

    rows: int = 0
    size_bytes: int = 0


class RelationSizes:
    """The sizes of all relations at the newest commit. Safe for several threads. Each call reads the new commits."""

    def __init__(self, layout: Layout, log: CommitLog) -> None:
        self._layout = layout
        self._log = log
        self._lock = threading.Lock()
        self._reader = Reader(layout)
        self._counted: int | None = None
        self._sizes: dict[str, RelationSize] = {}

    def read(self) -> dict[str, RelationSize]:
        """The sizes by relation id, without relations that never changed."""
        with self._lock:
            if self._counted is None or not self._reader.try_pin(self._counted):
                self._start()
            assert self._counted is not None
            head = self._log.head()
            for number in prefetched(self._log, range(self._counted + 1, head + 1)):
                for relation_id, change in self._log.read(number).relations.items():
                    self._add(relation_id, change.inserted_rows - change.deleted_rows, change.size_bytes)
            self._counted = head
            self._reader.idle(head)
            return dict(self._sizes)

    def close(self) -> None:
        """Releases the reader. May be called again."""
        self._reader.close()

    def _start(self) -> None:
        while True:
            checkpoint = newest_checkpoint(self._layout, self._log)
            if self._reader.try_pin(checkpoint.moment.transaction):
                break
        self._sizes = {i: RelationSize(s.rows, s.size_bytes) for i, s in checkpoint.relations.items()}
        self._counted = checkpoint.moment.head
        # Snapshots of tables end at the transaction, those of views at the head.
        for number in prefetched(self._log, range(checkpoint.moment.transaction + 1, checkpoint.moment.head + 1)):
            for relation_id, change in self._log.read(number).relations.items():
                if number > checkpoint.relations[relation_id].upto if relation_id in checkpoint.relations else True:
                    self._add(relation_id, change.inserted_rows - change.deleted_rows, change.size_bytes)

    def _add(self, relation_id: str, rows: int, size_bytes: int) -> None:
        before = self._sizes.get(relation_id, RelationSize())
        self._sizes[relation_id] = RelationSize(before.rows + rows, before.size_bytes + size_bytes)
