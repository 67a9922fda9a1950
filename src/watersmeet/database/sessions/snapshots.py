"""Transactions that read one moment: REPEATABLE READ and SERIALIZABLE.

The first statement of such a transaction waits until views reflect all earlier commits, and chooses the moment of the
newest commit. All queries of the transaction show this moment: later commits are undone, as in queries of the past.
Of two transactions that change a table, the first to commit wins; "later" then counts from the moment.

SERIALIZABLE checks at COMMIT that no table was changed since the moment that the transaction has read, directly or
through a view. So it reads what it would read at its COMMIT. A transaction that changes nothing needs no check.

What sources and external systems deliver is not part of transactions: it is shown as of the moment, but not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from watersmeet.catalog import Catalog
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.transaction import Transaction, concurrent
from watersmeet.errors import error
from watersmeet.store.checkpoints import PastContent, check_there, moment_at, pin_past
from watersmeet.store.commits import CommitLog
from watersmeet.store.readers import Reader


def begin_statement(database: OpenDatabase, transaction: Transaction) -> None:
    """Call it before a statement reads or writes in a transaction. The caller holds no guard."""
    if transaction.failed:
        return
    transaction.used = True
    if not transaction.reads_snapshot or transaction.snapshot is not None:
        return
    moment = moment_at(database.log, database.catalog)
    if not database.read_only and moment.transaction < moment.head:
        database.flush()
    reader = transaction.ends.enter_context(closing(Reader(database.layout)))
    head = database.log.head()
    transaction.snapshot = pin_past(database.layout, database.log, reader, head)


def past_content(
    database: OpenDatabase,
    transaction: Transaction | None,
    catalog: Catalog,
    relation_ids: Iterable[str],
    *,
    newest: bool,
) -> list[PastContent]:
    """The content of relations as of the moment of the open transaction; empty for READ COMMITTED.

    newest: whether the query includes the transaction's own changes. The relations that these changed are read as they
    are now, see `check_own`. Raises HISTORY_GONE for a relation that is newer than the moment.
    """
    if transaction is None or transaction.snapshot is None:
        return []
    made, snapshot, log = transaction.definitions.made, transaction.snapshot, database.log
    read = [catalog.relations[i] for i in relation_ids if i not in made]
    transaction.read |= {r.id for r in read}
    check_there(log, read, snapshot.head)
    shown = (r for r in read if not (newest and r.id in transaction.changes))
    return [PastContent(r.shown, r.id, snapshot.upto(r)) for r in shown]


def check_own(database: OpenDatabase, transaction: Transaction | None, relation_ids: Iterable[str]) -> None:
    """Raises SERIALIZATION_FAILURE if the transaction and a later commit have both changed one of the relations, so
    that their newest content is not that of the moment. Call it once the shown content can no longer change.
    """
    if transaction is None or transaction.snapshot is None:
        return
    own = (transaction.changes.keys() & set(relation_ids)) - transaction.definitions.made
    changed = changed_since(database.log, own, transaction.snapshot.transaction) if own else None
    if changed is not None:
        raise concurrent(f"{database.catalog.relations[changed].title} was changed since the transaction began.")


def changed_since(log: CommitLog, tables: Iterable[str], number: int) -> str | None:
    """The id of a table that a commit after `number` has changed, or None."""
    wanted = set(tables)
    for later in range(number + 1, log.head() + 1):
        found = log.read(later).relations.keys() & wanted
        if found:
            return min(found)
    return None


def check_reads(database: OpenDatabase, transaction: Transaction) -> None:
    """Raises SERIALIZATION_FAILURE if a SERIALIZABLE transaction changes something and has read a table that was
    changed since. The caller holds the guard.
    """
    if transaction.isolation != "serializable" or transaction.snapshot is None:
        return
    if not (transaction.changes or transaction.definitions):
        return
    known = database.catalog
    tables = {i for i in known.upstream(transaction.read) if not known.relations[i].is_fed_by_circuit}
    changed = changed_since(database.log, tables - transaction.definitions.made, transaction.snapshot.transaction)
    if changed is not None:
        raise concurrent(f"{known.relations[changed].title} was changed since the transaction read it.")


def lock_rows(
    database: OpenDatabase, transaction: Transaction | None, catalog: Catalog, relation_ids: Iterable[str]
) -> None:
    """SELECT … FOR UPDATE: a transaction that changes something can't commit if another one has changed the tables
    since. Nothing waits.

    Outside of a transaction it has no effect. Raises READ_ONLY_SESSION.
    """
    if transaction is None:
        return
    if transaction.read_only:
        raise error("READ_ONLY_SESSION", "SELECT … FOR UPDATE is not possible in a read-only transaction")
    number = database.log.head() if transaction.snapshot is None else transaction.snapshot.transaction
    for relation_id in catalog.upstream(relation_ids):
        transaction.locked.setdefault(relation_id, number)
