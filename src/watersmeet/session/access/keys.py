"""Primary keys: the last row of each key wins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import Bounded, conformed, lent, reading
from watersmeet.store.merging import quoted
from watersmeet.types import arrow_schema

_INCOMING = "_watersmeet_incoming"


def last_of_each_key(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows without those that a later one of the same key replaces, in their order."""
    last = _last(session, relation, rows)
    return rows if last is None else rows.take(last)


def split_by_key(session: Session, relation: Relation, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(the last row of each key, those that they replace)."""
    last = _last(session, relation, rows)
    if last is None:
        return rows, rows.slice(0, 0)
    return rows.take(last), rows.take(np.setdiff1d(np.arange(rows.num_rows), last))


def _last(session: Session, relation: Relation, rows: pa.Table) -> npt.NDArray[np.int64] | None:
    """The positions of the last rows of each key, rising; None for all."""
    if rows.num_rows < 2:
        return None
    keys = ", ".join(quoted(k) for k in relation.primary_key)
    numbered = rows.select(list(relation.primary_key)).append_column("_n", pa.array(np.arange(rows.num_rows)))
    with session.database.content.session() as connection:
        connection.register(_INCOMING, numbered)
        try:
            found = connection.execute(f'SELECT max("_n") AS n FROM {_INCOMING} GROUP BY {keys}').to_arrow_table()
        finally:
            connection.unregister(_INCOMING)
    if found.num_rows == rows.num_rows:
        return None
    return np.sort(found.column(0).to_numpy())


def rows_with_keys(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows of the table's newest content that have one of the keys of `rows`."""
    columns = ", ".join(f"t.{quoted(c.name)}" for c in relation.columns)
    same = " AND ".join(f"t.{quoted(k)} = i.{quoted(k)}" for k in relation.primary_key)
    schema = arrow_schema(relation.columns, positional=False)
    query = Bounded(
        f"SELECT {columns} FROM {quoted(relation.shown)} t SEMI JOIN {_INCOMING} i ON {same}",
        relation.columns,
        (relation.id,),
        session.catalog,
    )
    with reading(session, query, newest=True) as connection, lent(connection, rows, relation, _INCOMING):
        return conformed(connection.execute(query.sql).to_arrow_table(), schema)
