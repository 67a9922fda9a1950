"""What captured changes make of a table: the rows that go and come, in its types."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import CapturedTable
from watersmeet.database.transaction import Change
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import Bounded, fetch, rows_with_keys
from watersmeet.session.access.rows import as_kept, check_rows, with_generated
from watersmeet.session.access.writing import replacement
from watersmeet.sources.capture.changes import KeyedChanges, concatenated, last_rows
from watersmeet.sources.capture.contract import (
    Batch,
    Changed,
    DatabaseOptions,
    Lineage,
    Rows,
    Stream,
    System,
    Values,
)
from watersmeet.sources.capture.positions import TablePosition
from watersmeet.sources.databasetables import typed
from watersmeet.store.merging import quoted
from watersmeet.types import Schema, arrow_schema


class Captor(NamedTuple):
    """What changes of tables are made with."""

    session: Session
    system: System
    options: DatabaseOptions
    stream: Stream


def changed(
    captor: Captor, table: CapturedTable, position: TablePosition, batch: Batch
) -> tuple[Change | None, TablePosition]:
    """(what transactions changed of a table, its position with that). The caller holds the guard.

    Errors stop the table, but for RUNTIME_UNAVAILABLE.
    """
    captured = table.captured
    own = []
    for rows in batch.rows:
        if (of := captor.stream.is_of(captured, rows.table)) is None:
            continue
        captor.stream.check(rows.table)
        check_version(table, of, rows.table.types, captor.stream.may_lack(captured, batch, rows))
        own.append(rows)
    emptied = cut = -1
    for truncation in batch.truncations:
        if captor.stream.is_emptied(captured, truncation):
            emptied = max(emptied, truncation.place)
        elif any(captor.stream.is_of(captured, v) is not None for v in truncation.tables):
            cut = max(cut, truncation.place)
    if not own and emptied < 0 and cut < 0:
        return None, position
    if cut > emptied and not captured.has_snapshot:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'a partition of table "{captured.schema}.{captured.table}" was emptied by TRUNCATE',
            detail="Without a snapshot it is not known which rows were in it.",
            hint=hint_of(table),
        )
    if cut > emptied or (emptied >= 0 and not position.takes_all):
        # From here on everything is read again.
        return emptied_table(captor.session, table), TablePosition()
    changes = _keyed(captor, table, position, batch, own, emptied)
    keys = changes.keys()
    if emptied < 0 and not keys.num_rows:
        return None, position
    there = content(captor.session, table) if emptied >= 0 else rows_with_keys(captor.session, table, keys)
    rows, complete = last_rows(changes, there.slice(0, 0) if emptied >= 0 else there)
    if not complete:
        raise error(
            "INVALID_VALUE",
            f'a change of table "{captured.schema}.{captured.table}" leaves values as they were, of a row that is '
            "not here",
        )
    rows = with_generated(table, rows, None)
    rows = as_kept(table, rows)
    check_rows(table, rows, None)
    return replacement(there, rows), position


def content(session: Session, table: CapturedTable) -> pa.Table:
    """All rows of a table."""
    listed = ", ".join(quoted(c.name) for c in table.columns)
    query = Bounded(
        f"SELECT {listed} FROM {quoted(table.shown)}", table.columns, (table.id,), session.catalog, exact=table.columns
    )
    return fetch(session, query, newest=True)


def emptied_table(session: Session, table: CapturedTable) -> Change:
    """The change that leaves no row."""
    there = content(session, table)
    return replacement(there, there.slice(0, 0))


def read_columns(table: CapturedTable) -> Schema:
    """The columns that are columns there, too."""
    return tuple(c for c in table.columns if c.name not in table.message_parts and c.name not in table.generated)


def check_version(table: CapturedTable, there: Lineage, now: dict[str, str], may_lack: Collection[str] = ()) -> None:
    """Raises the error that stops the table if the table of its server is another one now. now: its types by column.
    may_lack: columns that it need not have yet.
    """
    captured = table.captured
    shown = f"{captured.schema}.{captured.table}"
    again = hint_of(table)
    if there.oid != captured.oid:
        raise error("CATALOG_TYPE_MISMATCH", f'table "{shown}" was dropped and created again', hint=again)
    if (there.schema, there.name) != (captured.schema, captured.table):
        raise error(
            "CATALOG_TYPE_MISMATCH", f'table "{shown}" was renamed to "{there.schema}.{there.name}"', hint=again
        )
    for column in read_columns(table):
        if column.name in may_lack and column.name not in now:
            continue
        if column.name not in now:
            raise error("UNDEFINED_COLUMN", f'column "{column.name}" of table "{shown}" is gone', hint=again)
        if captured.types[column.name] != now[column.name]:
            raise error(
                "DATATYPE_MISMATCH", f'column "{column.name}" of table "{shown}" has another type now', hint=again
            )


def hint_of(table: CapturedTable) -> str:
    """What lets a table that stopped go on."""
    return (
        f"RESET SOURCE {table.shown} reads it anew; if its columns are other ones, run its CREATE TABLE again, as "
        "CREATE OR REPLACE TABLE."
    )


def rows_there(captor: Captor, table: CapturedTable, texts: Sequence[pa.Array]) -> pa.Table:
    """Rows of the table by the texts of its `read_columns` in rows that were there already."""
    rows = _values(captor, table, texts, None)
    rows = as_kept(table, with_generated(table, rows, None))
    check_rows(table, rows, None)
    return rows


def _keyed(
    captor: Captor, table: CapturedTable, position: TablePosition, batch: Batch, own: Sequence[Rows], emptied: int
) -> KeyedChanges:
    """The changes behind `emptied` that are to be made, in the types of the table."""
    read = read_columns(table)
    keys = tuple(c for c in read if c.name in table.primary_key)
    gone, gone_at, written, written_at = [], [], [], []
    kept: dict[str, list[npt.NDArray[np.bool_]]] = {c.name: [] for c in read}
    for rows in own:
        places = {name: i for i, name in enumerate(rows.table.types)}
        for is_new, mask, values in ((False, rows.gone, rows.old), (True, rows.written, rows.new)):
            at = rows.places[mask]
            wants = at > emptied
            if any(values[places[k]].kept.any() for k in table.primary_key):
                raise error(
                    "CONNECTOR_OPTION",
                    f'the changes of table "{table.captured.schema}.{table.captured.table}" lack its primary key',
                    detail="Old releases of PostgreSQL do not write keys that are stored out of line.",
                    hint=f"Update the server, then {hint_of(table)}",
                )
            if not position.takes_all and len(at):
                found = Changed(rows.transactions[mask], [values[places[k]].texts for k in table.primary_key])
                wants &= captor.stream.wanted(table.captured, table.primary_key, position, batch, found)
            chosen = pa.array(wants)
            columns = read if is_new else keys
            taken = [values[places[c.name]] if c.name in places else _older(table, c.name, len(at)) for c in columns]
            texts = [v.texts.filter(chosen) for v in taken]
            if is_new:
                times = pa.array(batch.times_us[rows.transactions[mask][wants]], pa.int64())
                written.append(_values(captor, table, texts, times))
                written_at.append(2 * at[wants] + 1)
                for column, value in zip(columns, taken, strict=True):
                    kept[column.name].append(value.kept[wants])
            else:
                what = f'table "{table.captured.schema}.{table.captured.table}"'
                plain = captor.stream.plain(table.captured, keys, texts)
                gone.append(typed(plain, keys, what).select(list(table.primary_key)))
                gone_at.append(2 * at[wants])
    schema = arrow_schema(table.columns, positional=False)
    key_schema = pa.schema([schema.field(k) for k in table.primary_key])
    return KeyedChanges(
        table.primary_key,
        pa.concat_tables([key_schema.empty_table(), *(g.cast(key_schema) for g in gone)]),
        np.concatenate([np.zeros(0, np.int64), *gone_at]),
        pa.concat_tables([schema.empty_table(), *written]),
        np.concatenate([np.zeros(0, np.int64), *written_at]),
        {n: concatenated(m) for n, m in kept.items()},
    )


def _values(captor: Captor, table: CapturedTable, texts: Sequence[pa.Array], times_us: pa.Array | None) -> pa.Table:
    """Rows of the table by the texts of the columns that are read. times_us: of their transactions."""
    read, captured = read_columns(table), table.captured
    what = f'table "{captured.schema}.{captured.table}"'
    found = typed(captor.stream.plain(captured, read, texts), read, what)
    schema = arrow_schema(table.columns, positional=False)
    count = len(texts[0])
    constants = {
        "database_name": captor.options.server.database if captor.system.has_schemas else captured.schema,
        "schema_name": captured.schema,
        "table_name": captured.table,
    }
    columns = []
    for field in schema:
        part = table.message_parts.get(field.name)
        if field.name in found.column_names:
            column = found.column(field.name).cast(field.type)
        elif part == "timestamp" and times_us is not None:
            column = times_us.cast(pa.timestamp("us")).cast(field.type) if count else pa.nulls(0, field.type)
        elif part in constants:
            column = pa.repeat(pa.scalar(constants[part], field.type), count)
        else:
            column = pa.nulls(count, field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _older(table: CapturedTable, column: str, count: int) -> Values:
    """The values of a column in rows that are older than it."""
    text = pa.scalar(table.fills.get(column), pa.string())
    return Values(pa.repeat(text, count), np.zeros(count, np.bool_))
