"""Converts the captured changes of a table to inserted and deleted rows in the table's types, and to added columns.

RisingWave, "Ingest data from PostgreSQL CDC", "Automatically map upstream table schema" and "auto schema change".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.catalog import CapturedTable
from watersmeet.connectors.databases.captures import (
    Batch,
    Changed,
    DatabaseOptions,
    KeyedChanges,
    Lineage,
    Mask,
    Rows,
    Stream,
    System,
    TablePosition,
    TableThere,
    Values,
    concatenated,
    last_rows,
)
from watersmeet.connectors.databases.tables import TableColumn, exactly, typed
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import alter_indexes, note_names, with_column, written
from watersmeet.database.reading import BatchQuery, fetch, rows_with_keys
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Change
from watersmeet.database.writing import as_kept, replacement, with_generated
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.errors import error
from watersmeet.store.changes import quoted
from watersmeet.values.types import Field, Schema, SqlType, arrow_schema


class Captor(NamedTuple):
    """The context in which the changes of tables are computed."""

    session: Session
    system: System
    options: DatabaseOptions
    stream: Stream


class Letter(NamedTuple):
    """A rejected row, with a value that has no equivalent. text: its columns as JSON."""

    reason: str
    text: str


def changed(
    captor: Captor, table: CapturedTable, position: TablePosition, batch: Batch, letters: list[Letter]
) -> tuple[Change | None, TablePosition]:
    """The change of a table by transactions, and its position after them. The caller holds the guard.

    letters: receives rejected rows; the table then has no row with their keys. Errors other than RUNTIME_UNAVAILABLE
    stop the table.
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
        found = [of for v in truncation.tables if (of := captor.stream.is_of(captured, v)) is not None]
        for of in found:
            check_same(table, of)
        if found and captor.stream.is_emptied(captured, truncation):
            emptied = max(emptied, truncation.offset)
        elif found:
            cut = max(cut, truncation.offset)
    if not own and emptied < 0 and cut < 0:
        return None, position
    if cut > emptied and not captured.has_snapshot:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'a partition of table "{captured.schema}.{captured.table}" was emptied by TRUNCATE',
            detail="Without a snapshot the deleted rows are unknown.",
            hint=hint_of(table),
        )
    if cut > emptied or (emptied >= 0 and not position.takes_all):
        # The rows of the table are read again.
        return emptied_table(captor.session, table), TablePosition()
    changes = _keyed(captor, table, position, batch, own, emptied, letters)
    keys = changes.keys()
    if emptied < 0 and not keys.num_rows:
        return None, position
    there = content(captor.session, table) if emptied >= 0 else rows_with_keys(captor.session, table, keys)
    rows, missing = last_rows(changes, there.slice(0, 0) if emptied >= 0 else there)
    for column, mask in missing.items():
        reason = f'a change left column "{column}" as it was, and {table.title} does not have the row'
        rows_without = changes.written.filter(pa.array(mask)).select(list(table.primary_key))
        said = [json.dumps(row, default=str, ensure_ascii=False) for row in rows_without.to_pylist()]
        _set_aside(table, letters, [Letter(reason, text) for text in said])
    rows = with_generated(table, rows, None)
    rows = as_kept(table, rows)
    check_rows(table, rows, None)
    return replacement(there, rows), position


def content(session: Session, table: CapturedTable) -> pa.Table:
    """All rows of a table."""
    listed = ", ".join(quoted(c.name) for c in table.columns)
    query = BatchQuery(
        f"SELECT {listed} FROM {quoted(table.shown)}",
        table.columns,
        session.catalog,
        depends_on=(table.id,),
        exact=table.columns,
    )
    return fetch(session, query, newest=True)


def emptied_table(session: Session, table: CapturedTable) -> Change:
    """The change that deletes all rows of a table."""
    there = content(session, table)
    return replacement(there, there.slice(0, 0))


def read_columns(table: CapturedTable) -> Schema:
    """The columns of a table that also exist on the server."""
    return tuple(c for c in table.columns if c.name not in table.message_parts and c.name not in table.generated)


