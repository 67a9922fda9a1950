"""Deletion of commits, snapshots and segments that neither a reader nor the current state needs.

An overtaken writer may be paused at any step of this for any time. So it never selects files that a later writer needs
or could need: it only deletes commits up to the low-water mark, and files of numbers and writers up to its own. Fences
are never deleted (`commits`).
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from watersmeet.catalog import Catalog, NamedSubscription
from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.store import readers
from watersmeet.store.checkpoints import (
    Checkpoint,
    Named,
    all_checkpoints,
    checkpoints_from,
    commit_at,
    file_key,
    load_checkpoint,
    named_by,
    newest_checkpoint,
    past_moment,
)
from watersmeet.store.commits import CommitLog, remove_uncommitted
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.manifests import Commit
from watersmeet.store.readers import Lease, LowWaterMark, commits_there, raise_low_water, read_low_water
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import file_epoch, file_snapshot, file_writer
from watersmeet.system.process import seconds_of

#: The maximum number of recorded commits. Above this …
_MOST: Final = 2048

#: … a commit is dropped if its neighbors are closer together than this fraction of their age, so
#: ages are known up to this relative error.
_PART: Final = 0.05


class Ages:
    """The newest commit at each time, by the process's own clock, which never jumps. Its memory is limited."""

    def __init__(self) -> None:
        self._known: list[tuple[float, int]] = []

    def note(self, number: int) -> None:
        """Records that commit `number` exists now. Numbers never decrease."""
        self._known.append((time.monotonic(), number))
        if len(self._known) > _MOST:
            now = self._known[-1][0]
            kept = self._known[-1:]
            for (before, _), known in zip(self._known[-3::-1], self._known[-2:0:-1], strict=True):
                if kept[-1][0] - before > _PART * (now - before):
                    kept.append(known)
            self._known = [self._known[0], *reversed(kept)]

    def known_for(self, seconds: float) -> int:
        """The newest commit recorded at least that long ago; 0 if there is none."""
        before = time.monotonic() - seconds
        place = bisect_right(self._known, before, key=lambda known: known[0])
        return self._known[place - 1][1] if place else 0


#: Commits are kept for an idle reader while it is at most this many commits behind …
IDLE_COMMITS: Final = 4096

#: … and their changes have at most this many bytes.
IDLE_BYTES: Final = 256 << 20

#: The default retention of history: that of RisingWave's time travel.
RETENTION_US: Final = 600_000_000

#: Commits are kept for an unread subscription while it is at most this many commits behind …
KEPT_COMMITS: Final = 1 << 16

#: … and their changes, of all relations, have at most this many bytes.
KEPT_BYTES: Final = 1 << 30

#: In an object store, readers of other processes are unknown, so commits, and checkpoints that are no longer the
#: newest, are kept for this long. A slower reader begins again.
_READING_S: Final = 600.0

#: At a start, all existing commits are read if they are at most this many, …
_AT_START: Final = 4096

#: … and each clean-up lists all segments if they are at most this many, which takes one request; if they are more, it
#: does so after a number of commits proportional to them, so that the cost per commit is constant.
_SEGMENTS: Final = 1000

_SEGMENTS_PART: Final = 16

#: The number of commits that are read ahead in an object store. The log caches as many.
_AT_ONCE: Final = 64

#: Commits are kept for a sink while it is at most this many commits behind …
DELIVERY_COMMITS: Final = 1 << 17

#: … and their changes, of all relations, have at most this many bytes.
DELIVERY_BYTES: Final = 4 << 30

#: The bytes of dead letters kept for each relation. The newest ones are kept; older ones are only counted.
DEAD_BYTES: Final = 256 << 20

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keep:
    """History that is kept for possible readers: the commits of the last `age_us` microseconds.

    since: the commit before which nothing is kept. is_limited: history is only kept within the limits of an idle
    reader.
    """

    age_us: int
    since: int = 0
    is_limited: bool = False


