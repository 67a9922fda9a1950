"""The commit log: numbered manifests, each created in one step and never changed; and the catalogs that they name.

To commit, a writer creates the file of the next number, which only succeeds for one writer. A process that opens a
database for writing first appends a fence, so that an earlier writer finds its next number taken. Fences are never
deleted. So an overtaken writer never succeeds again, however long it paused and whatever happened to the lock, and only
needs to check its next number.

Other commits up to the low-water mark may have been deleted, and a process that determined its next number long ago
could create such a number again. Therefore every process, after creating a fence or reading a commit, reads the
low-water mark (`readers`); only commits that the mark admits count.

Each version of the catalog is a file that never changes. The version that the newest commit names counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, takewhile
from typing import Any, Final

import pyarrow as pa

from watersmeet.catalog import Catalog
from watersmeet.errors import Error, ProgrammingError, again, error
from watersmeet.objectstores import storage
from watersmeet.store.changes import ChangeWriter, Diff
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.manifests import Commit as Commit
from watersmeet.store.manifests import Frontier as Frontier
from watersmeet.store.manifests import Process, Progress, commit_from_json
from watersmeet.store.manifests import RelationChange as RelationChange
from watersmeet.store.readers import LowWaterMark, low_water_number, read_low_water
from watersmeet.store.segments import Recent, SegmentWriter, transaction_prefix
from watersmeet.values.serialization import to_json

_CACHE_BYTES: Final = 16 << 20

#: The memory of a commit, as a multiple of its file's size (measured).
_PARSED: Final = 6

_FIRST_POLL_S: Final = 0.002
_LAST_POLL_S: Final = 0.05

#: In an object store each poll is a request.
_REMOTE_POLLS_S: Final = (0.1, 1.0)

#: The number of commits that are read for one check of the low-water mark.
_AT_ONCE: Final = 256

#: Times of commits always increase by at least a millisecond, even if the clock does not, so that a time identifies a
#: commit.
_APART_US: Final = 1_000

#: The number of attempts to create a commit if the file system neither reports success nor that the file exists.
_PUTS: Final = 3


def added(*counts: Mapping[str, int]) -> dict[str, int]:
    """The sums of counts by relation id, omitting sums of 0."""
    sums: dict[str, int] = {}
    for more in counts:
        for relation_id, number in more.items():
            if number:
                sums[relation_id] = sums.get(relation_id, 0) + number
    return sums


class _SameHead(threading.local):
    """head: the newest commit that this thread found inside `same_head`; 0 for none yet, None outside of it."""

    head: int | None = None


class CommitLog:
    """The commits of a database. Safe for several threads.

    writer: take over immediately (`take_over` does so after a given commit). Otherwise only reading is possible.
    cache_bytes: the limit of cached commits.
    """

    def __init__(self, layout: Layout, *, writer: bool = False, cache_bytes: int | None = None) -> None:
        self._layout = layout
        self._lock = threading.RLock()
        self._appended = threading.Condition(self._lock)
        self._cache: Recent[int, Commit] = Recent(_CACHE_BYTES if cache_bytes is None else cache_bytes)
        self._low_water = LowWaterMark()
        self._refused: Error | None = None
        self._same_head = _SameHead()
        self.cleaned = 0
        """The number up to which the writer's own clean-up may have deleted commits."""
        self._token = ""
        self._writer = 0
        self._began = 0
        self._head = 0
        while writer and not self.take_over(self.head()):
            pass

    @property
    def writer(self) -> int:
        """The number of this writer (`Commit.writer`); 0 for a reader."""
        return self._writer

    @property
    def began(self) -> int:
        """The number of the commit by which this writer took over. All files of later numbers are its own."""
        return self._began

    def take_over(self, after: int) -> bool:
        """Makes this the writer's log, by a fence as the commit after `after`: earlier writers fail from then on.

        If that commit exists already, does nothing and returns False.
        """
        with self._lock:
            before = self.find(after) if after else None
            if after and before is None:
                if self.head(anew=True) == after:
                    raise self._missing(after)
                return False
            self._token = secrets.token_hex(8)
            process = Process(os.getpid(), socket.gethostname())
            fence = Commit("fence", time_us=time.time_ns() // 1000, process=process)
            self._head = after
            numbered = self._numbered(fence, before, writer=before.writer + 1 if before else 1)
            if self._layout.durable:
                # The writer of the newest commit may have died before the file's name was flushed; after a loss of
                # power, the fence could exist without that commit.
                storage.sync_directory(self._layout.commits)
            size_bytes = self._put(numbered)
            if not size_bytes:
                return False
            low_water = low_water_number(self._layout)
            if numbered.number <= low_water and not self._is_kept(numbered):
                storage.discard(self._layout.commit(numbered.number))
                return False
            self.cleaned = low_water
            self._writer, self._began, self._head = numbered.writer, numbered.number, numbered.number
            self._remember(numbered, size_bytes)
            if self._layout.durable:
                storage.sync_directory(self._layout.commits)
            return True

    @contextlib.contextmanager
    def same_head(self) -> Iterator[None]:
        """A context in which this thread keeps the newest commit that it finds first, so that a reader's statement
        searches for it only once.
        """
        before, self._same_head.head = self._same_head.head, 0
        try:
            yield
        finally:
            self._same_head.head = before

    def head(self, *, anew: bool = False) -> int:
        """The number of the newest commit, 0 without commits. A reader lists a small folder for it, and raises
        UNDEFINED_OBJECT if the database is a fork that was dropped.

        anew: search even inside `same_head`, which then uses the result.
        """
        if self._writer:
            return self._head
        if self._same_head.head and not anew:
            return self._same_head.head
        with self._layout.explaining():
            found = self._newest()
        if self._same_head.head is not None:
            self._same_head.head = found
        return found

    def _newest(self) -> int:
        with self._lock:
            while True:
                found = self._search(max(self._head, self._low_water.number))
                # Only then, because an overtaken writer can't have recreated a commit above the low-water mark.
                if low_water_number(self._layout) > found:
                    self._low_water = read_low_water(self._layout)
                    continue
                self._head = found
                return found

    @property
    def cached_bytes(self) -> int:
        """The approximate size of the cached commits."""
        return self._cache.size_bytes

    def check(self) -> None:
        """Raises WRITER_FENCED if another writer has taken over."""
        with self._lock:
            if self._refused is not None:
                raise again(self._refused)
            if self._exists(self._head + 1):
                raise self._fenced()

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """A context in which errors caused by another writer's take-over (for example, missing files) become
        WRITER_FENCED.
        """
        try:
            yield
        except Exception as cause:
            refused = self.explain(cause)
            if refused is cause:
                raise
            raise refused from cause

    def explain(self, cause: Exception) -> Exception:
        """Raises WRITER_FENCED, instead of a failure of the store or an epoch, if another writer has taken over."""
        if self._writer and not isinstance(cause, ProgrammingError):
            try:
                self.check()
            except Error as refused:
                return refused if refused.condition == "WRITER_FENCED" else cause
        return cause

    def read(self, number: int) -> Commit:
        """Commit `number`. Raises DATABASE_DAMAGED if it is missing or damaged, or WRITER_FENCED if another writer is
        the reason.
        """
        found = self.find(number)
        if found is None:
            if self._writer:
                self.check()
            raise self._missing(number)
        return found

    def find(self, number: int) -> Commit | None:
        """Commit `number`; None if it was deleted. Raises DATABASE_DAMAGED."""
        with self._lock:
            found = self._cache.get(number)
            if found is not None:
                return found
        data = self._data(number)
        commit = None if data is None else self._parsed(number, data)
        if data is None or commit is None or not self._is_kept(commit):
            return None
        self._remember(commit, len(data))
        return commit

    def epoch_before(self, commit: Commit) -> Commit | None:
        """The epoch before an epoch; None if it is the first one, or that commit was deleted."""
        return self.find(commit.epoch_before) if commit.epoch_before else None

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Reads commits ahead. In an object store several are read at a time, with one check of the low-water mark."""
        if self._layout.directory is not None:
            return
        with self._lock:
            wanted = [n for n in numbers if self._cache.get(n) is None]
        for begin in range(0, len(wanted), _AT_ONCE):
            part = wanted[begin : begin + _AT_ONCE]
            found = storage.read_files([self._layout.commit(n) for n in part])
            low_water = low_water_number(self._layout)
            for number, data in zip(part, found, strict=True):
                if data is not None and number > low_water:
                    self._remember(self._parsed(number, data), len(data))

    def newest_transaction(self, head: int) -> int:
        """The number of the newest transaction as of commit `head`; 0 if there is none."""
        return self.read(head).last_transaction if head else 0

    def transactions(self, after: int, upto: int) -> Iterator[Commit]:
        """The transactions above commit `after` up to commit `upto`, ascending. An epoch must have reflected all up to
        `after`.

        Missing commits are never transactions, because those stay until an epoch has reflected them.
        """
        number = after
        while number < upto:
            number += 1
            commit = self.find(number)
            if commit is None:
                low_water = low_water_number(self._layout)
                if number > low_water:
                    commit = self.read(number)  # Raises the error with the reason.
                number = max(number, low_water)
            if commit is not None and commit.kind == "transaction":
                yield commit

    def last_epoch(self, at: int | None = None) -> Commit | None:
        """The newest epoch commit up to commit `at` (default: the head), or None."""
        for _ in range(100):
            head = self.head() if at is None else at
            if head == 0:
                return None
            try:
                number = self.read(head).last_epoch
                return self.read(number) if number else None
            except Exception:
                # Meanwhile the writer, in another process, created a newer epoch and deleted this one.
                if at is not None or self.head(anew=True) == head:
                    raise
        raise error("DATABASE_DAMAGED", f"the newest epoch in {self._layout.commits} can't be read")

    def progress(self) -> Progress:
        """The progress after the newest epoch; empty if there was none."""
        last = self.last_epoch()
        return Progress() if last is None else last.progress

    def append(self, commit: Commit) -> Commit:
        """Appends `commit`, and returns it with its number. All files that it names must exist.

        When this returns, the commit exists for ever (durably, if the database is durable); when it raises, the log is
        unchanged. Numbers of epochs must increase. Raises DISK_FULL, DATABASE_ACCESS, and from then on always
        WRITER_FENCED if another writer has taken over.
        """
        if not self._writer:
            raise error("INTERNAL_ERROR", "a reader can't append to the commit log")
        with self._lock:
            if self._refused is not None:
                raise again(self._refused)
            before = self.read(self._head)
            numbered = self._numbered(commit, before, writer=self._writer)
            if self._layout.durable and (numbered.relations or numbered.segments or numbered.kind == "checkpoint"):
                # One flush for the names of all files that the commit's tasks have written.
                storage.sync_directory(self._layout.segments)
            size_bytes = self._put(numbered)
            if not size_bytes:
                raise self._fenced()
            # From here on readers may have read the commit, so it stays.
            self._head = numbered.number
            self._remember(numbered, size_bytes)
            self._appended.notify_all()
            if self._layout.durable:
                try:
                    storage.sync_directory(self._layout.commits)
                except Error:
                    self._refused = _uncertain("an earlier commit could not be made durable")
                    raise
            return numbered

    def wait_past(self, number: int, timeout_s: float) -> bool:
        """Waits until there is a commit above `number`; False if there is none after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        pause_s, longest_s = _REMOTE_POLLS_S if self._layout.directory is None else (_FIRST_POLL_S, _LAST_POLL_S)
        with self._lock:
            while self.head() <= number:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                # No thread notifies a reader's condition; it wakes up to poll.
                self._appended.wait(left_s if self._writer else min(left_s, pause_s))
                pause_s = min(pause_s * 2, longest_s)
            return True

    def _put(self, commit: Commit) -> int:
        """Creates the file of a commit.

        Returns its number of bytes, or 0 if another commit has its number. If the file system reports anything but
        success, the existing file decides.
        """
        path = self._layout.commit(commit.number)
        data = self._layout.seal(path, to_json(commit))
        failure: Error | None = None
        for _ in range(_PUTS):
            try:
                storage.create_file(path, data, durable=self._layout.durable)
            except FileExistsError:
                pass
            except Error as cause:
                failure = cause
            else:
                return len(data)
            try:
                return len(data) if storage.read_file(path) == data else 0
            except FileNotFoundError:
                if failure is not None and failure.condition == "DISK_FULL":
                    break
        raise failure or _uncertain(f"commit {path.name} is there and is not")

    def _load(self, number: int) -> Commit | None:
        """The content of the file of commit `number`, whether or not the commit is part of the history; None without
        such a file.
        """
        data = self._data(number)
        return None if data is None else self._parsed(number, data)

    def _data(self, number: int) -> bytes | None:
        try:
            return storage.read_file(self._layout.commit(number))
        except FileNotFoundError:
            return None

    def _parsed(self, number: int, data: bytes) -> Commit:
        path = self._layout.commit(number)
        commit = commit_from_json(self._layout.unsealed(path, data), path.name)
        if commit.number != number:
            raise error("DATABASE_DAMAGED", f"{path.name} is damaged: it holds commit {commit.number}")
        return commit

    def _is_kept(self, commit: Commit) -> bool:
        """Whether a new fence, or a commit that was read, is part of the history according to the current low-water
        mark.
        """
        if commit.number > low_water_number(self._layout):
            return True
        self._low_water = read_low_water(self._layout)
        return self._low_water.admits(commit)

    def _missing(self, number: int) -> Error:
        path = self._layout.commit(number)
        return error("DATABASE_DAMAGED", f"commit {path.name} is missing from {path.parent}")

    def _fenced(self) -> Error:
        """The error for a next number that another commit has or had. From now on, this writer can't commit."""
        found = self._load(self._head + 1)
        if found is not None and found.token == self._token:
            self._refused = _uncertain("a commit that seemed to fail is in the log")
        else:
            self._refused = error(
                "WRITER_FENCED",
                f"the database at {self._layout.root} was taken over by {self._successor(found)}",
                detail=f"This is writer {self._writer}; its later commits do not count.",
                hint="Close the connection. Let one process at a time open a database for writing.",
            )
        return self._refused

    def _successor(self, next_commit: Commit | None) -> str:
        """The process of the writer that took over, from its fence."""
        if next_commit is not None and next_commit.kind == "fence":
            return next_commit.taken_over_by
        return "another writer"

    def _numbered(self, commit: Commit, before: Commit | None, *, writer: int) -> Commit:
        number = self._head + 1
        made = replace(commit, number=number, writer=writer, token=self._token)
        if before is not None:
            made = replace(
                made,
                time_us=max(made.time_us, before.time_us + _APART_US),
                last_epoch=before.last_epoch,
                epoch_before=before.epoch_before,
                last_transaction=before.last_transaction,
                rejected=added(before.rejected, commit.rejected),
                captured={i: p for i, p in {**before.captured, **commit.captured}.items() if p is not None},
                catalog=commit.catalog or before.catalog,
                follows=commit.follows if commit.catalog else before.follows,
                checkpoint=commit.checkpoint or before.checkpoint,
            )
        if commit.kind == "transaction":
            return replace(made, last_transaction=number)
        if commit.kind != "epoch":
            return made
        previous = self.read(made.last_epoch).epoch if made.last_epoch else None
        if commit.epoch is None or (previous is not None and commit.epoch <= previous):
            raise error("INTERNAL_ERROR", f"epoch {commit.epoch} is committed after epoch {previous}")
        return replace(made, last_epoch=number, epoch_before=made.last_epoch)

    def _remember(self, commit: Commit, file_bytes: int) -> None:
        with self._lock:
            self._cache.put(commit.number, commit, file_bytes * _PARSED)

    def _search(self, known: int) -> int:
        """The last of the contiguous commits that begin at `known`, found in logarithmically many steps."""
        if self._layout.directory is None:
            if not known:  # There are few checkpoints, and each has the number of a commit.
                return self._listed(max(file_numbers(self._layout.snapshots), default=0))
            return self._listed(known) if self._exists(known + 1) else known
        low, step = known, 1
        while self._exists(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._exists(middle) else (low, middle)
        return low

    def _listed(self, known: int) -> int:
        """Like `_search`, with one request for 1,000 commits."""
        names = storage.list_names(self._layout.commits, after=self._layout.commit(known).name)
        wanted = (self._layout.commit(n).name for n in count(known + 1))
        return known + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, wanted, strict=False)))

    def _exists(self, number: int) -> bool:
        return storage.exists(self._layout.commit(number))


