"""How far the subscriptions of a database were read: in files beside the commits, one for each subscription.

The name of a file has the number of the writer that made it, and the one of the newest writer counts: what a writer
that was overtaken saves is no longer looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from watersmeet import files
from watersmeet.errors import Error, error
from watersmeet.serialization import from_json, to_json
from watersmeet.store.commits import CommitLog
from watersmeet.store.floors import floor_number
from watersmeet.store.layout import Layout, writer_files
from watersmeet.store.readers import Reader


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a query that runs has given, as far as what it gives next hangs on it.

    version: of the last emission. left: rows that may still come, None: any number. offset: rows to be left out before.
    period: the first one that was not given yet.
    """

    version: int = 0
    left: int | None = None
    offset: int = 0
    period: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """The place in the changes of a subscription up to which they were handed out.

    taken: the commit up to which they were; emitted: what the query had given by then. since: all commits above it are
    needed: of those up to `taken` the periods that were not over. If the rows of the next ones were handed out in part:
    upto, asked_us: the commit up to which those go and the moment at which they were asked for; given: how many rows.
    """

    since: int
    taken: int
    emitted: Emitted = field(default_factory=Emitted)
    upto: int | None = None
    asked_us: int = 0
    given: int = 0


@dataclass(slots=True)
class _Kept:
    """saved: None with the reason `problem`. reader: holds the commits that are still needed."""

    saved: Position | None
    reader: Reader
    problem: Error | None = None


class Positions:
    """The positions of all subscriptions, and holds on the commits that they need. Of the writer; thread-safe.

    Subscriptions that were forgotten are unknown here, and saving one does nothing.
    """

    def __init__(self, layout: Layout, log: CommitLog, subscriptions: Iterable[str]) -> None:
        """subscriptions: ids of those that there are; what else was saved is deleted. Before anything is cleaned up."""
        self._layout, self._log = layout, log
        self._lock = threading.Lock()
        self._known: dict[str, _Kept] = {}
        files.remove_temporaries(layout.subscriptions)
        newest = self._newest()
        for relation_id in subscriptions:
            kept = self._known[relation_id] = _Kept(None, Reader(layout))
            try:
                kept.saved = self._read(relation_id, newest.get(relation_id))
            except Error as problem:
                kept.problem = problem
                continue
            kept.reader.keep(kept.saved.since)
            self._write(relation_id, kept.saved)  # under our number: nothing that a writer before saves counts now
        self._remove_others()

    def begin(self, relation_id: str, position: Position) -> None:
        """A new subscription, which is being read."""
        with self._lock:
            kept = self._known[relation_id] = _Kept(position, Reader(self._layout))
            kept.reader.hold(position.since)
            self._write(relation_id, position)

    def resume(self, relation_id: str) -> Position | None:
        """The position of a subscription, which is being read from now on; None if it is lost.

        DATABASE_DAMAGED if it can't be read.
        """
        with self._lock:
            kept = self._known[relation_id]
            if kept.saved is None:
                assert kept.problem is not None
                raise kept.problem
            if kept.reader.hold(kept.saved.since):
                return kept.saved
            kept.reader.keep(kept.saved.since)
            return None

    def save(self, relation_id: str, position: Position) -> None:
        """From now on the subscription goes on there, also after a crash. WRITER_FENCED."""
        self._log.check()
        with self._lock:
            kept = self._known.get(relation_id)
            if kept is None:
                return
            if position != kept.saved:
                self._write(relation_id, position)
                kept.saved = position
            kept.reader.hold(position.since)

    def rest(self, relation_id: str) -> None:
        """Nobody reads the subscription for now."""
        with self._lock:
            kept = self._known.get(relation_id)
            if kept is not None and kept.saved is not None:
                kept.reader.keep(kept.saved.since)

    def since(self, relation_id: str) -> int | None:
        """The commit above which all are needed for a subscription; None if it is lost."""
        with self._lock:
            kept = self._known.get(relation_id)
            lost = kept is None or kept.saved is None or floor_number(self._layout) > kept.saved.since
            return None if lost or kept is None or kept.saved is None else kept.saved.since

    def forget(self, relation_ids: Iterable[str]) -> None:
        """These subscriptions are gone."""
        with self._lock:
            for relation_id in relation_ids:
                kept = self._known.pop(relation_id, None)
                if kept is not None:
                    kept.reader.close()
                    files.discard(self._layout.position(relation_id, self._log.writer))

    def close(self) -> None:
        """Let go of all commits."""
        with self._lock:
            for kept in self._known.values():
                kept.reader.close()

    def _write(self, relation_id: str, position: Position) -> None:
        path = self._layout.position(relation_id, self._log.writer)
        files.replace_file(path, self._layout.seal(path, to_json(position)), durable=self._layout.durable)

    def _read(self, relation_id: str, writer: int | None) -> Position:
        if writer is None:
            raise error("DATABASE_DAMAGED", f"the position of subscription {relation_id} is missing from subscriptions")
        path = self._layout.position(relation_id, writer)
        try:
            return from_json(Position, self._layout.unseal(path))
        except ValueError as cause:
            raise error("DATABASE_DAMAGED", f"subscriptions/{path.name} is not a position") from cause

    def _newest(self) -> dict[str, int]:
        """The number of the newest writer that saved each subscription."""
        return {f.id: f.writer for f in writer_files(self._layout.subscriptions) if f.writer <= self._log.writer}

    def _remove_others(self) -> None:
        """Deletes what writers before this one saved, but for what could not be read."""
        for file in writer_files(self._layout.subscriptions):
            kept = self._known.get(file.id)
            if (file.writer < self._log.writer and (kept is None or kept.saved is not None)) or (
                file.writer == self._log.writer and kept is None
            ):
                files.discard(file.path)