def no_history(catalog: Catalog) -> list[Keep]:
    """The history to keep if only readers need history."""
    del catalog
    return []


def kept_history(catalog: Catalog) -> list[Keep]:
    """The history that the settings of a database and its subscriptions keep."""
    default = Keep(RETENTION_US, is_limited=True)
    subscriptions = (r for r in catalog.relations.values() if isinstance(r, NamedSubscription))
    return [
        default if catalog.retention_us is None else Keep(catalog.retention_us),
        *(Keep(s.retention_us, s.begun) for s in subscriptions),
    ]


class _Past(NamedTuple):
    """The clean-up's record of a checkpoint. transaction: that of its moment. before: the number of the previous
    checkpoint.
    """

    number: int
    transaction: int
    before: int
    time_us: int
    files: frozenset[str]


class Cleaner:
    """Deletes files that are needed neither by a reader, nor the current state, nor a start from the newest checkpoint,
    nor the history to keep. Only for the writer, one call at a time.

    Files of a running epoch or transaction are never deleted: segments of epochs above the newest are skipped, segments
    of transactions are only deleted with their commit. The cost of a call depends on the files added since the last
    one, not on those kept.
    """

    def __init__(
        self,
        layout: Layout,
        log: CommitLog,
        segments: SegmentFiles,
        *,
        idle_bytes: int | None = None,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """idle_bytes: the limit of bytes kept for idle readers. check_stop: raises an error if `run` must end early
        while it first reads all commits; the next call continues there.
        """
        self._layout, self._log, self._segments = layout, log, segments
        self._idle_bytes = IDLE_BYTES if idle_bytes is None else idle_bytes
        self._check_stop = check_stop
        self._counted = 0
        """The newest commit whose files are in `_named`."""
        self._named: Counter[int] = Counter()
        """The number of commits that name a file for their changes, by `file_key`."""
        self._known: dict[int, Named] = {}
        """The files named by commits above `_counted`, from checkpoints."""
        self._sizes: deque[tuple[int, int]] = deque()
        """(number, bytes of changes) of the newest commits."""
        self._checkpoints: dict[int, _Past] = {}
        self._freed: set[int] = set()
        """The commits that are no longer counted in `_named`, and may still exist."""
        self._going: set[str] = set()
        """Files, named by deleted commits, that may still exist after a failed clean-up, which is repeated."""
        self._left: set[int] | None = None
        """The commits up to `_announced` that may still exist, without fences; None before the first clean-up."""
        self._announced = 0
        self._ages = Ages()
        """Records of the commits that have checkpoints."""
        self._looked = (0, 0)
        """The newest commit at the last listing of all segments, and their number."""

    def run(self, newest: Checkpoint, history: Iterable[Keep] = ()) -> None:
        """Cleans up. newest: the newest checkpoint. history: the history to keep for possible readers."""
        layout, log = self._layout, self._log
        head = log.head()
        last = log.read(head) if head else None
        # This is first, because once another writer has taken over and cleaned up, these commits may be deleted and
        # their state in use.
        state = state_files(log, last, self._segments)
        before = read_low_water(layout)
        there = self._count(head, newest, before)
        announced = self._agree_on_low_water(newest, history, before)
        low_water = _granted(layout, announced.number)
        left = self._left_below(announced, there)
        deleted = sorted(n for n in left if n <= low_water and n not in _lasting(last))
        self._free(deleted)
        self._going |= self._forget_checkpoints(low_water, newest)
        needed = state | {name for c in self._checkpoints.values() for name in c.files} | _forked(layout)
        newest_epoch = log.read(last.last_epoch).epoch if last and last.last_epoch else None
        looked, number = self._looked
        in_whole = number <= _SEGMENTS or head - looked >= number // _SEGMENTS_PART
        segments = storage.list_names(layout.segments) if in_whole else sorted(self._going)
        unused = [
            name
            for name in segments
            if not (name in needed or file_key(name) in self._named)
            and (
                name in self._going
                or _is_past(name, newest_epoch, newest.moment.head)
                or ((writer := file_writer(name)) is not None and writer < log.writer)
            )
        ]
        # The result only counts if no other writer had taken over: if that writer deleted the commit of a file, the
        # file appears unused, although a snapshot names it. From here on a writer may take over, because it can only
        # need files that `newest` and the remaining commits name.
        log.check()
        # In ascending order, so that a crash in between leaves no gap above the remaining commits.
        storage.remove_files(layout.commit(n) for n in deleted)
        _remove_checkpoints(layout, self._checkpoints, newest.moment.head)
        storage.remove_files(layout.segments / name for name in unused)
        left.difference_update(deleted)
        self._freed.clear()
        self._going.clear()
        if in_whole:
            self._looked = (head, len(segments) - len(unused))
        if directories := layout.dead_directories():
            _clean_dead_letters(directories, self._oldest_epoch(head, announced))

    def _left_below(self, announced: LowWaterMark, there: Sequence[int]) -> set[int]:
        """`_left`, for an announced low-water mark. there: on the first call, all existing commits; then files of
        crashed attempts are also deleted.
        """
        if self._left is None:
            self._left = {n for n in announced.without_fences(there) if n <= announced.number}
        else:
            self._left.update({*range(self._announced + 1, announced.number + 1)} - announced.fences)
        self._announced = max(self._announced, announced.number)
        return self._left

    def _oldest_epoch(self, head: int, low_water: LowWaterMark) -> int:
        """The number of the first epoch whose commit still exists; 0 for none."""
        commits = (self._log.find(n) for n in commits_there(self._layout, low_water) if n <= head)
        return next((c.epoch for c in commits if c is not None and c.epoch is not None), 0)

    def _count(self, head: int, newest: Checkpoint, before: LowWaterMark) -> list[int]:
        """Reads which files the commits up to `head` name. before: the low-water mark that was read. The first call
        returns the numbers of all existing commits.
        """
        there = commits_there(self._layout, before) if self._left is None else []
        for checkpoint in () if self._checkpoints else all_checkpoints(self._layout, newest):
            self._check_stop()
            self._remember(checkpoint)
        next(self._past(newest), None)
        numbers = range(self._counted + 1, head + 1) if self._counted else [n for n in there if n <= head]
        for named in self._named_by(numbers, before.number):
            self._check_stop()
            self._named.update(named.files)
            self._sizes.append((named.number, named.size_bytes))
            self._counted = named.number
        while self._sizes and self._sizes[0][0] < head - IDLE_COMMITS:
            self._sizes.popleft()
        self._counted = head
        self._known.clear()
        return there

    def _named_by(self, numbers: Iterable[int], low_water: int) -> Iterable[Named]:
        """The files that commits name, ascending by commit.

        Commits that no checkpoint describes are read; up to the low-water mark, each is checked, because it may not be
        part of the history (`readers`).
        """
        known, unknown = [], []
        for number in numbers:
            if number > low_water and number in self._known:
                known.append(self._known[number])
            else:
                unknown.append(number)
        return merge(known, map(named_by, _commits(self._log, unknown)))

    def _free(self, deleted: Iterable[int]) -> None:
        """Subtracts the files of the commits that will be deleted."""
        for commit in _commits(self._log, [n for n in deleted if n not in self._freed]):
            files = commit.changed_files
            self._freed.add(commit.number)
            self._going |= files
            for key in map(file_key, files):
                self._named[key] -= 1
                if self._named[key] <= 0:
                    del self._named[key]

    def _agree_on_low_water(self, newest: Checkpoint, history: Iterable[Keep], before: LowWaterMark) -> LowWaterMark:
        """The new low-water mark, after it was announced to readers (see the protocol in `readers`).

        before: the mark that was read.
        """
        layout, log = self._layout, self._log
        self._ages.note(newest.moment.head)
        wanted = newest.moment.transaction
        if layout.directory is None:
            wanted = min(wanted, self._old_enough(newest, before.number))
        leases = [*readers.read_leases(layout), *_fork_leases(layout)]
        agreed = min(
            [
                wanted,
                *_waited_for(leases, log, newest, self._idle_bytes, before.number),
                *(self._kept_from(keep, before.number) for keep in history),
            ]
        )
        if agreed > before.number:
            numbers = range(before.number + 1, agreed + 1)
            log.cleaned = agreed  # This is before the leases are read again.
            return raise_low_water(layout, before, agreed, (log.read(n) for n in prefetched(log, numbers)))
        return replace(before, number=agreed)

    def _kept_from(self, keep: Keep, low_water: int) -> int:
        """The number above which all commits are kept."""
        log = self._log
        made = commit_at(log, time.time_ns() // 1000 - keep.age_us, low_water)
        number = max(made, self._ages.known_for(keep.age_us / 1e6), keep.since, low_water)
        if keep.is_limited:
            number = max(number, self._limit())
        if number == low_water:
            return low_water
        # The commit itself, which determines its moment, and all later changes.
        commit = log.read(number)
        epoch = commit.last_epoch or number
        return min(number, past_moment(log, number).transaction + 1, epoch if commit.follows else number) - 1

    def _limit(self) -> int:
        """The first commit that is followed by at most as many commits and bytes as an idle reader may need."""
        total_bytes = 0
        for number, size_bytes in reversed(self._sizes):
            total_bytes += size_bytes
            if total_bytes > self._idle_bytes:
                return number
        return self._counted - IDLE_COMMITS

    def _old_enough(self, newest: Checkpoint, low_water: int) -> int:
        """The number up to which readers that began in time need neither commits nor earlier content.

        Commits up to the low-water mark were old enough earlier, and are deleted. A commit that this process has known
        for that long is old, whatever its time, because its writer's clock may have been ahead.
        """
        wait_s = reading_s()
        before_us, known = time.time_ns() // 1000 - round(wait_s * 1e6), self._ages.known_for(wait_s)
        found = next((c for c in self._past(newest) if c.time_us <= before_us or c.number <= known), None)
        number = 0 if found is None else found.transaction
        while number > max(low_water, known) and self._log.read(number).time_us > before_us:
            number -= 1
        return number

    def _past(self, newest: Checkpoint) -> Iterator[_Past]:
        """`newest` and the existing earlier checkpoints, newest first."""
        number = newest.moment.head
        while number:
            found = self._checkpoints.get(number)
            if found is None:
                try:
                    c = newest if number == newest.moment.head else load_checkpoint(self._layout, number)
                except FileNotFoundError:
                    return
                found = self._remember(c)
            yield found
            number = found.before

    def _remember(self, checkpoint: Checkpoint) -> _Past:
        c = checkpoint
        found = _Past(c.moment.head, c.moment.transaction, c.before, c.time_us, frozenset(c.files))
        self._checkpoints[found.number] = found
        self._known.update((named.number, named) for named in c.named if named.number > self._counted)
        return found

    def _forget_checkpoints(self, low_water: int, newest: Checkpoint) -> set[str]:
        """Keeps `newest`, and earlier ones that commits above `low_water` need; returns the files of the others."""
        found = list(self._past(newest))
        kept = [c for c in found if c.number == newest.moment.head or c.transaction >= low_water]
        self._checkpoints = {c.number: c for c in kept}
        return {name for c in found if c.number not in self._checkpoints for name in c.files}


def clean_at_start(layout: Layout, log: CommitLog, segments: SegmentFiles) -> None:
    """Deletes files of crashed attempts, and finishes an interrupted clean-up. Only for the writer, between take-over
    and start.

    The cost does not grow with the number of commits: in an object store, where reading a commit takes a request, and
    in any database with many commits, the first clean-up handles the commits before the newest checkpoint, in parallel
    with epochs. If a segment of the state is missing or damaged, or in a directory a segment of the content is missing,
    this warns and deletes nothing. Raises DATABASE_DAMAGED if a commit that is read is missing.
    """
    newest = newest_checkpoint(layout, log)
    last = log.read(log.head())
    try:
        state = state_files(log, last, segments)
    except Error as damage:
        if damage.condition != "STATE_DAMAGED":
            raise
        log.check()  # another writer may have deleted it
        _logger.warning("%s: nothing is deleted, and the views whose state it is stop", damage.message)
        return
    announced = read_low_water(layout)
    in_store = layout.directory is None
    recent = newest.moment.transaction
    there = commits_there(layout, announced, after=recent if in_store else 0)
    numbers = [n for n in there if n <= last.number]
    low_water = _granted(layout, announced.number)
    # A loss of power, or a late request, may have brought back commits whose files are deleted.
    left = [n for n in numbers if n > low_water or n in _lasting(last)]
    in_whole = not in_store and len(left) <= _AT_START
    commits = list(_commits(log, left if in_whole else (n for n in left if n > recent)))
    needed = state.union(newest.files, *(c.changed_files for c in commits))
    names = set() if in_store else set(storage.list_names(layout.segments)) | layout.shared
    absent = (
        {p.name for p in storage.missing([layout.segment(n) for n in sorted(state)])} if in_store else needed - names
    )
    if absent:
        log.check()
        _logger.warning("%s segments are missing, as %s: nothing is deleted", len(absent), min(absent))
        return
    checkpoints = list(checkpoints_from(layout, newest)) if in_whole else []
    if in_whole:
        needed = needed.union(*(c.files for c in checkpoints)) | _forked(layout)
    log.check()  # Like in `Cleaner.run`.
    for directory in (
        layout.commits,
        layout.low_waters,
        layout.segments,
        layout.snapshots,
        layout.catalogs,
        layout.plans,
        layout.intents,
        layout.sources,
        layout.secrets,
        layout.forks,
        *layout.dead_directories(),
    ):
        storage.remove_temporaries(directory)
    # These include files of an overtaken writer that died before it deleted them.
    storage.remove_files(layout.commit(n) for n in sorted({*numbers} - {*left}))
    if in_whole:
        made = {n: file_writer(n) for n in sorted(names - needed - layout.shared)}
        unused = (n for n, writer in made.items() if writer is not None and writer < log.writer)
        storage.remove_files(layout.segments / n for n in unused)
        _remove_checkpoints(layout, {c.moment.head for c in checkpoints}, log.began - 1)
    remove_uncommitted(layout, log)
    readers.clear(layout)


def _forked(layout: Layout) -> set[str]:
    """The files that forks share. This is read before the check whether another writer has taken over, because only the
    newest writer creates forks, and records their files before that check.
    """
    return {name for fork in readers.read_forks(layout) for name in fork.files}


def _fork_leases(layout: Layout) -> list[Lease]:
    """The commits that forks must still replay, which are kept like those of a sink."""
    return [Lease(readers.DELIVERED, fork.needs) for fork in readers.read_forks(layout)]


def _granted(layout: Layout, low_water: int) -> int:
    """The number up to which commits can be deleted. A reader that was admitted while the mark was raised keeps the
    commits that it needs.
    """
    return min([low_water, *(h.commit for h in readers.read_leases(layout) if h.state == readers.ACTIVE)])


def _lasting(last: Commit | None) -> set[int]:
    """The commits that are always kept: the newest commit, and the two newest epochs, which contain the frontier and
    name the state that tasks still read.
    """
    return {last.number, last.last_epoch, last.epoch_before} if last else set()


def reading_s() -> float:
    """The seconds for which commits are kept for unknown readers of other processes. Raises INVALID_PARAMETER."""
    given_s = seconds_of(readers.READING)
    return _READING_S if given_s is None else given_s


def _waited_for(
    leases: Iterable[Lease], log: CommitLog, newest: Checkpoint, idle_bytes: int, low_water: int
) -> Iterator[int]:
    """For each active reader, and each other reader within its limits, the commit above which it needs all commits.

    low_water: a subscription or sink that needs commits below it is lost.
    """
    by_state: dict[str, list[int]] = {}
    for lease in leases:
        by_state.setdefault(lease.state, []).append(lease.commit)
    yield from by_state.get(readers.ACTIVE, ())
    head = newest.moment.head
    yield from _within(log, head, by_state.get(readers.IDLE, ()), IDLE_COMMITS, idle_bytes)
    kept = [c for c in by_state.get(readers.KEPT, ()) if c >= low_water]
    yield from _within(log, head, kept, KEPT_COMMITS, KEPT_BYTES)
    delivered = [c for c in by_state.get(readers.DELIVERED, ()) if c >= low_water]
    yield from _within(log, head, delivered, DELIVERY_COMMITS, DELIVERY_BYTES)


def _within(log: CommitLog, head: int, leases: Iterable[int], most_commits: int, most_bytes: int) -> Iterator[int]:
    """The commits, among those given, that are followed by at most these numbers of commits and bytes."""
    total_bytes, number = 0, head
    for commit in sorted((c for c in leases if head - c <= most_commits), reverse=True):
        total_bytes += changed_bytes(log, commit, number)
        number = min(number, commit)
        if total_bytes > most_bytes:
            return
        yield commit


def changed_bytes(log: CommitLog, after: int, upto: int) -> int:
    """The bytes of the changes of all relations in the commits after `after` up to `upto`."""
    return sum(log.read(n).change_bytes for n in range(after + 1, upto + 1))


def _commits(log: CommitLog, numbers: Iterable[int]) -> Iterator[Commit]:
    """The commits with these numbers that are part of the history."""
    return (c for n in prefetched(log, numbers) if (c := log.find(n)) is not None)


def prefetched(log: CommitLog, numbers: Iterable[int]) -> Iterator[int]:
    """The numbers, each returned after its commit was read ahead."""
    wanted = iter(numbers)
    while part := list(islice(wanted, _AT_ONCE)):
        log.prefetch(part)
        yield from part


def _remove_checkpoints(layout: Layout, kept: Collection[int], upto: int) -> None:
    """Deletes the checkpoints with numbers up to `upto` that are not among `kept`."""
    storage.remove_files(
        layout.snapshot_manifest(n) for n in file_numbers(layout.snapshots) if n <= upto and n not in kept
    )


def _clean_dead_letters(directories: Iterable[Path], before_epoch: int) -> None:
    """Deletes the oldest dead letters of relations above the limit, except those of existing commits, which may still
    be delivered.
    """
    for directory in directories:
        left_bytes, deleted = DEAD_BYTES, []
        for path in sorted(directory.iterdir(), reverse=True):  # their names begin with the numbers of epochs
            left_bytes -= path.stat().st_size
            number = path.name.partition("-")[0]
            if left_bytes < 0 and number.isdecimal() and int(number) < before_epoch:
                deleted.append(path)
        storage.remove_files(deleted)


def state_files(log: CommitLog, last: Commit | None, segments: SegmentFiles) -> set[str]:
    """The segment and run files of the state of the two newest epochs."""
    numbers = {last.last_epoch, last.epoch_before} - {0} if last else ()
    sections = {section for number in numbers for section in log.read(number).sections}
    return {file for segment, place in sorted(sections) for file in segments.referenced_files(segment, place)}


def _is_past(name: str, newest_epoch: int | None, newest_snapshot: int) -> bool:
    """Whether no running epoch or compaction can still need a file with this name."""
    epoch, snapshot = file_epoch(name), file_snapshot(name)
    if snapshot is not None:
        return snapshot <= newest_snapshot
    return epoch is not None and newest_epoch is not None and epoch <= newest_epoch
