"""What one moment of a database is: for each relation, up to which commit its changes count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.errors import Error
from watersmeet.store.commits import CommitLog


@dataclass(frozen=True, slots=True)
class Moment:
    """Relations that the circuit writes are read up to commit `head`, the session's tables up to `transaction`.

    transaction <= head. A later moment may have a smaller `transaction`, but then no transaction lies between.
    """

    head: int
    transaction: int

    def upto(self, relation: Relation) -> int:
        """The number of the last commit that counts for `relation`."""
        return self.head if relation.is_fed_by_circuit else self.transaction


#: The moment of a database without commits.
EMPTY: Final = Moment(0, 0)


def moment_at(log: CommitLog, catalog: Catalog, head: int | None = None, *, filling: bool = False) -> Moment:
    """The moment that commit `head` (default: the newest) shows.

    All views show the inputs up to the frontier of the newest epoch, so tables are shown at that frontier, too.
    Where no view is ready there is nothing to agree with, and tables are shown as they are.
    filling: agree with views that are not ready yet, too: what they will show must still be there then.
    """
    while True:
        at = log.head() if head is None else head
        try:
            return _moment(log, catalog, at, filling=filling)
        except Error:
            # A foreign reader was overtaken: newer epochs came, and the one at `at` was cleaned away.
            if head is not None or log.head(anew=True) == at:
                raise


def _moment(log: CommitLog, catalog: Catalog, head: int, *, filling: bool) -> Moment:
    filled = filling and any(isinstance(r, MaterializedView) for r in catalog.relations.values())
    return _reflected(log, head) if filled or catalog.follows_epochs else Moment(head, head)


def past_moment(log: CommitLog, number: int) -> Moment:
    """The moment that commit `number` showed when it was the newest. DATABASE_DAMAGED if it, or its epoch, is gone."""
    return _reflected(log, number) if log.read(number).follows else Moment(number, number)


def _reflected(log: CommitLog, head: int) -> Moment:
    epoch = log.last_epoch(head)
    if epoch is None or epoch.frontier is None:
        return Moment(head, head)
    reflected = min(epoch.frontier.transaction, head)
    # Without later transactions the tables are the same at the head, and old commits need not be kept for them.
    return Moment(head, head if log.read(head).last_transaction <= reflected else reflected)
