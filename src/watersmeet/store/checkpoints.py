"""Moments and checkpoints: the content of every relation as of a current or past commit.

A checkpoint is the stored content of every relation up to some commit, so that older commits can be deleted. A moment
is the last commit that counts for each relation. The content at a past commit is the current content without the later
changes, so it can be read as long as all later commits exist.
"""

from __future__ import annotations

import datetime as dt
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import xxhash

from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.manifests import Commit, RelationChange
from watersmeet.store.readers import Reader, low_water_number
from watersmeet.system.blobs import BlobRef
from watersmeet.values.serialization import from_json, to_json


@dataclass(frozen=True, slots=True)
class Moment:
    """Relations that the circuit writes are read up to commit `head`, the session's tables up to `transaction`.

    transaction <= head. A later moment may have a smaller `transaction`, if there is no transaction between the two.
    """

    head: int
    transaction: int

    def upto(self, relation: Relation) -> int:
        """The number of the last commit that counts for `relation`."""
        return self.head if relation.is_fed_by_circuit else self.transaction


#: The moment of a database without commits.
EMPTY: Final = Moment(0, 0)


def moment_at(log: CommitLog, catalog: Catalog, head: int | None = None, *, filling: bool = False) -> Moment:
    """The moment that commit `head` (by default the newest) shows.

    All views show the inputs up to the frontier of the newest epoch, so tables are also shown at that frontier. Without
    a ready view, tables are shown as they are. filling: also consider views that are not ready yet, because their input
    must still exist when they are.
    """
    while True:
        at = log.head() if head is None else head
        try:
            return _moment(log, catalog, at, filling=filling)
        except Error:
            # Meanwhile the writer, in another process, created newer epochs and deleted the one at `at`.
            if head is not None or log.head(anew=True) == at:
                raise


def _moment(log: CommitLog, catalog: Catalog, head: int, *, filling: bool) -> Moment:
    filled = filling and any(isinstance(r, MaterializedView) for r in catalog.relations.values())
    return _reflected(log, head) if filled or catalog.follows_epochs else Moment(head, head)


def past_moment(log: CommitLog, number: int) -> Moment:
    """The moment that commit `number` showed when it was the newest. Raises DATABASE_DAMAGED if it, or its epoch, was
    deleted.
    """
    return _reflected(log, number) if log.read(number).follows else Moment(number, number)


def _reflected(log: CommitLog, head: int) -> Moment:
    epoch = log.last_epoch(head)
    if epoch is None or epoch.frontier is None:
        return Moment(head, head)
    reflected = min(epoch.frontier.transaction, head)
    # Without later transactions, the tables are the same at the head, so old commits need not be kept for them.
    return Moment(head, head if log.read(head).last_transaction <= reflected else reflected)


def pin_past(layout: Layout, log: CommitLog, reader: Reader, number: int) -> Moment:
    """The moment of commit `number`. `reader` pins all later commits that changed content.

    Raises INVALID_PARAMETER for a commit that does not exist yet; HISTORY_GONE.
    """
    newest = log.head()
    if not 0 <= number <= newest:
        raise error("INVALID_PARAMETER", f"there is no commit {number}", hint=f"The newest commit is {newest}.")
    reader.pin(max(number - 1, 0))
    try:
        moment = past_moment(log, number) if number else EMPTY
    except Error:
        if low_water_number(layout) < number:  # the commit exists, but can't be read
            raise
        raise expired(layout, log, f"commit {number}") from None
    if not reader.try_pin(moment.transaction):
        raise expired(layout, log, f"commit {number}")
    return moment


def check_there(log: CommitLog, relations: Iterable[Relation], number: int) -> None:
    """Raises HISTORY_GONE for relations that were created, or first filled, after commit `number`."""
    version = log.read(number).catalog_version if number else 0
    for relation in relations:
        if relation.since > version:
            raise error(
                "HISTORY_GONE",
                f"{relation.title} was not there yet at commit {number}",
                detail="It was created, or complete for the first time, later than that.",
                hint="SHOW COMMITS lists commits. Dropping a relation deletes its history.",
            )


def commit_at(log: CommitLog, time_us: int, low_water: int) -> int:
    """The newest commit up to that time (microseconds since 1970, UTC); `low_water` if no later commit is old
    enough.
    """
    low, high = low_water, log.head()
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if log.read(middle).time_us <= time_us else (low, middle - 1)
    return low


