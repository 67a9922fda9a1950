"""Deleting what nobody needs: commits, snapshots and packs below every reader and the current state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from watersmeet.errors import error
from watersmeet.store import files, readers
from watersmeet.store.checkpoints import Checkpoint, checkpoint_numbers, load_checkpoint, newest_checkpoint
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.packfiles import PackFiles
from watersmeet.store.readers import Hold
from watersmeet.store.snapshots import stem_number

#: A reader between two reads is waited for as long as it is at most this many commits behind.
IDLE_COMMITS: Final = 4096


def clean(layout: Layout, log: CommitLog, packs: PackFiles, newest: Checkpoint) -> None:
    """Deletes what neither a reader, nor the current state, nor a start from `newest` needs.

    Only for the writer, one call at a time. What a running epoch or transaction has written is never touched:
    packs of epochs above the newest are skipped, packs of transactions go only with their commit.
    """
    floor = _agree_on_floor(layout, newest)
    head = log.head()
    last = log.read(head) if head else None
    # The newest epochs stay for ever: they hold the frontier, and the state that tasks still read.
    kept = {head, last.last_epoch, last.epoch_before} if last else set()
    numbers = _commit_numbers(layout)
    gone = [n for n in numbers if n <= floor and n not in kept]
    freed = {blob.file for n in gone for change in log.read(n).relations.values() for blob in change.blobs}
    # Rising, so that a crash in between leaves no hole above the commits that are left.
    files.remove_files(layout.commit(n) for n in gone)
    _clean_snapshots(layout, floor, newest)
    remaining = [log.read(n) for n in _commit_numbers(layout) if n <= head]
    needed = _needed_packs(remaining, last, packs)
    newest_epoch = log.read(last.last_epoch).epoch if last and last.last_epoch else None
    files.remove_files(
        layout.packs / name for name in files.list_names(layout.packs)
        if name not in needed and (name in freed or _is_past_epoch(name, newest_epoch))
    )


def clean_at_start(layout: Layout, log: CommitLog, packs: PackFiles) -> None:
    """Deletes what crashed attempts left, and finishes what a clean-up began. Only for the writer, before it starts.

    STATE_DAMAGED or DATABASE_DAMAGED, with nothing deleted, if a file that a commit or the state names is missing.
    """
    newest = newest_checkpoint(layout)
    head = log.head()
    last = log.read(head) if head else None
    commits = [log.read(n) for n in _commit_numbers(layout)]
    needed = _needed_packs(commits, last, packs)
    names = set(files.list_names(layout.packs))
    _check_present(needed - names, "packs")
    snapshot_names = set(files.list_names(layout.snapshots))
    _check_present(newest.files - snapshot_names, "snapshots")
    for directory in (layout.commits, layout.packs, layout.snapshots, layout.catalogs, layout.plans, layout.intents):
        files.remove_temporaries(directory)
    files.remove_files(layout.packs / n for n in sorted(names - needed) if n.endswith((".pack", ".run")))
    used = {f for n in checkpoint_numbers(layout) for f in load_checkpoint(layout, n).files}
    files.remove_files(layout.snapshots / n for n in sorted(snapshot_names - used) if n.endswith(".parquet"))
    readers.clear(layout)


def _agree_on_floor(layout: Layout, newest: Checkpoint) -> int:
    """The number up to which commits may go, announced to readers (the protocol is in `readers`)."""
    before = readers.read_floor(layout)
    wanted = newest.moment.transaction
    floor = min([wanted, *(h.commit for h in readers.read_holds(layout) if _counts(h, newest))])
    if floor <= before:
        return before
    readers.write_floor(layout, floor)
    late = min([floor, *(h.commit for h in readers.read_holds(layout) if h.state == readers.ACTIVE)])
    if late < floor:
        floor = max(late, before)
        readers.write_floor(layout, floor)
    return floor


def _counts(hold: Hold, newest: Checkpoint) -> bool:
    return hold.state == readers.ACTIVE or newest.moment.head - hold.commit <= IDLE_COMMITS


def _commit_numbers(layout: Layout) -> list[int]:
    return [int(n[:-5]) for n in files.list_names(layout.commits) if n.endswith(".json")]


def _clean_snapshots(layout: Layout, floor: int, newest: Checkpoint) -> None:
    used = set(newest.files)
    gone = []
    for number in checkpoint_numbers(layout):
        if number >= newest.moment.head:
            continue
        checkpoint = load_checkpoint(layout, number)
        if checkpoint.moment.transaction < floor:
            gone.append(layout.snapshot_manifest(number))
        else:
            used |= checkpoint.files
    files.remove_files(gone)
    files.remove_files(
        layout.snapshots / name for name in files.list_names(layout.snapshots)
        if name.endswith(".parquet") and name not in used and stem_number(name) <= newest.moment.head
    )


def _needed_packs(commits: Iterable[Commit], last: Commit | None, packs: PackFiles) -> set[str]:
    """The files that the changes of `commits` and the state of the two newest epochs lie in."""
    needed: set[str] = set()
    epochs = {last.last_epoch, last.epoch_before} if last else set()
    for commit in commits:
        needed.update(b.file for change in commit.relations.values() for b in change.blobs)
        if commit.number in epochs:
            for pack in commit.packs.values():
                needed |= packs.referenced_files(pack)
    return needed


def _is_past_epoch(name: str, newest_epoch: int | None) -> bool:
    epoch = name.partition("-")[0]
    return newest_epoch is not None and epoch.isdigit() and int(epoch) <= newest_epoch


def _check_present(missing: set[str], directory: str) -> None:
    if missing:
        name = min(missing)
        raise error("DATABASE_DAMAGED", f"{name} is missing from {directory}",
                    detail=f"{len(missing)} files that the database names are missing.")
