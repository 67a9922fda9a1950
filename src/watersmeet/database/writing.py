"""Writes the change of a table, which is committed immediately or added to the open transaction.

Rows of ordered streams arrive in the order of their times. A row older than an earlier one is rejected, and the commit
counts it. SQLstream, "JOIN clause": the clock of a stream is the rowtime of its newest row, and rowtimes never
decrease; they are whole milliseconds. The order is that of rows in a statement, then of statements, then of the commits
of transactions.

The module also rejects invalid rows, and converts rows to their stored form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import (
    DELTA_COLUMN,
    RECORD_TIME,
    TIME_COLUMN,
    TOMBSTONE,
    VALUE_COLUMN,
    Conflict,
    Input,
    Relation,
    Stream,
    Table,
)
from watersmeet.database.constraints import (
    check_at_commit,
    check_constraints,
    is_constrained,
    keys_of,
    known_keys,
    new_keys,
    note_new_keys,
    read_keys,
)
from watersmeet.database.reading import (
    BatchQuery,
    by_version,
    computed,
    conformed,
    converted,
    lending,
    omitted,
    rows_beside,
    rows_read,
    rows_with_keys,
    split_by_key,
)
from watersmeet.database.rowchecks import check_rows, check_uuids, kept, refused, with_serials
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import (
    Change,
    Row,
    Transaction,
    concurrent,
    consolidated,
    in_one_form,
    merged,
)
from watersmeet.dialects.tree.statements import Statement
from watersmeet.errors import Error, error
from watersmeet.formats.jsonscan import canonical
from watersmeet.kernel.arrays.columns import gather_table, microseconds, positional
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.kernel.evaluation.expressions import generated_values, with_lengths
from watersmeet.kernel.metrics import Counters
from watersmeet.kernel.operators.changelogs import STORED, resolved
from watersmeet.kernel.runs.delta import Delta
from watersmeet.store.changes import key_sql, quoted
from watersmeet.store.inplace import Needed
from watersmeet.values.types import INTEGER, VARCHAR, Field, SqlType, arrow_schema


def with_generated(
    relation: Relation, rows: pa.Table, statement: Statement | None, left_out: Collection[str] = ()
) -> pa.Table:
    """The rows with the values of generated columns, which replace given values. left_out: the columns without given
    values, which a DEFAULT fills.

    Raises INVALID_VALUE if an expression raises an error.
    """
    for name, made in relation.generated.items():
        if made.yields and name not in left_out:
            continue
        counters = Counters()
        values = generated_values(rows, relation.column(name), made.reads, made.sql, counters)
        if counters.expression_errors:
            raise refused(
                statement,
                "INVALID_VALUE",
                f'generated column "{name}" of {relation.title} can\'t be computed',
                detail=f"Its expression raises an error in {counters.expression_errors} of {rows.num_rows} rows.",
            )
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
    return rows


def as_kept(relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows in their stored form.

    Values have the declared types of their columns. In dialects that cut values, times are truncated to the digits of
    their columns, so they never become later, and texts to their lengths. jsonb is canonical, so that equal documents
    are equal values. Raises VALUE_TOO_LONG, INVALID_VALUE.
    """
    check_uuids(relation, rows)
    for column in relation.columns:
        if _has_documents(column.type) and column.name in rows.column_names:
            place = rows.column_names.index(column.name)
            chunks = [_with_documents(c, column.type) for c in rows.column(place).chunks]
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    for name, declared in relation.declared.items():
        place = rows.column_names.index(name)
        values = kept(rows.column(place), relation.column(name), declared)
        rows = rows.set_column(place, rows.schema.field(place), values)
    for name, digits in relation.digits.items():
        place = rows.column_names.index(name)
        cut = pc.floor_temporal(rows.column(place), multiple=10 ** (6 - digits), unit="microsecond")
        rows = rows.set_column(place, rows.schema.field(place), cut)
    return with_lengths(rows, relation.lengths)


def _has_documents(kind: SqlType) -> bool:
    """Whether values of the type are jsonb or contain it."""
    inner = ([] if kind.element is None else [kind.element]) + [t for _, t in kind.fields]
    return kind.name == "jsonb" or any(_has_documents(t) for t in inner)


