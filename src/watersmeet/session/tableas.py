"""CREATE TABLE … AS: the rows of its query."""

from __future__ import annotations

from watersmeet.catalog import Relation
from watersmeet.session.assignment import Target, assignable
from watersmeet.session.context import Session
from watersmeet.session.queries import Bounded, fetch
from watersmeet.session.result import Result
from watersmeet.session.transaction import Change
from watersmeet.session.transactions import apply


def insert_query(session: Session, relation: Relation, query: Bounded) -> Result:
    """Fill the new table `relation` with the rows of `query`, whose columns it has."""
    with session.database.guard:
        targets = tuple(Target(c) for c in relation.columns)
        rows = fetch(session, assignable(query, targets, relation, session.database.clock.now_us()), newest=True)
        apply(session, relation, Change(rows))
    return Result("CREATE TABLE AS", rowcount=rows.num_rows)
