"""Deleting what nobody needs: commits, snapshots and packs below every reader and the current state.

A writer that was overtaken may be in the middle of this, at any step and for however long. So nothing is chosen for
deletion that a later writer could need, or could come to need: commits only up to the floor, files only of numbers and
writers up to the cleaner's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Final

from watersmeet import storage
from watersmeet.errors import error
from watersmeet.store import readers
from watersmeet.store.catalogs import remove_uncommitted
from watersmeet.store.checkpoints import Checkpoint, checkpoints_from, newest_checkpoint
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.floors import raise_floor, read_floor
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.packfiles import PackFiles
from watersmeet.store.packs import file_epoch, file_writer
from watersmeet.store.readers import Hold
from watersmeet.store.snapshots import stem_number

#: A reader between two reads is waited for as long as it is at most this many commits behind …
IDLE_COMMITS: Final = 4096
#: … and their changes have at most so many bytes.
IDLE_BYTES: Final = 256 << 20
#: What a subscription that nobody reads still has to give is kept as long as it is at most this many commits behind …
KEPT_COMMITS: Final = 1 << 16
#: … and their changes, of all relations, have at most so many bytes.
KEPT_BYTES: Final = 1 << 30
#: In an object store readers of other processes are not known: commits, and checkpoints that are no longer the newest,
#: are kept for so many seconds. Who takes longer begins again.
_READING_S: Final = 600.0
#: What a sink still has to deliver is kept as long as it is at most this many commits behind …
DELIVERY_COMMITS: Final = 1 << 17
#: … and their changes, of all relations, have at most so many bytes.
DELIVERY_BYTES: Final = 4 << 30
#: Of each relation the newest dead letters are kept, so many bytes of them; older ones are only counted.
DEAD_BYTES: Final = 256 << 20


def clean(
    layout: Layout, log: CommitLog, packs: PackFiles, newest: Checkpoint, *, idle_bytes: int = IDLE_BYTES
) -> None:
    """Deletes what neither a reader, nor the current state, nor a start from `newest` needs.

    idle_bytes: what is kept for readers that are between two reads.
    Only for the writer, one call at a time. What a running epoch or transaction has written is never touched:
    packs of epochs above the newest are skipped, packs of transactions go only with their commit.
    """
    floor = _agree_on_floor(layout, log, newest, idle_bytes)
    head = log.head()
    last = log.read(head) if head else None
    # The newest epochs stay for ever: they hold the frontier, and the state that tasks still read.
    kept = {head, last.last_epoch, last.epoch_before} if last else set()
    gone = [n for n in file_numbers(layout.commits) if n <= floor and n not in kept]
    freed = {blob.file for c in _commits(log, gone) for change in c.relations.values() for blob in change.blobs}
    # Rising, so that a crash in between leaves no hole above the commits that are left.
    storage.remove_files(layout.commit(n) for n in gone)
    _clean_snapshots(layout, floor, newest)
    remaining = _commits(log, [n for n in file_numbers(layout.commits) if n <= head])
    needed = _needed_packs(remaining, last, packs)
    newest_epoch = log.read(last.last_epoch).epoch if last and last.last_epoch else None
    storage.remove_files(
        layout.packs / name
        for name in storage.list_names(layout.packs)
        if name not in needed and (name in freed or _is_past_epoch(name, newest_epoch))
    )
    _clean_dead_letters(layout, min((c.epoch for c in remaining if c.epoch is not None), default=0))


def clean_at_start(layout: Layout, log: CommitLog, packs: PackFiles) -> None:
    """Deletes what crashed attempts left, and finishes what a clean-up began. Only for the writer, after it took over
    and before it starts.

    STATE_DAMAGED or DATABASE_DAMAGED, with nothing deleted, if a file that a commit or the state names is missing.
    """
    newest = newest_checkpoint(layout, log)
    last = log.read(log.head())
    numbers = file_numbers(layout.commits)
    commits = _commits(log, numbers)
    needed = _needed_packs(commits, last, packs)
    names = set(storage.list_names(layout.packs))
    _check_present(needed - names, "packs")
    snapshot_names = set(storage.list_names(layout.snapshots))
    _check_present(newest.files - snapshot_names, "snapshots")
    for directory in (
        layout.commits,
        layout.packs,
        layout.snapshots,
        layout.catalogs,
        layout.plans,
        layout.intents,
        layout.sources,
        *layout.dead_directories(),
    ):
        storage.remove_temporaries(directory)
    # Made by a writer that was overtaken, which did not live to take them away.
    storage.remove_files(layout.commit(n) for n in sorted({*numbers} - {c.number for c in commits}))
    made = {n: file_writer(n) for n in sorted(names - needed)}
    storage.remove_files(layout.packs / n for n, writer in made.items() if writer is not None and writer < log.writer)
    _remove_snapshots(layout, list(checkpoints_from(layout, newest)), log.began - 1)
    remove_uncommitted(layout, log)
    readers.clear(layout)


def _agree_on_floor(layout: Layout, log: CommitLog, newest: Checkpoint, idle_bytes: int) -> int:
    """The number up to which commits may go now, announced to readers (the protocol is in `readers`)."""
    wanted = newest.moment.transaction
    if layout.directory is None:
        wanted = min(wanted, _old_enough(layout, log, newest))
    before = read_floor(layout)
    agreed = min([wanted, *_waited_for(readers.read_holds(layout), log, newest, idle_bytes, before.number)])
    if agreed > before.number:
        commits = [log.read(n) for n in range(before.number + 1, agreed + 1)]
        raise_floor(layout, before, agreed, commits)
    # Who came meanwhile and was let in keeps what it needs.
    return min([agreed, *(h.commit for h in readers.read_holds(layout) if h.state == readers.ACTIVE)])


def _old_enough(layout: Layout, log: CommitLog, newest: Checkpoint) -> int:
    """The number up to which nobody reads commits that began to read in time, nor needs the content before them."""
    before_us = time.time_ns() // 1000 - round(_reading_s() * 1e6)
    old = next((c for c in checkpoints_from(layout, newest) if c.time_us <= before_us), Checkpoint())
    number = old.moment.transaction
    while number and log.read(number).time_us > before_us:
        number -= 1
    return number


def _reading_s() -> float:
    try:
        return float(os.environ.get(readers.READING, _READING_S))
    except ValueError:
        raise error("INVALID_PARAMETER", f"{readers.READING} is not a number of seconds") from None


def _waited_for(
    holds: Iterable[Hold], log: CommitLog, newest: Checkpoint, idle_bytes: int, floor: int
) -> Iterator[int]:
    """The commits above which all are needed: for readers that read, and others that need little enough.

    floor: a subscription or sink that needs commits below it is lost.
    """
    by_state: dict[str, list[int]] = {}
    for hold in holds:
        by_state.setdefault(hold.state, []).append(hold.commit)
    yield from by_state.get(readers.ACTIVE, ())
    head = newest.moment.head
    yield from _within(log, head, by_state.get(readers.IDLE, ()), IDLE_COMMITS, idle_bytes)
    kept = [c for c in by_state.get(readers.KEPT, ()) if c >= floor]
    yield from _within(log, head, kept, KEPT_COMMITS, KEPT_BYTES)
    delivered = [c for c in by_state.get(readers.DELIVERED, ()) if c >= floor]
    yield from _within(log, head, delivered, DELIVERY_COMMITS, DELIVERY_BYTES)


def _within(log: CommitLog, head: int, holds: Iterable[int], most_commits: int, most_bytes: int) -> Iterator[int]:
    """Those of the commits behind which there are no more commits and bytes than that."""
    total_bytes, number = 0, head
    for commit in sorted((c for c in holds if head - c <= most_commits), reverse=True):
        total_bytes += changed_bytes(log, commit, number)
        number = min(number, commit)
        if total_bytes > most_bytes:
            return
        yield commit


def changed_bytes(log: CommitLog, after: int, upto: int) -> int:
    """How many bytes the changes have, of all relations, of the commits behind `after` up to `upto`."""
    return sum(c.size_bytes for n in range(after + 1, upto + 1) for c in log.read(n).relations.values())


def _commits(log: CommitLog, numbers: Iterable[int]) -> list[Commit]:
    """The commits of those numbers that are part of the history."""
    return [c for c in map(log.find, numbers) if c is not None]


def _clean_snapshots(layout: Layout, floor: int, newest: Checkpoint) -> None:
    """Deletes what comes before `newest` and is not needed for commits above `floor`."""
    found = checkpoints_from(layout, newest)
    _remove_snapshots(layout, [c for c in found if c == newest or c.moment.transaction >= floor], newest.moment.head)


def _remove_snapshots(layout: Layout, kept: list[Checkpoint], upto: int) -> None:
    """Deletes checkpoints and data files with numbers up to `upto` that are not of the checkpoints `kept`."""
    numbers = {c.moment.head for c in kept}
    used = {f for c in kept for f in c.files}
    storage.remove_files(
        layout.snapshot_manifest(n) for n in file_numbers(layout.snapshots) if n <= upto and n not in numbers
    )
    storage.remove_files(
        layout.snapshots / name
        for name in storage.list_names(layout.snapshots)
        if name.endswith(".parquet") and name not in used and _is_upto(name, upto)
    )


def _clean_dead_letters(layout: Layout, before_epoch: int) -> None:
    """Deletes the oldest dead letters of relations that have too many. What commits still have may be delivered."""
    for directory in layout.dead_directories():
        left_bytes, gone = DEAD_BYTES, []
        for path in sorted(directory.iterdir(), reverse=True):  # their names begin with the numbers of epochs
            left_bytes -= path.stat().st_size
            number = path.name.partition("-")[0]
            if left_bytes < 0 and number.isdecimal() and int(number) < before_epoch:
                gone.append(path)
        storage.remove_files(gone)


def _is_upto(name: str, number: int) -> bool:
    found = stem_number(name)
    return found is not None and found <= number


def _needed_packs(commits: Iterable[Commit], last: Commit | None, packs: PackFiles) -> set[str]:
    """The files that the changes of `commits` and the state of the two newest epochs lie in."""
    needed: set[str] = set()
    epochs = {last.last_epoch, last.epoch_before} if last else set()
    for commit in commits:
        needed.update(b.file for change in commit.relations.values() for b in change.blobs)
        if commit.number in epochs:
            for pack, place in commit.sections:
                needed |= packs.referenced_files(pack, place)
    return needed


def _is_past_epoch(name: str, newest_epoch: int | None) -> bool:
    epoch = file_epoch(name)
    return epoch is not None and newest_epoch is not None and epoch <= newest_epoch


def _check_present(missing: set[str], directory: str) -> None:
    if missing:
        name = min(missing)
        raise error(
            "DATABASE_DAMAGED",
            f"{name} is missing from {directory}",
            detail=f"{len(missing)} files that the database names are missing.",
        )
