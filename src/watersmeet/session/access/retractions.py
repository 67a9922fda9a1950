"""Changelog streams without a primary key: a row that is written with `_tp_delta` = -1 takes one back that is equal.

Timeplus' modes of streams, "changelog": each row is its own event, with the meaning of a change.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import DELTA_COLUMN, Relation
from watersmeet.database.transaction import Change
from watersmeet.dialects.timeplus.columns import TIME_COLUMN
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import Bounded, conformed, lent, reading
from watersmeet.store.merging import key_sql, quoted
from watersmeet.types import arrow_schema

_WRITTEN: Final = "_watersmeet_written"
_SIGNED: Final = "_watersmeet_signed"

_Flags = npt.NDArray[np.bool_]


def taken_back(session: Session, relation: Relation, written: pa.Table) -> Change:
    """The change by rows in their order, each with its sign. The caller holds the guard.

    A row that goes takes back the one of the rows before it that came last and that no other takes back: of those that
    are equal in all columns, or else in all but `_tp_time`, which an INSERT fills. INVALID_VALUE if there is none.
    """
    came = pc.greater(written.column(DELTA_COLUMN), 0)
    rows = written.drop_columns([DELTA_COLUMN])
    if pc.all(came).as_py() in (True, None):
        return Change(rows)
    old = _equal_rows(session, relation, rows.filter(pc.invert(came)))
    all_rows = pa.concat_tables([old, rows.cast(old.schema)])
    comes = np.concatenate([np.ones(old.num_rows, bool), came.to_numpy(zero_copy_only=False)])
    left = _left(session, all_rows, comes)
    lacking = int(np.count_nonzero(left & ~comes))
    if lacking:
        raise error(
            "INVALID_VALUE",
            f'stream "{relation.shown}" has no row that one with {DELTA_COLUMN} = -1 takes back',
            detail=f"That is so of {lacking} of {int(np.count_nonzero(~comes))} such rows; nothing was written.",
            hint="It takes back a row that is equal in all columns.",
        )
    stored = np.arange(len(comes)) < old.num_rows
    gone, fresh = stored & ~left, ~stored & left & comes
    diff = np.concatenate([np.full(np.count_nonzero(gone), -1, np.int64), np.ones(np.count_nonzero(fresh), np.int64)])
    return Change(pa.concat_tables([all_rows.filter(pa.array(gone)), all_rows.filter(pa.array(fresh))]), diff)


def _equal_rows(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows of the stream's newest content that one of `rows` may take back, by the time at which they came."""
    schema = arrow_schema(relation.columns, positional=False)
    columns = ", ".join(f"t.{quoted(c.name)}" for c in relation.columns)
    same = " AND ".join(
        f"{key_sql(f't.{quoted(f.name)}', f.type)} IS NOT DISTINCT FROM {key_sql(f'i.{quoted(f.name)}', f.type)}"
        for f in schema
        if f.name != TIME_COLUMN
    )
    query = Bounded(
        f"SELECT {columns} FROM {quoted(relation.shown)} t SEMI JOIN {_WRITTEN} i ON {same or 'true'} "
        f"ORDER BY t.{quoted(TIME_COLUMN)}",
        relation.columns,
        (relation.id,),
        session.catalog,
    )
    with reading(session, query, newest=True) as connection, lent(connection, rows, relation, _WRITTEN):
        return conformed(connection.execute(query.sql).to_arrow_table(), schema)


def _left(session: Session, rows: pa.Table, comes: _Flags) -> _Flags:
    """Which rows no other cancels: those that come and are not taken back, those that go and find none.

    Equal rows that come and go are brackets that open and close: what is left has no other half. First those meet that
    are equal in all columns, then those that differ in `_tp_time`.
    """
    keys = [key_sql(quoted(f.name), f.type) for f in rows.schema if f.name != TIME_COLUMN] or ["0"]
    signed = rows.append_column("_s", pa.array(np.where(comes, 1, -1))).append_column(
        "_n", pa.array(np.arange(len(comes)))
    )
    met = _unmet(_SIGNED, [*keys, quoted(TIME_COLUMN)])
    with session.database.content.session() as connection:
        connection.register(_SIGNED, signed)
        try:
            found = connection.execute(f"SELECT _n FROM ({_unmet(f'({met})', keys)})").to_arrow_table().column(0)
        finally:
            connection.unregister(_SIGNED)
    left = np.zeros(len(comes), bool)
    left[found.to_numpy()] = True
    return left


def _unmet(source: str, keys: list[str]) -> str:
    """The query for the rows without other half: its depth falls below all before it, or never again below its own."""
    window = f"PARTITION BY {', '.join(keys)} ORDER BY _n"
    before, after = "UNBOUNDED PRECEDING AND 1 PRECEDING", "CURRENT ROW AND UNBOUNDED FOLLOWING"
    depths = f"SELECT *, sum(_s) OVER ({window}) AS _d FROM {source}"
    return (
        f"SELECT * EXCLUDE (_d) FROM ({depths}) QUALIFY CASE WHEN _s > 0 "
        f"THEN min(_d) OVER ({window} ROWS BETWEEN {after}) >= _d "
        f"ELSE _d < least(0, coalesce(min(_d) OVER ({window} ROWS BETWEEN {before}), 0)) END"
    )