def _with_documents(array: pa.Array, kind: SqlType) -> pa.Array:
    """The values with canonical jsonb."""
    if kind.name == "jsonb":
        return canonical(array)
    if not _has_documents(kind):
        return array
    array = pa.concat_arrays([array])  # the offsets of a slice of a larger array do not begin at 0
    if kind.element is not None:
        values = _with_documents(array.values, kind.element)
        return pa.ListArray.from_arrays(array.offsets, values, type=array.type, mask=array.is_null())
    parts = [_with_documents(array.field(i), t) for i, (_, t) in enumerate(kind.fields)]
    return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())


def settled(relation: Relation, incoming: pa.Table, statement: Statement | None) -> pa.Table:
    """Turns rows with the columns of `accepting(relation)`, or of the relation, into records of a topic. Rows of other
    relations stay unchanged.

    NULL in `_value` makes a row a tombstone. Raises NOT_NULL_VIOLATION for a record with a value that lacks a required
    field, INVALID_VALUE for another `_value` and for a tombstone with a field.
    """
    if relation.topic is None:
        return incoming
    if VALUE_COLUMN in incoming.column_names:
        if incoming.column(VALUE_COLUMN).null_count < incoming.num_rows:
            raise _failure(
                "INVALID_VALUE",
                f'a value of topic "{relation.name}" is written field by field',
                statement,
                "_value can only be NULL, which makes a tombstone.",
            )
        tombstones = pa.repeat(pa.scalar(True), incoming.num_rows)
        place = incoming.column_names.index(TOMBSTONE)
        incoming = incoming.set_column(place, TOMBSTONE, tombstones).drop_columns([VALUE_COLUMN])
    deleted = incoming.column(TOMBSTONE)
    for column in relation.columns:
        if column.name in (TOMBSTONE, RECORD_TIME) or not column.nullable:
            continue
        missing = pc.is_null(incoming.column(column.name))
        if pc.any(pc.and_(deleted, pc.invert(missing))).as_py():
            raise _failure(
                "INVALID_VALUE",
                f'a record without value of topic "{relation.name}" has a field "{column.name}"',
                statement,
            )
        if column.name in relation.topic.required and pc.any(pc.and_(missing, pc.invert(deleted))).as_py():
            found = _failure(
                "NOT_NULL_VIOLATION",
                f'null value in field "{column.name}" of topic "{relation.name}" violates not-null constraint',
                statement,
                f"Declare it {column.name} {column.type.sql} NULL, or write _value NULL for a tombstone.",
            )
            found.place = (relation.schema, relation.name, column.name)
            raise found
    return incoming


def _failure(condition: str, message: str, statement: Statement | None, hint: str | None = None) -> Error:
    found = error(condition, message, hint=hint)
    if statement is not None:
        found.sql, found.span = statement.text, statement.span
    return found


_MILLISECOND_US = 1000

#: The clock of a stream without rows.
NO_CLOCK: Final = int(np.iinfo(np.int64).min) + _MILLISECOND_US


def in_order(session: Session, relation: Relation, rows: pa.Table) -> tuple[pa.Table, int]:
    """The rows that may be written to a relation, in the given order, and the number of rejected rows. The caller holds
    the guard.

    In a transaction the rows are compared with its earlier rows, and checked again at COMMIT.
    """
    if relation.event_time is None or not relation.event_time.ordered or not rows.num_rows:
        return rows, 0
    transaction = session.transaction
    clock = stream_clock(session, relation)
    if transaction is not None:
        clock = max(clock, transaction.clocks.get(relation.id, clock))
    kept, rejected, last = _ordered(rows, relation.event_time.column, clock)
    if rejected:
        session.notice(
            f'{rejected} row{"s" if rejected > 1 else ""} of "{relation.name}" rejected: '
            "a row with a later rowtime arrived earlier"
        )
    if transaction is not None:
        transaction.clocks[relation.id] = last
    return kept, rejected


def by_time(relation: Relation, rows: pa.Table) -> pa.Table:
    """Sorts rows that a view outputs together into the order that an ordered stream requires. Rows with equal times
    keep their order.
    """
    if relation.event_time is None or not relation.event_time.ordered:
        return rows
    times, _ = microseconds(rows.column(relation.event_time.column))
    return rows.take(pa.array(np.argsort(times, kind="stable")))


