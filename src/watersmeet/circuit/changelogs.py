"""The operators that output the changes of their input as rows, which are never deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from watersmeet.circuit.base import Operator, PassThrough

#: The values of `@op`: an inserted and a deleted row, and the new and the old row of a key that has both.
INSERT, DELETE, UPDATE_INSERT, UPDATE_DELETE = 1, 2, 3, 4

#: The bits of `@row` that number the changes of an epoch, and those of them that are the number of the bucket.
EPOCH_BITS: Final = 32
BUCKET_BITS: Final = 8


@dataclass(frozen=True)
class Records(Operator):
    """The changes of an epoch as records, which are never deleted: the changed relation's columns, `deleted` (boolean),
    and the epoch (bigint).

    keys: positions; the input is `Changes`, whose last two columns are not output. A row that is inserted and deleted
    in one epoch is not a change. For each key, the records are the inserted rows; if there are none, a single record
    with `deleted`, NULL in all columns but `kept`, and there the values of one of the deleted rows, chosen by content.
    keys None: the inserted rows of the input. time: the position of the column that holds the time of the change
    instead of its own value, for a `deleted` record the greatest time. All changes of a key are in one bucket.
    """

    kind: ClassVar[str] = "records"
    adds: ClassVar[tuple[str, ...]] = ("@deleted", "@offset")
    keys: tuple[int, ...] | None
    kept: tuple[int, ...]
    time: int | None = None

    @property
    def passed(self) -> tuple[int | None, ...]:
        """A tombstone has NULL in the columns that are not `kept`."""
        own = range(len(self.schema) - len(self.adds))
        return (*(i if self.keys is None or i in self.kept else None for i in own), *(None,) * len(self.adds))


@dataclass(frozen=True)
class CauseSpec:
    """One side of the causes of changes. `match` and `time` are positions; see `algebra.arrivals.Cause`."""

    match: tuple[int, ...]
    time: int | None
    partners: int


@dataclass(frozen=True)
class Changes(PassThrough):
    """The inserted and deleted rows of the first input as rows that are never deleted: its columns, `went` (boolean:
    deleted), and `at` (timestamp), the time of the cause.

    `at` is the greatest time of its sides (`causes`). The changes on a side are the rows of an additional input for
    each cause, or without such inputs the inserted rows of the first input. The time of a side is the greatest time of
    its matching changes in the epoch and, for an inserted row or without such changes, the row's own time. A side that
    the row lacks (its time is NULL) is matched by the first `partners` columns, which must not be NULL. All rows that
    are equal in `match` (or in the first `partners` columns, if set) are in one bucket.

    The law: the sum of the inserted rows minus the deleted rows is always the content of the input.
    """

    kind: ClassVar[str] = "changes"
    adds: ClassVar[tuple[str, ...]] = ("@went", "@at")
    causes: tuple[CauseSpec, ...]


@dataclass(frozen=True)
class ChangeLog(PassThrough):
    """The inserted and deleted rows of the input as rows that are never deleted: its columns, `@op` (smallint) and
    `@row` (bigint).

    keys: positions; if a key has an inserted and a deleted row in an epoch, these are the new and the old row of an
    update. Without keys there are no updates. All rows of a key, or all equal rows without keys, are in one bucket. A
    row that is inserted and deleted in one epoch is not a change. `@row` is unique and increases with the epochs; the
    old row of an update precedes the new one.

    The law: the inserted and new rows minus the deleted and old rows are always the content of the input.
    """

    kind: ClassVar[str] = "changelog"
    adds: ClassVar[tuple[str, ...]] = ("@op", "@row")
    keys: tuple[int, ...]
