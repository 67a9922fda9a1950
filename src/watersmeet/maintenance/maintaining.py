"""Background maintenance: refreshing dictionaries and external tables, filling caches, writing views to streams.

If epochs run in the background, a thread does this regularly; otherwise it is done when views are updated.

CREATE MATERIALIZED VIEW … INTO stream writes each row once. A transaction writes the new rows, together with the number
of the view's commit up to which they are written, so that writing resumes after this commit even after a crash.
Deletions are not written, because a stream's rows are events, and in keyed streams the next row of a key replaces the
previous one. A changelog stream receives both. With EMIT PERIODIC, the rows of a period are written once it is over.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import (
    DELTA_COLUMN,
    CacheFill,
    ExternalTable,
    LateRows,
    MaterializedView,
    Period,
    Relation,
    Sink,
    SinkQuery,
)
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.database.reading import (
    BatchQuery,
    by_version,
    computed,
    conformed,
    converted,
    last_of_each_key,
    omitted,
    rows_beside,
    rows_with_keys,
    rows_without,
    split_by_key,
)
from watersmeet.database.replaying import replayed_at
from watersmeet.database.rowchecks import check_rows, refused_rows
from watersmeet.database.scans import outdated_late_rows
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import python_rows
from watersmeet.database.transaction import Change as Written
from watersmeet.database.transaction import consolidated, joined
from watersmeet.database.writing import (
    accepting,
    apply,
    as_kept,
    by_time,
    coalesced,
    deliver,
    in_order,
    replacement,
    upserted,
    with_generated,
)
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.maintenance.refreshing import is_due, reads_outside, refresh
from watersmeet.sinkwriters.batches import shared_key
from watersmeet.sinkwriters.changes import Change, Changes, added_up
from watersmeet.store.backup import is_delivered, written_upto
from watersmeet.store.changes import key_sql, quoted
from watersmeet.store.checkpoints import PastContent
from watersmeet.system.threads import Worker, lock
from watersmeet.values.types import arrow_schema

_PAUSE_S: Final = 1.0

_STOP_S: Final = 10.0

#: The time for which late rows are kept unless `late_rows_retention` is set, and their number for each relation.
LATE_ROWS_US: Final = 7 * 86_400_000_000
LATE_ROWS: Final = 1_000_000

#: Late rows are deleted when this many are too many, or at these intervals, so that few commits delete them.
_LATE_SLACK: Final = 10_000
_LATE_S: Final = 60.0

#: A period after all others.
_AFTER_ALL: Final = 2**63

_DELETED: Final = "_watersmeet_deleted"


class Maintenance(Service):
    """Refreshes dictionaries, writes their cache streams, and writes the streams that views feed. Safe for several
    threads.

    Separate transactions write a cache stream, so it is a stream like any other. Until the transaction that writes a
    found row, epochs query the source again. Existing rows are never overwritten, only missing keys are added.
    """

    def __init__(self, session: Session) -> None:
        """session: a separate session, without transactions."""
        self._session = session
        self._following: dict[str, Changes] = {}
        self._lock = lock("maintenance")
        self._wrote = False
        self._late_us = 0
        self._begun = 0
        self._replaying = False
        self._problems = session.database.unwritten

    def start(self) -> None:
        """Runs at each FLUSH, and in a thread if epochs run in the background. A fork has no input between
        statements.
        """
        database = self._session.database
        self._begun = database.log.head()
        self.follow()
        if database.runtime != "inprocess" and not database.layout.is_fork:
            worker = _Rounds(database, self._round)
            database.at_close(lambda: worker.join(_STOP_S))
            database.at_close(worker.stop)
            worker.start()

    def before_epochs(self) -> None:
        """Refreshes the dictionaries and external tables that queries look up. If a source can't be read, its relation
        keeps its content; SHOW ERRORS shows the reason.
        """
        for relation in self._fetched():
            if is_due(self._session, relation):
                with contextlib.suppress(Error):
                    refresh(self._session, relation)

    def after_epochs(self, *, ended: bool = False) -> bool:
        """Writes rows found in sources to the caches that lack them, and the output of views to streams. Returns
        whether any rows were written since the last call. ended: see `OpenDatabase.flush`.

        Rows that a stream rejects stay in the database's `unwritten`, and the next round tries again. Other views are
        not affected.
        """
        with self._lock:
            self._write_found(ended=ended)
            self._delete_late_rows()
            wrote, self._wrote = self._wrote, False
            return wrote

    def _delete_late_rows(self) -> None:
        """Deletes late rows that are too old or too many."""
        database = self._session.database
        kept = [r for r in database.catalog.relations.values() if isinstance(r, LateRows)]
        if not kept:
            return
        sizes, now_us = database.sizes.read(), database.clock.now_us()
        age_us = database.catalog.late_rows_us
        age_us = LATE_ROWS_US if age_us is None else age_us
        is_due = now_us - self._late_us >= _LATE_S * 1e6
        for relation in kept:
            rows = sizes[relation.id].rows if relation.id in sizes else 0
            if not rows or not (is_due or rows > LATE_ROWS + _LATE_SLACK):
                continue
            if (found := outdated_late_rows(database, relation, now_us - age_us, LATE_ROWS)) is not None:
                table = conformed(found, arrow_schema(relation.columns, positional=False))
                change = consolidated(Written(table, np.full(found.num_rows, -1, np.int64)))
                with database.guard:
                    database.commit({relation.id: change})
        self._late_us = now_us if is_due else self._late_us

    def _write_found(self, *, ended: bool = False) -> None:
        with self._lock:
            self.follow()
            known = self._session.catalog.relations
            merged: dict[str, list[tuple[SinkQuery, Changes]]] = {}
            for relation_id, changes in list(self._following.items()):
                if relation_id not in known:
                    self._following.pop(relation_id).close()
                    self._problems.pop(relation_id)
                    continue
                view = known[relation_id]
                if self._is_replayed(view, changes):
                    continue
                if isinstance(view, SinkQuery):
                    merged.setdefault(view.feeds, []).append((view, changes))
                    continue
                if not view.owner:
                    self._wrote |= view.feeds in known and self._copy(view, known[view.feeds], changes, ended=ended)
                    continue
                came = [c.rows.filter(pa.array(c.diff > 0)) for c in changes.take(relation_id)]
                if came and view.feeds in known:
                    self._wrote |= self._write(known[view.feeds], pa.concat_tables(came))
            for table_id, writers in merged.items():
                if table_id in known:
                    self._wrote |= merge(self._session, known[table_id], writers)

    def replaying(self, *, begun: bool) -> None:
        """See `Service`."""
        with self._lock:
            self._replaying = begun

    def applied(self, relation: Relation, change: Written) -> tuple[Written, int] | None:
        """See `Service`."""
        return applied(self._session, relation, change)

    def _is_replayed(self, view: Relation, changes: Changes) -> bool:
        """In a fork, whether the rows of a view are those that REPLAY takes from the main database. Then it only writes
        rows that follow from statements in the fork.
        """
        database = self._session.database
        if not database.layout.is_fork:
            return False
        if isinstance(view, CacheFill):
            return True
        if view.feeds in database.own.written:
            return False
        if self._replaying:
            return True
        begun = max(self._begun, replayed_at(database))
        if changes.taken < begun:
            changes.back(begun)
        return False

    def _copy(self, view: Relation, stream: Relation, changes: Changes, *, ended: bool) -> bool:
        try:
            wrote = copy(self._session, view, stream, changes, ended=ended)
        except Error as problem:
            self._problems[view.id] = problem
            return False
        self._problems.pop(view.id)
        return wrote

    def follow(self) -> None:
        """Starts writing the streams that new hidden views feed."""
        with self._lock:
            for relation in self._relations():
                if (
                    relation.feeds
                    and relation.ready
                    and not self._is_staged(relation)
                    and isinstance(relation, MaterializedView)
                    and relation.id not in self._following
                    and not is_delivered(relation, self._session.catalog)
                ):
                    database = self._session.database
                    self._following[relation.id] = (
                        Changes(database) if isinstance(relation, CacheFill) else changes_of(database, relation)
                    )

    def _is_staged(self, relation: Relation) -> bool:
        """Whether an open transaction has created the relation, so that nothing is written for it yet."""
        owner = self._session.catalog.relations.get(relation.owner, relation)
        return owner.staged

    def _write(self, stream: Relation, rows: pa.Table) -> bool:
        session = self._session
        with session.database.guard:
            last = last_of_each_key(session, stream, rows)
            there = rows_with_keys(session, stream, _padded(last, stream))
            lacking = rows_without(session, stream, last, there)
            if lacking.num_rows:
                deliver(session, stream, lacking)
            return bool(lacking.num_rows)

    def _fetched(self) -> list[ExternalTable]:
        external = [r for r in self._relations() if isinstance(r, ExternalTable)]
        followed = self._session.database.plans.followed if external else set()
        # Queries don't look up a dictionary of networks itself, but its address ranges.
        looked_up = (r for r in external if r.dictionary is not None and not r.dictionary.by_address)
        found = [*looked_up, *(r for r in external if r.dictionary is None and r.id in followed)]
        return [r for r in found if reads_outside(self._session, r)]

    def _relations(self) -> list[Relation]:
        return list(self._session.catalog.relations.values())

    def _round(self) -> None:
        if self._fetched() or any(r.dictionary is not None or r.feeds for r in self._relations()):
            with contextlib.suppress(Error):  # the next round tries again, and statements report the error
                self.before_epochs()
                self._write_found()


class _Rounds(Worker):
    """Calls `work` regularly until the database is closed."""

    def __init__(self, database: OpenDatabase, work: Callable[[], None]) -> None:
        super().__init__("maintenance", database.clock)
        self._database = database
        self._work = work

    def work(self) -> None:
        if self.stopping.wait(_PAUSE_S):
            return
        try:
            self._work()
        except Exception:
            if not self._database.is_closed:
                raise
            self.stopping.set()


def _padded(rows: pa.Table, stream: Relation) -> pa.Table:
    """The rows with all columns of the stream, of which missing ones are NULL, because only keys matter."""
    arrays = [
        rows.column(c.name) if c.name in rows.column_names else pa.nulls(rows.num_rows, c.type.arrow)
        for c in stream.columns
    ]
    return pa.Table.from_arrays(arrays, names=[c.name for c in stream.columns])


def changes_of(database: OpenDatabase, view: Relation) -> Changes:
    """The unwritten output of the view: since the newest transaction that wrote it, or since its beginning."""
    return Changes(database, written_upto(database.log, database.layout, view.id))


def changes_from_now(session: Session) -> Changes:
    """The changes of views after the newest commit. The commits are kept until the open transaction has ended, after
    which maintenance follows the views that it created.
    """
    assert session.transaction is not None
    changes = Changes(session.database)
    session.transaction.ends.callback(changes.close)
    return changes


def copy(session: Session, view: Relation, stream: Relation, changes: Changes, *, ended: bool = False) -> bool:
    """Writes the output of the view since the last call. Returns whether there was any.

    ended: whether the present period of a view with periods is over, because no input follows.

    Raises INVALID_VALUE for rows that the stream rejects.
    """
    database = session.database
    with database.guard:
        _skip_taken_over(database, view, changes)
        since = changes.taken
        found = changes.take(view.id)
        if isinstance(view, MaterializedView) and view.period is not None:
            present = _AFTER_ALL if ended else database.clock.now_us() // view.period.length_us
            found = _ended(session, view, view.period, changes, found, since, present)
        if not found:
            return False
        try:
            rows = pa.concat_tables([_rows(view, stream, c) for c in found])
            write(session, view, stream, rows, changes.taken)
        except BaseException:
            changes.back(since)
            raise
    return bool(rows.num_rows)


def _skip_taken_over(database: OpenDatabase, view: Relation, changes: Changes) -> None:
    """Skips the rows that PROMOTE has taken over with the relation that the view feeds. The caller holds the guard."""
    upto = database.taken_over.get(view.id, 0)
    if changes.taken < upto:
        changes.back(upto)


def _ended(
    session: Session, view: Relation, period: Period, changes: Changes, found: list[Change], since: int, present: int
) -> list[Change]:
    """The output of the periods before the present one, one change for each. The next call takes later changes again.

    The times of commits decide the period of a change, so that the same periods are written after a restart.
    """
    periods: dict[int, list[Change]] = {}
    for change in found:
        periods.setdefault(change.time_us // period.length_us, []).append(change)
    numbers = [*sorted(periods)]
    ends = {n: periods[after][0].commit - 1 for n, after in pairwise(numbers)}
    waiting = [n for n in numbers if n >= present]
    if waiting:
        changes.back(max(since, periods[waiting[0]][0].commit - 1))
    made = []
    for number in numbers[: len(numbers) - len(waiting)]:
        change = added_up(periods[number])
        if period.whole:
            rows = _content(session, view, ends.get(number, changes.taken))
            change = replace(change, rows=rows, diff=np.ones(rows.num_rows, np.int64))
        made.append(replace(change, rows=change.rows.rename_columns([c.name for c in view.columns])))
    return made


def _content(session: Session, view: Relation, upto: int) -> pa.Table:
    """The rows of a view as of a commit."""
    past = PastContent("~period", view.id, upto)
    with session.database.content.reader(session.catalog, [view.id], past=[past]) as (connection, _):
        return rows_of(connection, f"SELECT * FROM {quoted(past.name)}")


def write(session: Session, view: Relation, stream: Relation, rows: pa.Table, upto: int) -> None:
    """Writes rows of a view, which are its last ones up to commit `upto`. The caller holds the guard.

    Raises INVALID_VALUE for rows that the stream rejects.
    """
    written = coalesced(session, stream, _columns(session, view, stream, rows), rows.column_names)
    check_rows(stream, written.select([c.name for c in stream.columns]), None)
    written, rejected = in_order(session, stream, by_time(stream, written))
    apply(session, stream, upserted(session, stream, written), {view.id: upto}, rejected=rejected)


def merge(session: Session, table: Relation, writers: Sequence[tuple[SinkQuery, Changes]]) -> bool:
    """Merges the output of a table's sinks since the last call into the table, in the order of commits, in one
    transaction. Returns whether there was any.

    Within a commit, sinks are merged in the order of their creation, and deletions of a sink before its insertions. An
    inserted row replaces the row of its key; a deleted row removes the row of its key, whichever sink wrote it. A sink
    with rejected rows that are still present, or whose rows share a key, is skipped, and retried later: the database's
    `unwritten` has its error.
    """
    database = session.database
    with database.guard:
        head = database.log.head()
        pieces: list[tuple[int, pa.Table]] = []
        taken: dict[str, tuple[Changes, int]] = {}
        try:
            for view, changes in writers:
                _skip_taken_over(database, view, changes)
                since = changes.taken
                taken[view.id] = changes, since
                try:
                    made = changes.take(view.id, head)
                    found = _accepted(session, view, table, _settled(session, view, made, since, changes.taken))
                except Error as problem:
                    changes.back(since)
                    database.unwritten[view.id] = problem
                    del taken[view.id]
                    continue
                database.unwritten.pop(view.id)
                pieces += found
                if not found:
                    del taken[view.id]
            if not pieces:
                return False
            rows = pa.concat_tables([rows for _, rows in sorted(pieces, key=lambda p: p[0])])
            change = upserted(session, table, rows if table.primary_key else rows.drop_columns([DELTA_COLUMN]))
            apply(session, table, change, {i: c.taken for i, (c, _) in taken.items()})
        except BaseException:
            for changes, since in taken.values():
                changes.back(since)
            raise
    return True


def _settled(session: Session, view: SinkQuery, taken: list[Change], since: int, upto: int) -> list[Change]:
    """The changes of a sink from commit `since` to `upto`; as one change if rows shared a key in between. Raises
    UNIQUE_VIOLATION if rows share a key at the end.
    """
    database, sink = session.database, session.catalog.relations.get(view.owner)
    if not taken or not isinstance(sink, Sink) or not sink.conflicts:
        return taken
    conflicts = session.catalog.relations[sink.conflicts]
    shared = database.content.rows_at(conflicts, upto)
    if shared.num_rows:
        raise shared_key(sink.title, sink.primary_key, shared)
    between = range(since + 1, upto + 1)
    return [added_up(taken)] if any(conflicts.id in database.log.read(n).relations for n in between) else taken


def _accepted(
    session: Session, view: SinkQuery, table: Relation, taken: Sequence[Change]
) -> list[tuple[int, pa.Table]]:
    """The output of a sink by commit, in the form of `_signed`, without rejected rows.

    Raises NOT_NULL_VIOLATION or INVALID_VALUE for a rejected row that no later change deletes, unless the sink sets
    such rows aside.
    """
    pieces = [(c.commit, _signed(session, view, table, c)) for c in taken]
    masks = [refused_rows(table, rows) for _, rows in pieces]
    if not any(mask.any() for mask in masks):
        return pieces
    if view.skips:
        for (commit, rows), mask in zip(pieces, masks, strict=True):
            _set_aside(session, view, table, commit, rows.filter(pa.array(mask)))
    else:
        held = pa.concat_tables([rows.filter(pa.array(mask)) for (_, rows), mask in zip(pieces, masks, strict=True)])
        signs = held.column(DELTA_COLUMN).to_numpy().astype(np.int64)
        left = consolidated(Written(held.drop_columns([DELTA_COLUMN]), signs))
        check_rows(table, left.table.filter(pa.array(left.diffs > 0)), None)
    return [(commit, rows.filter(pa.array(~mask))) for (commit, rows), mask in zip(pieces, masks, strict=True)]


def _set_aside(session: Session, view: SinkQuery, table: Relation, commit: int, refused: pa.Table) -> None:
    """Writes the rejected insertions of a commit as dead letters of the sink. The same commit always produces the same
    dead letters.
    """
    came = refused.filter(pc.greater(refused.column(DELTA_COLUMN), 0)).drop_columns([DELTA_COLUMN])
    names, types = [c.name for c in table.columns], tuple(c.type for c in table.columns)
    with DeadLetterWriter(session.database.layout.dead(view.owner), commit) as letters:
        for number in range(came.num_rows):
            row = came.slice(number, 1)
            try:
                check_rows(table, row, None)
            except Error as problem:
                values = dict(zip(names, python_rows(row, types)[0], strict=True))
                letters.add("", None, problem.message, json.dumps(values, default=str, ensure_ascii=False))


def _signed(session: Session, view: SinkQuery, table: Relation, change: Change) -> pa.Table:
    """The rows of a change with the table's columns and `_tp_delta`: deletions (if the sink deletes) before insertions,
    each repeated by its diff. Raises INVALID_VALUE for rows that can't be computed.
    """
    diff = change.diff if view.deletes else np.maximum(change.diff, 0)
    order = np.argsort(diff > 0, kind="stable")
    order = np.repeat(order, np.abs(diff[order]))
    rows = change.rows.take(pa.array(order)).rename_columns([c.name for c in view.columns])
    rows = _columns(session, view, table, rows)
    return rows.append_column(DELTA_COLUMN, pa.array(np.sign(diff[order]), pa.int32()))


def _rows(view: Relation, stream: Relation, change: Change) -> pa.Table:
    """The inserted rows, repeated by their diffs; for a changelog stream first the deleted rows, all with signs. A view
    with a column `_tp_delta` gives the signs itself, so its deleted rows have none.
    """
    rows, diff = change.rows.rename_columns([c.name for c in view.columns]), change.diff
    takes_signs = stream.takes_signs and (
        stream.mode != "mutable" or (isinstance(view, MaterializedView) and view.signs)
    )
    if not takes_signs or DELTA_COLUMN in rows.column_names:
        return rows.take(pa.array(np.repeat(np.arange(len(diff)), np.maximum(diff, 0))))
    order = np.argsort(diff > 0, kind="stable")  # a row of a key may replace a deleted one
    order = np.repeat(order, np.abs(diff[order]))
    return rows.take(pa.array(order)).append_column(DELTA_COLUMN, pa.array(np.sign(diff[order]), pa.int32()))


def _columns(session: Session, view: Relation, stream: Relation, rows: pa.Table) -> pa.Table:
    """The rows with the stream's columns. A column that the view lacks has the value that an INSERT without it would
    write. So has a NULL in a column of a view INTO a stream that is NOT NULL in the stream.
    """
    now_us = session.database.clock.now_us()
    types = {c.name: c.type for c in view.columns}
    taken = accepting(stream).columns if DELTA_COLUMN in rows.column_names else stream.columns
    texts = []
    for column in taken:
        text = omitted(stream, column, now_us)
        if column.name in rows.column_names:
            given = converted(quoted(column.name), types.get(column.name, column.type), column.type)
            keeps_null = column.nullable or isinstance(view, SinkQuery)
            text = given if keeps_null else f"COALESCE({given}, {text})"
        texts.append(text)
    left_out = [c.name for c in taken if c.name not in rows.column_names]
    found = with_generated(stream, computed(session, rows, texts, taken, view.sql), None, left_out)
    return as_kept(stream, found)


def applied(session: Session, relation: Relation, change: Written) -> tuple[Written, int]:
    """A change of the main database, as a change of the content that the relation has in the fork, and the number of
    rows that are too late for an ordered stream. An inserted row replaces the row of its key; a deleted row that the
    fork lacks stays away.
    """
    if relation.event_time is not None and relation.event_time.ordered:
        rows, rejected = in_order(session, relation, change.table)
        return Written(rows), rejected
    if relation.primary_key:
        if relation.coalesced:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"rows of coalesced {relation.title} can't be replayed, because the fork has other rows",
                hint="In the fork, leave its writers and their inputs as they are, or drop the stream.",
            )
        order = np.argsort(change.diffs > 0, kind="stable")
        signs = pa.array(np.sign(change.diffs[order]), pa.int32())
        signed = change.table.take(pa.array(order)).append_column(DELTA_COLUMN, signs)
        signed = by_version(session, relation, signed) if relation.version else signed
        last, _ = split_by_key(session, relation, signed)
        inserted = last.filter(pc.greater(last.column(DELTA_COLUMN), 0)).drop_columns([DELTA_COLUMN])
        return replacement(rows_with_keys(session, relation, last.drop_columns([DELTA_COLUMN])), inserted), 0
    if not (change.diffs < 0).any():
        return change, 0
    net = consolidated(change)
    deleted = Written(net.table.filter(pa.array(net.diffs < 0)), net.diffs[net.diffs < 0])
    left = consolidated(joined([deleted, Written(_equal_rows(session, relation, deleted.table))]))
    missing = Written(left.table.filter(pa.array(left.diffs < 0)), -left.diffs[left.diffs < 0])
    return consolidated(joined([net, missing])), 0


def _equal_rows(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows of a relation that are equal to one of `rows`."""
    columns = ", ".join(f"t.{quoted(c.name)}" for c in relation.columns)
    same = " AND ".join(
        f"{key_sql(f't.{quoted(c.name)}', c.type)} IS NOT DISTINCT FROM {key_sql(f'i.{quoted(c.name)}', c.type)}"
        for c in arrow_schema(relation.columns, positional=False)
    )
    sql = f"SELECT {columns} FROM {quoted(relation.shown)} t SEMI JOIN {_DELETED} i ON {same}"
    query = BatchQuery(sql, relation.columns, session.catalog, depends_on=(relation.id,))
    return conformed(
        rows_beside(session, query, rows, relation, _DELETED), arrow_schema(relation.columns, positional=False)
    )