def in_order_at_commit(session: Session, changes: dict[str, Change]) -> tuple[dict[str, Change], dict[str, int]]:
    """The changes of a transaction without its late rows, and the number of late rows by relation id.

    A row is late if another transaction has committed a row of the ordered stream with a later time.
    """
    found, rejected = dict(changes), {}
    for relation_id, change in changes.items():
        relation = session.catalog.relations[relation_id]
        if relation.event_time is not None and relation.event_time.ordered:
            kept, rejected[relation_id], _ = _ordered(
                change.table, relation.event_time.column, stream_clock(session, relation)
            )
            found[relation_id] = Change(kept)
    return found, rejected


def stream_clock(session: Session, relation: Relation) -> int:
    """The time of the newest row committed to a stream, or the watermark override of the stream if that is later."""
    clocks = session.database.clocks
    if relation.id not in clocks:
        clocks[relation.id] = _stored(session, relation)
    return clocks[relation.id]


def _ordered(rows: pa.Table, column: str, clock: int) -> tuple[pa.Table, int, int]:
    """The ordered rows in whole milliseconds, the number of other rows, and the clock after them."""
    index = rows.column_names.index(column)
    times, _ = microseconds(rows.column(index))
    times = times - times % _MILLISECOND_US
    highest = np.maximum.accumulate(np.concatenate([np.array([clock], np.int64), times]))
    kept = times >= highest[:-1]
    whole = pa.array(times).cast(rows.schema.field(index).type)
    found = rows.set_column(index, rows.schema.field(index), whole)
    number = len(kept) - int(np.count_nonzero(kept))
    return (found.filter(pa.array(kept)) if number else found), number, int(highest[-1])


def _stored(session: Session, relation: Relation) -> int:
    """The time of the newest stored row, or the stream's number as of the last epoch if that is later."""
    assert relation.event_time is not None
    time = relation.column(relation.event_time.column)
    sql = f"SELECT max({quoted(time.name)}) FROM {quoted(relation.shown)}"
    content = session.database.content
    stored = relation.as_stored.columns[relation.columns.index(time)].name
    needed = Needed(frozenset([stored]))
    with content.reader(session.catalog, [relation.id], newest=True, reads=lambda: {relation.id: needed}) as (rows, _):
        found = rows_of(rows, sql).column(0)
    number = session.database.log.progress().watermarks.get(relation.id)
    greatest = pc.cast(found, pa.timestamp("us")).cast(pa.int64())[0].as_py()
    return max([NO_CLOCK, *(int(n) for n in (number, greatest) if n is not None)])


_WRITTEN: Final = "_watersmeet_written"
_SIGNED: Final = "_watersmeet_signed"
_Flags = npt.NDArray[np.bool_]


def apply(
    session: Session,
    relation: Relation,
    change: Change,
    copied: Mapping[str, int] | None = None,
    *,
    rejected: int = 0,
    updated: tuple[pa.Table, pa.Table] | None = None,
) -> None:
    """Applies a change of a table: commits it, or adds it to the open transaction, with the changes of rows that
    reference its rows. The caller holds the guard.

    copied: see `store.manifests.Commit`. rejected: the number of rejected rows (`in_order`), counted even if nothing
    else changes. updated: the old and the new rows of an UPDATE.

    This consolidates changes with deleted rows, but not changes of a stream, in which every row and the order count.
    Raises UNIQUE_VIOLATION, FOREIGN_KEY_VIOLATION.
    """
    change = in_stored_form(relation, change)
    rows, database = change.table.num_rows, session.database
    changes = {relation.id: change} if rows else {}
    at_once = session.writes_at_once(relation)
    if rows and is_constrained(session.catalog, relation):
        if session.transaction is None:
            changes = _checked(session, relation, change, updated)
        elif at_once:
            database.content.overlay(relation.id, change.table, change.diffs, session.transaction)
            try:
                _check(session, relation, change, updated)
            finally:
                database.content.clear_overlay([relation.id], session.transaction)
    if at_once:
        if rows or rejected or copied:
            database.commit(changes, copied, {relation.id: rejected})
            session.writes.pending = True
        return
    assert session.transaction is not None
    session.transaction.add(relation.id, change, rejected)
    session.transaction.copied.update(copied or {})
    if rows:
        session.transaction.note_change(relation.id, database.log.head())
        read_keys(session, relation)  # before the content shows the new ones
        database.content.overlay(relation.id, change.table, change.diffs, session.transaction)
        _check(session, relation, change, updated)


