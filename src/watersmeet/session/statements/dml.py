"""INSERT, UPDATE and DELETE: which rows of a table are deleted and inserted, computed from its newest content."""

from __future__ import annotations

from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import (
    DELTA_COLUMN,
    KEY_COLUMN,
    RECORD_NUMBER,
    RECORD_TIME,
    TOMBSTONE,
    VALUE_FACET,
    CapturedTable,
    Relation,
    Table,
    one,
)
from watersmeet.database.transaction import Change
from watersmeet.dialects.statements import Delete, Insert, Name, Statement, Update
from watersmeet.errors import error
from watersmeet.session.access.assignment import Target, assignable, check_types, named_targets, typed_query
from watersmeet.session.access.columnvalues import check_given
from watersmeet.session.access.context import Session, error_at, located
from watersmeet.session.access.messageparts import unwritten
from watersmeet.session.access.ordering import in_order
from watersmeet.session.access.producing import produce
from watersmeet.session.access.reading import (
    Bounded,
    bounded,
    described,
    failed_query,
    fetch,
    last_of_each_key,
    lent,
    rows_with_keys,
    rows_without,
    runs_on,
    table_tree,
)
from watersmeet.session.access.result import Result, rows_result
from watersmeet.session.access.rows import as_kept, check_rows, converted, settled, with_generated
from watersmeet.session.access.writing import accepting, apply, replacement, upserted
from watersmeet.session.services.refreshing import refresh_read
from watersmeet.sinks.deliveries import statement_delivery
from watersmeet.sinks.targets import connector_of
from watersmeet.types import Schema, arrow_schema


def insert(session: Session, statement: Insert) -> Result:
    """INSERT INTO … VALUES or SELECT."""
    with session.database.guard:
        made = _bound_insert(session, statement)
        if not made.query.depends_on:
            rows = _incoming(session, made, statement)
            if not _is_outside(made.relation):
                return insert_rows(session, made.relation, rows, statement)
    if made.query.depends_on:
        refresh_read(session, made.query.depends_on)  # not under the guard: upkeep takes it behind the locks of this
        with session.database.guard:
            made = _bound_insert(session, statement)
            rows = _incoming(session, made, statement)
            if not _is_outside(made.relation):
                return insert_rows(session, made.relation, rows, statement)
    return produce_rows(session, made.relation, rows, statement)


def _is_outside(relation: Relation) -> bool:
    """Whether rows that are inserted are written outside of the database."""
    return bool(relation.connector) or relation.is_written_outside


@dataclass(frozen=True)
class _Bound:
    """An INSERT with its names resolved. target: the relation with the columns that a writer may give."""

    relation: Relation
    target: Relation
    targets: tuple[Target, ...]
    query: Bounded


def _bound_insert(session: Session, statement: Insert) -> _Bound:
    """The caller holds the guard and runs the INSERT under it."""
    relation = writable(session, statement.table, statement, "insert into")
    if runs_on(session, statement.query):
        hint = (
            "Leave STREAM out for the rows that are there now, or write CREATE PUMP name STARTED AS "
            "INSERT … for those that come."
            if session.semantics.continuous == "marked"
            else "Write table(…) for the rows that are there now, or CREATE MATERIALIZED VIEW name INTO stream AS … "
            "for those that come."
        )
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "INSERT of a query that runs until it is stopped is not supported",
            hint=hint,
        )
    target = accepting(relation)
    targets = insert_targets(target, statement)
    query = bounded(session, typed_query(statement.query, targets), statement.text)
    return _Bound(relation, target, targets, query)


def _incoming(session: Session, made: _Bound, statement: Insert) -> pa.Table:
    """The rows that an INSERT gives."""
    relation, target, targets, query = made.relation, made.target, made.targets, made.query
    if not statement.columns:
        targets = targets[: len(query.columns)] or targets
    _check_width(len(query.columns), len(targets), statement)
    check_types(query.columns, targets, statement)
    target = target if VALUE_FACET in [t.column.name for t in targets] or relation.topic is None else relation
    return fetch(session, assignable(query, targets, target, session.database.clock.now_us()), newest=True)


def insert_rows(session: Session, relation: Relation, incoming: pa.Table, statement: Insert) -> Result:
    """Inserts rows that have the relation's columns. The caller holds the guard."""
    incoming = with_generated(relation, incoming, statement)
    incoming = as_kept(relation, settled(relation, incoming, statement))
    check_rows(relation, incoming, statement)
    incoming, rejected = in_order(session, relation, incoming)
    rows = incoming.select([c.name for c in relation.columns])
    result = _result("INSERT", session, relation, None, statement.returning, rows, statement)
    apply(session, relation, upserted(session, relation, incoming), rejected=rejected)
    return result