def _uncertain(message: str) -> Error:
    return error("DATABASE_ACCESS", message, hint="Close the database and open it again.")


def write_transaction(
    layout: Layout,
    log: CommitLog,
    changes: Mapping[str, tuple[pa.Table, Diff | None]],
    *,
    copied: Mapping[str, int] | None = None,
    rejected: Mapping[str, int] | None = None,
    captured: Mapping[str, Any] | None = None,
    catalog: str = "",
    follows: bool = True,
) -> Commit:
    """Commits `changes` in one step: by relation id, the rows with their column names, and their diffs (None if all are
    1).

    rejected: by relation id, the number of rows that ordered streams did not accept. For other parameters, see
    `Commit`. After an error the log is unchanged.
    """
    writer = SegmentWriter(layout.segments, transaction_prefix(log.head() + 1, log.writer), durable=layout.durable)
    pending = {}
    for relation_id, (table, diff) in changes.items():
        blobs = ChangeWriter(writer, unread=False)
        blobs.add(table, diff)
        pending[relation_id] = blobs.finish()
    segment = writer.finish()
    relations = {i: change.within(segment) for i, change in pending.items()}
    return log.append(
        Commit(
            "transaction",
            time_us=time.time_ns() // 1000,
            relations=relations,
            copied=dict(copied or {}),
            rejected=dict(rejected or {}),
            captured=dict(captured or {}),
            catalog=catalog,
            follows=follows,
        )
    )


