"""What capturing has made in databases of PostgreSQL: it goes with what it was made for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from watersmeet.catalog import CapturedDatabase, CapturedTable, Relation
from watersmeet.connectors.postgres.capture import PUBLICATION, SLOT
from watersmeet.connectors.postgres.client import connect, library
from watersmeet.connectors.postgres.publications import (
    CONNECTOR,
    PostgresOptions,
    database_options,
    drop_publication,
    other_slots,
    unpublish,
)
from watersmeet.connectors.postgres.servers import drop_slot
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import if_committed
from watersmeet.errors import Error


def drop_captured(session: Session, relations: Iterable[Relation]) -> None:
    """Drops the slots and publications that were created for dropped databases, and removes dropped tables from
    publications; in a transaction, when it commits. Notices name what remains on the server.
    """
    gone = list(relations)
    ids = {r.id for r in gone}
    actions: list[Callable[[], None]] = []
    for relation in gone:
        if isinstance(relation, CapturedDatabase) and relation.made:
            actions.append(dropping(session, relation))
        elif isinstance(relation, CapturedTable) and relation.captured.database not in ids:
            database = session.catalog.relations.get(relation.captured.database)
            if isinstance(database, CapturedDatabase) and PUBLICATION in database.made:
                actions.append(_unpublishing(session, database, relation))
    transaction = session.transaction
    for action in actions:
        if transaction is None:
            action()
        else:
            transaction.ends.callback(if_committed, transaction, action)


def dropping(session: Session, database: CapturedDatabase) -> Callable[[], None]:
    """The action that drops the slot and the publication of a captured database, if they were created for it.

    A publication whose name was given stays while another source or slot may use it.
    """

    def drop() -> None:
        options = database_options(database.connector)
        try:
            with contextlib.closing(connect(options.server)) as connection:
                if SLOT in database.made:
                    drop_slot(connection, options.slot)
                if PUBLICATION not in database.made or _is_used(session, database.id, options):
                    return
                if options.shares_publication and (others := other_slots(connection, options)):
                    session.notice(
                        f'publication "{options.publication}" is left in {options.server.shown}: replication slot '
                        f'"{others[0]}" may use it'
                    )
                    return
                drop_publication(connection, options.publication)
        except (Error, library().Error) as problem:
            reason = problem.message if isinstance(problem, Error) else str(problem)
            session.notice(
                f'replication slot "{options.slot}" is left in {options.server.shown}, whose log grows until it is '
                f"dropped: {reason}"
            )

    return drop


def _is_used(session: Session, database_id: str, options: PostgresOptions) -> bool:
    """Whether another captured database has the publication."""
    known = (r for r in session.catalog.relations.values() if isinstance(r, CapturedDatabase) and r.id != database_id)
    return any(_same_publication(r, options) for r in known)


def _same_publication(database: CapturedDatabase, options: PostgresOptions) -> bool:
    if database.connector["connector"] != CONNECTOR:
        return False
    own = database_options(database.connector)
    return (own.server, own.publication) == (options.server, options.publication)


def _unpublishing(session: Session, database: CapturedDatabase, table: CapturedTable) -> Callable[[], None]:
    def remove() -> None:
        options, captured = database_options(database.connector), table.captured
        known = session.catalog.relations
        for other in known.values():
            if not isinstance(other, CapturedTable) or other.captured.oid != captured.oid:
                continue
            of = known.get(other.captured.database)
            if isinstance(of, CapturedDatabase) and _same_publication(of, options):
                return
        why = ""
        try:
            with contextlib.closing(connect(options.server)) as connection:
                if options.shares_publication and (others := other_slots(connection, options)):
                    why = f': replication slot "{others[0]}" may use it'
                else:
                    unpublish(connection, options.publication, captured.schema, captured.table)
                    return
        except (Error, library().Error):
            pass
        session.notice(f'publication "{options.publication}" still has table "{captured.schema}.{captured.table}"{why}')

    return remove
