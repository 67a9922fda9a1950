"""Changes of tables: made by statements, collected by a transaction, committed in one step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog
from watersmeet.kernel.arrays.columns import has_floats, one_form
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.session.definitions import Definitions
from watersmeet.store.changes import Diff
from watersmeet.store.commits import added


@dataclass(frozen=True, eq=False)
class Change:
    """Rows (columns by the relation's names, in order) and by how much each is added; diff None: once each."""

    table: pa.Table
    diff: Diff | None = None

    @property
    def diffs(self) -> Diff:
        """The diff as an array."""
        return np.ones(self.table.num_rows, np.int64) if self.diff is None else self.diff


class Stoppable(Protocol):
    """A query that runs until it is closed.

    name: its id. text: as it was written. started_us: when, in microseconds since 1970 (UTC).
    """

    name: str
    text: str
    started_us: int

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def kill(self) -> None:
        """Ends it; who asks for its rows gets QUERY_CANCELED."""
        ...

    def close(self) -> None:
        """Ends it. May be called again."""
        ...


@dataclass
class Transaction:
    """An open BEGIN … COMMIT. failed: a statement raised an error, so that only ROLLBACK is left.

    committed: what it did is done, also if COMMIT raises because views could not be brought up to date.
    running: queries that began in it. ends: what is given back when it is over. clocks, rejected: by relation id, of
    ordered streams: the time of the newest row written, in microseconds, and how many rows were not taken.
    """

    read_only: bool = False
    failed: bool = False
    committed: bool = False
    changes: dict[str, list[Change]] = field(default_factory=dict)
    """By relation id."""
    clocks: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    definitions: Definitions = field(default_factory=Definitions)
    running: weakref.WeakSet[Stoppable] = field(default_factory=weakref.WeakSet)
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def drop(self, ids: Iterable[str], catalog: Catalog) -> set[str]:
        """See `Definitions.drop`; what was written to them is forgotten."""
        for by_id in (self.changes, self.clocks, self.rejected):
            for relation_id in ids:
                by_id.pop(relation_id, None)
        return self.definitions.drop(ids, catalog)

    def add(self, relation_id: str, change: Change, rejected: int) -> None:
        """Take a change into the transaction, and the number of rows that were rejected with it."""
        self.rejected = added(self.rejected, {relation_id: rejected})
        if change.table.num_rows:
            self.changes.setdefault(relation_id, []).append(change)


def in_one_form(table: pa.Table) -> pa.Table:
    """The rows with 0.0 for -0.0: they are equal, so that a deletion can't say which of both goes."""
    if not any(has_floats(f.type) for f in table.schema):
        return table
    return pa.Table.from_arrays([one_form(c) for c in table.columns], schema=table.schema)


def joined(changes: Sequence[Change]) -> Change:
    """All rows of `changes`, one after the other, as they came."""
    table = pa.concat_tables([c.table for c in changes])
    return (
        Change(table)
        if all(c.diff is None for c in changes)
        else Change(table, np.concatenate([c.diffs for c in changes]))
    )


def merged(changes: Sequence[Change]) -> Change:
    """One change that does what `changes` do one after the other.

    Rows that are only added keep their order of arrival; otherwise equal rows are one, in canonical order.
    """
    change = joined(changes)
    return change if change.diff is None else consolidated(change)


def consolidated(change: Change) -> Change:
    """The change with one row per distinct row and no diff 0, in canonical order."""
    names = change.table.column_names
    positional = change.table.rename_columns([f"c{i}" for i in range(len(names))])
    delta = consolidate(Delta(positional, change.diffs))
    columns = [
        c.cast(f.type) if c.type != f.type else c
        for c, f in zip(delta.columns.columns, change.table.schema, strict=True)
    ]
    table = pa.Table.from_arrays(columns, schema=change.table.schema)
    return Change(table, delta.diff)
