"""Rows of ordered streams arrive in the order of their times. A row older than one before it is rejected, and the
commit counts it.

SQLstream, "JOIN clause": the clock of a stream is the rowtime of its newest row, and rowtimes never decrease. D-001-21:
rowtimes are whole milliseconds. The order is that of writing: within a statement, then of statements, then of the
commits of transactions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Relation
from watersmeet.database.transaction import Change
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.session.access.context import Session
from watersmeet.store.merging import quoted

_MILLISECOND_US = 1000


def in_order(session: Session, relation: Relation, rows: pa.Table) -> tuple[pa.Table, int]:
    """The rows that may be written to a relation, in the given order, and how many may not. The caller holds the guard.

    In a transaction they are compared with its earlier rows, and checked again when it commits.
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
            "a row with a later rowtime came before"
        )
    if transaction is not None:
        transaction.clocks[relation.id] = last
    return kept, rejected


def by_time(relation: Relation, rows: pa.Table) -> pa.Table:
    """Rows that a view gives together, in the order that an ordered stream accepts. Rows with equal times keep their
    order.
    """
    if relation.event_time is None or not relation.event_time.ordered:
        return rows
    times, _ = microseconds(rows.column(relation.event_time.column))
    return rows.take(pa.array(np.argsort(times, kind="stable")))


def in_order_at_commit(session: Session, changes: dict[str, Change]) -> tuple[dict[str, Change], dict[str, int]]:
    """The changes of a transaction without rows that others have overtaken meanwhile, and their number by
    relation id.
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
    """The rows that are in order, in whole milliseconds; how many are not; the clock after them."""
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
    with content.session(newest=True) as connection:
        content.refresh(session.catalog, [relation.id], newest=True)
        found = rows_of(connection, sql).column(0)
    number = session.database.log.progress().watermarks.get(relation.id)
    greatest = pc.cast(found, pa.timestamp("us")).cast(pa.int64())[0].as_py()
    return max([np.iinfo(np.int64).min + _MILLISECOND_US, *(int(n) for n in (number, greatest) if n is not None)])
