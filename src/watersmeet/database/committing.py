"""Begins, commits and rolls back transactions, and waits for views."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

from watersmeet.catalog import Relation, Stream
from watersmeet.database.constraints import check_at_commit
from watersmeet.database.filling import clear_away, install_remaining, undo
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.sequences import put_back
from watersmeet.database.sessions.snapshots import check_reads
from watersmeet.database.transaction import (
    Isolation,
    Savepoint,
    Transaction,
    check_definitions,
    check_writers,
    joined,
    merged,
)
from watersmeet.database.writing import in_order_at_commit, write_pending
from watersmeet.errors import Error, again, error
from watersmeet.store.changes import fitted
from watersmeet.store.commits import added
from watersmeet.values.types import arrow_schema


def new_transaction(session: Session, *, read_only: bool = False, isolation: Isolation | None = None) -> Transaction:
    """An empty transaction. isolation: its level; None for the session's."""
    return Transaction(
        isolation=isolation or session.isolation,
        read_only=read_only or session.database.read_only,
        variables=session.variables.saved(),
        role=session.role,
        cursors=frozenset(n for n, c in session.cursors.items() if c.declared),
    )


def _end(session: Session, transaction: Transaction, *, rolled_back: bool) -> None:
    """Ends the effects of SET LOCAL, and cursors; after ROLLBACK it restores variables, role and cursors."""
    session.transaction = None
    if rolled_back:
        session.variables.restore(transaction.variables)
        session.role = transaction.role
    else:
        session.variables.put_back(transaction.local)
        if transaction.outer_role is not None:
            (session.role,) = transaction.outer_role
    closed = [n for n, c in session.cursors.items() if c.declared and not c.held]
    if rolled_back:
        closed += [n for n, c in session.cursors.items() if c.declared and n not in transaction.cursors]
    session.cursors.drop(closed)


def flush(session: Session, *, ended: bool = False) -> None:
    """Waits until all views and running queries have processed all earlier commits and all data in sources.

    ended: whether no input follows, so that views with periods write those that have begun.

    A notice names each source that can't be read now. Raises the error of a stream that rejects rows of a view (INTO).
    """
    session.require_writer("FLUSH")
    session.require_no_transaction("FLUSH")
    _flush(session, ended=ended)


def _flush(session: Session, *, ended: bool = False) -> None:
    for notice in session.database.catch_up():
        session.notice(notice)
    session.database.flush(topics=True, ended=ended)
    for relation_id, failure in session.database.log.progress().stopped.items():
        view = session.catalog.relations.get(relation_id)
        if view is not None and relation_id not in session.reported_failures:
            session.reported_failures.add(relation_id)
            stopped = "" if failure["condition"] == "VIEW_FAILED" else f"{view.reader} was stopped: "
            session.notice(stopped + failure["message"])
    if any(r.connector for r in session.catalog.relations.values()):
        _name_unread(session)
    problem = session.database.unwritten.first()
    if problem is not None:
        raise again(problem)


def _name_unread(session: Session) -> None:
    """Adds a notice for each source that can't be read now, because without its data views look as if it were empty."""
    for relation_id, source in session.database.engine.sources().items():
        relation = session.catalog.relations.get(relation_id)
        state, reason = source.get("state", "running"), source.get("reason")
        if state != "running" and relation is not None:
            because = f": {reason}" if reason else ""
            session.notice(f'source "{relation.shown}" was not waited for, as it is {state}{because}')


def commit(session: Session) -> None:
    """Commits rows and definitions of the open transaction in one step. Rolls back a failed transaction and raises
    TRANSACTION_STATE.
    """
    transaction = session.transaction
    assert transaction is not None
    with _locked(session, transaction):
        try:
            write_pending(session)
            _stop_writing(session, transaction)
            with session.database.guard:
                _commit(session, transaction)
        except BaseException:
            rollback(session)
            raise
        _carry_out(session, transaction)
        for action in (*transaction.listens, *transaction.notifications.values()):
            action()