def produce_rows(session: Session, relation: Relation, incoming: pa.Table, statement: Insert) -> Result:
    """Writes rows, which have the relation's columns, to where it is outside of the database. In a topic of Kafka they
    are there when this returns, and come from there with the next epoch. The caller does not hold the guard: servers
    take their time.

    TRANSACTION_STATE inside of a transaction, FEATURE_NOT_SUPPORTED for RETURNING.
    """
    where = "a topic of Kafka" if relation.external is None else one(relation.what)
    session.require_no_transaction(f"INSERT into {where}")
    if statement.returning is not None:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            f"RETURNING of an INSERT into {where} is not supported",
        )
    if relation.external is not None:
        return _append(relation, incoming, statement)
    for name in statement.columns:
        if name.name in unwritten(relation):
            raise error_at(
                statement,
                name.span,
                "FEATURE_NOT_SUPPORTED",
                f'writing column "{name.name}" of {relation.title} is not supported',
                hint="Leave it out.",
            )
    incoming = as_kept(relation, settled(relation, incoming, statement))
    check_rows(relation, incoming, statement)
    rows = incoming.select([c.name for c in relation.columns])
    with located(statement, statement.table.span):
        produce(relation, rows, session.database.clock.now_us())
    return Result("INSERT", rowcount=rows.num_rows)


def _append(relation: Relation, incoming: pa.Table, statement: Insert) -> Result:
    """Adds rows to an external table: the columns that the statement names, or all. Others have their defaults."""
    names = [n.name for n in statement.columns] or [c.name for c in relation.columns]
    columns = tuple(relation.column(n) for n in names)
    delivery = statement_delivery(relation, columns)
    append = connector_of(delivery).append
    assert append is not None, delivery.connector
    with located(statement, statement.table.span):
        append(delivery, incoming.select(names).rename_columns([c.name for c in delivery.columns]))
    return Result("INSERT", rowcount=incoming.num_rows)


def delete(session: Session, statement: Delete) -> Result:
    """DELETE FROM."""
    with session.database.guard:
        found = session.find(statement.table)
        if session.semantics.changes_topics == "records" and found is not None and found.topic is not None:
            return _buried(session, statement)
        relation = writable(session, statement.table, statement, "delete from", changing=True)
        query = _matching(session, relation, statement.alias, statement.where, (), statement)
        old = fetch(session, replace(query, exact=relation.columns), newest=True)
        result = _result("DELETE", session, relation, statement.alias, statement.returning, old, statement)
        apply(session, relation, Change(old, np.full(old.num_rows, -1, np.int64)))
        return result


def _buried(session: Session, statement: Delete) -> Result:
    """DELETE FROM a topic writes tombstones, as in Lenses: one for each key of the matching records.

    FEATURE_NOT_SUPPORTED for RETURNING.
    """
    if statement.returning is not None:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "RETURNING of a DELETE from a topic is not supported",
            detail="It writes tombstones.",
        )
    topic = writable(session, statement.table, statement, "delete from")
    key, gone = (exp.column(exp.to_identifier(n, quoted=True)) for n in (KEY_COLUMN, TOMBSTONE))
    query = (
        exp.select(key, exp.null())
        .distinct()
        .from_(table_tree(topic, statement.alias))
        .where(exp.not_(gone), *filter(None, [statement.where]))
    )
    columns = tuple(Name(n, statement.span) for n in (KEY_COLUMN, VALUE_FACET))
    made = Insert(
        text=statement.text, sql=statement.sql, span=statement.span, table=statement.table, columns=columns, query=query
    )
    return replace(insert(session, made), command="DELETE")


def update(session: Session, statement: Update) -> Result:
    """UPDATE … SET."""
    with session.database.guard:
        relation = writable(session, statement.table, statement, "update", changing=True)
        targets = _assigned(relation, statement)
        values = tuple(e for _, e in statement.assignments)
        query = _matching(
            session,
            relation,
            statement.alias,
            statement.where,
            tuple(t.typed(v) for t, v in zip(targets, values, strict=True)),
            statement,
        )
        check_types(query.columns[len(relation.columns) :], targets, statement)
        rows = fetch(session, _both_images(query, relation, targets), newest=True)
        width = len(relation.columns)
        schema = arrow_schema(relation.columns, positional=False)
        old = pa.Table.from_arrays(rows.columns[:width], schema=schema)
        new = pa.Table.from_arrays(rows.columns[width:], schema=schema)
        new = as_kept(relation, with_generated(relation, new, statement))
        check_rows(relation, new, statement)
        result = _result("UPDATE", session, relation, statement.alias, statement.returning, new, statement)
        if {t.column.name for t in targets} & set(relation.primary_key):
            new = last_of_each_key(session, relation, new)
            # A row that already has one of the new keys is replaced, as with INSERT.
            taken = rows_with_keys(session, relation, new)
            old = pa.concat_tables([old, rows_without(session, relation, taken, old)])
        apply(session, relation, replacement(old, new))
        return result


