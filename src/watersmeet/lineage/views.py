"""The queries of the views whose rows are explained, as of now and of earlier commits, with the rounds of recursive
ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.bounded import Past, PastScan, TopicScan
from watersmeet.algebra.nodes import Column, Cut, Node, Project, Scan, TimeFilter, Versions
from watersmeet.algebra.scalars import Scalar, column_ref, null_of
from watersmeet.algebra.trees import Rule, filtered, read, walk
from watersmeet.binder import BoundQuery
from watersmeet.binder.dialects import rules_of
from watersmeet.catalog import (
    KEY_COLUMN,
    RECORD_NUMBER,
    RECORD_TIME,
    TOMBSTONE,
    Catalog,
    MaterializedView,
    Processor,
    Relation,
    Subscription,
    TopicWriter,
)
from watersmeet.circuit import operators
from watersmeet.database.reading import lent
from watersmeet.database.rebuild import stored_query
from watersmeet.database.scans import own_commit
from watersmeet.database.sessions.context import Session, denied
from watersmeet.dialects.statements.explaining import ExplainRow
from watersmeet.errors import Error, error
from watersmeet.lineage.history import (
    Arrived,
    AsOf,
    Ever,
    History,
    as_of_commit,
    began,
    kept_by,
    kept_versions,
    versions_scan,
)
from watersmeet.lineage.lookups import CantTellError, looking_up
from watersmeet.lineage.origins import COMMIT, Insertion, Read
from watersmeet.lineage.steps import Asker, Names, names_of
from watersmeet.lineage.subqueries import lend_rounds
from watersmeet.lineage.trees import Explained, Wide, guarded, plain
from watersmeet.store.manifests import Commit, Progress
from watersmeet.store.readers import low_water_number
from watersmeet.values.types import BIGINT, BOOLEAN
from watersmeet.values.watermarks import NOW

_NO_CONTENT: Final = "It is not the content of a query, but what a query has written"

#: The maximum number of moments at which a row is missing that an answer shows.
MOST_MOMENTS: Final = 10


@dataclass
class Views:
    """The views whose rows are explained, with their queries by relation and moment."""

    session: Session
    catalog: Catalog
    statement: ExplainRow
    epoch: Commit
    tolerant: bool
    past: list[PastScan] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    _found: dict[tuple[str, str], Explained] = field(default_factory=dict)
    _names: dict[int, tuple[Explained, Names]] = field(default_factory=dict)
    lacks_past: bool = False
    """Whether the last answer lacks rows as of moments that only became known during its search."""
    _as_of: dict[tuple[str, int, int, bool], Explained] = field(default_factory=dict)
    _versions: dict[str, tuple[PastScan, operators.Versions]] = field(default_factory=dict)
    """The scans of stored versions, with the operators that store them, by name."""
    _lenders: dict[str, Callable[[History], None]] = field(default_factory=dict)
    """The functions that provide the past rows of a scan, by its name."""
    _tolds: dict[str, Explained] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        return self.epoch.progress

    @contextmanager
    def answering(
        self, connection: duckdb.DuckDBPyConnection, asker: Asker, past: Container[str], root: Explained
    ) -> Iterator[None]:
        """A context in which queries can run on a connection that has the scans of the past with these names."""
        self.lacks_past = False
        with ExitStack() as entered:
            self.history = History(self.session.database, self.epoch, connection, entered)
            for scan, operator in self._versions.values():
                rows, columns = kept_versions(self.session.database, self.epoch, connection, scan, operator)
                entered.enter_context(lent(connection, rows, columns, scan.name))
            self.asker, self._readable = asker, past
            for lend in self._lenders.values():
                lend(self.history)
            lend_rounds(root.tree, root.name, lambda n: asker.text(plain(n, root)), connection, entered)
            yield

    def follow(self, tree: Node) -> None:
        """Binds the queries of the views that a tree reads, directly or through other views."""
        for node in walk(tree):
            if not isinstance(node, (Scan, PastScan)):
                continue
            relation = self.catalog.relations[node.relation_id]
            if not isinstance(relation, MaterializedView) or _key(node) in self._found:
                continue
            explained = self._of_view(relation, node)
            if self.tolerant:
                explained = guarded(explained)
            self._found[_key(node)] = explained
            self.follow(explained.tree)

    def explained(self, name: str, tree: Node, then: Rule = lambda node: node, ever: Ever | None = None) -> Explained:
        """An explained query. then, ever: as in `Explained.of`.

        Raises FEATURE_NOT_SUPPORTED with the statement's text, and PERMISSION_DENIED.
        """
        self._check_read(tree)
        try:
            return Explained.of(name, tree, self.times(), self._when_it_began, then, ever)
        except Error as err:
            err.sql, err.span = self.statement.text, None
            raise

    def times(self, commit: int | None = None) -> dict[str, int]:
        """The watermarks as of a commit, by default the newest."""
        log = self.session.database.log
        is_past = commit is not None and commit < self.epoch.number and log.find(commit) is not None
        epoch = (log.last_epoch(commit) if is_past else None) or self.epoch
        return {**epoch.progress.watermarks, NOW: epoch.progress.time_us}

    def what(self, scan: Scan | PastScan) -> Read:
        """The description of a scan for messages."""
        relation = self.catalog.relations[scan.relation_id]
        view = self._found.get(_key(scan))
        if view is None:
            return Read(relation.role, relation.shown, late=self.progress.late.get(relation.id, 0))
        places = {c.name: i for i, c in enumerate(relation.columns)}
        names = scan.source_names if isinstance(scan, Scan) else [c.name for c in scan.outputs]
        columns = tuple(view.tree.columns[places[n]] for n in names)
        ids = {n: c.id for c, n in zip(scan.outputs, names, strict=True)}
        own = (RECORD_NUMBER, RECORD_TIME) if view.changes else (RECORD_NUMBER,)
        untold = frozenset(ids[n] for n in own if n in ids and isinstance(relation, Processor))
        went = (ids[TOMBSTONE], ids[KEY_COLUMN]) if view.changes else None
        inserted = None if view.then is None else partial(self._inserted, relation, view, columns)
        missing = partial(self._missing, relation, view) if view.looks_back else None
        reconstructed = (
            None if view.once is None or isinstance(scan, PastScan) else partial(self._reconstructed, relation, view)
        )
        return Read(relation.role, relation.shown, view, columns, untold, 0, inserted, reconstructed, missing, went)

    def _reconstructed(self, relation: Relation, view: Explained) -> Explained | None:
        """See `Read`. Raises HISTORY_GONE."""
        ever = Ever(self, relation, self.epoch.number, {})
        try:
            made = view.reconstructed(ever)
        except CantTellError:
            return None
        for lend in ever.lenders.values():
            lend(self.history)
        return self._tolds.setdefault(relation.id, made)

    def _inserted(
        self,
        relation: Relation,
        view: Explained,
        columns: Sequence[Column],
        scan: Scan | PastScan,
        conditions: Sequence[Scalar],
        there: int,
    ) -> list[Insertion]:
        """The commits in which rows of a view were inserted, as in `Read`. If such a commit can't be read yet, sets
        `lacks_past` and returns nothing.
        """
        last = self._last(relation, scan)
        if view.revises and not view.changes:
            own = {a.id: column_ref(b.id) for a, b in zip(scan.outputs, columns, strict=True)}
            return self._present(relation, view, [c.substitute(own) for c in conditions], last, there)
        first = self.history.first(scan.name) if isinstance(scan, PastScan) else 0
        changes = self.history.changes(relation, scan.outputs)
        commits = self._commits(filtered(changes, conditions), changes.outputs[-1], first, last)
        if commits.total() != there:
            raise self.history.expired(relation)
        return self._as_of_commits(relation, view, sorted(commits.items()), last, waited=view.waits)

    def _present(
        self, relation: Relation, view: Explained, conditions: Sequence[Scalar], last: int, there: int
    ) -> list[Insertion]:
        """Like `_inserted`, for a view with deletions, whose own changes don't determine which of several equal rows
        was deleted.
        """
        _, commits = self._candidates(relation, view, conditions, last)
        possible = sorted((commit, rows) for commit, rows in commits.items() if commit > 0)
        found = self._as_of_commits(relation, view, possible, last)
        if self.lacks_past:
            return []
        counts = [self.asker.count(filtered(plain(c.view.tree, c.view), conditions)) for c in found]
        if sum(counts) != there:
            raise self.history.expired(relation)
        return [replace(c, rows=n) for c, n in zip(found, counts, strict=True) if n]

    def _commits(self, rows: Node, number: Column, first: int, last: int) -> Counter[int]:
        """The number of rows inserted in each commit from `first` to `last`. number: the column with their commits."""
        return Counter({c: n for c, n in self.asker.tally(rows, number).items() if first <= c <= last})

    def _as_of_commits(
        self,
        relation: Relation,
        view: Explained,
        commits: Iterable[tuple[int, int]],
        last: int,
        *,
        waited: bool = False,
    ) -> list[Insertion]:
        """The query of a view as of each commit, with its number of rows. If a commit can't be read yet, sets
        `lacks_past` and returns nothing. waited: as in `AsOf`.
        """
        found = [
            Insertion(
                self._view_as_of(relation, view, commit, last, waited), commit, n, self._before(relation, view, commit)
            )
            for commit, n in commits
        ]
        if any(s.name not in self._readable for s in self.past):
            self.lacks_past = True
            return []
        return found

    def _before(self, relation: Relation, view: Explained, commit: int) -> Explained | None:
        """For changes, the query as of the epoch before a commit; None if that commit inserted its first content."""
        if not view.changes or not self.history.shows(relation, commit):
            return None
        before = self.history.epoch_before(relation, commit)
        return self._view_as_of(relation, view, before, before, waited=False)

    def _last(self, relation: Relation, scan: Scan | PastScan) -> int:
        """The last commit that counts for a scan of a re-evaluated view."""
        if not isinstance(scan, PastScan):
            return self.epoch.number
        if not _is_commit(scan):
            raise self._refused(relation, "They were decided when they arrived: name the past by a commit")
        return int(scan.past.sql)

    def _missing(
        self, relation: Relation, view: Explained, scan: Scan | PastScan, conditions: Sequence[Scalar]
    ) -> tuple[list[Insertion], int]:
        """The commits as of which rows of a view are missing, as in `Read`. Uses `lacks_past` like `_inserted`."""
        last = self._last(relation, scan)
        if view.changes:
            return self._missing_change(relation, view, conditions, last), 0
        every, commits = self._candidates(relation, view, conditions, last)
        if not commits:
            return [Insertion(every, 0, 0)], 0
        if not min(commits):  # for rows older than the history
            raise self.history.expired(relation)
        newest = sorted(commits, reverse=True)[:MOST_MOMENTS]
        found = self._as_of_commits(relation, view, [(commit, commits[commit]) for commit in newest], last)
        return found, commits.total() - sum(commits[c] for c in newest) if found else 0

    def _missing_change(
        self, relation: Relation, view: Explained, conditions: Sequence[Scalar], last: int
    ) -> list[Insertion]:
        """Like `_missing`, for a view whose rows are changes: rows are never deleted, so only the last commit
        counts.
        """
        untold = {c.id for c in view.tree.columns if c.name in (RECORD_NUMBER, RECORD_TIME, TOMBSTONE)}
        if untold & frozenset[str]().union(*(c.columns for c in conditions)):
            raise self._refused(
                relation, "The time and the number of a record tell when it was written, not its origin"
            )
        return self._as_of_commits(relation, view, [(last, 0)], last)

    def _candidates(
        self, relation: Relation, view: Explained, conditions: Sequence[Scalar], last: int
    ) -> tuple[Explained, Counter[int]]:
        """A re-evaluated view, as if it looked up all rows now, and for each commit the number of its rows that may
        meet conditions. Commit 0 stands for rows older than the history.
        """
        now = as_of_commit(relation, self.epoch.number, "now")
        every, commits = view.as_of(Arrived(self, relation, now, last)), Counter[int]()
        for part in looking_up(every.tree, conditions):
            number = next(c for n in walk(part) for c in n.columns if c.name == COMMIT)
            commits += self._commits(Wide(every, part).node, number, 0, last)
        return every, commits

    def _view_as_of(self, relation: Relation, view: Explained, commit: int, last: int, waited: bool) -> Explained:
        """The output of a view in a commit, as far as it was still present as of another commit."""
        then = as_of_commit(relation, commit)
        made = view.as_of(AsOf(self, relation, then, last, waited))  # even if known: each connection needs its rows
        key = (relation.id, commit, last, waited)
        if key not in self._as_of:
            self._as_of[key] = made
            self.follow(made.tree)
        return self._as_of[key]

    def names(self, explained: Explained) -> Names:
        """The names of the columns of a query."""
        if id(explained) not in self._names:
            shown = {i: r.shown for i, r in self.catalog.relations.items()}
            # Keeps the object alive while its id is a key here.
            self._names[id(explained)] = explained, names_of(explained.tree, shown)
        return self._names[id(explained)][1]

    def _of_view(self, view: MaterializedView, scan: Scan | PastScan) -> Explained:
        query = (
            None
            if isinstance(view, TopicWriter | Subscription)
            else stored_query(view, self.catalog, began(self.session.database, self.epoch, view))
        )
        if query is None:
            raise self._refused(view, _NO_CONTENT)
        tree = query.tree
        if isinstance(view, Processor):
            tree, is_table = self._of_processor(view, query)
            if is_table:
                return self._of_changes(view, tree)
        if not isinstance(scan, PastScan):
            return self.explained(
                view.title, tree, partial(self._kept, view), Ever(self, view, self.epoch.number, self._lenders)
            )
        if any(isinstance(n, Versions) for n in walk(tree)):
            raise self._refused(view, "It reads versions of rows, and which there were then is not kept")
        ever = Ever(self, view, int(scan.past.sql), self._lenders) if _is_commit(scan) else None
        explained = self.explained(view.title, tree, lambda n: self.then(n, scan), ever)
        if ever is not None:
            return replace(explained, times=self.times(ever.last))
        if any(isinstance(n, TimeFilter) for n in walk(explained.tree)):
            raise self._refused(view, "It depends on time: the past has to be named by a commit")
        return explained

    def _of_processor(self, view: Processor, query: BoundQuery) -> tuple[Node, bool]:
        """The query of a processor, with the columns of its records, and whether these are the changes of a table.

        Record times and numbers are NULL, because they describe when a record was written, not its origin.
        """
        kept = rules_of(view.dialect).records_kept(query)
        if kept is None:
            raise self._refused(view, _NO_CONTENT)
        own = {c.name: read(c) for c in query.tree.columns}
        own[TOMBSTONE] = Scalar(exp.false(), BOOLEAN, nullable=False)
        own[RECORD_NUMBER] = null_of(BIGINT)
        outputs = tuple(Column(f"#record{i}", c.name, c.type, c.nullable) for i, c in enumerate(view.columns))
        return Project(query.tree, outputs, tuple(own[c.name] for c in outputs)), kept.compacted

    def _of_changes(self, view: Relation, tree: Node) -> Explained:
        """The query of a processor of tables."""
        self._check_read(tree)
        return Explained.of_changes(view.title, tree, self.times())

    def _when_it_began(self, node: Node) -> Node:
        """The scan of the rows present when a query began, instead of the Cut that keeps them
        (`lookups.standing_still`). Rows of an append-only relation can be candidates if history is missing.
        """
        if not isinstance(node, Cut) or node.keeps != "before" or not isinstance(node.input, Scan):
            return node
        relation, database = self.catalog.relations[node.input.relation_id], self.session.database
        low_water = low_water_number(database.layout)
        number = own_commit(database, relation, node.moment, self.epoch, low_water)
        if number >= low_water:
            return self.then(
                node.input, PastScan(relation.id, f"own {number}", Past("own commit", str(number)), (), None)
            )
        if node.input.append_only:
            return node
        raise error(
            "HISTORY_GONE",
            f"rows that come from {relation.title} can't be explained",
            detail=f"Its content when the view began, at commit {node.moment}, is not known any more: the oldest "
            f"commit that is kept is {low_water + 1}.",
            hint="ALTER SYSTEM SET retention = '1 day' keeps history for longer.",
        )

    def _kept(self, view: Relation, node: Node) -> Node:
        """The versions of a table's rows in the state of a view."""
        if not isinstance(node, Versions):
            return node
        operator = kept_by(self.session.database, self.epoch, view, node)
        if operator is None:
            raise self._refused(view, f"It keeps versions of rows of {node.scan.relation_name} in several ways")
        scan = versions_scan(node, operator, self.epoch)
        self._versions[scan.name] = scan, operator
        return scan

    def then(self, node: Node, past: PastScan) -> Node:
        """The scan as of an earlier moment."""
        if not isinstance(node, Scan):
            return node
        relation = self.catalog.relations[node.relation_id]
        if not relation.is_stored:
            raise self._refused(relation, "Its rows are not stored")
        found = PastScan(node.relation_id, f"{past.name} {node.relation_id}", past.past, node.outputs, past.span)
        self.past.append(found)
        return found

    def _check_read(self, tree: Node) -> None:
        """Raises FEATURE_NOT_SUPPORTED for rows that are not stored; PERMISSION_DENIED without the right to read
        them.
        """
        for node in walk(tree):
            if isinstance(node, TopicScan) or not isinstance(node, (Scan, PastScan)):
                continue
            relation = self.catalog.relations[node.relation_id]
            if not relation.is_stored:
                raise self._refused(relation, "Its rows are not stored")
            if not self.session.rights.may("SELECT", relation.id):
                raise denied(
                    "EXPLAIN of this row",
                    self.statement.text,
                    detail="It is read from relations that are not granted to you.",
                )
            self.read.append(relation.id)

    def _refused(self, relation: Relation, why: str) -> Error:
        return error(
            "FEATURE_NOT_SUPPORTED",
            f"rows that come from {relation.title} can't be explained",
            sql=self.statement.text,
            detail=f"{why}.",
        )


def _is_commit(scan: PastScan) -> bool:
    """Whether the moment of a scan is given as a commit's number."""
    return scan.past.by == "commit" and scan.past.sql.isdecimal()


def _key(scan: Scan | PastScan) -> tuple[str, str]:
    """The key of a scan: its relation and, for a scan of the past, its moment."""
    return scan.relation_id, repr(scan.past) if isinstance(scan, PastScan) else ""
