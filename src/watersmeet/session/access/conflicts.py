"""Transactions beside each other: the first to commit wins."""

from __future__ import annotations

from watersmeet.database.transaction import Transaction
from watersmeet.errors import error
from watersmeet.session.access.context import Session


def check_writers(session: Session, transaction: Transaction) -> None:
    """SERIALIZATION_FAILURE if a table was changed meanwhile whose rows the transaction deletes, or replaces by key: it
    would delete rows that are no longer there. The first to commit wins.
    """
    known, log = session.database.catalog.relations, session.database.log
    wanted = {
        i: number
        for i, number in transaction.begun.items()
        if i not in transaction.definitions.made
        and (known[i].primary_key or any(c.diff is not None for c in transaction.changes.get(i, ())))
    }
    for number in range(min(wanted.values(), default=log.head()) + 1, log.head() + 1):
        for relation_id in log.read(number).relations.keys() & wanted.keys():
            if number > wanted[relation_id]:
                raise error(
                    "SERIALIZATION_FAILURE",
                    "could not serialize access due to concurrent update",
                    detail=f"{known[relation_id].title} was changed since the transaction changed it.",
                    hint="Nothing of the transaction was done. Run it again.",
                )