def _check(session: Session, relation: Relation, change: Change, updated: tuple[pa.Table, pa.Table] | None) -> None:
    """Checks a change that the open transaction shows, and applies those that follow from it."""
    if not is_constrained(session.catalog, relation):
        return
    for cascade in check_constraints(session, relation, change, updated):
        old, new = cascade.old, cascade.new
        if new is None:
            apply(session, cascade.relation, Change(old, np.full(old.num_rows, -1, np.int64)))
        else:
            check_rows(cascade.relation, new, None)
            apply(session, cascade.relation, replacement(old, new), updated=(old, new))


def _checked(
    session: Session, relation: Relation, change: Change, updated: tuple[pa.Table, pa.Table] | None
) -> dict[str, Change]:
    """The changes by relation id to commit for a change outside of a transaction, after its checks."""
    is_plain = change.diff is None and not relation.foreign_keys
    if is_plain and new_keys(session, relation, change.table) is not None:
        return {relation.id: change}
    session.transaction = transaction = Transaction()
    try:
        apply(session, relation, change, updated=updated)
        check_at_commit(session)
        return {i: merged(c) for i, c in transaction.changes.items()}
    finally:
        session.transaction = None
        session.database.content.clear_overlay(transaction.changes, transaction)


def table_of(relation: Relation, rows: Sequence[Row]) -> pa.Table:
    """Rows as a table with the relation's columns."""
    schema = arrow_schema(relation.columns, positional=False)
    columns = [pa.array(values, f.type) for values, f in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def add_rows(
    session: Session, transaction: Transaction, relation: Relation, rows: Sequence[Row], *, checks_later: bool = False
) -> bool:
    """Adds rows to the open transaction, which writes them before its next other statement. False if other rows may
    have one of their keys, which must be checked now unless `checks_later`.
    """
    if keys_of(relation) and not note_new_keys(session, transaction, relation, rows):
        if not checks_later:
            return False
        transaction.unknown_keys.add(relation.id)
    transaction.note_change(relation.id, session.database.log.head())
    transaction.pending.setdefault(relation.id, (relation, []))[1].extend(rows)
    return True


def write_pending(session: Session) -> None:
    """Writes the rows that INSERTs have added to the open transaction. Raises SERIALIZATION_FAILURE if a table was
    altered or dropped since.
    """
    transaction = session.transaction
    if transaction is None or not transaction.pending or transaction.failed:
        return
    with session.database.guard:
        pending, transaction.pending = transaction.pending, {}
        transaction.pending_keys.clear()
        for relation, rows in pending.values():
            if session.database.catalog.relations.get(relation.id) != relation:
                raise concurrent(f"{relation.title} was altered, or dropped, since the transaction changed it.")
            incoming = table_of(relation, rows)
            check_rows(relation, incoming, None)
            were_new = relation.id not in transaction.unknown_keys
            try:
                apply(session, relation, upserted(session, relation, incoming))
            except Error as err:
                if err.condition != "UNIQUE_VIOLATION" or not relation.primary_key or not were_new:
                    raise
                raise concurrent(f"{relation.title} was changed since the transaction changed it.") from err


def in_stored_form(relation: Relation, change: Change) -> Change:
    """The change as commits contain it."""
    plain = change.diff is None or isinstance(relation, Stream)
    return Change(in_one_form(change.table), change.diff) if plain else consolidated(change)


def deliver(session: Session, relation: Relation, rows: pa.Table) -> None:
    """Commits rows that SQL statements don't write. Missing columns get the values that an INSERT without them would
    write.
    """
    database = session.database
    given = set(rows.column_names)
    taken = accepting(relation).columns if given - {c.name for c in relation.columns} else relation.columns
    now_us = database.clock.now_us()
    texts = [_delivered(relation, c) if c.name in given else omitted(relation, c, now_us) for c in taken]
    with database.guard:
        left_out = [c.name for c in taken if c.name not in given]
        table = with_serials(session, relation, computed(session, rows, texts, taken), left_out)
        table = with_generated(relation, table, None, left_out)
        table = coalesced(session, relation, table, given)
        table = as_kept(relation, settled(relation, table, None))
        check_rows(relation, table, None)
        table, rejected = in_order(session, relation, table)
        apply(
            session,
            relation,
            upserted(session, relation, table) if isinstance(relation, Table) else Change(table),
            rejected=rejected,
        )


def _delivered(relation: Relation, column: Field) -> str:
    """DuckDB SQL for a column's value. The time of a topic's record may be in milliseconds since 1970."""
    name = quoted(column.name)
    plain = converted(name, column.type, column.type)
    if relation.topic is None or column.name != RECORD_TIME:
        return plain
    text = f"CAST({name} AS VARCHAR)"
    moment = f"make_timestamp(CAST({text} AS BIGINT) * 1000)"
    return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN {moment} ELSE {plain} END"


def accepting(relation: Relation) -> Relation:
    """The relation with the columns that a writer may set; a changelog stream also has the sign of a row (default 1), a
    topic `_value`.
    """
    if relation.topic is not None:
        return replace(relation, columns=(*relation.columns, Field(VALUE_COLUMN, VARCHAR)))
    if not relation.takes_signs:
        return relation
    assert isinstance(relation, Input)
    columns = (*relation.columns, Field(DELTA_COLUMN, INTEGER, nullable=False))
    return replace(relation, columns=columns, defaults={**relation.defaults, DELTA_COLUMN: "1"})


def upserted(session: Session, relation: Relation, incoming: pa.Table) -> Change:
    """The change that upserts `incoming` into the table: the last row of each key stays.

    Raises PERMISSION_DENIED if it replaces or deletes existing rows without the privilege, INVALID_VALUE for a row that
    deletes a missing row of a changelog stream without key.
    """
    if relation.mode == "changelog" and DELTA_COLUMN in incoming.column_names:
        return taken_back(session, relation, incoming)
    if not relation.primary_key or not incoming.num_rows or relation.rejects_duplicates:
        return Change(incoming)
    if relation.version:
        incoming = by_version(session, relation, incoming)
        if not incoming.num_rows:
            return Change(incoming.select([c.name for c in relation.columns]))
    if relation.conflict is not None:
        return _by_rule(session, relation, relation.conflict, incoming)
    is_signed = DELTA_COLUMN in incoming.column_names
    if not is_signed and _have_new_keys(session, relation, incoming):
        return Change(incoming)
    fresh, replaced = split_by_key(session, relation, incoming)
    if is_signed:
        return _signed(session, relation, fresh)
    old = rows_with_keys(session, relation, fresh)
    if old.num_rows:
        session.require("UPDATE", relation, None)
    if replaced.num_rows and isinstance(relation, Stream):
        # joins may read every version of a stream's row, each of which was inserted and deleted
        return replacement(pa.concat_tables([old, replaced]), incoming)
    return replacement(old, fresh) if old.num_rows else Change(fresh)


def coalesced(
    session: Session, relation: Relation, rows: pa.Table, given: Collection[str], statement: Statement | None = None
) -> pa.Table:
    """The rows, in which a column that the writer omits has the value of the stored row of its key, if the relation is
    a coalesced stream. given: the columns that the writer sets.

    If these contain only a part of a family, no row remains, and the session gets a notice. Timeplus, "Coalesced
    Mutable Stream".
    """
    omitted = [c.name for c in relation.columns if c.name not in given]
    if not relation.coalesced or not omitted or not rows.num_rows:
        return rows
    divided = divided_family(relation, given)
    if divided is not None:
        session.notice(f"no row is written: {divided}")
        return rows.slice(0, 0)
    stored = rows_with_keys(session, relation, rows.select([c.name for c in relation.columns]))
    if not stored.num_rows:
        return rows
    keys = relation.primary_key
    tables = {
        "_wm_rows": rows.select(keys).append_column("_n", pa.array(np.arange(rows.num_rows))),
        "_wm_stored": stored.select(keys).append_column("_m", pa.array(np.arange(stored.num_rows))),
    }
    same = " AND ".join(f"a.{quoted(k)} = b.{quoted(k)}" for k in keys)
    sql = f"SELECT a._n, b._m FROM _wm_rows a JOIN _wm_stored b ON {same}"
    pairs = rows_read(session, lambda: lending(session, tables), sql, "")
    places = np.arange(rows.num_rows)
    places[pairs.column(0).to_numpy()] = rows.num_rows + pairs.column(1).to_numpy()
    for name in omitted:
        both = pa.chunked_array(
            [*rows.column(name).chunks, *stored.column(name).cast(rows.schema.field(name).type).chunks]
        )
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), both.take(pa.array(places)))
    return with_generated(relation, rows, statement)


