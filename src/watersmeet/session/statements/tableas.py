"""CREATE TABLE … AS: the rows of its query."""

from __future__ import annotations

from watersmeet.catalog import Relation
from watersmeet.database.transaction import Change
from watersmeet.session.access.assignment import Target, assignable
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import Bounded, fetch
from watersmeet.session.access.result import Result
from watersmeet.session.access.transactions import apply


def insert_query(session: Session, relation: Relation, query: Bounded) -> Result:
    """Fill the new table `relation` with the rows of `query`, whose columns it has."""
    with session.database.guard:
        targets = tuple(Target(c) for c in relation.columns)
        rows = fetch(session, assignable(query, targets, relation, session.database.clock.now_us()), newest=True)
        apply(session, relation, Change(rows))
    return Result("CREATE TABLE AS", rowcount=rows.num_rows)