def check_version(table: CapturedTable, there: Lineage, now: dict[str, str], may_lack: Collection[str] = ()) -> None:
    """Raises the error that stops the table if its definition on the server has changed. now: the present types on the
    server by column. may_lack: columns that may be missing.
    """
    check_same(table, there)
    captured = table.captured
    shown = f"{captured.schema}.{captured.table}"
    again = hint_of(table)
    for column in read_columns(table):
        if column.name in may_lack and column.name not in now:
            continue
        if column.name not in now:
            raise error("UNDEFINED_COLUMN", f'column "{column.name}" of table "{shown}" is gone', hint=again)
        if captured.types[column.name] != now[column.name]:
            raise error(
                "DATATYPE_MISMATCH", f'column "{column.name}" of table "{shown}" has another type now', hint=again
            )


def check_same(table: CapturedTable, there: Lineage) -> None:
    """Raises CATALOG_TYPE_MISMATCH if only the name or only the number of a table matches the captured table."""
    captured, shown = table.captured, _shown(table)
    if there.oid != captured.oid:
        raise error("CATALOG_TYPE_MISMATCH", f"{shown} was dropped and created again", hint=hint_of(table))
    if (there.schema, there.name) != (captured.schema, captured.table):
        renamed = f'{shown} was renamed to "{there.schema}.{there.name}"'
        raise error("CATALOG_TYPE_MISMATCH", renamed, hint=hint_of(table))


def hint_of(table: CapturedTable) -> str:
    """The hint for a table that stopped."""
    return (
        f"RESET SOURCE {table.shown} reads it anew; if its columns are other ones, run its CREATE TABLE again, as "
        "CREATE OR REPLACE TABLE."
    )


def rows_there(
    captor: Captor, table: CapturedTable, texts: Sequence[pa.Array], letters: list[Letter]
) -> tuple[pa.Table, pa.Table]:
    """The rows of the table, and the keys of these rows and of rejected ones.

    texts: the `read_columns` of the rows that exist in the captured database. letters: receives the rejected rows.
    """
    found, bad = _values(captor, table, texts, None, letters)
    keys = found.select(list(table.primary_key))
    rows = as_kept(table, with_generated(table, found.filter(pa.array(~bad)), None))
    check_rows(table, rows, None)
    return rows, keys.filter(pa.array(~_has_null(keys)))


def _keyed(
    captor: Captor,
    table: CapturedTable,
    position: TablePosition,
    batch: Batch,
    own: Sequence[Rows],
    emptied: int,
    letters: list[Letter],
) -> KeyedChanges:
    """The changes after `emptied` in the types of the table. letters: see `changed`."""
    read = read_columns(table)
    keys = tuple(c for c in read if c.name in table.primary_key)
    deleted, deleted_at, written, written_at = [], [], [], []
    kept: dict[str, list[Mask]] = {c.name: [] for c in read}
    for rows in own:
        numbers = {name: i for i, name in enumerate(rows.table.types)}
        for is_new, mask, values in ((False, rows.gone, rows.old), (True, rows.written, rows.new)):
            at = rows.offsets[mask]
            wants = at > emptied
            if any(values[numbers[k]].kept.any() for k in table.primary_key):
                raise error(
                    "CONNECTOR_OPTION",
                    f'the changes of table "{table.captured.schema}.{table.captured.table}" lack its primary key',
                    detail="Old releases of PostgreSQL do not write keys that are stored out of line.",
                    hint=f"Update the server. {hint_of(table)}",
                )
            if not position.takes_all and len(at):
                found = Changed(rows.transactions[mask], [values[numbers[k]].texts for k in table.primary_key])
                wants &= captor.stream.wanted(table.captured, table.primary_key, position, batch, found)
            chosen = pa.array(wants)
            columns = read if is_new else keys
            taken = [values[numbers[c.name]] if c.name in numbers else _older(table, c.name, len(at)) for c in columns]
            texts = [v.texts.filter(chosen) for v in taken]
            if is_new:
                times = pa.array(batch.times_us[rows.transactions[mask][wants]], pa.int64())
                found_rows, bad = _values(captor, table, texts, times, letters)
                written.append(found_rows.filter(pa.array(~bad)))
                written_at.append(2 * at[wants][~bad] + 1)
                for column, value in zip(columns, taken, strict=True):
                    kept[column.name].append(value.kept[wants][~bad])
                # A rejected row deletes the row of its key.
                removed, removed_at = found_rows.select(list(table.primary_key)), 2 * at[wants] + 1
                removed, removed_at = removed.filter(pa.array(bad)), removed_at[bad]
            else:
                plain = captor.stream.plain(table.captured, keys, texts)
                removed = exactly(plain, keys, _shown(table)).rows.select(list(table.primary_key))
                removed_at = 2 * at[wants]
            known = ~_has_null(removed)  # a key that contains NULL has no row
            deleted.append(removed.filter(pa.array(known)))
            deleted_at.append(removed_at[known])
    schema = arrow_schema(table.columns, positional=False)
    key_schema = pa.schema([schema.field(k) for k in table.primary_key])
    return KeyedChanges(
        table.primary_key,
        pa.concat_tables([key_schema.empty_table(), *(g.cast(key_schema) for g in deleted)]),
        np.concatenate([np.zeros(0, np.int64), *deleted_at]),
        pa.concat_tables([schema.empty_table(), *written]),
        np.concatenate([np.zeros(0, np.int64), *written_at]),
        {n: concatenated(m) for n, m in kept.items()},
    )


