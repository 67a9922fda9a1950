"""Commits, as the scans of a view see them: one, all that came up to now, or all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlglot import exp

from watersmeet.algebra.bounded import Past, PastScan
from watersmeet.algebra.nodes import Arrivals, Column, Node, Scan
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import filtered
from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.lineage import Asker
from watersmeet.lineage.lookups import Since
from watersmeet.lineage.origins import COMMIT
from watersmeet.lineage.told import CantTellError
from watersmeet.session.access.lineage.history import (
    AGE,
    SPAN,
    History,
    arrived_name,
    newest_name,
    stayed_name,
    there_name,
)
from watersmeet.store.manifests import Commit
from watersmeet.types import BOOLEAN


class Explaining(Protocol):
    """An explanation that is under way, as moments need it."""

    catalog: Catalog
    epoch: Commit
    history: History
    asker: Asker

    def times(self, commit: int | None = None) -> dict[str, int]:
        """How far time had come as of a commit, by default now."""

    def then(self, node: Node, past: PastScan) -> Node:
        """A scan as of an earlier moment."""


def as_of_commit(view: Relation, commit: int, name: str | None = None) -> PastScan:
    """What stands for a commit, as a moment of a view. name: by default that of the commit."""
    return PastScan(view.id, name or f"commit {commit}", Past("commit", str(commit)), (), None)


@dataclass(frozen=True)
class AsOf:
    """A commit, as the scans of a view see it (`lineage.lookups.Moment`). last: the last one that counts. waited: what
    had come before may have waited.
    """

    explaining: Explaining
    view: Relation
    moment: PastScan
    last: int
    waited: bool = False

    @property
    def times(self) -> dict[str, int]:
        return self.explaining.times(int(self.moment.past.sql))

    def came(self, scan: Scan, began: int | None) -> Node:
        history, relation = self.explaining.history, self.explaining.catalog.relations[scan.relation_id]
        if history.shows(self.view, int(self.moment.past.sql)):
            return history.came(relation, scan, self.moment)
        return self.then(scan) if began is None else self.since(Since(scan, began))  # all that it was filled with

    @property
    def commit(self) -> int | None:
        """The commit in which rows came; None for those of all commits."""
        return int(self.moment.past.sql)

    def stayed(self, scan: Scan) -> Node:
        relation = self.explaining.catalog.relations[scan.relation_id]
        return self.explaining.history.stayed(self.view, relation, scan, self.last, self.commit)

    def before(self, node: Node) -> Node:
        commit, history = int(self.moment.past.sql), self.explaining.history
        if not self.waited or not isinstance(node, Scan) or not history.shows(self.view, commit):
            return node
        return self.explaining.then(node, as_of_commit(self.view, history.epoch_before(self.view, commit)))

    def then(self, node: Node) -> Node:
        return self.explaining.then(node, self.moment)

    def since(self, rows: Since) -> Node:
        return self.explaining.history.since(
            self.explaining.catalog.relations[rows.scan.relation_id], rows, self.moment
        )


class Arrived(AsOf):
    """All that came up to now, with the commit in which it came. What is looked up is as it is now."""

    @property
    def commit(self) -> int | None:
        return None

    def came(self, scan: Scan, began: int | None) -> Node:
        relation = self.explaining.catalog.relations[scan.relation_id]
        return self.explaining.history.arrived(self.view, relation, scan, began, self.moment)

    def then(self, node: Node) -> Node:
        return node


@dataclass(frozen=True)
class Ever:
    """All commits up to one, as the scans of a view see them (`lineage.told.Ever`). lenders: by name, what lends what
    was ever there.
    """

    explaining: Explaining
    view: Relation
    last: int
    lenders: dict[str, Callable[[History], None]]

    def came(self, scan: Scan, began: int | None, number: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(scan, arrived_name(self.view, relation, began), {COMMIT: number})
        self.lenders[found.name] = lambda h: h.came_ever(self.view, relation, scan, began, self._moment)
        if self.last == self.explaining.epoch.number:
            return found
        upto = exp.LTE(this=column_ref(number.id), expression=exp.Literal.number(self.last))
        return filtered(found, [Scalar(upto, BOOLEAN)])

    def stayed(self, scan: Scan, number: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(scan, stayed_name(self.view, relation, scan, self.last), {COMMIT: number})

        def lend(history: History) -> None:
            history.stayed(self.view, relation, scan, self.last, None)
            history.check_told(relation, found.name)

        self.lenders[found.name] = lend
        return found

    def there(self, scan: Scan, since: Column, until: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(
            scan, there_name(self.view, relation, self.last), dict(zip(SPAN, (since, until), strict=True))
        )
        self.lenders[found.name] = lambda h: h.there_ever(self.view, relation, scan, self.last)
        return found

    def newest(self, rows: Arrivals, began: int, keys: Sequence[Column], since: Column, until: Column) -> Node:
        relation, scan = self._stored(rows.scan), rows.scan
        sources = {c.id: n for c, n in zip(scan.outputs, scan.source_names, strict=True)}
        names = [sources[k.id] for k in keys]
        more = dict(zip((*AGE, *SPAN), (*rows.age, since, until), strict=True))
        found = self._scan(scan, newest_name(self.view, relation, names), more)
        self.lenders[found.name] = lambda h: h.newest_ever(self.view, relation, scan, began, names, self._moment)
        return found

    @property
    def _moment(self) -> PastScan:
        return as_of_commit(self.view, self.last, "ever")

    def _scan(self, scan: Scan, name: str, more: Mapping[str, Column]) -> PastScan:
        own = (replace(c, name=n) for c, n in zip(scan.outputs, scan.source_names, strict=True))
        outputs = (*own, *(replace(c, name=n) for n, c in more.items()))
        return PastScan(scan.relation_id, name, Past("commit", str(self.last)), outputs, None)

    def _stored(self, scan: Scan) -> Relation:
        relation = self.explaining.catalog.relations[scan.relation_id]
        if isinstance(relation, MaterializedView):
            raise CantTellError(
                f"Rows of {relation.title} are looked up, or look up, below what computes with many rows"
            )
        return relation
