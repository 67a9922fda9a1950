"""What subscribers get: for each commit, the changes of the relations that they follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.database.transaction import Change, consolidated
from watersmeet.store.changes import Diff, fitted
from watersmeet.store.commits import CommitLog
from watersmeet.store.manifests import Commit, RelationChange
from watersmeet.store.moments import Moment, past_moment
from watersmeet.store.packfiles import PackFiles
from watersmeet.types import arrow_schema

#: No batch has more rows.
BATCH_ROWS: Final = 1 << 16
#: What a batch takes in memory beside its columns, about.
_BATCH_BYTES: Final = 2048


@dataclass(frozen=True, eq=False)
class ChangeBatch:
    """Rows of one relation that a commit added or removed. Subscribers share it: don't change anything in it.

    relation: the name that the relation had when the subscriber began, with its schema unless that is the common one.
    rows: an Arrow batch with the relation's columns, at most 65,536 rows. diffs: int64, for each row how often it was
    added (above 0) or removed (below 0), never 0.
    """

    relation: str
    rows: pa.RecordBatch
    diffs: Diff
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def made(self, key: Any, make: Callable[[ChangeBatch], Any]) -> Any:
        """What `make` makes of the batch, text to be sent for example: once for all that ask with the same key."""
        if key not in self._made:
            self._made[key] = make(self)
        return self._made[key]


@dataclass(frozen=True)
class Update:
    """What a commit changed of the relations that a subscriber follows, in the order in which they were named.

    commit: its number. time_us: when it was made, in microseconds since 1970 (UTC). batches: of each relation, rows
    that go before rows that come; none if nothing changed. is_snapshot: it is the content at that commit, or a part of
    it, instead of a change. is_complete: False if more of the same commit follows. A subscriber that begins after the
    commit of a complete update gets exactly what follows it.
    """

    commit: int
    time_us: int
    batches: tuple[ChangeBatch, ...] = ()
    is_snapshot: bool = False
    is_complete: bool = True


@dataclass(frozen=True)
class Followed:
    """A relation as a subscriber follows it: its id, its name, and its columns as they were when it began."""

    relation: Relation

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for two that are followed alike."""
        return self.relation.id, self.relation.shown, self.relation.columns

    def batches(self, rows: pa.Table, diffs: Diff) -> tuple[ChangeBatch, ...]:
        """Rows with the columns' names as batches."""
        found = []
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS).combine_chunks()
            found.append(ChangeBatch(self.relation.shown, part.to_batches()[0], diffs[start : start + BATCH_ROWS]))
        return tuple(found)


@dataclass(frozen=True)
class Step:
    """A commit that changed something that is followed. changes: by `Followed.key`. size_bytes: of them, by key."""

    commit: int
    time_us: int
    changes: Mapping[tuple[Any, ...], tuple[ChangeBatch, ...]]
    size_bytes: Mapping[tuple[Any, ...], int]


class CommitReader:
    """Reads what commits changed, one after the other, of relations that may become others. One thread.

    A commit of an epoch changes the views, and the tables by all transactions that the epoch is the first to reflect:
    after it, all have the content of one moment, that of a SELECT. Where there are no views, a table changes with each
    transaction.
    """

    def __init__(self, log: CommitLog, packs: PackFiles, moment: Moment) -> None:
        """moment: of the commit behind which to begin."""
        self._log, self._packs = log, packs
        self._moment = moment

    @property
    def moment(self) -> Moment:
        """The moment of the commit that was read last. All commits behind its transaction are needed."""
        return self._moment

    def next(self, followed: Iterable[Followed]) -> Step:
        """What the next commit changed. It must be there."""
        number = self._moment.head + 1
        commit = self._log.read(number)
        before = self._moment.transaction
        shown = max(past_moment(self._log, number).transaction, before)
        changes, sizes = {}, {}
        for one in followed:
            found = self._changed(one.relation, commit, before, shown)
            if found and (batches := self._batches(one, found)):
                changes[one.key] = batches
                sizes[one.key] = sum(b.rows.nbytes + b.diffs.nbytes + _BATCH_BYTES for b in batches)
        self._moment = Moment(number, shown)
        return Step(number, commit.time_us, changes, sizes)

    def _changed(self, relation: Relation, commit: Commit, before: int, shown: int) -> list[RelationChange]:
        if relation.is_fed_by_circuit:
            commits: Sequence[Commit] = (commit,)
        else:
            commits = [self._log.read(n) for n in range(before + 1, shown + 1)]
        return [c.relations[relation.id] for c in commits if relation.id in c.relations]

    def _batches(self, one: Followed, changes: list[RelationChange]) -> tuple[ChangeBatch, ...]:
        stored = one.relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        parts = [self._packs.read_change(blob) for c in changes for blob in c.blobs]
        if not parts:
            return ()
        rows = pa.concat_tables([fitted(t, schema, stored.fills).select(schema.names) for t, _ in parts])
        change = Change(rows, np.concatenate([d for _, d in parts]))
        if not one.relation.append_only:
            change = consolidated(change)
            order = np.argsort(change.diffs > 0, kind="stable")
            change = Change(change.table.take(pa.array(order)), change.diffs[order])
        names = [c.name for c in one.relation.columns]
        return one.batches(change.table.rename_columns(names), change.diffs)