def writable(session: Session, name: Name, statement: Statement, what: str, *, changing: bool = False) -> Relation:
    """The table, if the session may write it. changing: rows are deleted, which an append-only table refuses."""
    session.require_writer(what.split(maxsplit=1)[0].upper())
    if session.transaction is not None and session.transaction.read_only:
        raise error("READ_ONLY_SESSION", f"can't {what} a table in a read-only transaction")
    relation = session.relation(name, statement)
    if relation.topic is not None and RECORD_NUMBER in [c.name for c in relation.columns]:
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} topic "{relation.shown}"',
            detail="Only its processor writes it.",
        )
    if relation.is_written_outside and not changing:
        if relation.connector.get("connector") == "rotating_file":
            raise error_at(
                statement,
                name.span,
                "FEATURE_NOT_SUPPORTED",
                f"{what} {relation.title} is not supported",
                hint="Files are written by pumps: CREATE PUMP … AS INSERT INTO ….",
            )
        return relation
    if not isinstance(relation, Table):
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} {relation.what} "{relation.name}"',
            detail="Only tables are changed by statements.",
        )
    if (relation.connector and relation.topic is None) or isinstance(relation, CapturedTable):
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} table "{relation.name}": its rows come from its connector',
        )
    if relation.is_external:
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} {relation.what} "{relation.name}": its content is outside of the database',
        )
    if changing and relation.topic is not None and session.semantics.changes_topics == "records":
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f"can't {what} {relation.title}: its records stay as they are",
            hint="Insert a record with the same key: read as a table, the topic shows the last one.",
        )
    if changing and relation.append_only:
        raise error_at(
            statement, name.span, "READ_ONLY_RELATION", f'can\'t {what} append-only {relation.what} "{relation.name}"'
        )
    return relation


def insert_targets(relation: Relation, statement: Insert) -> tuple[Target, ...]:
    """The columns that an INSERT fills, in the order in which it gives their values."""
    if not statement.columns:
        return tuple(Target(c) for c in relation.written if c.name != DELTA_COLUMN)
    found = named_targets(relation, statement.columns, statement)
    check_given(relation, found, statement)
    return tuple(replace(t, epoch_ms=relation.topic is not None and t.column.name == RECORD_TIME) for t in found)


def _assigned(relation: Relation, statement: Update) -> tuple[Target, ...]:
    found = named_targets(relation, tuple(n for n, _ in statement.assignments), statement)
    check_given(relation, found, statement)
    return found


def _check_width(given: int, wanted: int, statement: Insert) -> None:
    if given > wanted:
        raise error_at(
            statement,
            statement.span,
            "SYNTAX_ERROR",
            "INSERT has more expressions than target columns",
            detail=f"{given} expressions for {wanted} columns.",
        )
    if given < wanted:
        raise error_at(
            statement,
            statement.span,
            "SYNTAX_ERROR",
            "INSERT has more target columns than expressions",
            detail=f"{given} expressions for {wanted} columns.",
        )


def _matching(
    session: Session,
    relation: Relation,
    alias: str | None,
    where: exp.Expression | None,
    values: tuple[exp.Expression, ...],
    statement: Statement,
) -> Bounded:
    """The query for the rows that `where` selects: all columns, then `values`."""
    shown = alias or relation.name
    columns = [
        exp.column(exp.to_identifier(c.name, quoted=True), exp.to_identifier(shown, quoted=True))
        for c in relation.columns
    ]
    tree = exp.select(*columns, *values, copy=False).from_(table_tree(relation, alias), copy=False)
    if where is not None:
        tree = tree.where(where, copy=False)
    return bounded(session, tree, statement.text)


def _both_images(query: Bounded, relation: Relation, targets: tuple[Target, ...]) -> Bounded:
    """The query for old and new row side by side, made from one for the old row and the new values."""
    width = len(relation.columns)
    names = [f"x{i}" for i in range(len(query.columns))]
    old = [f"{names[i]} AS o{i}" for i in range(width)]
    values = {
        t.column.name: converted(names[width + i], query.columns[width + i].type, t.column.type)
        for i, t in enumerate(targets)
    }
    new = [f"{values.get(c.name, names[i])} AS n{i}" for i, c in enumerate(relation.columns)]
    sql = f"SELECT {', '.join(old + new)} FROM ({query.sql}) AS q({', '.join(names)})"
    return replace(query, sql=sql, exact=(*relation.columns, *relation.columns))


def _result(
    command: str,
    session: Session,
    relation: Relation,
    alias: str | None,
    items: tuple[exp.Expression, ...] | None,
    rows: pa.Table,
    statement: Statement,
) -> Result:
    if items is None:
        return Result(command, rowcount=rows.num_rows)
    columns, table = returning(session, relation, alias, items, rows, statement)
    return rows_result(command, columns, table)


def returning(
    session: Session,
    relation: Relation,
    alias: str | None,
    items: tuple[exp.Expression, ...],
    rows: pa.Table,
    statement: Statement,
) -> tuple[Schema, pa.Table]:
    """The columns and rows of `items` over `rows` of `relation`."""
    query = bounded(session, exp.select(*items).from_(table_tree(relation, alias), copy=False), statement.text)
    if set(query.depends_on) - {relation.id} or sum(1 for i in items for _ in i.find_all(exp.Subquery)):
        raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED", "a subquery in RETURNING is not supported")
    with session.database.content.session() as connection, lent(connection, rows, relation, relation.shown):
        try:
            return described(connection.execute(query.sql).to_arrow_table(), query.columns)
        except duckdb.Error as cause:
            raise failed_query(cause, statement.text) from cause