def oldest_commit(layout: Layout, log: CommitLog) -> Commit | None:
    """The oldest commit as of which all relations can be read; None in a database without commits."""
    head = log.head()
    low_water = low_water_number(layout)
    for number in range(low_water + 1, head + 1):
        try:
            if past_moment(log, number).transaction >= low_water:
                return log.read(number)
        except Error:
            continue
    return log.read(head) if head else None


def shown_time(time_us: int) -> str:
    """A time as text for messages."""
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def expired(layout: Layout, log: CommitLog, since: str) -> Error:
    """The error for needed changes that were deleted. since: the moment after which they were committed."""
    oldest = oldest_commit(layout, log)
    detail = f"The oldest commit: {oldest.number}, of {shown_time(oldest.time_us)}." if oldest else None
    return error(
        "HISTORY_GONE",
        f"the history since {since} is no longer kept",
        detail=detail,
        hint="ALTER SYSTEM SET retention = '1 day' keeps history for longer.",
    )


class PastContent(NamedTuple):
    """The content of a relation as of an earlier moment. name: that of its view. upto: the last commit that counts."""

    name: str
    relation_id: str
    upto: int


class Undoing:
    """The changes since earlier moments. Most of them are read before the content is locked."""

    def __init__(
        self,
        read: Callable[[dict[str, tuple[int, int]]], dict[str, list[RelationChange]]],
        now: Moment,
        catalog: Catalog,
        past: Sequence[PastContent],
    ) -> None:
        """read: returns the changes of relations within bounds, as in `Content`. now: the commit up to which changes
        are read immediately.
        """
        self._read = read
        self.past = past
        self._upto = {one.name: max(now.upto(catalog.relations[one.relation_id]), one.upto) for one in past}
        self._before = {
            one.name: read({one.relation_id: (one.upto, self._upto[one.name])}).get(one.relation_id, []) for one in past
        }

    def changes(self, one: PastContent, applied: int) -> list[RelationChange]:
        """The changes since the earlier moment, up to commit `applied`."""
        later = self._read({one.relation_id: (self._upto[one.name], applied)})
        return [*self._before[one.name], *later.get(one.relation_id, [])]


#: The number of checkpoints that are read at a time if all are needed.
_AT_ONCE: Final = 64


class Named(NamedTuple):
    """The files that a commit names for its changes. files: the `file_key` of each. size_bytes: that of the changes."""

    number: int
    size_bytes: int
    files: tuple[int, ...]


class BlobBounds(NamedTuple):
    """The least and the greatest value of a column, as numbers, in each blob of a level; the least is greater if all
    values are NULL. kind: the type of the column, as text.
    """

    kind: str
    lows: tuple[int, ...]
    highs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a relation's content: blobs of rows with diffs (`changes`); n equal rows may be stored as one.

    insert_only: no diff is negative. Otherwise, no two rows are equal. bounds: by the names of columns, for several
    blobs, so that a look-up opens only some of them.
    """

    blobs: tuple[BlobRef, ...]
    insert_only: bool
    bounds: dict[str, BlobBounds] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of stored rows of all blobs."""
        return sum(b.rows for b in self.blobs)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of one relation up to commit `upto`: the sum of its levels, the oldest (and largest) first.

    rows: the number of rows of the content, counting duplicates.
    """

    upto: int
    rows: int = 0
    levels: tuple[Level, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of all blobs."""
        return sum(b.length_bytes for b in self.blobs)

    @property
    def blobs(self) -> list[BlobRef]:
        """The blobs of all levels, in order."""
        return [b for level in self.levels for b in level.blobs]

    def within(self, segment: str) -> Snapshot:
        """The snapshot with references that are valid outside of the segment of its new parts."""
        return replace(
            self,
            levels=tuple(replace(level, blobs=tuple(b.within(segment) for b in level.blobs)) for level in self.levels),
        )

    @property
    def stored_rows(self) -> int:
        """The number of stored rows of all blobs."""
        return sum(level.rows for level in self.levels)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of all stored relations at a moment. Commits above `moment.transaction` complete it.

    next_number: that of the catalog at the moment; a missing relation with a smaller number was dropped. before: the
    number of the previous checkpoint, 0 if there was none. time_us: the time of creation. named: the files that the
    commits since the previous checkpoint name, ascending by commit: a starting writer needs them for all kept commits,
    and would otherwise have to read each.
    """

    moment: Moment = field(default_factory=lambda: Moment(0, 0))
    relations: dict[str, Snapshot] = field(default_factory=dict)
    next_number: int = 0
    before: int = 0
    time_us: int = 0
    named: tuple[Named, ...] = ()

    @property
    def files(self) -> set[str]:
        """The names of all segment and run files of the content."""
        return {b.file for s in self.relations.values() for b in s.blobs}

    @property
    def size_bytes(self) -> int:
        """The bytes of all content."""
        return sum(s.size_bytes for s in self.relations.values())


def file_key(name: str) -> int:
    """A hash that stands for the name of a segment or run file where only equality matters."""
    return xxhash.xxh3_64_intdigest(name.encode())


def named_by(commit: Commit) -> Named:
    """The files that a commit names."""
    return Named(commit.number, commit.change_bytes, tuple(map(file_key, sorted(commit.changed_files))))


def save_checkpoint(layout: Layout, log: CommitLog, checkpoint: Checkpoint) -> None:
    """Publishes `checkpoint`, all of whose files exist. It counts once a commit names it."""
    path = layout.snapshot_manifest(checkpoint.moment.head)
    # A file with this name remains from a failed attempt.
    storage.replace_file(path, layout.seal(path, to_json(checkpoint)), durable=layout.durable)
    log.append(Commit("checkpoint", time_us=time.time_ns() // 1000, checkpoint=checkpoint.moment.head))


def load_checkpoint(layout: Layout, number: int) -> Checkpoint:
    """Checkpoint `number`. Raises FileNotFoundError if it was deleted, DATABASE_DAMAGED if it can't be read."""
    path = layout.snapshot_manifest(number)
    return _parsed(layout, number, storage.read_file(path))