def _commit(session: Session, transaction: Transaction) -> None:
    """Stores the changes of the transaction. The caller holds the guard."""
    database = session.database
    if transaction.failed:
        raise error(
            "TRANSACTION_STATE",
            "the transaction had failed and was rolled back",
            hint="Use ROLLBACK after an error, then begin again.",
        )
    if missing := transaction.changes.keys() - database.catalog.relations.keys():
        raise error(
            "TRANSACTION_STATE",
            "the transaction was rolled back: a table that it changed was dropped",
            detail=f"{len(missing)} of its tables no longer exist.",
        )
    check_writers(transaction, database.catalog, database.log)
    check_reads(database, transaction)
    transaction.snapshot = None  # constraints are checked with the rows of all others
    check_at_commit(session)
    catalog = None
    if transaction.definitions or transaction.ran:
        check_definitions(transaction, database.catalog)
        seen = transaction.definitions.seen(database.catalog).with_ran(transaction.ran)
        catalog = replace(seen, version=database.catalog.version + 1)
    streams = {r.id for r in database.catalog.relations.values() if isinstance(r, Stream)}
    changes = {i: joined(c) if i in streams else merged(c) for i, c in transaction.changes.items()}
    changes, overtaken = in_order_at_commit(session, changes)
    changes = {i: c for i, c in changes.items() if c.table.num_rows}
    rejected = added(transaction.rejected, overtaken)
    if changes or rejected:
        database.commit(changes, transaction.copied, rejected=rejected, catalog=catalog)
        session.writes.pending = True
    elif catalog is not None:
        database.change_catalog(catalog)
    session.puts_roles = bool(transaction.definitions.roles)
    put_back(session, transaction.sequences)
    _end(session, transaction, rolled_back=False)
    transaction.committed = True
    database.content.clear_overlay(transaction.changes, transaction)


def _stop_writing(session: Session, transaction: Transaction) -> None:
    """Before views that write streams are removed, writes their output so far."""
    known, definitions = session.database.catalog.relations, transaction.definitions
    if any(known[i].feeds for i in definitions.dropped if i in known):
        with contextlib.suppress(Error):  # views can be dropped even if the engine can no longer process anything
            session.database.flush()


def _carry_out(session: Session, transaction: Transaction) -> None:
    """Applies the committed definitions to the circuit and files. After a crash the next start does it."""
    database, definitions = session.database, transaction.definitions
    if definitions:
        closed = set(definitions.dropped)
        clear_away(session, closed)
        install_remaining(session, definitions.stopped)
        database.follow()
    transaction.ends.close()
    if any(database.catalog.relations[i].has_plan for i in definitions.made):
        database.flush()  # when COMMIT returns, new views reflect their inputs


def rollback(session: Session) -> None:
    """Rolls the open transaction back. Raises nothing."""
    transaction = session.transaction
    if transaction is None:
        return
    database = session.database
    with _locked(session, transaction):
        with database.guard:
            _end(session, transaction, rolled_back=True)
            database.content.clear_overlay(transaction.changes, transaction)
        for query in list(transaction.running):
            query.close()
        # A disk error may occur after the log has accepted the transaction; then it is committed.
        known = database.catalog.relations
        made = {i for i in transaction.definitions.made if i in known and known[i].staged}
        if made:
            undo(session, made | {r.id for r in known.values() if r.owner in made})
        transaction.ends.close()


def savepoint(session: Session, name: str) -> None:
    """Creates a savepoint. Raises NO_TRANSACTION."""
    transaction = _required(session, "SAVEPOINT")
    point = Savepoint(
        name,
        {i: tuple(c) for i, c in transaction.changes.items()},
        dict(transaction.clocks),
        dict(transaction.begun),
        dict(transaction.rejected),
        deepcopy(transaction.definitions),
        session.database.log.head(),
        dict(transaction.sequences),
        session.variables.saved(),
        session.role,
        dict(transaction.local),
        transaction.outer_role,
        (len(transaction.listens), len(transaction.notifications)),
    )
    transaction.savepoints.append(point)


def release_savepoint(session: Session, name: str) -> None:
    """Forgets a savepoint and all later ones. Raises NO_TRANSACTION, UNDEFINED_SAVEPOINT."""
    transaction = _required(session, "RELEASE SAVEPOINT")
    del transaction.savepoints[_place(transaction, name) :]


def _required(session: Session, command: str) -> Transaction:
    """The open transaction. Raises NO_TRANSACTION."""
    if session.transaction is None:
        raise error("NO_TRANSACTION", f"{command} can only be used in transaction blocks")
    return session.transaction


