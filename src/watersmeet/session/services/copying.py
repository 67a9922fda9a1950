"""CREATE MATERIALIZED VIEW … INTO stream: what the view gives is written to the stream, each row once.

A transaction writes the rows that came and says up to which commit of the view they are, in one step; so after a crash
it goes on where it was. What goes is not written: a stream's rows are events, and of keyed ones the next row of the key
replaces it; a changelog stream gets both.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from watersmeet import files
from watersmeet.catalog import DELTA_COLUMN, Relation
from watersmeet.database.opened import OpenDatabase
from watersmeet.session.access.assignment import as_kept, check_rows, converted, omitted
from watersmeet.session.access.context import Session
from watersmeet.session.access.ordering import by_time, in_order
from watersmeet.session.access.reading import computed
from watersmeet.session.access.transactions import apply
from watersmeet.session.services.changes import Changes
from watersmeet.session.statements.dml import accepting, upserted
from watersmeet.store.merging import quoted

#: In the metrics of a transaction: by view, the commit up to which its changes were written.
_COPIED: Final = "copied"


def changes_of(database: OpenDatabase, view: Relation) -> Changes:
    """What the view gave that was not written yet: after the newest transaction that says so, or from its beginning.

    Commits are deleted up to one, and what was not written is held: where a commit is missing, all before it were.
    """
    number = database.log.head()
    while number and files.exists(database.layout.commit(number)):
        copied = database.log.read(number).metrics.get(_COPIED, {})
        if view.id in copied:
            return Changes(database, int(copied[view.id]))
        number -= 1
    return Changes(database, number)


def copy(session: Session, view: Relation, stream: Relation, changes: Changes) -> bool:
    """Write what the view gave since it was last asked; whether there was any.

    INVALID_VALUE for what the stream doesn't take.
    """
    database = session.database
    with database.guard:
        since = changes.taken
        found = changes.take(view.id)
        if not found:
            return False
        try:
            rows = _rows(
                view, stream, pa.concat_tables([c.rows for c in found]), np.concatenate([c.diff for c in found])
            )
            written = _columns(session, view, stream, rows)
            check_rows(stream, written.select([c.name for c in stream.columns]), None)
            written, rejected = in_order(session, stream, by_time(stream, written))
            apply(
                session,
                stream,
                upserted(session, stream, written),
                {_COPIED: {view.id: changes.taken}},
                rejected=rejected,
            )
        except BaseException:
            changes.back(since)
            raise
    return bool(rows.num_rows)


def _rows(view: Relation, stream: Relation, rows: pa.Table, diff: Any) -> pa.Table:
    """The rows that came, each as often; for a changelog stream those that went, too, with their signs."""
    rows = rows.rename_columns([c.name for c in view.columns])
    times = np.abs(diff) if stream.takes_signs else np.maximum(diff, 0)
    repeated = rows.take(pa.array(np.repeat(np.arange(len(diff)), times)))
    if not stream.takes_signs:
        return repeated
    return repeated.append_column(DELTA_COLUMN, pa.array(np.repeat(np.sign(diff), times), pa.int32()))


def _columns(session: Session, view: Relation, stream: Relation, rows: pa.Table) -> pa.Table:
    """The rows with the stream's columns: what the view has not, or has NULL in place of, is as an INSERT leaves it
    out.
    """
    now_us = session.database.clock.now_us()
    types = {c.name: c.type for c in view.columns}
    taken = accepting(stream).columns if DELTA_COLUMN in rows.column_names else stream.columns
    texts = []
    for column in taken:
        text = omitted(stream, column, now_us)
        if column.name in rows.column_names:
            given = converted(quoted(column.name), types.get(column.name, column.type), column.type)
            text = given if column.nullable else f"COALESCE({given}, {text})"
        texts.append(text)
    return as_kept(stream, computed(session, rows, texts, taken, view.sql))