def divided_family(relation: Relation, given: Collection[str]) -> str | None:
    """Describes a family of which a writer sets only some columns, or None."""
    for family in relation.families:
        lacking = [c for c in family.columns if c not in given]
        if lacking and len(lacking) < len(family.columns):
            return f'column "{lacking[0]}" of FAMILY {family.name} of {relation.title} has no value'
    return None


def _have_new_keys(session: Session, relation: Relation, incoming: pa.Table) -> bool:
    """Whether the known hashes prove that no row of the table ever had a key of the new rows."""
    transaction = session.transaction
    if transaction is not None and relation.id in transaction.changes:
        return False
    found = known_keys(session, relation)
    return found is not None and found.are_new(found.hashes(incoming))


def _by_rule(session: Session, relation: Relation, rule: Conflict, incoming: pa.Table) -> Change:
    """The change of a table by new rows in order, some of which may be deletions, by its conflict rule."""
    diff = np.ones(incoming.num_rows, np.int64)
    if DELTA_COLUMN in incoming.column_names:
        diff = incoming.column(DELTA_COLUMN).to_numpy().astype(np.int64)
        incoming = incoming.drop_columns([DELTA_COLUMN])
    old = rows_with_keys(session, relation, incoming)
    if old.num_rows and rule.action != "ignore":
        session.require("UPDATE", relation, None)
    if (diff < 0).any():
        session.require("DELETE", relation, None)
    rows, names = pa.concat_tables([old, incoming]), incoming.column_names
    order = np.concatenate([np.full(old.num_rows, STORED), np.arange(incoming.num_rows)])
    changes = Delta(
        positional([*rows.columns, pa.array(order)]), np.concatenate([np.ones(old.num_rows, np.int64), diff])
    )
    keys, versions = (tuple(map(names.index, columns)) for columns in (relation.primary_key, rule.versions))
    runs = resolved(changes, keys, rule.action, versions)
    left = [gather_table(run.columns, np.flatnonzero(run.diff > 0)) for run in runs]
    new = pa.concat_tables([t.select(range(len(names))).rename_columns(names) for t in left])
    return replacement(old, new)


