"""What tests and tools do to a database that SQL does not: rows and times from nowhere, plans of whole scripts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from watersmeet.catalog import Input, Relation
from watersmeet.database.sessions.context import Session
from watersmeet.database.transactions import wait_if_wanted
from watersmeet.database.writing import accepting, deliver, stream_clock
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import relation_written
from watersmeet.dialects.script import columns_of
from watersmeet.errors import did_you_mean, error
from watersmeet.session.connections.connection import Connection
from watersmeet.session.services.status import join_state
from watersmeet.session.statements.explain import explain_script


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
        self._session.database.outside.give(
            kind, table, columns_of(columns, language_named(self._session.dialect)), rows
        )

    def inject(self, relation: str, rows: pa.Table) -> None:
        """Commit rows to a source or table as if its connector had delivered them.

        rows: columns by name; missing ones are NULL. Needs `replace_connectors` for relations with a connector.
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
            hint="Connect with replace_connectors = True to give it rows.",
        )
    if relation.is_external:
        raise error("READ_ONLY_RELATION", f'the content of {relation.family} "{name}" is outside of the database')
    return relation
