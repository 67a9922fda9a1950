"""Columns that were added to a captured table there are added here (`auto.schema.change`).

RisingWave, "Ingest data from PostgreSQL CDC", "Automatically map upstream table schema" and "auto schema change".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from watersmeet.catalog import CapturedTable
from watersmeet.dialects import parse
from watersmeet.dialects.statements import CreateRelation
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.session.access.renaming import alter_indexes, note_names, with_column, written
from watersmeet.session.access.transactions import own_transaction
from watersmeet.sources.capture.pgoutput import Batch
from watersmeet.sources.capture.servers import TableThere, value_before
from watersmeet.sources.databasetables import typed
from watersmeet.sources.postgrescolumns import Column, without_forms
from watersmeet.types import Field, Schema, SqlType


def newest_version(table: CapturedTable, batch: Batch) -> tuple[list[str], int] | None:
    """(the columns of the newest version of the table there in a batch, the place of the first transaction that has
    it); None if nothing of the table is in the batch.
    """
    own = [r for r in batch.rows if r.table.oid == table.captured.oid]
    if not own:
        return None
    newest = max(own, key=lambda r: int(r.places[0]))
    return [c.name for c in newest.table.columns], int(batch.commit_lsns[newest.transactions[0]])


def names_added(table: CapturedTable, names: Collection[str]) -> tuple[str, ...]:
    """Which columns are new there. None if others are gone: those may have new names."""
    captured = table.captured
    if not set(captured.types) <= set(names):
        return ()
    return tuple(n for n in names if n not in captured.types and n not in captured.left_out)


def add_columns(
    session: Session, connection: Any, table: CapturedTable, there: TableThere, names: Sequence[str], lsn: int
) -> None:
    """Adds columns to a table, in a transaction of its own. Rows that are there have the value that they have there.

    session: of this call alone. lsn: see `Captured.added`. FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH, DUPLICATE_COLUMN,
    UNDEFINED_COLUMN: the table can't follow.
    """
    theirs = {c.name: c for c in there.columns}
    with session.database.ddl, own_transaction(session):
        now = session.catalog.relations.get(table.id)
        if not isinstance(now, CapturedTable) or now.captured != table.captured:
            return
        made = now
        for name in names:
            made = _with_column(connection, made, there, theirs.get(name), name, lsn)
        note_names(session, now)
        session.put(made)
        alter_indexes(session, now, lambda index: replace(index, columns=made.columns, stored=made.stored))


def _with_column(
    connection: Any, table: CapturedTable, there: TableThere, column: Column | None, name: str, lsn: int
) -> CapturedTable:
    if column is None:
        raise error("UNDEFINED_COLUMN", f'column "{name}" of table "{there.shown}" is gone')
    if column.type is None:
        raise error(
            "DATATYPE_MISMATCH",
            f'column "{name}" was added to table "{there.shown}" with type {column.theirs}, which has no equivalent',
        )
    if any(c.name.lower() == name.lower() for c in table.columns):
        raise error("DUPLICATE_COLUMN", f'column "{name}" of {table.title} already exists')
    before = value_before(connection, there, name)
    fill = None if before is None else _fill(before, column, column.type, there)
    captured = replace(
        table.captured,
        types={**table.captured.types, name: there.types[name]},
        added={**table.captured.added, name: lsn},
    )
    made = parse(table.sql, table.dialect)[-1]
    takes_all = isinstance(made, CreateRelation) and made.takes_columns
    definition = f"{written(name, table)} {column.type.sql}"
    return replace(
        table,
        columns=(*table.columns, Field(name, column.type)),
        fills=table.fills | ({} if fill is None else {name: fill}),
        captured=captured,
        sql=table.sql if takes_all else with_column(table, definition),
    )


def _fill(text: str, column: Column, kind: SqlType, there: TableThere) -> str:
    """The value of rows that are older than a column, as the catalog keeps it."""
    schema: Schema = (Field(column.name, kind),)
    forms = without_forms([pa.array([text])], [column], [kind])
    found = typed(forms, schema, f'table "{there.shown}"').column(0)
    try:
        (fill,) = found.cast(pa.string()).to_pylist()
        if pa.chunked_array([[fill]], pa.string()).cast(found.type).equals(found):
            return str(fill)
    except pa.ArrowException:
        pass
    raise error(
        "FEATURE_NOT_SUPPORTED",
        f'column "{column.name}" of type {kind.sql} was added to table "{there.shown}" with a default',
    )
