"""Changes of tables in other databases, which are written in one transaction of the server, and of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import ExternalTable, Merging, Relation, one
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.targets import RowChange, statement_delivery
from watersmeet.database.assignment import Target, assigned, both_images, check_types, matching
from watersmeet.database.producing import produce, unwritten
from watersmeet.database.reading import BatchQuery, fetch
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.database.writing import as_kept, settled
from watersmeet.dialects.tree.queries import is_default
from watersmeet.dialects.tree.statements import Delete, Insert, Name, Update
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.values.types import Schema


def changed_elsewhere(session: Session, name: Name) -> ExternalTable | None:
    """The table of that name, if its rows are in another database."""
    found = session.find(name)
    return found if isinstance(found, ExternalTable) and found.is_written_externally else None


def produce_rows(
    session: Session, relation: Relation, incoming: pa.Table, statement: Insert, merging: Merging | None = None
) -> Result:
    """Writes rows, which have the relation's columns, to its external system. When this returns, a topic of Kafka
    contains them, and the next epoch reads them. The caller does not hold the guard: servers may be slow.

    Raises TRANSACTION_STATE inside of a transaction, FEATURE_NOT_SUPPORTED for RETURNING.
    """
    session.require_outputs(relation, statement, statement.table.span)
    where = "a topic of Kafka" if relation.external is None else one(relation.what)
    session.require_no_transaction(f"INSERT into {where}")
    if statement.returning is not None:
        raise not_supported(f"RETURNING of an INSERT into {where}", statement.text, statement.span)
    if relation.external is not None:
        return _append(relation, incoming, statement, merging)
    for name in statement.columns:
        if name.name in unwritten(relation):
            raise not_supported(
                f'writing column "{name.name}" of {relation.title}', statement.text, name.span, hint="Leave it out."
            )
    incoming = as_kept(relation, settled(relation, incoming, statement))
    check_rows(relation, incoming, statement)
    rows = incoming.select([c.name for c in relation.columns])
    with located(statement, statement.table.span):
        produce(relation, rows, session.database.clock.now_us())
    return Result("INSERT", rowcount=rows.num_rows)


def _append(relation: Relation, incoming: pa.Table, statement: Insert, merging: Merging | None) -> Result:
    """Adds rows to an external table. Columns that the statement does not name get the server's defaults."""
    names = [n.name for n in statement.columns]
    if relation.format is not None:
        check_rows(relation, incoming, statement)
    if relation.format is not None or not names:
        names = [c.name for c in relation.columns]
    columns = tuple(relation.column(n) for n in names)
    delivery = statement_delivery(relation, columns, merging)
    append = connectors.connector_of(delivery).append
    assert append is not None, delivery.connector
    with located(statement, statement.table.span):
        append(delivery, incoming.select(names).rename_columns([c.name for c in delivery.columns]))
    return Result("INSERT", rowcount=incoming.num_rows)


def update_elsewhere(session: Session, relation: ExternalTable, statement: Update) -> Result:
    """UPDATE … SET. Raises TRANSACTION_STATE inside of a transaction, FEATURE_NOT_SUPPORTED without a key."""
    for name, value in statement.assignments:
        if is_default(value):
            raise not_supported(f"DEFAULT in an UPDATE of {one(relation.what)}", statement.text, name.span)
    targets = assigned(relation, statement)
    values = tuple(t.typed(e) for t, (_, e) in zip(targets, statement.assignments, strict=True))
    width = len(relation.columns)

    def images(query: BatchQuery) -> tuple[pa.Table, pa.Table | None]:
        check_types(query.columns[width:], targets, statement)
        rows = fetch(session, both_images(query, relation, targets), newest=True)
        names = [c.name for c in relation.columns]
        old, new = (pa.table(part, names=names) for part in (rows.columns[:width], rows.columns[width:]))
        check_rows(relation, new, statement)
        return old, new

    return _changed(session, relation, statement, "UPDATE", targets, values, images)


def delete_elsewhere(session: Session, relation: ExternalTable, statement: Delete) -> Result:
    """DELETE FROM. Raises TRANSACTION_STATE inside of a transaction, FEATURE_NOT_SUPPORTED without a key."""
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
    images: Callable[[BatchQuery], tuple[pa.Table, pa.Table | None]],
) -> Result:
    """images: computes the old and the new rows from the query for the changed rows and `values`."""
    session.require_writer(command)
    session.require_outputs(relation, statement, statement.table.span)
    session.require_no_transaction(f"{command} of {one(relation.what)}")
    if statement.sources:
        feature = f"{'FROM' if isinstance(statement, Update) else 'USING'} in {command} of {one(relation.what)}"
        raise not_supported(feature, statement.text, statement.span)
    if statement.returning is not None:
        raise not_supported(f"RETURNING of {command} of {one(relation.what)}", statement.text, statement.span)

    def bound() -> BatchQuery:
        return matching(session, relation, statement.alias, statement.where, values, statement)

    written = tuple(t.column for t in targets)
    delivery = statement_delivery(relation, written)
    change = connectors.connector_of(delivery).change
    if change is None:
        raise not_supported(
            f"{command} of {one(relation.what)} over connector {delivery.connector['connector']}",
            statement.text,
            statement.table.span,
        )
    count = 0

    def compute(keys: Sequence[frozenset[str]]) -> RowChange:
        nonlocal count
        key = _key(relation, keys, statement, command)
        with session.database.guard:
            depends_on = bound().depends_on
        refresh_read(session, depends_on)  # not under the guard: maintenance takes that after this thread's other locks
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
    """The columns by which the server identifies rows. keys: the keys of the server's table."""
    there = [c.name for c in relation.external.named(relation.columns)]
    for key in keys:
        if key <= {*there}:
            return tuple(c for c, name in zip(relation.columns, there, strict=True) if name in key)
    raise not_supported(
        f"{command} of {relation.title}, whose columns have no key,",
        statement.text,
        statement.table.span,
        detail=f"The keys there are: {'; '.join(', '.join(sorted(k)) for k in keys) or 'none'}.",
        hint="Rows are found by a primary key, or by a unique index over columns that are NOT NULL.",
    )
