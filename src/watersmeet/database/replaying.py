"""REPLAY: a fork reads the inputs that its main database has read since.

The commits of the main database are repeated in their order. The changes of a transaction are committed to the fork's
tables. An epoch gives the fork the same slices of sources, which the fork reads itself, and the same time. So a fork
that has not been changed has the same content afterwards. Each commit is replayed once, also after a crash: a
transaction of the fork names the commit in the same step (`Commit.captured`), and slices are known by the position that
follows them.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.transaction import Change
from watersmeet.errors import error
from watersmeet.store.backup import MAIN, note_replayed
from watersmeet.store.changes import fitted
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import RelationChange
from watersmeet.store.readers import Reader, low_water_number, read_fork
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.values.types import arrow_schema

#: The files of the main database stay for this many commits after the newest replayed one was noted.
_NOTED: Final = 64


def replayed_commit(layout: Layout, log: CommitLog) -> int:
    """The commit of the main database up to which a fork has all inputs."""
    head = log.head()
    noted = log.read(head).captured.get(MAIN) if head else None
    if noted is not None:
        return int(noted)
    fork = read_fork(Layout(layout.main, create=False, serves=False), layout.root.name)
    return 0 if fork is None else fork.commit


def replay(fork: OpenDatabase, upto: int | None = None) -> int:
    """Replays the commits of the main database up to `upto`, by default its newest. Returns the last one.

    Raises INVALID_PARAMETER for a commit that doesn't exist or was replayed, HISTORY_GONE.
    """
    main = Layout(fork.layout.main, create=False, serves=False)
    log = CommitLog(main)
    done, head = replayed_commit(fork.layout, fork.log), log.head()
    last = head if upto is None else upto
    if not done <= last <= head:
        raise error(
            "INVALID_PARAMETER",
            f"commit {last} can't be replayed",
            detail=f"The fork has the inputs up to commit {done}; the newest commit of the main database is {head}.",
        )
    with closing(Reader(main)) as reader, closing(SegmentFiles(main.segments)) as segments:
        if not reader.try_pin(done):
            raise error(
                "HISTORY_GONE",
                f"the commits of the main database after {done} are no longer kept",
                detail=f"Those up to {low_water_number(main)} may have been deleted.",
                hint="DROP FORK, and create another one.",
            )
        Replay(fork, log, segments).run(done, last)
    return last


class Replay:
    """One replay. log, segments: those of the main database."""

    def __init__(self, fork: OpenDatabase, log: CommitLog, segments: SegmentFiles) -> None:
        assert fork.feed is not None
        self._fork, self._log, self._segments = fork, log, segments
        self._feed = fork.feed
        self._marked = self._noted = 0

    def run(self, done: int, last: int) -> None:
        """Replays the commits after `done` up to `last`."""
        self._marked = self._noted = done
        for number in range(done + 1, last + 1):
            commit = self._log.read(number)
            if commit.kind == "transaction":
                self._transaction(commit)
            elif commit.kind == "epoch":
                self._epoch(commit)
        self._fork.flush()
        if self._marked < last:
            self._mark({}, last)
        note_replayed(self._fork.layout, last)

    def _transaction(self, commit: Commit) -> None:
        changes = {}
        for relation_id, change in commit.relations.items():
            relation = self._fork.catalog.relations.get(relation_id)
            if relation is not None and not relation.is_fed_by_circuit:
                changes[relation_id] = self._change(relation, change)
        self._mark(changes, commit.number)

    def _epoch(self, commit: Commit) -> None:
        taken = commit.progress.taken
        assert commit.frontier is not None
        known = self._fork.catalog.relations
        self._feed.give({i: (slices, commit.frontier.sources[i]) for i, slices in taken.items() if i in known})
        self._fork.clock.set(max(commit.progress.time_us, self._fork.clock.now_us()))
        self._fork.flush()
        if taken:
            self._mark({}, commit.number)

    def _change(self, relation: Relation, change: RelationChange) -> Change:
        stored = relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        parts = [self._segments.read_change(blob) for blob in change.blobs]
        table = pa.concat_tables([fitted(rows, schema, stored.fills).cast(schema) for rows, _ in parts])
        return Change(
            table.rename_columns([c.name for c in relation.columns]), np.concatenate([diff for _, diff in parts])
        )

    def _mark(self, changes: dict[str, Change], number: int) -> None:
        with self._fork.guard:
            self._fork.commit(changes, captured={MAIN: number})
        self._marked = number
        if number - self._noted >= _NOTED:
            note_replayed(self._fork.layout, number)
            self._noted = number