def _signed(session: Session, relation: Relation, last: pa.Table) -> Change:
    """The change by the last row of each key of a changelog: an inserted row (1) replaces the key's row, a deleted row
    (-1) removes it.
    """
    inserted = last.filter(pc.greater(last.column(DELTA_COLUMN), 0)).drop_columns([DELTA_COLUMN])
    old = rows_with_keys(session, relation, last.drop_columns([DELTA_COLUMN]))
    if old.num_rows:
        session.require("UPDATE", relation, None)
    if inserted.num_rows < last.num_rows:
        session.require("DELETE", relation, None)
    return replacement(old, inserted)


def replacement(old: pa.Table, new: pa.Table) -> Change:
    """The change that replaces `old` by `new`."""
    diff = np.concatenate([np.full(old.num_rows, -1, np.int64), np.ones(new.num_rows, np.int64)])
    return Change(pa.concat_tables([old, new]), diff)


def taken_back(session: Session, relation: Relation, written: pa.Table) -> Change:
    """The change by signed rows in order. The caller holds the guard.

    A deleted row cancels the newest earlier row that is not cancelled yet and is equal in all columns, or else in all
    except `_tp_time`, which an INSERT fills. Raises INVALID_VALUE if there is none.
    """
    is_insert = pc.greater(written.column(DELTA_COLUMN), 0)
    rows = written.drop_columns([DELTA_COLUMN])
    if pc.all(is_insert).as_py() in (True, None):
        return Change(rows)
    session.require("DELETE", relation, None)
    old = _equal_rows(session, relation, rows.filter(pc.invert(is_insert)))
    all_rows = pa.concat_tables([old, rows.cast(old.schema)])
    comes = np.concatenate([np.ones(old.num_rows, bool), is_insert.to_numpy(zero_copy_only=False)])
    left = _left(session, all_rows, comes)
    lacking = int(np.count_nonzero(left & ~comes))
    if lacking:
        raise error(
            "INVALID_VALUE",
            f'stream "{relation.shown}" has no row for one with {DELTA_COLUMN} = -1 to take back',
            detail=f"This applies to {lacking} of {int(np.count_nonzero(~comes))} such rows; nothing was written.",
            hint="A row with this sign deletes one that is equal in all columns.",
        )
    stored = np.arange(len(comes)) < old.num_rows
    deleted, fresh = stored & ~left, ~stored & left & comes
    diff = np.concatenate(
        [np.full(np.count_nonzero(deleted), -1, np.int64), np.ones(np.count_nonzero(fresh), np.int64)]
    )
    return Change(pa.concat_tables([all_rows.filter(pa.array(deleted)), all_rows.filter(pa.array(fresh))]), diff)