#: Older versions are deleted; a reader that has read a commit, but not yet its catalog, still finds that one.
_KEPT_VERSIONS: Final = 8

_NAME: Final = re.compile(r"([0-9]{12})-([0-9]+)\.json\Z")


@contextlib.contextmanager
def saving(layout: Layout, log: CommitLog, catalog: Catalog) -> Iterator[str]:
    """Stores `catalog`. Returns its name for the commit, within the context, that makes it valid.

    Without such a commit, the file is deleted again. Its version must be higher than all that this writer tried.
    """
    path = layout.catalog(f"{catalog.version:012d}-{log.writer}")
    try:
        storage.create_file(path, layout.seal(path, catalog.to_json()), durable=layout.durable)
    except FileExistsError as cause:
        raise error("INTERNAL_ERROR", f"catalog version {catalog.version} exists") from cause
    counts = False
    try:
        if layout.durable:
            storage.sync_directory(layout.catalogs)
        try:
            yield path.stem
        finally:
            counts = catalog_name(log) == path.stem
    finally:
        if not counts:
            storage.discard(path)
    with contextlib.suppress(Error):  # remaining files are small, and the next change of the catalog tries again
        _remove(layout, catalog.version - _KEPT_VERSIONS)


def save_catalog(layout: Layout, log: CommitLog, catalog: Catalog) -> None:
    """Stores `catalog` with a separate commit. After an error, the previous catalog stays the newest."""
    with saving(layout, log, catalog) as name:
        log.append(catalog_commit(catalog, name))


