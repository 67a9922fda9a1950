"""The base classes of operators: inputs, columns, and an id that is a hash of the content; and operators that output
the changes of their input as rows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from watersmeet.values.serialization import from_json, kinds, to_json
from watersmeet.values.types import Schema


@dataclass(frozen=True, slots=True, order=True)
class InputColumn:
    """A column of an input of a join: the number of the input (left: 0) and the column's position in it."""

    input: int
    column: int

    @property
    def name(self) -> str:
        """Its name in SQL over the pairs of a join of two inputs: l0, r1."""
        return f"{'lr'[self.input]}{self.column}"

    @property
    def numbered_name(self) -> str:
        """Its name in SQL over the rows of a join of many inputs: t0_0, t2_1."""
        return f"t{self.input}_{self.column}"

    @staticmethod
    def of(name: str) -> InputColumn:
        """The column with a name of either kind."""
        if name[0] in "lr":
            return InputColumn("lr".index(name[0]), int(name[1:]))
        number, column = name.removeprefix("t").split("_")
        return InputColumn(int(number), int(column))


#: The classes of operators by their kind.
KINDS: Final[dict[str, type[Operator]]] = {}


@dataclass(frozen=True)
class Operator:
    """Base class. `inputs` are ids of operators; `schema` describes the output columns c0, c1, …

    append_only: whether the output never has a diff below 0. adds: the names of the last columns if they are always the
    same.
    """

    kind: ClassVar[str]
    adds: ClassVar[tuple[str, ...]] = ()
    inputs: tuple[str, ...]
    schema: Schema
    append_only: bool

    def __init_subclass__(cls, **options: Any) -> None:
        """Registers a class that has a `kind`; two classes never share one."""
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            assert cls.kind not in KINDS, f"two kinds of operators are called {cls.kind}"
            KINDS[cls.kind] = cls

    @cached_property
    def id(self) -> str:
        """`<kind>-<12 hex digits>` of the content (field names of the schema and flags included)."""
        return f"{self.kind}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    @cached_property
    def text(self) -> str:
        """The JSON form as compact text with sorted keys, so that equal operators have the same text."""
        return json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))

    @property
    def is_timed(self) -> bool:
        """Whether the passing of time can change the output or the state."""
        return False

    @property
    def passed(self) -> tuple[int | None, ...]:
        """For each output column, the column of the first input that it always equals, or None."""
        return (None,) * len(self.schema)


@dataclass(frozen=True)
class PassThrough(Operator):
    """An operator that outputs the columns of its first input, followed by `made` columns of its own."""

    @property
    def made(self) -> int:
        """The number of columns of its own."""
        return len(self.adds)

    @property
    def passed(self) -> tuple[int | None, ...]:
        return (*range(len(self.schema) - self.made), *(None,) * self.made)


kinds(Operator, KINDS)

#: Operators in use, by id: reading a circuit that has one more view creates only the new operators.
_KNOWN: Final[WeakValueDictionary[str, Operator]] = WeakValueDictionary()


def operator_of(operator_id: str, value: Any) -> Operator:
    """The operator with an id and a JSON form. Raises ValueError for any other JSON value."""
    found = _KNOWN.get(operator_id)
    if found is None:
        found = from_json(Operator, value)
        _KNOWN[found.id] = found
    return found


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