def _equal_rows(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows of the stream's newest content that one of `rows` may cancel, ordered by arrival."""
    schema = arrow_schema(relation.columns, positional=False)
    columns = ", ".join(f"t.{quoted(c.name)}" for c in relation.columns)
    same = " AND ".join(
        f"{key_sql(f't.{quoted(f.name)}', f.type)} IS NOT DISTINCT FROM {key_sql(f'i.{quoted(f.name)}', f.type)}"
        for f in schema
        if f.name != TIME_COLUMN
    )
    query = BatchQuery(
        f"SELECT {columns} FROM {quoted(relation.shown)} t SEMI JOIN {_WRITTEN} i ON {same or 'true'} "
        f"ORDER BY t.{quoted(TIME_COLUMN)}",
        relation.columns,
        session.catalog,
        depends_on=(relation.id,),
    )
    return conformed(rows_beside(session, query, rows, relation, _WRITTEN), schema)


def _left(session: Session, rows: pa.Table, comes: _Flags) -> _Flags:
    """The rows that are not cancelled: inserted rows that are not deleted, and deleted rows without a partner.

    Equal inserted and deleted rows are matched like opening and closing brackets, first those that are equal in all
    columns, then those that differ only in `_tp_time`.
    """
    keys = [key_sql(quoted(f.name), f.type) for f in rows.schema if f.name != TIME_COLUMN] or ["0"]
    signed = rows.append_column("_s", pa.array(np.where(comes, 1, -1))).append_column(
        "_n", pa.array(np.arange(len(comes)))
    )
    met = _unmet(_SIGNED, [*keys, quoted(TIME_COLUMN)])
    sql = f"SELECT _n FROM ({_unmet(f'({met})', keys)})"
    found = rows_read(session, lambda: lending(session, {_SIGNED: signed}), sql, "").column(0)
    left = np.zeros(len(comes), bool)
    left[found.to_numpy()] = True
    return left


def _unmet(source: str, keys: list[str]) -> str:
    """The query for rows without a partner: the bracket depth falls below all earlier depths, or never again below
    their own.
    """
    window = f"PARTITION BY {', '.join(keys)} ORDER BY _n"
    before, after = "UNBOUNDED PRECEDING AND 1 PRECEDING", "CURRENT ROW AND UNBOUNDED FOLLOWING"
    depths = f"SELECT *, sum(_s) OVER ({window}) AS _d FROM {source}"
    return (
        f"SELECT * EXCLUDE (_d) FROM ({depths}) QUALIFY CASE WHEN _s > 0 "
        f"THEN min(_d) OVER ({window} ROWS BETWEEN {after}) >= _d "
        f"ELSE _d < least(0, coalesce(min(_d) OVER ({window} ROWS BETWEEN {before}), 0)) END"
    )
