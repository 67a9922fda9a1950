"""The commit log: numbered manifests, each put in place in one step and never changed.

A reader finds the newest commit in O(1) whatever the history: the file HEAD holds a number that is at most
a little behind, and commits are contiguous from there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from watersmeet.errors import Error, error
from watersmeet.store import files
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import BlobRef as BlobRef
from watersmeet.store.manifests import Commit as Commit
from watersmeet.store.manifests import Frontier as Frontier
from watersmeet.store.manifests import RelationChange as RelationChange

_HEAD: Final = "HEAD"
_CACHED_COMMITS: Final = 1024
_FIRST_POLL_S: Final = 0.002
_LAST_POLL_S: Final = 0.05


def added(*counts: Mapping[str, int]) -> dict[str, int]:
    """The sums of counts by relation id, without those that are 0."""
    sums: dict[str, int] = {}
    for more in counts:
        for relation_id, number in more.items():
            if number:
                sums[relation_id] = sums.get(relation_id, 0) + number
    return sums


class CommitLog:
    """The commits of a database.

    writer: whether this process holds the writer lock; only then `append` may be called.
    All methods may be called from several threads.
    """

    def __init__(self, layout: Layout, *, writer: bool = False) -> None:
        self._layout = layout
        self._writer = writer
        self._lock = threading.RLock()
        self._appended = threading.Condition(self._lock)
        self._cache: OrderedDict[int, Commit] = OrderedDict()
        self._hint_path = layout.commits / _HEAD
        self._hint_handle: int | None = None
        self._failed = False
        self._head = 0
        self._head = self._find_head()

    def head(self) -> int:
        """The number of the newest commit; 0 if there is none. Three system calls for a foreign reader."""
        if self._writer:
            return self._head
        with self._lock:
            self._head = self._find_head()
            return self._head

    def read(self, number: int) -> Commit:
        """Commit `number`. DATABASE_DAMAGED if it is missing or damaged."""
        with self._lock:
            found = self._cache.get(number)
            if found is not None:
                self._cache.move_to_end(number)
                return found
        path = self._layout.commit(number)
        try:
            data = files.read_file(path)
        except FileNotFoundError as cause:
            raise error("DATABASE_DAMAGED", f"commit {path.name} is missing from {path.parent}") from cause
        commit = Commit.from_bytes(data, path.name)
        self._remember(commit)
        return commit

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
                # A foreign reader was overtaken: a newer epoch came and this one was cleaned away.
                if at is not None or self.head() == head:
                    raise
        raise error("DATABASE_DAMAGED", f"the newest epoch in {self._layout.commits} can't be read")

    def append(self, commit: Commit) -> Commit:
        """Makes `commit` the next one: it is given with its number. All files that it names must be in place.

        When this returns, the commit is there for ever (durably, if the database is durable); when it raises,
        the log is as it was. Epochs must rise. DISK_FULL, DATABASE_ACCESS.
        """
        if not self._writer:
            raise error("INTERNAL_ERROR", "a reader can't append to the commit log")
        with self._lock:
            if self._failed:
                raise error("DATABASE_ACCESS", "an earlier commit could not be made durable",
                            hint="Close the database and open it again.")
            before = self.read(self._head) if self._head else None
            numbered = self._numbered(commit, before)
            path = self._layout.commit(numbered.number)
            if self._layout.durable and (numbered.relations or numbered.packs):
                # One flush for the names of all files that the commit's tasks have written.
                files.sync_directory(self._layout.packs)
            try:
                files.create_file(path, numbered.to_bytes(), durable=self._layout.durable)
            except FileExistsError as cause:
                raise error("DATABASE_IN_USE", f"commit {path.name} was written by another process") from cause
            # From here on readers may have seen it: it is a fact whatever comes.
            self._head = numbered.number
            self._remember(numbered)
            self._write_hint()
            self._appended.notify_all()
            if self._layout.durable:
                try:
                    files.sync_directory(self._layout.commits)
                except Error:
                    self._failed = True
                    raise
            return numbered

    def wait_past(self, number: int, timeout_s: float) -> bool:
        """Waits until there is a commit above `number`; False if there is none after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_POLL_S
        with self._lock:
            while self.head() <= number:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                # A foreign reader's condition is never notified: the wait is its pause between polls.
                self._appended.wait(left_s if self._writer else min(left_s, pause_s))
                pause_s = min(pause_s * 2, _LAST_POLL_S)
            return True

    def close(self) -> None:
        """Closes the handles. May be called again."""
        with self._lock:
            handle, self._hint_handle = self._hint_handle, None
            if handle is not None:
                os.close(handle)

    def _numbered(self, commit: Commit, before: Commit | None) -> Commit:
        number, rejected = self._head + 1, added(before.rejected if before is not None else {}, commit.rejected)
        last, earlier, transaction = (0, 0, 0)
        if before is not None:
            last, earlier, transaction = before.last_epoch, before.epoch_before, before.last_transaction
        if commit.kind == "transaction":
            return replace(commit, number=number, last_epoch=last, epoch_before=earlier, last_transaction=number, rejected=rejected)
        previous = self.read(last).epoch if last else None
        if commit.epoch is None or (previous is not None and commit.epoch <= previous):
            raise error("INTERNAL_ERROR", f"epoch {commit.epoch} is committed after epoch {previous}")
        return replace(commit, number=number, last_epoch=number, epoch_before=last, last_transaction=transaction, rejected=rejected)

    def _remember(self, commit: Commit) -> None:
        with self._lock:
            self._cache[commit.number] = commit
            while len(self._cache) > _CACHED_COMMITS:
                self._cache.popitem(last=False)

    def _find_head(self) -> int:
        known = max(self._head, self._read_hint())
        if not self._exists(known + 1):
            if known and self._exists(known):
                return known
            known = self._list_head()  # HEAD is lost, torn or far behind: look at everything once.
        low, step = known, 1
        while self._exists(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._exists(middle) else (low, middle)
        return low

    def _exists(self, number: int) -> bool:
        return files.exists(self._layout.commit(number))

    def _list_head(self) -> int:
        names = files.list_names(self._layout.commits)
        return max((int(n[:-5]) for n in names if n.endswith(".json")), default=0)

    def _read_hint(self) -> int:
        if self._hint_handle is None:
            flags = os.O_RDWR | os.O_CREAT if self._writer else os.O_RDONLY
            try:
                self._hint_handle = os.open(self._hint_path, flags, 0o644)
            except OSError:
                return 0
        text = os.pread(self._hint_handle, 13, 0)
        return int(text) if len(text) == 13 and text[:12].isdigit() else 0

    def _write_hint(self) -> None:
        # Written in place and not flushed: a hint that is torn, old or lost costs only time.
        if self._hint_handle is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._hint_handle, b"%012d\n" % self._head, 0)
