"""UPDATE and DELETE of tables of other databases, such as SQLstream's foreign tables.

The table is locked there, read, and what changes is computed here, by the rules of the dialect; then it is written, all
in one transaction of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import ExternalTable, one
from watersmeet.connectors.base.deliveries import statement_delivery
from watersmeet.connectors.base.targets import RowChange, connector_of
from watersmeet.database.assignment import Target, assigned, both_images, check_types, matching
from watersmeet.database.reading import Bounded, fetch
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.database.writing import check_rows
from watersmeet.dialects.tree.statements import Delete, Name, Update
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.values.types import Schema


def changed_elsewhere(session: Session, name: Name) -> ExternalTable | None:
    """The table of that name if its rows are changed in another database."""
    found = session.find(name)
    return found if isinstance(found, ExternalTable) and found.is_written_outside else None


def update_elsewhere(session: Session, relation: ExternalTable, statement: Update) -> Result:
    """UPDATE … SET. TRANSACTION_STATE inside of a transaction, FEATURE_NOT_SUPPORTED without a key."""
    targets = assigned(relation, statement)
    values = tuple(t.typed(e) for t, (_, e) in zip(targets, statement.assignments, strict=True))
    width = len(relation.columns)

    def images(query: Bounded) -> tuple[pa.Table, pa.Table | None]:
        check_types(query.columns[width:], targets, statement)
        rows = fetch(session, both_images(query, relation, targets), newest=True)
        names = [c.name for c in relation.columns]
        old, new = (pa.table(part, names=names) for part in (rows.columns[:width], rows.columns[width:]))
        check_rows(relation, new, statement)
        return old, new

    return _changed(session, relation, statement, "UPDATE", targets, values, images)


def delete_elsewhere(session: Session, relation: ExternalTable, statement: Delete) -> Result:
    """DELETE FROM. TRANSACTION_STATE inside of a transaction, FEATURE_NOT_SUPPORTED without a key."""
    return _changed(
        session, relation, statement, "DELETE", (), (), lambda query: (fetch(session, query, newest=True), None)
    )


def _changed(
    session: Session,
    relation: ExternalTable,
    statement: Update | Delete,
    command: str,
    targets: Sequence[Target],
    values: tuple[exp.Expression, ...],
    images: Callable[[Bounded], tuple[pa.Table, pa.Table | None]],
) -> Result:
    """images: the rows that change as they are and as they become, from the query for them and `values`."""
    session.require_writer(command)
    session.require_no_transaction(f"{command} of {one(relation.what)}")
    if statement.returning is not None:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            f"RETURNING of {command} of {one(relation.what)} is not supported",
        )

    def bound() -> Bounded:
        return matching(session, relation, statement.alias, statement.where, values, statement)

    written = tuple(t.column for t in targets)
    delivery = statement_delivery(relation, written)
    change = connector_of(delivery).change
    if change is None:
        raise error_at(
            statement,
            statement.table.span,
            "FEATURE_NOT_SUPPORTED",
            f"{command} of {one(relation.what)} over connector {delivery.connector['connector']} is not supported",
        )
    count = 0

    def compute(keys: Sequence[frozenset[str]]) -> RowChange:
        nonlocal count
        key = _key(relation, keys, statement, command)
        with session.database.guard:
            depends_on = bound().depends_on
        refresh_read(session, depends_on)  # not under the guard: upkeep takes it behind the locks of this
        with session.database.guard:
            old, new = images(bound())
        count = old.num_rows
        return RowChange(
            relation.external.named(key),
            old.select([c.name for c in key]),
            None if new is None else new.select([c.name for c in written]),
        )

    with located(statement, statement.table.span):
        change(delivery, compute)
    return Result(command, rowcount=count)


def _key(relation: ExternalTable, keys: Sequence[frozenset[str]], statement: Update | Delete, command: str) -> Schema:
    """The columns by which rows are found there. keys: those of the table there."""
    there = [c.name for c in relation.external.named(relation.columns)]
    for key in keys:
        if key <= {*there}:
            return tuple(c for c, name in zip(relation.columns, there, strict=True) if name in key)
    raise error_at(
        statement,
        statement.table.span,
        "FEATURE_NOT_SUPPORTED",
        f"{command} of {relation.title}, whose columns have no key, is not supported",
        detail=f"The keys there are: {'; '.join(', '.join(sorted(k)) for k in keys) or 'none'}.",
        hint="Rows are found by a primary key, or by a unique index over columns that are NOT NULL.",
    )
