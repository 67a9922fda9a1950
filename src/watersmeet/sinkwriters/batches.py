"""Batches of limited size for a sink: the content of a relation at one commit, then its changes.

The rows of a commit are always in the same order, because content and commits never change. Batches may end at
different rows, because an offset counts the rows before it. Dead letters of a topic are also delivered in batches.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Relation, Table
from watersmeet.connectors.base.deadletters import letters_of_slice
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.producing import with_computed_parts
from watersmeet.database.reading import conformed, converted, failed_query
from watersmeet.errors import Error, error
from watersmeet.errors.secretnames import is_secret
from watersmeet.formats.valuetexts import evaluate
from watersmeet.kernel.arrays.columns import one_form
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.sinkwriters.changes import Change, Changes, added_up
from watersmeet.store.changes import Diff, as_type, fitted, key_sql, sum_sql
from watersmeet.store.checkpoints import Checkpoint, load_checkpoint
from watersmeet.store.commits import Commit
from watersmeet.store.positions import Delivered
from watersmeet.store.readers import DELIVERED
from watersmeet.system import duckdbs
from watersmeet.system.process import scratch_folder
from watersmeet.values.types import arrow_schema

#: The maximum rows of a batch, unless all of its rows have one key, …
BATCH_ROWS: Final = 1 << 16

#: … and its maximum bytes in memory, not counting keys.
BATCH_BYTES: Final = 32 << 20

#: The maximum number of characters of a key in a message.
_KEY_CHARACTERS: Final = 200


class SinkBatches:
    """The batches of a delivery. For one thread."""

    def __init__(
        self,
        database: OpenDatabase,
        delivery: Delivery,
        relation: Relation,
        position: Delivered,
        most_rows: Callable[[], int],
    ) -> None:
        """relation: the relation, from the catalog, whose changes are delivered. position: where to begin. most_rows:
        the maximum rows of a batch, above 0.
        """
        self._database = database
        self._delivery = delivery
        self._stored = relation.as_stored
        self._schema = arrow_schema(self._stored.columns, positional=False)
        self._names = [c.name for c in delivery.columns]
        self._casts = self._conversions()
        self._by_transaction = isinstance(relation, Table) and not relation.is_fed_by_circuit
        self._position = position
        self._most_rows = most_rows
        self._changes: Changes | None = None
        catalog = database.catalog
        self._conflicts = catalog.relations[delivery.conflicts] if delivery.conflicts else None

    @property
    def since(self) -> int:
        """The commit above which all are needed to resume after the last complete batch."""
        return self._position.since if self._changes is None else self._since

    def content(self, after: SinkOffset | None) -> Iterator[SinkBatch]:
        """The batches of the content, which is delivered first, after offset `after`; none if `after` is beyond the
        content.
        """
        position = self._position
        if self._conflicts is not None and position.commit < 0:
            self._check_keys(position.since if position.start is None else position.start)
        if position.start is None or (after is not None and (after.commit > position.start or after.last)):
            return
        skipped = 0 if after is None else after.rows
        time_us = self._database.log.read(position.start).time_us if position.start else 0
        pieces = self._pieces(position.start, position.base)
        batches = placed(pieces, self._delivery.generation, position.start, skipped, time_us, self._most_rows)
        yield from map(self._completed, batches)

    def changes(self, after: SinkOffset | None) -> Generator[SinkBatch | None]:
        """The batches of the changes after the content and after offset `after`; yields None while no more exist.

        Never ends.
        """
        position = self._position
        since = position.since if position.start is None else max(position.since, position.start)
        if after is not None and after.last:
            since = max(since, after.commit)
        self._since = since
        self._changes = changes = Changes(self._database, since, DELIVERED)
        try:
            while True:
                change = self._next(changes)
                if change is None:
                    self._since = changes.taken
                    yield None
                    continue
                if after is None or changes.taken >= after.commit:
                    skipped = after.rows if after is not None and changes.taken == after.commit else 0
                    batches = self._cut(change.rows, change.diff, change.time_us, skipped)
                    yield from map(self._completed, batches)
                self._since = changes.taken
        finally:
            changes.close()

    def _next(self, changes: Changes) -> Change | None:
        """The next change. If several rows share a key after it, it is added to later ones until none do.

        Raises UNIQUE_VIOLATION if the newest commit still has rows that share a key.
        """
        for former, upto in self._position.former:
            if changes.taken < upto and (change := changes.take_next(former, upto)) is not None:
                return change
        change = changes.take_next(self._delivery.relation, by_transaction=self._by_transaction)
        if change is None or self._conflicts is None:
            return change
        found, read = [change], changes.taken
        shared = self._database.content.rows_at(self._conflicts, read).num_rows
        if shared == 0:
            return change
        while shared:
            following = changes.take_next(self._delivery.relation)
            if following is None:
                self._check_keys(read)
            assert following is not None
            found.append(following)
            shared += self._new_conflicts(read, changes.taken)
            read = changes.taken
        return added_up(found)

    def _new_conflicts(self, after: int, upto: int) -> int:
        """How many more keys are shared by several rows at commit `upto` than at commit `after`."""
        assert self._conflicts is not None
        found = 0
        for number in range(after + 1, upto + 1):
            change = self._database.log.read(number).relations.get(self._conflicts.id)
            found += 0 if change is None else change.inserted_rows - change.deleted_rows
        return found

    def _check_keys(self, commit: int) -> None:
        """Raises UNIQUE_VIOLATION if several rows share a key at a commit."""
        assert self._conflicts is not None
        rows = self._database.content.rows_at(self._conflicts, commit)
        if rows.num_rows:
            raise shared_key(self._delivery.title, self._delivery.key, rows)

    def _cut(self, rows: pa.Table, diff: Diff, time_us: int, skipped: int) -> Iterator[SinkBatch]:
        """A change in batches; if batches may only end between keys, the rows are ordered by key. skipped: the number
        of first rows to omit.
        """
        assert self._changes is not None
        has_others = rows.num_columns > len(self._names)
        rows = self._named(rows)
        if has_others and (diff < 0).any():
            parts = [*_summed(iter([(rows, diff)]), rows.schema)]  # rows that differ in other columns only stay
            rows = pa.concat_tables([part for part, _ in parts]) if parts else rows[:0]
            diff = np.concatenate([found for _, found in parts]) if parts else diff[:0]
        keys, most_rows = None, self._most_rows
        if self._delivery.format.rows != "plain":
            if skipped or rows.num_rows > min(_limit(rows), most_rows()):
                keys = hash_columns([rows.column(k) for k in self._delivery.key], rows.num_rows)
                order = np.argsort(keys, kind="stable")
                rows, diff, keys = rows.take(pa.array(order)), diff[order], keys[order]
            else:
                most_rows = whole  # even if the limit is altered
        pieces = iter([(rows, diff)])
        return placed(pieces, self._delivery.generation, self._changes.taken, skipped, time_us, most_rows, keys)

    def _completed(self, batch: SinkBatch) -> SinkBatch:
        """The batch with equal keys in one form, and with the parts of messages that are computed from its rows."""
        delivery = self._delivery
        rows = batch.rows
        for name in delivery.key:
            offset = rows.column_names.index(name)
            rows = rows.set_column(offset, rows.schema.field(offset), one_form(rows.column(offset)))
        rows = with_computed_parts(rows, delivery.computed_parts, delivery.title)
        return replace(batch, rows=rows)

    def _named(self, rows: pa.Table) -> pa.Table:
        """The rows of a commit, with the columns of the delivery."""
        rows = fitted(rows, self._schema, self._stored.fills).select(range(len(self._names)))
        if self._casts:
            try:
                columns = evaluate(rows.columns, self._casts)
            except duckdb.Error as cause:
                raise failed_query(cause, "") from cause
            schema = arrow_schema(self._delivery.columns, positional=False)
            rows = conformed(pa.table(columns, names=self._names), schema)
        return rows.rename_columns(self._names)

    def _conversions(self) -> list[str]:
        """The conversions of stored columns to those of the delivery; None if the types are equal."""
        pairs = [*zip(self._stored.columns, self._delivery.columns, strict=False)]
        if all(stored.type == wanted.type for stored, wanted in pairs):
            return []
        return [converted(f"t{i}", stored.type, wanted.type) for i, (stored, wanted) in enumerate(pairs)]

    def _pieces(self, start: int, base: int) -> Iterator[tuple[pa.Table, Diff]]:
        """The content at commit `start`.

        base: the checkpoint from which it is read. Append-only rows are in the order of arrival, others in the order of
        their values.
        """
        database, relation_id = self._database, self._position.delivers(self._delivery.relation, start)
        checkpoint = load_checkpoint(database.layout, base) if base else Checkpoint()
        snapshot = checkpoint.relations.get(relation_id)
        upto = checkpoint.moment.transaction if snapshot is None else snapshot.upto
        later = [
            change
            for number in range(upto + 1, start + 1)
            if (change := database.log.read(number).relations.get(relation_id)) is not None
        ]
        levels = () if snapshot is None else snapshot.levels

        def parts() -> Iterator[tuple[pa.Table, Diff]]:
            for blob in (*(b for level in levels for b in level.blobs), *(b for c in later for b in c.blobs)):
                rows, diff = database.segments.read_change(blob)
                yield self._named(rows), diff

        grows = all(level.insert_only for level in levels) and not any(c.deleted_rows for c in later)
        return parts() if grows else _summed(parts(), arrow_schema(self._delivery.columns, positional=False))


def shared_key(sink: str, key: Sequence[str], conflicts: pa.Table) -> Error:
    """The error for a key that several rows share. conflicts: the rows of the `SinkConflicts`, at least one."""
    first = min(conflicts.to_pylist(), key=lambda row: str(list(row.values())))
    *values, count = first.values()
    texts = [
        "…" if is_secret(name, "") else "NULL" if v is None else str(v) for name, v in zip(key, values, strict=True)
    ]
    shown = ", ".join(text if len(text) <= _KEY_CHARACTERS else f"{text[:_KEY_CHARACTERS]}…" for text in texts)
    others = conflicts.num_rows - 1
    return error(
        "UNIQUE_VIOLATION",
        f"{count} rows of {sink} share its key: ({', '.join(key)}) = ({shown})",
        detail=f"{others} more keys are shared." if others > 1 else "1 more key is shared." if others else None,
        hint="Choose a key whose values no two rows share; or add on_conflict = 'column DESC', which delivers "
        "the first row of each key in this order.",
    )


def whole() -> int:
    """A limit for `placed` that only limits the size of a batch."""
    return BATCH_ROWS


def placed(
    pieces: Iterator[tuple[pa.Table, Diff]],
    generation: int,
    commit: int,
    skipped: int,
    time_us: int,
    most_rows: Callable[[], int],
    keys: npt.NDArray[np.uint64] | None = None,
) -> Iterator[SinkBatch]:
    """The pieces of a commit in batches, of which the last is marked. skipped: the number of first rows to omit. keys:
    those of the only piece, sorted; rows with equal keys are in one batch.
    """
    following = _next(pieces)
    before = 0
    while following is not None:
        (rows, diff), following = following, _next(pieces)
        count, first = rows.num_rows, max(0, skipped - before)
        while first < count:
            end = _end(count, first, min(_limit(rows), most_rows()), keys)
            offset = SinkOffset(generation, commit, before + end, following is None and end == count)
            yield SinkBatch(offset, rows.slice(first, end - first), diff[first:end], time_us)
            first = end
        before += count


def _next(pieces: Iterator[tuple[pa.Table, Diff]]) -> tuple[pa.Table, Diff] | None:
    """The next piece that has rows."""
    return next((piece for piece in pieces if piece[0].num_rows), None)


def _limit(rows: pa.Table) -> int:
    """The number of rows of a table like this in one batch."""
    size_bytes = int(rows.nbytes)
    if size_bytes <= BATCH_BYTES:
        return BATCH_ROWS
    return max(1, min(BATCH_ROWS, int(rows.num_rows) * BATCH_BYTES // size_bytes))


def _end(count: int, first: int, limit: int, keys: npt.NDArray[np.uint64] | None) -> int:
    """The end of a batch that begins at `first` of `count` rows: it has at most `limit` rows, or those of one key.

    keys: sorted; rows with equal keys stay together.
    """
    end = min(count, first + limit)
    if keys is not None and end < count and keys[end] == keys[end - 1]:
        begin = int(np.searchsorted(keys, keys[end], "left"))
        end = begin if begin > first else int(np.searchsorted(keys, keys[end], "right"))
    return end


def _summed(parts: Iterator[tuple[pa.Table, Diff]], schema: pa.Schema) -> Iterator[tuple[pa.Table, Diff]]:
    """The sum of the parts, with equal rows combined, as pieces of bounded size in the order of the values."""
    positional = pa.schema([*(pa.field(f"c{i}", f.type) for i, f in enumerate(schema)), pa.field("_diff", pa.int64())])
    pieces = (
        piece
        for rows, diff in parts
        for piece in pa.table(
            [*rows.columns, pa.chunked_array([np.ascontiguousarray(diff)], pa.int64())], schema=positional
        ).to_batches()
    )
    keys = ", ".join(key_sql(f"c{i}", f.type) for i, f in enumerate(schema))
    with scratch_folder("batches") as directory:
        connection = duckdbs.connect(memory_limit="512MB", spill_directory=str(directory))
        try:
            connection.register("parts", pa.RecordBatchReader.from_batches(positional, pieces))
            query = f"SELECT * FROM ({sum_sql(schema, 'parts', '_diff')}) ORDER BY {keys}"
            for piece in connection.execute(query).to_arrow_reader(BATCH_ROWS):
                columns = [as_type(c, f.type) for c, f in zip(piece.columns, schema, strict=False)]
                yield pa.table(columns, schema=schema), piece.column(len(columns)).to_numpy(zero_copy_only=False)
        finally:
            connection.close()


class DeadLetterBatches:
    """The messages that each commit has set aside, in the order in which they were read. For one thread.

    The commit determines them, because a slice that is read again sets aside the same messages. Ranges of lost messages
    are omitted, because they have nothing to deliver.
    """

    def __init__(self, database: OpenDatabase, delivery: Delivery, position: Delivered) -> None:
        """position: where to begin."""
        self._database = database
        self._delivery = delivery
        self._schema = arrow_schema(delivery.columns, positional=False)
        self.since = position.since
        """The commit above which all are needed to resume after the last complete batch."""

    def content(self, after: SinkOffset | None) -> Iterator[SinkBatch]:
        """No content: the dead letters begin with the topic."""
        del after
        return iter(())

    def changes(self, after: SinkOffset | None) -> Generator[SinkBatch | None]:
        """The batches after offset `after`; yields None while no more exist. Never ends."""
        log = self._database.log
        if after is not None:
            self.since = max(self.since, after.commit - (not after.last))
        while True:
            if self.since >= log.head():
                yield None
                continue
            commit = log.read(self.since + 1)
            skipped = after.rows if after is not None and after.commit == commit.number else 0
            if commit.epoch is not None:
                generation, pieces = self._delivery.generation, self._pieces(commit)
                yield from placed(pieces, generation, commit.number, skipped, commit.time_us, whole)
            self.since = commit.number

    def _pieces(self, commit: Commit) -> Iterator[tuple[pa.Table, Diff]]:
        relation_id = self._delivery.relation
        directory = self._database.layout.dead(relation_id)
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        assert commit.epoch is not None
        for slice_ in commit.progress.taken.get(relation_id, ()):
            for letter in letters_of_slice(directory, commit.epoch, slice_.ordinal):
                if "rows" in letter:
                    continue
                row = _row(letter)
                rows.append(row)
                size_bytes += len(row["key"] or b"") + len(row["value"] or b"")
                if len(rows) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                    yield self._inserted(rows)
                    rows, size_bytes = [], 0
        if rows:
            yield self._inserted(rows)

    def _inserted(self, rows: list[dict[str, Any]]) -> tuple[pa.Table, Diff]:
        return pa.Table.from_pylist(rows, schema=self._schema), np.ones(len(rows), np.int64)


def _row(letter: dict[str, Any]) -> dict[str, Any]:
    """A dead letter with the columns of `connectors.base.targets.dead_letter_delivery`."""
    key, value = (base64.b64decode(letter[part]) if part in letter else None for part in ("key", "value"))
    said = {name: str(letter[name]) for name in ("topic", "partition", "offset", "reason")}
    return {"key": key, "value": value, **said}