def _parsed(layout: Layout, number: int, data: bytes) -> Checkpoint:
    path = layout.snapshot_manifest(number)
    value = layout.unsealed(path, data)
    try:
        return from_json(Checkpoint, value)
    except ValueError as cause:
        raise error("DATABASE_DAMAGED", f"snapshots/{path.name} is not a checkpoint") from cause


#: The checkpoint that was last read for each open log, because it takes a millisecond for 50 million rows.
_LAST_READ: Final[WeakKeyDictionary[CommitLog, Checkpoint]] = WeakKeyDictionary()


def newest_checkpoint(layout: Layout, log: CommitLog) -> Checkpoint:
    """The checkpoint that the newest commit names; an empty one if there is none. Raises DATABASE_DAMAGED."""
    while True:
        head = log.head()
        try:
            number = log.read(head).checkpoint if head else 0
            known = _LAST_READ.get(log, Checkpoint())
            if number == known.moment.head:
                return known
            found = _LAST_READ[log] = load_checkpoint(layout, number) if number else Checkpoint()
        except FileNotFoundError as cause:
            if log.head(anew=True) == head:
                raise error(
                    "DATABASE_DAMAGED",
                    f"{layout.snapshot_manifest(number).name} is missing from {layout.snapshots}",
                    detail="A commit names this checkpoint.",
                ) from cause
        except Error:
            if log.head(anew=True) == head:  # otherwise the clean-up deleted it meanwhile
                raise
        else:
            return found


def checkpoints_from(layout: Layout, newest: Checkpoint) -> Iterator[Checkpoint]:
    """`newest` and all existing earlier checkpoints, newest first; none if `newest` is empty."""
    checkpoint = newest
    while checkpoint.moment.head:
        yield checkpoint
        try:
            checkpoint = load_checkpoint(layout, checkpoint.before) if checkpoint.before else Checkpoint()
        except FileNotFoundError:
            return


def all_checkpoints(layout: Layout, newest: Checkpoint) -> Iterator[Checkpoint]:
    """Like `checkpoints_from`, but reads several at a time."""
    if not newest.moment.head:
        return
    yield newest
    number = newest.before
    there = file_numbers(layout.snapshots) if number else []
    found: dict[int, bytes] = {}
    while number:
        if number not in found:
            end = bisect_right(there, number)
            numbers = there[max(0, end - _AT_ONCE) : end]
            read = storage.read_files([layout.snapshot_manifest(n) for n in numbers])
            found = {n: data for n, data in zip(numbers, read, strict=True) if data is not None}
        if number not in found:
            return
        checkpoint = _parsed(layout, number, found.pop(number))
        yield checkpoint
        number = checkpoint.before


def checkpoint_upto(layout: Layout, log: CommitLog, number: int) -> Checkpoint:
    """The newest checkpoint with a number of at most `number`; an empty one if there is none."""
    newest = newest_checkpoint(layout, log)
    return next((c for c in checkpoints_from(layout, newest) if c.moment.head <= number), Checkpoint())