def catalog_commit(catalog: Catalog, name: str) -> Commit:
    """The commit that makes `catalog`, stored as `name`, valid."""
    return Commit("catalog", time_us=time.time_ns() // 1000, catalog=name, follows=catalog.follows_epochs)


def catalog_name(log: CommitLog) -> str:
    """The name of the catalog in the newest commit; "" in a new database."""
    while head := log.head():
        try:
            return log.read(head).catalog
        except Error:
            if log.head(anew=True) == head:  # otherwise the clean-up was faster
                raise
    return ""


def stored_catalog(layout: Layout, name: str) -> Catalog:
    """The stored catalog with a name. Raises FileNotFoundError, and DATABASE_DAMAGED if it can't be read."""
    path = layout.catalog(name)
    try:
        return Catalog.from_json(layout.unseal(path))
    except (KeyError, TypeError, IndexError, ValueError) as cause:
        raise error("DATABASE_DAMAGED", f"catalog/{path.name} is not a catalog") from cause


def load_catalog(layout: Layout, log: CommitLog) -> tuple[Catalog, str]:
    """The newest catalog and its name; an empty one in a new database. Raises DATABASE_DAMAGED if it can't be read."""
    while name := catalog_name(log):
        try:
            return stored_catalog(layout, name), name
        except FileNotFoundError as cause:
            log.head(anew=True)
            if catalog_name(log) == name:
                path = layout.catalog(name)
                raise error("DATABASE_DAMAGED", f"catalog {path.name} is missing from {path.parent}") from cause
            continue  # The writer replaced it meanwhile: try again.
    return Catalog(), ""


def remove_uncommitted(layout: Layout, log: CommitLog) -> None:
    """Deletes catalogs that earlier writers stored but did not commit."""
    committed = int(log.read(log.began).catalog.partition("-")[0] or 0)
    found = [m for n in storage.list_names(layout.catalogs) if (m := _NAME.match(n))]
    storage.remove_files(layout.catalogs / m.string for m in found if int(m[1]) > committed and int(m[2]) < log.writer)


def _remove(layout: Layout, upto: int) -> None:
    """Deletes the catalogs of versions up to `upto`."""
    found = [m for n in storage.list_names(layout.catalogs) if (m := _NAME.match(n))]
    storage.remove_files(layout.catalogs / m.string for m in found if int(m[1]) <= upto)
