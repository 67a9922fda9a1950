"""Rows from outside SQL: what tests give to sources and tables."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.dialects.schemas import relation_written
from watersmeet.errors import did_you_mean, error
from watersmeet.session.access.context import Session
from watersmeet.session.access.transactions import wait_if_wanted
from watersmeet.session.access.writing import accepting, deliver


def inject(session: Session, name: str, rows: pa.Table) -> None:
    """Commit rows to a table, or to a source as if its connector had delivered them."""
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


def deliver_texts(
    session: Session, name: str, rows: Sequence[Sequence[str | None]], columns: Sequence[str] | None
) -> None:
    """Commit rows whose values are texts."""
    relation = _target(session, name)
    names = [c.name for c in relation.delivered] if columns is None else list(columns)
    if any(len(row) != len(names) for row in rows):
        raise error("INVALID_PARAMETER", f"each row must have {len(names)} values")
    arrays = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(names))]
    inject(session, name, pa.Table.from_arrays(arrays, names=names))


def _target(session: Session, name: str) -> Relation:
    session.require_writer("inject")
    relation = relation_written(session.catalog, name)
    if relation is None:
        raise error(
            "UNDEFINED_RELATION",
            f'relation "{name}" does not exist',
            hint=did_you_mean(name, [r.shown for r in session.catalog.relations.values()]),
        )
    if relation.kind not in ("table", "source"):
        raise error("READ_ONLY_RELATION", f'can\'t give rows to {relation.what} "{name}"')
    if relation.connector:
        raise error(
            "READ_ONLY_RELATION",
            f'{relation.kind} "{name}" gets its rows from its connector',
            hint="Connect with replace_connectors = True to give it rows.",
        )
    if relation.external is not None:
        raise error("READ_ONLY_RELATION", f'the content of {relation.kind} "{name}" is outside of the database')
    return relation
