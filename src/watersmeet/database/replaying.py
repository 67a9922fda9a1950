"""REPLAY: a fork reads the inputs that its main database has read since.

The epochs of the main database are repeated in their order. For each, the transactions that it is the first to reflect
are committed to the fork's tables; then the fork reads the same slices of sources by itself, at the same time. So a
fork that has not been changed shows what the main database showed at that commit. Each commit is replayed once, also
after a crash: a transaction of the fork names the position in the same step (`Commit.captured`), and slices are known
by the position of their source that follows them.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

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
from watersmeet.store.manifests import Frontier, RelationChange
from watersmeet.store.readers import Reader, low_water_number, read_fork
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.values.types import arrow_schema

#: The files of the main database stay for this many commits after the newest replayed one was noted.
_NOTED: Final = 64


class Position(NamedTuple):
    """The inputs that a fork has: the transactions and the epochs of the main database up to these commits."""

    transaction: int
    epoch: int


def position_of(layout: Layout, log: CommitLog) -> Position:
    """The inputs that a fork has."""
    head = log.head()
    noted = log.read(head).captured.get(MAIN) if head else None
    if noted is not None:
        return Position(*noted)
    fork = read_fork(Layout(layout.main, create=False, serves=False), layout.root.name)
    return Position(0, 0) if fork is None else Position(fork.commit, fork.commit)


def replay(fork: OpenDatabase, upto: int | None = None) -> int:
    """Replays the commits of the main database up to `upto`, by default its newest. Returns the last one.

    Raises INVALID_PARAMETER for a commit that doesn't exist or was replayed, HISTORY_GONE.
    """
    main = Layout(fork.layout.main, create=False, serves=False)
    log = CommitLog(main)
    position, head = position_of(fork.layout, fork.log), log.head()
    last = head if upto is None else upto
    if not position.epoch <= last <= head:
        raise error(
            "INVALID_PARAMETER",
            f"commit {last} can't be replayed",
            detail=f"The fork has the inputs up to commit {position.epoch}; the newest commit of the main database is "
            f"{head}.",
        )
    with closing(Reader(main)) as reader, closing(SegmentFiles(main.segments)) as segments:
        if not reader.try_pin(min(position)):
            raise error(
                "HISTORY_GONE",
                f"the commits of the main database after {min(position)} are no longer kept",
                detail=f"Those up to {low_water_number(main)} may have been deleted.",
                hint="DROP FORK, and create another one.",
            )
        Replay(fork, log, segments, position).run(last)
    return last


class Replay:
    """One replay. log, segments: those of the main database. position: where it begins."""

    def __init__(self, fork: OpenDatabase, log: CommitLog, segments: SegmentFiles, position: Position) -> None:
        assert fork.feed is not None
        self._fork, self._log, self._segments = fork, log, segments
        self._feed = fork.feed
        self._position = self._marked = self._noted = position

    def run(self, last: int) -> None:
        """Replays the commits up to `last`."""
        for number in range(self._position.epoch + 1, last + 1):
            commit = self._log.read(number)
            if commit.kind == "epoch" and commit.frontier is not None:
                self._transactions(commit.frontier.transaction)
                self._epoch(commit, commit.frontier)
        if last and not self._log.read(last).follows:
            self._transactions(last)  # without views, tables are shown as they are
        self._fork.flush()
        if self._marked != (self._position.transaction, last):
            self._mark({}, self._position._replace(epoch=last))
        note_replayed(self._fork.layout, *self._position)

    def _transactions(self, last: int) -> None:
        """Replays the transactions up to `last`."""
        for number in range(self._position.transaction + 1, last + 1):
            commit = self._log.read(number)
            if commit.kind == "transaction":
                known = self._fork.catalog.relations
                changes = {i: c for i, c in commit.relations.items() if i in known and not known[i].is_fed_by_circuit}
                changed = {i: self._change(known[i], c) for i, c in changes.items()}
                self._mark(changed, self._position._replace(transaction=number))

    def _epoch(self, commit: Commit, frontier: Frontier) -> None:
        known, taken = self._fork.catalog.relations, commit.progress.taken
        self._feed.give({i: (slices, frontier.sources[i]) for i, slices in taken.items() if i in known})
        self._fork.clock.set(max(commit.progress.time_us, self._fork.clock.now_us()))
        self._fork.flush()
        if taken:
            self._mark({}, self._position._replace(epoch=commit.number))
        else:
            self._position = self._position._replace(epoch=commit.number)

    def _change(self, relation: Relation, change: RelationChange) -> Change:
        stored = relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        parts = [self._segments.read_change(blob) for blob in change.blobs]
        table = pa.concat_tables([fitted(rows, schema, stored.fills).cast(schema) for rows, _ in parts])
        return Change(
            table.rename_columns([c.name for c in relation.columns]), np.concatenate([diff for _, diff in parts])
        )

    def _mark(self, changes: dict[str, Change], position: Position) -> None:
        """Commits changes together with the position after them."""
        with self._fork.guard:
            self._fork.commit(changes, captured={MAIN: list(position)})
        self._position = self._marked = position
        if min(position) - min(self._noted) >= _NOTED:
            note_replayed(self._fork.layout, *position)
            self._noted = position
