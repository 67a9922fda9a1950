"""Updates as rows, for SUBSCRIBE, and for cursors over subscriptions of RisingWave.

Materialize, "SUBSCRIBE", "Modifying the output format": without an envelope, each changed row with its diff; with one,
an upsert for each changed key, or Debezium's pairs of old and new row. Columns are named wm_… instead of mz_…, and the
number of a commit replaces its timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.database.sessions.context import Session, check_followed
from watersmeet.formats.valuetexts import EXACT_JSON, JsonStyle
from watersmeet.formats.writers import json_writer
from watersmeet.store.changes import Diff
from watersmeet.subscribing.subscriber import Subscriber
from watersmeet.subscribing.updates import BATCH_ROWS, ChangeBatch, Update
from watersmeet.values.types import BIGINT, BOOLEAN, JSONB, VARCHAR, Field, Schema, arrow_schema

#: The format of changes as rows: each change, the new row of a key, or the old and the new row.
Envelope = Literal["none", "upsert", "debezium"]

COMMIT: Final = "wm_commit"
PROGRESSED: Final = "wm_progressed"
DIFF: Final = "wm_diff"
STATE: Final = "wm_state"
RELATION: Final = "wm_relation"
ROW: Final = "wm_row"

#: The format of values where rows are JSON: numbers with all digits, ISO times.
ROW_STYLE: Final = replace(EXACT_JSON, timestamp="iso")

#: Keys are equal if and only if these texts are.
KEY_STYLE: Final = JsonStyle(float="string")

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """The columns and rows of a subscription. key: the key columns of an envelope.

    progress: whether the changes of each commit are followed by a row in which wm_progressed is true, which means that
    all earlier changes were returned. If there are several relations, their rows are JSON.
    """

    relations: tuple[Relation, ...]
    envelope: Envelope = "none"
    key: tuple[str, ...] = ()
    progress: bool = False

    @property
    def columns(self) -> Schema:
        """The columns of the table."""
        head = [Field(COMMIT, BIGINT, nullable=False)]
        if self.progress:
            head.append(Field(PROGRESSED, BOOLEAN, nullable=False))
        return (*head, *self._columns)

    def rows(self, update: Update) -> pa.Table:
        """The changes of an update as rows. Live updates are encoded once for all subscribers with this form."""
        if not update.batches:
            return arrow_schema(self.columns, positional=False).empty_table()
        if update.is_snapshot:
            return self._rows(update)
        made: pa.Table = update.batches[0].made((self.title, "rows"), lambda _: self._rows(update))
        return made

    def progress_row(self, commit: int) -> pa.Table:
        """The row that reports that all changes up to `commit` were returned."""
        schema = arrow_schema(self.columns, positional=False)
        columns = [pa.array([commit], pa.int64()), pa.array([True]), *(pa.nulls(1, f.type) for f in list(schema)[2:])]
        return pa.Table.from_arrays(columns, schema=schema)

    @property
    def title(self) -> tuple[Any, ...]:
        """A key that is equal for forms that produce the same rows."""
        return tuple(r.id for r in self.relations), self.envelope, self.key, self.progress

    @property
    def _columns(self) -> Schema:
        """The columns after wm_commit and wm_progressed."""
        if len(self.relations) > 1:
            return (Field(DIFF, BIGINT), Field(RELATION, VARCHAR), Field(ROW, JSONB))
        (relation,) = self.relations
        shown = shown_columns(relation)
        if self.envelope == "none":
            return (Field(DIFF, BIGINT), *(Field(c.name, c.type) for c in shown))
        keys = tuple(Field(c.name, c.type) for name in self.key for c in shown if c.name == name)
        values = tuple(c for c in shown if c.name not in self.key)
        prefixes = ("",) if self.envelope == "upsert" else ("before_", "after_")
        return (
            Field(STATE, VARCHAR),
            *keys,
            *(Field(f"{prefix}{c.name}", c.type) for prefix in prefixes for c in values),
        )

    def _rows(self, update: Update) -> pa.Table:
        if len(self.relations) > 1:
            found = [self._as_json(batch) for batch in update.batches]
        else:
            rows = pa.Table.from_batches([b.rows for b in update.batches])
            rows = rows.select([c.name for c in shown_columns(self.relations[0])])
            diffs = np.concatenate([b.diffs for b in update.batches])
            plain = self.envelope == "none"
            found = [[pa.array(diffs), *rows.columns] if plain else self._by_key(rows, diffs)]
        head = [pa.int64(), pa.bool_()][: 1 + self.progress]
        schema = arrow_schema(self.columns, positional=False)
        tables = []
        for columns in found:
            count = len(columns[0])
            fixed = [pa.repeat(pa.scalar(v, t), count) for v, t in zip((update.commit, False), head, strict=False)]
            tables.append(pa.Table.from_arrays([*fixed, *columns], schema=schema))
        return pa.concat_tables(tables)

    def _as_json(self, batch: ChangeBatch) -> list[pa.Array]:
        relation = next(r for r in self.relations if r.shown == batch.relation)
        names = pa.repeat(pa.scalar(batch.relation), batch.rows.num_rows)
        return [pa.array(batch.diffs), names, row_texts(batch, shown_columns(relation)).cast(JSONB.arrow)]

    def _by_key(self, rows: pa.Table, diffs: Diff) -> list[pa.Array | pa.ChunkedArray]:
        """A row for each changed key, in the order of their first rows."""
        columns = tuple(c for c in shown_columns(self.relations[0]) if c.name in self.key)
        coded = json_writer(columns, KEY_STYLE).write(rows).dictionary_encode()
        codes, count = coded.indices.to_numpy(), len(coded.dictionary)
        first = _last_of(codes, np.arange(len(codes))[::-1], count)
        deleted, inserted = (_last_of(codes, np.flatnonzero(of), count) for of in (diffs < 0, diffs > 0))
        deleted_rows = np.bincount(codes, np.maximum(-diffs, 0), count).astype(np.int64)
        inserted_rows = np.bincount(codes, np.maximum(diffs, 0), count).astype(np.int64)
        violated = (deleted_rows > 1) | (inserted_rows > 1)
        # An inserted row may have a new key, or a key that another row had before this commit.
        appears = "insert" if self.envelope == "debezium" else "upsert"
        states = np.where(inserted < 0, "delete", np.where(deleted < 0, appears, "upsert"))
        states = np.where(violated, "key_violation", states)
        keys = [rows.column(name).take(pa.array(first)) for name in self.key]
        values = [c.name for c in shown_columns(self.relations[0]) if c.name not in self.key]
        sides = [inserted] if self.envelope == "upsert" else [deleted, inserted]
        places = [pa.array(side, mask=(side < 0) | violated) for side in sides]
        return [pa.array(states), *keys, *(rows.column(name).take(p) for p in places for name in values)]


def shown_columns(relation: Relation) -> Schema:
    """The columns of a relation that `*` lists."""
    return tuple(c for c in relation.columns if c.name not in relation.unlisted)


def row_texts(batch: ChangeBatch, columns: Sequence[Field]) -> pa.Array:
    """The rows of a batch as JSON objects (bytes), created once for all subscribers."""
    names = tuple(c.name for c in columns)

    def written(_: ChangeBatch) -> pa.Array:
        return json_writer(tuple(columns), ROW_STYLE).write(pa.Table.from_batches([batch.rows]))

    found = batch.made(("json", names), written)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _last_of(codes: Places, places: Places, count: int) -> Places:
    """For each code below `count`, the last element of `places` whose row has the code; -1 if no row has it."""
    found = np.full(count, -1, np.int64)
    found[codes[places]] = places
    return found


_OP: Final = "op"
_TIMESTAMP: Final = "rw_timestamp"
_NAMES: Final = ("Delete", "UpdateDelete", "UpdateInsert", "Insert")


@dataclass(frozen=True)
class OperationForm:
    """The columns of the relation, the operation (Insert, Delete, UpdateDelete, UpdateInsert), and the time of the
    commit in milliseconds since 1970 (UTC), NULL for the content.

    Two commits never have the same time. If the relation has a primary key, a deleted and an inserted row of one key in
    a commit are an update.
    """

    relation: Relation
    progress: bool = False

    @property
    def columns(self) -> Schema:
        """The columns of the table."""
        own = (Field(c.name, c.type) for c in shown_columns(self.relation))
        return (*own, Field(_OP, VARCHAR), Field(_TIMESTAMP, BIGINT))

    @property
    def title(self) -> tuple[Any, ...]:
        """A key that is equal for forms that produce the same rows."""
        return self.relation.id, "operations"

    def rows(self, update: Update) -> pa.Table:
        """The changes of an update, each repeated as often as it was made."""
        schema = arrow_schema(self.columns, positional=False)
        if not update.batches:
            return schema.empty_table()
        names = [c.name for c in shown_columns(self.relation)]
        rows = pa.Table.from_batches([b.rows for b in update.batches]).select(names)
        diffs = np.concatenate([b.diffs for b in update.batches])
        operations = np.where(diffs < 0, 0, 3)
        key = self.relation.primary_key
        if key and not update.is_snapshot:
            columns = tuple(c for c in self.relation.columns if c.name in key)
            codes = json_writer(columns, KEY_STYLE).write(rows).dictionary_encode().indices.to_numpy()
            both = np.bincount(codes, diffs < 0).astype(bool) & np.bincount(codes, diffs > 0).astype(bool)
            operations = np.where(both[codes], np.where(diffs < 0, 1, 2), operations)
            order = np.lexsort((operations, codes))
            rows, diffs, operations = rows.take(pa.array(order)), diffs[order], operations[order]
        places = np.repeat(np.arange(len(diffs)), np.abs(diffs))
        time_ms = None if update.is_snapshot else update.time_us // 1000
        return pa.Table.from_arrays(
            [
                *rows.take(pa.array(places)).columns,
                pa.array(_NAMES).take(pa.array(operations[places])),
                pa.repeat(pa.scalar(time_ms, pa.int64()), len(places)),
            ],
            schema=schema,
        )

    def progress_row(self, commit: int) -> pa.Table:
        """No row, because this form does not report progress."""
        del commit
        return arrow_schema(self.columns, positional=False).empty_table()


class ShownUpdates:
    """The rows of a subscriber's updates (`result.Running`). The subscriber reports progress if the form does.

    Raises PERMISSION_DENIED if the session may no longer read the followed relations.
    """

    def __init__(self, session: Session, subscriber: Subscriber, form: Form | OperationForm) -> None:
        self.subscriber, self.form, self._session = subscriber, form, session
        self._followed = [f.relation.id for f in subscriber.followed]
        self.columns: Schema = form.columns

    def rows(self) -> pa.Table:
        """See `result.Running`."""
        found = [arrow_schema(self.columns, positional=False).empty_table()]
        count = 0
        while count < BATCH_ROWS and (update := self.subscriber.take()) is not None:
            found += self.tables(update)
            count += sum(t.num_rows for t in found[-2:])
        return pa.concat_tables(found)

    def encoded(self, update: Update, how: object, encode: Callable[[pa.Table], bytes]) -> tuple[bytes, int]:
        """The rows of one update, encoded by `encode`, and their number. The changes of a commit are encoded once for
        all callers with equal `how`.
        """
        tables = self.tables(update)
        parts = [encode(t) for t in tables[bool(update.batches) :]]
        if update.batches:
            rows = tables[0]
            key = (self.form.title, how)
            parts.insert(0, encode(rows) if update.is_snapshot else update.batches[0].made(key, lambda _: encode(rows)))
        return b"".join(parts), sum(t.num_rows for t in tables)

    def tables(self, update: Update) -> list[pa.Table]:
        """The rows of one update, and the row that reports its progress."""
        check_followed(self._session, self._followed)
        found = [self.form.rows(update)] if update.batches else []
        if self.form.progress and update.is_complete:
            found.append(self.form.progress_row(update.commit))
        return found

    @property
    def ended(self) -> bool:
        """See `result.Running`."""
        return self.subscriber.ended

    @property
    def sign(self) -> int | None:
        """None, because changes have counts, which may be above 1."""
        return None

    def unread(self, rows: int) -> None:
        """Rows that were not returned are returned again after the previous token."""

    def wait(self, seconds: float) -> None:
        """See `result.Running`."""
        self.subscriber.wait(seconds)

    def settle(self, most_s: float) -> None:
        """See `result.Running`."""
        self.subscriber.settle(most_s)

    def close(self) -> None:
        """See `result.Running`."""
        self.subscriber.close()