def _values(
    captor: Captor, table: CapturedTable, texts: Sequence[pa.Array], times_us: pa.Array | None, letters: list[Letter]
) -> tuple[pa.Table, Mask]:
    """Rows of the table from the texts of the columns that are read, and the mask of rejected rows. times_us: the times
    of their transactions. letters: receives the rejected rows.
    """
    read, captured = read_columns(table), table.captured
    found, bad, reasons = exactly(captor.stream.plain(captured, read, texts), read, _shown(table))
    if reasons:
        chosen = {c.name: t.filter(pa.array(bad)).to_pylist() for c, t in zip(read, texts, strict=True)}
        names = sorted(chosen, key=lambda n: n not in table.primary_key)  # long texts are truncated
        listed = zip(*(chosen[n] for n in names), strict=True)
        said = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in listed)
        _set_aside(table, letters, [Letter(reason, text) for reason, text in zip(reasons, said, strict=True)])
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
    return pa.Table.from_arrays(columns, schema=schema), bad


def _set_aside(table: CapturedTable, letters: list[Letter], found: list[Letter]) -> None:
    """Raises INVALID_VALUE if rejected rows stop the table."""
    if found and table.captured.stops:
        raise error(
            "INVALID_VALUE",
            found[0].reason,
            hint=f"{hint_of(table)} With on_error = 'skip' it sets such rows aside.",
        )
    letters += found


def _has_null(keys: pa.Table) -> Mask:
    """The mask of keys that contain NULL."""
    found = np.zeros(keys.num_rows, np.bool_)
    for column in keys.columns:
        if column.null_count:
            found |= column.is_null().to_numpy()
    return found


def _shown(table: CapturedTable) -> str:
    """The name of the captured table for messages."""
    return f'table "{table.captured.schema}.{table.captured.table}"'


def _older(table: CapturedTable, column: str, count: int) -> Values:
    """The values of an added column in older rows."""
    text = pa.scalar(table.fills.get(column), pa.string())
    return Values(pa.repeat(text, count), np.zeros(count, np.bool_))


def names_added(table: CapturedTable, names: Collection[str]) -> tuple[str, ...]:
    """The columns that were added on the server. Empty if others were dropped, because the new ones may be renamed
    columns.
    """
    captured = table.captured
    if not set(captured.types) <= set(names):
        return ()
    return tuple(n for n in names if n not in captured.types and n not in captured.left_out)


def add_columns(
    session: Session, stream: Stream, table: CapturedTable, there: TableThere, names: Sequence[str], offset: str
) -> None:
    """Adds columns to a table in a separate transaction. Existing rows get the values that they have on the server.

    session: for this call only. offset: see `Captured.added`. Raises FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH,
    DUPLICATE_COLUMN or UNDEFINED_COLUMN if the table can't have the columns.
    """
    theirs = {c.name: c for c in there.columns}
    with session.database.ddl, own_transaction(session):
        now = session.catalog.relations.get(table.id)
        if not isinstance(now, CapturedTable) or now.captured != table.captured:
            return
        made = now
        for name in names:
            made = _with_column(stream, made, there, theirs.get(name), name, offset)
        note_names(session, now)
        session.put(made)
        alter_indexes(session, now, lambda index: replace(index, columns=made.columns, stored=made.stored))


def _with_column(
    stream: Stream, table: CapturedTable, there: TableThere, column: TableColumn | None, name: str, offset: str
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
        added={**table.captured.added, name: offset},
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
    """The value of an added column in older rows, in the form of the catalog."""
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
