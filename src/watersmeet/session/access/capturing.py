"""What capturing has made in databases of PostgreSQL: it goes with what it was made for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from watersmeet.catalog import CapturedDatabase, CapturedTable, Relation
from watersmeet.clients.postgres import connect, library
from watersmeet.errors import Error
from watersmeet.session.access.context import Session
from watersmeet.session.access.kafkatopics import if_committed
from watersmeet.sources.capture.postgres.options import CONNECTOR, PostgresOptions, database_options
from watersmeet.sources.capture.postgres.servers import drop_publication, drop_slot, unpublish
from watersmeet.sources.capture.postgres.system import PUBLICATION, SLOT


def drop_captured(session: Session, relations: Iterable[Relation]) -> None:
    """Drops the slots and publications of captured databases that were dropped, and takes tables out of publications;
    in a transaction, when it commits. A notice says what is left because the server can't be reached.
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
    """What drops the slot and the publication of a captured database, as far as they were made for it."""

    def drop() -> None:
        options = database_options(database.connector)
        try:
            with contextlib.closing(connect(options.server)) as connection:
                if SLOT in database.made:
                    drop_slot(connection, options.slot)
                if PUBLICATION in database.made and not _is_used(session, database.id, options):
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
    found = (database_options(r.connector) for r in known if r.connector["connector"] == CONNECTOR)
    return any((o.server, o.publication) == (options.server, options.publication) for o in found)


def _unpublishing(session: Session, database: CapturedDatabase, table: CapturedTable) -> Callable[[], None]:
    def take_out() -> None:
        options, captured = database_options(database.connector), table.captured
        others = (r.captured for r in session.catalog.relations.values() if isinstance(r, CapturedTable))
        if any(c.oid == captured.oid for c in others):
            return
        try:
            with contextlib.closing(connect(options.server)) as connection:
                unpublish(connection, options.publication, captured.schema, captured.table)
        except (Error, library().Error):
            session.notice(f'publication "{options.publication}" still has table "{captured.schema}.{captured.table}"')

    return take_out
