"""What tests do to a database that SQL does not: rows, times and contents of other systems from nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import watersmeet
from tests.joinstate import join_state
from watersmeet.catalog import External, Input, Relation
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.base.sources import Condition, Reader
from watersmeet.database.committing import wait_if_wanted
from watersmeet.database.sessions.context import Session
from watersmeet.database.writing import accepting, deliver, stream_clock
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import relation_written
from watersmeet.dialects.script import columns_of
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.convert import convert
from watersmeet.session.connections.connection import Connection
from watersmeet.session.statements.explain import explain_script
from watersmeet.values.types import Schema, arrow_schema


def connect_without_connectors(*args: Any, **options: Any) -> Connection:
    """A connection to a database whose relations get no rows from connectors, but from `Harness` alone."""
    connection = watersmeet.connect(*args, **options)
    connection._session.connectors = "ignored"
    return connection


class GivenReader(Reader):
    """Rows that a test gives in place of another system's. rows: as texts."""

    def __init__(self, columns: Schema, rows: Sequence[Sequence[str | None]]) -> None:
        self._columns = columns
        self._rows = [tuple(row) for row in rows]

    def columns(self) -> Schema | None:
        return self._columns

    def version(self) -> Any:
        return self._rows

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        places = {c.name: i for i, c in enumerate(self._columns)}
        if missing := [c.name for c in columns if c.name not in places]:
            refuse(f'the external table has no column "{missing[0]}"', hint=did_you_mean(missing[0], places))
        texts = [pa.array([row[places[c.name]] for row in self._rows], pa.string()) for c in columns]
        done = convert(texts, [c.type for c in columns])
        for column, found in zip(columns, done, strict=True):
            if found.bad is not None and found.bad.any():
                raise error("INVALID_VALUE", f'a value of column "{column.name}" is not {column.type.sql}')
        return pa.Table.from_arrays([d.column for d in done], schema=arrow_schema(columns, positional=False))


class _Given:
    """`Outside.reader` that prefers the readers of a test."""

    def __init__(self, others: Callable[..., Reader]) -> None:
        self.others = others
        self.readers: dict[tuple[str, str], GivenReader] = {}

    def __call__(self, external: External, *what: str) -> Reader:
        return self.readers.get((external.kind, external.name)) or self.others(external, *what)


class Harness:
    """The database of a connection, in the hands of a test."""

    def __init__(self, connection: Connection) -> None:
        """connection: open."""
        connection._check_open()
        self._session = connection._session
        self._lock = connection._lock

    def set_clock(self, time_us: int) -> None:
        """Stop the database's clock at a time: now() and PROCTIME() of epochs are it until the next call.

        time_us: microseconds since 1970 (UTC). INVALID_PARAMETER if that would set it back.
        """
        self._session.require_writer("setting the clock")
        self._session.database.clock.set(time_us)

    def set_watermark(self, relation: str, time_us: int) -> None:
        """Move a relation's event time: no later row will be before `time_us`, though no row says so.

        time_us: microseconds since 1970 (UTC). INVALID_PARAMETER for a relation without WATERMARK FOR.
        """
        self._session.require_writer("moving a watermark")
        found = relation_written(self._session.catalog, relation)
        if found is None or found.event_time is None:
            raise error("INVALID_PARAMETER", f'relation "{relation}" has no WATERMARK FOR')
        database = self._session.database
        database.engine.override_watermark(found.id, time_us)
        if found.event_time.ordered:
            stream_clock(self._session, found)
            database.rise(found.id, time_us)

    def set_external(self, kind: str, table: str, columns: str, rows: Sequence[Sequence[str | None]]) -> None:
        """Put rows in the place of a table of another system: external tables and dictionaries over it read them.

        kind: mysql, clickhouse, …. table: `database.table`. columns: their names and types in the spelling of the
        dialect that is spoken, `id string, name string`.
        rows: texts, each read as its column's type; they take the place of those of an earlier call.
        """
        self._session.require_writer("setting external content")
        outside = self._session.database.external_readers
        if not isinstance(outside.reader, _Given):
            outside.reader = _Given(outside.reader)
        schema = columns_of(columns, language_named(self._session.dialect))
        outside.reader.readers[kind, table] = GivenReader(schema, rows)

    def inject(self, relation: str, rows: pa.Table) -> None:
        """Commit rows to a source or table as if its connector had delivered them.

        rows: columns by name; missing ones are NULL. Needs `connect_without_connectors` for relations with a connector.
        """
        with self._lock:
            _inject(self._session, relation, rows)

    def deliver(
        self, relation: str, rows: Sequence[Sequence[str | None]], columns: Sequence[str] | None = None
    ) -> None:
        """Commit rows given as texts, each read as its column's type."""
        with self._lock:
            target = _target(self._session, relation)
            names = [c.name for c in target.delivered] if columns is None else list(columns)
            if any(len(row) != len(names) for row in rows):
                raise error("INVALID_PARAMETER", f"each row must have {len(names)} values")
            arrays = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(names))]
            _inject(self._session, relation, pa.Table.from_arrays(arrays, names=names))

    def join_state(self, view: str) -> dict[str, int]:
        """Rows that the last join of `view` holds: `left` and `right`."""
        return join_state(self._session, view)

    def explain_script(self, text: str) -> list[tuple[str, list[str]]]:
        """The plans of the views that a script makes: name and lines. Changes the catalog, so use a new database."""
        with self._lock:
            return explain_script(self._session, text)


def _inject(session: Session, name: str, rows: pa.Table) -> None:
    relation = _target(session, name)
    known = [c.name for c in accepting(relation).columns]
    for column in rows.column_names:
        if column not in known:
            raise error(
                "UNDEFINED_COLUMN",
                f'column "{column}" of relation "{name}" does not exist',
                hint=did_you_mean(column, known),
            )
    deliver(session, relation, rows)
    wait_if_wanted(session)


def _target(session: Session, name: str) -> Relation:
    session.require_writer("inject")
    relation = relation_written(session.catalog, name)
    if relation is None:
        raise error(
            "UNDEFINED_RELATION",
            f'relation "{name}" does not exist',
            hint=did_you_mean(name, [r.shown for r in session.catalog.relations.values()]),
        )
    if not isinstance(relation, Input):
        raise error("READ_ONLY_RELATION", f'can\'t give rows to {relation.what} "{name}"')
    if relation.connector:
        raise error(
            "READ_ONLY_RELATION",
            f'{relation.family} "{name}" gets its rows from its connector',
            hint="Connect with connect_without_connectors to give it rows.",
        )
    if relation.is_external:
        raise error("READ_ONLY_RELATION", f'the content of {relation.family} "{name}" is outside of the database')
    return relation
