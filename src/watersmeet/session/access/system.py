"""System relations for queries: the rows of each, gathered when a query reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import duckdb
import pyarrow as pa

from watersmeet.binder.clauses.relations import DEAD_LETTERS, SYSTEM_RELATIONS
from watersmeet.connectors.base.deadletters import MAX_TEXT, stored_dead_letters
from watersmeet.session.access.context import Session
from watersmeet.store.merging import quoted

_STORED: Final = "_watersmeet_system"


@contextmanager
def system_relations(session: Session, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> Iterator[None]:
    """Inside the block, these system relations are views of the connection."""
    made = []
    try:
        for i, name in enumerate(names):
            stored = f"{_STORED}_{i}"
            gather, values = _GATHERED[name]
            connection.register(stored, gather(session))
            made.append((stored, name))
            columns = ", ".join(
                f"CAST({values.get(c.name, quoted(c.name))} AS {c.type.duckdb}) AS {quoted(c.name)}"
                for c in SYSTEM_RELATIONS[name]
            )
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {stored}")
        yield
    finally:
        for stored, name in made:
            connection.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
            connection.unregister(stored)


def _dead_letters(session: Session) -> pa.Table:
    layout, rights = session.database.layout, session.rights
    readable = (r for r in session.catalog.relations.values() if rights.may("SELECT", r.id))
    return stored_dead_letters([(r.shown, layout.dead(r.id)) for r in readable])


#: For each system relation: what gathers its rows, and the columns that are computed of them, in DuckDB's SQL.
_GATHERED: Final[dict[str, tuple[Callable[[Session], pa.Table], dict[str, str]]]] = {
    DEAD_LETTERS: (
        _dead_letters,
        {
            "key": "from_base64(key)",
            "value": "from_base64(value)",
            "text": f"coalesce(text, left(try(decode(from_base64(value))), {MAX_TEXT}))",
            "rows": "coalesce(rows, 1)",
        },
    )
}