def _place(transaction: Transaction, name: str) -> int:
    """The index of the newest savepoint with a name. Raises UNDEFINED_SAVEPOINT."""
    places = [i for i, p in enumerate(transaction.savepoints) if p.name == name]
    if not places:
        raise error("UNDEFINED_SAVEPOINT", f'savepoint "{name}" does not exist')
    return places[-1]


def rollback_to(session: Session, name: str) -> None:
    """Undoes the changes of the open transaction since a savepoint, and those of variables and of the role.

    Raises NO_TRANSACTION, UNDEFINED_SAVEPOINT.
    Raises FEATURE_NOT_SUPPORTED if it has since created, altered or dropped objects, or written to a table that it
    created.
    """
    transaction, content = _required(session, "ROLLBACK TO SAVEPOINT"), session.database.content
    place = _place(transaction, name)
    point = transaction.savepoints[place]
    if transaction.definitions != point.definitions:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "ROLLBACK TO a savepoint before CREATE, ALTER or DROP is not supported",
            hint="ROLLBACK undoes the whole transaction.",
        )
    _check_written(session, point)
    with session.database.guard:
        content.clear_overlay(transaction.changes, transaction)
        transaction.pending.clear()
        transaction.pending_keys.clear()
        transaction.changes = {i: list(c) for i, c in point.changes.items()}
        transaction.clocks, transaction.begun = dict(point.clocks), dict(point.begun)
        transaction.rejected = dict(point.rejected)
        transaction.sequences = dict(point.sequences)
        for relation_id, changes in transaction.changes.items():
            for change in changes:
                content.overlay(relation_id, change.table, change.diffs, transaction)
    listens, notifications = point.sent
    del transaction.listens[listens:]
    transaction.notifications = dict(list(transaction.notifications.items())[:notifications])
    session.variables.restore(point.variables)
    session.role = point.role
    transaction.local, transaction.outer_role = dict(point.local), point.outer_role
    transaction.failed = False
    del transaction.savepoints[place + 1 :]


def _check_written(session: Session, point: Savepoint) -> None:
    """Raises FEATURE_NOT_SUPPORTED if rows were written since to a table that the transaction created: no other session
    sees the table, so its rows are committed immediately.
    """
    known, log = session.database.catalog.relations, session.database.log
    made = {i for i in point.definitions.made if i in known and not known[i].is_fed_by_circuit}
    for number in range(point.head + 1, log.head() + 1) if made else ():
        for relation_id in log.read(number).relations.keys() & made:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"ROLLBACK TO a savepoint can't undo what was written to {known[relation_id].title}",
                detail="The transaction made it.",
                hint="ROLLBACK undoes the whole transaction.",
            )


@contextlib.contextmanager
def _locked(session: Session, transaction: Transaction) -> Iterator[None]:
    """Holds the locks of a statement that changes the catalog, if the transaction has changed it."""
    with session.database.ddl if transaction.definitions else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def own_transaction(session: Session) -> Iterator[None]:
    """A transaction around several statements, unless one is already open."""
    if session.transaction is not None:
        yield
        return
    session.transaction = new_transaction(session)
    try:
        yield
        commit(session)
    except BaseException:
        if session.transaction is not None:
            rollback(session)
        raise


def put_altered(session: Session, relation: Relation, made: Relation) -> None:
    """Replaces a relation by its new definition, also for the rows that the open transaction has written to it."""
    session.put(made)
    transaction, content = session.transaction, session.database.content
    changes = transaction.changes.get(relation.id) if transaction is not None else None
    if transaction is None or not changes:
        return
    before, after = relation.as_stored, made.as_stored
    schema, names = arrow_schema(after.columns, positional=False), [c.name for c in made.columns]
    fitting = []
    for change in changes:
        table = change.table.rename_columns([c.name for c in before.columns])
        fitting.append(replace(change, table=fitted(table, schema, after.fills).rename_columns(names)))
    transaction.unknown_keys.add(relation.id)
    with session.database.guard:
        content.clear_overlay([relation.id], transaction)
        transaction.changes[relation.id] = fitting
        for change in fitting:
            content.overlay(relation.id, change.table, change.diffs, transaction)


def wait_if_wanted(session: Session) -> None:
    """With `rw_implicit_flush` set, waits after a change until all views show it. It holds no lock."""
    if session.transaction is None and session.variables.is_on("implicit_flush"):
        _flush(session)
