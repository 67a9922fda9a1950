"""The keys of a table in memory: hashes of all keys that it ever had, and the newest rows of some keys.

A hash that is not among them proves that a key is new. A known hash proves nothing, because the row may have been
deleted, or another key may have the same hash.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.store.changes import RelationChange
from watersmeet.store.commits import CommitLog
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.values.types import arrow_schema

#: The hashes of larger tables would take too much memory.
MOST_KEYS: Final = 1 << 22

#: The number of recent hashes from which on they are merged into the sorted ones.
_RECENT: Final = 1 << 16

#: A table that is behind by more commits is read again.
_MOST_COMMITS: Final = 1 << 12


class KeyHashes:
    """The hashes of the keys of a table, up to commit `upto`. The caller holds the guard."""

    def __init__(self, relation: Relation, keys: pa.Table, upto: int) -> None:
        self.upto = upto
        self._relation = relation
        self._sorted = _distinct(hash_columns(keys.columns, keys.num_rows))
        self._recent: set[int] = set()

    @property
    def is_too_large(self) -> bool:
        """Whether the table has too many keys."""
        return len(self._sorted) > MOST_KEYS

    def fits(self, relation: Relation) -> bool:
        """Whether the hashes are those of a relation as it is now."""
        return self._relation.primary_key == relation.primary_key and self._relation.columns == relation.columns

    def hashes(self, rows: pa.Table) -> Hashes:
        """The hashes of the keys of rows."""
        return hash_columns([rows.column(k) for k in self._relation.primary_key], rows.num_rows)

    def are_new(self, hashes: Hashes) -> bool:
        """Whether the keys are distinct, and no row ever had one of them."""
        listed: list[int] = hashes.tolist()
        if len(set(listed)) < len(listed) or not self._recent.isdisjoint(listed):
            return False
        if not len(self._sorted):
            return True
        found = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        return not bool((self._sorted[found] == hashes).any())

    def add(self, hashes: Hashes) -> None:
        """Adds the hashes of written rows."""
        self._recent.update(hashes.tolist())
        if len(self._recent) > max(_RECENT, len(self._sorted) // 16):
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = _distinct(np.concatenate([self._sorted, recent]))
            self._recent.clear()

    def catch_up(self, log: CommitLog, segments: SegmentFiles) -> bool:
        """Adds the keys of all rows in later commits. False if this is not possible, because some were deleted, or
        there are too many.
        """
        head = log.head()
        if self.is_too_large:
            self.upto = head
        changes = _later_changes(log, self._relation, self.upto, head)
        if changes is None:
            return False
        for change in changes:
            for blob in change.blobs:
                self.add(self.hashes(segments.read_change(blob, self._relation.primary_key)[0]))
        self.upto = head
        return True


#: A table with more known rows, or a commit with more changes, is read again.
_MOST_ROWS: Final = 1 << 15


class KeyRows:
    """The newest rows of keys of a table: those that commits after its moment of views have changed, up to commit
    `upto`, and those that were looked up. The caller holds the guard.

    rows: one row or None (deleted) by the value of the only column of the primary key.
    """

    def __init__(self, relation: Relation, upto: int) -> None:
        self.upto = upto
        self.relation = relation
        self.rows: dict[object, pa.Table | None] = {}
        self._schema = arrow_schema(relation.columns, positional=False)

    @property
    def is_too_large(self) -> bool:
        """Whether it should be begun again."""
        return len(self.rows) > _MOST_ROWS

    def catch_up(self, log: CommitLog, segments: SegmentFiles) -> bool:
        """Adds the rows of later commits. False if this is not possible: it must be begun again."""
        head = log.head()
        changes = _later_changes(log, self.relation, self.upto, head)
        if changes is None:
            return False
        for change in changes:
            if change.inserted_rows + change.deleted_rows > _MOST_ROWS:
                return False
            found = [segments.read_change(blob) for blob in change.blobs]
            if any(rows.schema != self._schema for rows, _ in found):
                return False
            if found:
                self.note(pa.concat_tables([rows for rows, _ in found]), np.concatenate([diff for _, diff in found]))
        self.upto = head
        return True

    def note(self, rows: pa.Table, diff: npt.NDArray[np.int64]) -> None:
        """Adds the change of a commit, of few rows: of each key, the inserted row remains."""
        keys = rows.column(self.relation.primary_key[0]).to_pylist()
        inserted = diff > 0
        self.rows.update((keys[i], None) for i in np.flatnonzero(~inserted).tolist())
        self.rows.update((keys[i], rows.slice(i, 1)) for i in np.flatnonzero(inserted).tolist())


def _later_changes(log: CommitLog, relation: Relation, upto: int, head: int) -> list[RelationChange] | None:
    """The changes of a relation in the commits from `upto` + 1 to `head`; None if commits were deleted, or there are
    too many.
    """
    if head - upto > _MOST_COMMITS:
        return None
    commits = [log.find(number) for number in range(upto + 1, head + 1)]
    if None in commits:
        return None
    found = (commit.relations.get(relation.id) for commit in commits if commit is not None)
    return [change for change in found if change is not None]


def _distinct(hashes: Hashes) -> Hashes:
    """Different hashes in order. For random numbers, `np.unique` takes 60 times longer."""
    ordered = np.sort(hashes)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))]
