"""Columns that were added to a captured table there are added here (`auto.schema.change`).

RisingWave, "Ingest data from PostgreSQL CDC", "Automatically map upstream table schema" and "auto schema change".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from watersmeet.catalog import CapturedTable
from watersmeet.connectors.databases.captures import Stream, TableThere
from watersmeet.connectors.databases.tables import TableColumn, typed
from watersmeet.dialects import parse
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.session.access.renaming import alter_indexes, note_names, with_column, written
from watersmeet.session.access.transactions import own_transaction
from watersmeet.types import Field, Schema, SqlType


def names_added(table: CapturedTable, names: Collection[str]) -> tuple[str, ...]:
    """Which columns are new there. None if others are gone: those may have new names."""
    captured = table.captured
    if not set(captured.types) <= set(names):
        return ()
    return tuple(n for n in names if n not in captured.types and n not in captured.left_out)


def add_columns(
    session: Session, stream: Stream, table: CapturedTable, there: TableThere, names: Sequence[str], place: str
) -> None:
    """Adds columns to a table, in a transaction of its own. Rows that are there have the value that they have there.

    session: of this call alone. place: see `Captured.added`. FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH,
    DUPLICATE_COLUMN, UNDEFINED_COLUMN: the table can't follow.
    """
    theirs = {c.name: c for c in there.columns}
    with session.database.ddl, own_transaction(session):
        now = session.catalog.relations.get(table.id)
        if not isinstance(now, CapturedTable) or now.captured != table.captured:
            return
        made = now
        for name in names:
            made = _with_column(stream, made, there, theirs.get(name), name, place)
        note_names(session, now)
        session.put(made)
        alter_indexes(session, now, lambda index: replace(index, columns=made.columns, stored=made.stored))


def _with_column(
    stream: Stream, table: CapturedTable, there: TableThere, column: TableColumn | None, name: str, place: str
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
    before = stream.value_before(there, name)
    fill = None if before is None else _fill(stream, table, before, name, column.type)
    captured = replace(
        table.captured,
        types={**table.captured.types, name: there.types[name]},
        added={**table.captured.added, name: place},
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


def _fill(stream: Stream, table: CapturedTable, text: str, column: str, kind: SqlType) -> str:
    """The value of rows that are older than a column, as the catalog keeps it."""
    schema: Schema = (Field(column, kind),)
    shown = f"{table.captured.schema}.{table.captured.table}"
    plain = stream.plain(table.captured, schema, [pa.array([text])])
    found = typed(plain, schema, f'table "{shown}"').column(0)
    try:
        (fill,) = found.cast(pa.string()).to_pylist()
        if pa.chunked_array([[fill]], pa.string()).cast(found.type).equals(found):
            return str(fill)
    except pa.ArrowException:
        pass
    raise error(
        "FEATURE_NOT_SUPPORTED",
        f'column "{column}" of type {kind.sql} was added to table "{shown}" with a default',
    )
