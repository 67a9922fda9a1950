"""DIFF: the content of a fork compared with that of its main database.

The two share files, and a file's name contains a hash of its content. The content of a relation is a sum of blobs: the
levels of a snapshot and the changes after it, less the changes after a past moment. Equal blobs of both databases
cancel each other without being read. So a comparison reads only changes of one of them since the fork began; the sum of
their rows is the difference.

The main database is read as of the commit that the fork has replayed, so that both have the same inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from watersmeet.catalog import Catalog, MaterializedView, Relation, View
from watersmeet.connectors.base.targets import deliveries
from watersmeet.database.opened import OpenDatabase
from watersmeet.errors import error
from watersmeet.objectstores.storage import AnyPath
from watersmeet.store.backup import MAIN, fork_named, position_of, root_of
from watersmeet.store.changes import Diff, fitted, merged
from watersmeet.store.checkpoints import Moment, Snapshot, moment_at, newest_checkpoint
from watersmeet.store.commits import CommitLog, load_catalog
from watersmeet.store.layout import Layout
from watersmeet.store.readers import Reader
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.blobs import BlobRef
from watersmeet.values.types import arrow_schema

#: same: both have the relation, with the same definition. differs: the definitions differ. only here: only the named
#: database has it.
Definition = Literal["same", "differs", "only in fork", "only in main"]

Rows = Iterator[tuple[pa.Table, Diff]]


@dataclass(frozen=True)
class Side:
    """One of two databases. name: as in statements. moment: that of its content."""

    name: str
    layout: Layout
    log: CommitLog
    segments: SegmentFiles
    catalog: Catalog
    moment: Moment

    def blobs(self, relation: Relation | None) -> Counter[BlobRef]:
        """The blobs whose sum is the content of a relation; some may count negatively."""
        found: Counter[BlobRef] = Counter()
        if relation is None:
            return found
        checkpoint = newest_checkpoint(self.layout, self.log)
        before = checkpoint.relations.get(relation.id, Snapshot(checkpoint.moment.transaction))
        found.update(before.blobs)
        upto = self.moment.upto(relation)
        for number in range(before.upto + 1, upto + 1):
            found.update(self._changed(number, relation))
        for number in range(upto + 1, before.upto + 1):
            found.subtract(self._changed(number, relation))
        return found

    def _changed(self, number: int, relation: Relation) -> tuple[BlobRef, ...]:
        change = self.log.read(number).relations.get(relation.id)
        return () if change is None else change.blobs

    def rows(self, blob: BlobRef, relation: Relation, schema: pa.Schema) -> tuple[pa.Table, Diff]:
        """The rows of a blob with the column names of `schema`."""
        stored = relation.as_stored
        own = arrow_schema(stored.columns, positional=False)
        table, diff = self.segments.read_change(blob)
        return fitted(table, own, stored.fills).cast(own).rename_columns(schema.names), diff


class Pair(NamedTuple):
    """A relation in both databases."""

    fork: Relation | None
    main: Relation | None

    @property
    def either(self) -> Relation:
        """The relation in the main database, or else in the fork."""
        found = self.main or self.fork
        assert found is not None
        return found

    @property
    def definition(self) -> Definition:
        """How the definitions compare."""
        if self.fork is None:
            return "only in main"
        if self.main is None:
            return "only in fork"
        return "same" if _defined(self.fork) == _defined(self.main) else "differs"

    @property
    def has_rows_to_compare(self) -> bool:
        """Whether both have stored rows with the same columns."""
        if self.fork is None or self.main is None:
            return False
        return self.fork.is_stored and self.main.is_stored and _columns(self.fork) == _columns(self.main)


def _columns(relation: Relation) -> list[tuple[str, str]]:
    return [(c.name, str(c.type)) for c in relation.columns]


def _defined(relation: Relation) -> tuple[object, ...]:
    """The definition of a relation, with the functions that it calls. The text is compared without white space."""
    text = " ".join(relation.sql.split())
    return (type(relation), text, _columns(relation), relation.primary_key, relation.functions)


@dataclass(frozen=True)
class Comparison:
    """A fork and its main database, both open."""

    fork: Side
    main: Side

    def pairs(self) -> list[Pair]:
        """The views and tables of both, by name."""
        sides = [{r.shown: r for r in s.catalog.relations.values() if _is_compared(r)} for s in (self.fork, self.main)]
        return [Pair(sides[0].get(n), sides[1].get(n)) for n in sorted(sides[0].keys() | sides[1].keys())]

    def difference(self, pair: Pair) -> Rows:
        """The rows of the fork, less those of the main database, with the columns of the fork's relation, or of the
        only one.
        """
        relation = pair.fork or pair.main
        assert relation is not None
        schema = arrow_schema(relation.columns, positional=False)
        ours, theirs = self.fork.blobs(pair.fork), self.main.blobs(pair.main)
        return merged(self._parts(pair, ours, theirs, schema), schema) if ours != theirs else iter(())

    def _parts(self, pair: Pair, ours: Counter[BlobRef], theirs: Counter[BlobRef], schema: pa.Schema) -> Rows:
        for blob in ours.keys() | theirs.keys():
            count = ours[blob] - theirs[blob]
            if count:
                side, relation = (self.fork, pair.fork) if blob in ours else (self.main, pair.main)
                assert relation is not None
                table, diff = side.rows(blob, relation, schema)
                yield table, diff * count

    def counts(self, pair: Pair) -> tuple[int, int]:
        """The numbers of rows that only the fork and only the main database have."""
        ours = theirs = 0
        for _, diff in self.difference(pair):
            ours += int(diff[diff > 0].sum())
            theirs -= int(diff[diff < 0].sum())
        return ours, theirs


def _is_compared(relation: Relation) -> bool:
    return relation.is_named and (relation.is_stored or isinstance(relation, View)) and relation.ready


@contextmanager
def compared(database: OpenDatabase, name: str) -> Iterator[Comparison]:
    """A fork and its main database, of which one is `database`. name: that of the fork. Raises UNDEFINED_OBJECT,
    HISTORY_GONE.
    """
    with ExitStack() as opened:
        if database.layout.is_fork:
            if name != database.layout.root.name:
                raise error("UNDEFINED_OBJECT", f'this is not fork "{name}"', hint="Connect to the main database.")
            fork, main = _opened(database), _reading(database.layout.main, opened)
        else:
            fork_named(database.layout, name)
            fork, main = _reading(root_of(database.layout, name), opened), _opened(database)
        for layout, _, _, _ in (fork, main):
            opened.enter_context(closing(Reader(layout))).pin(0)
        at = position_of(fork[0], fork[1])
        yield Comparison(
            Side(name, *fork, moment_at(fork[1], fork[3])),
            Side(MAIN, *main, Moment(at.epoch, min(at.transaction, at.epoch))),
        )


def side_of(name: str, database: OpenDatabase) -> Side:
    """An open database as it is now."""
    layout, log, segments, catalog = parts = _opened(database)
    del layout, segments
    return Side(name, *parts, moment_at(log, catalog))


_Parts = tuple[Layout, CommitLog, SegmentFiles, Catalog]


def _opened(database: OpenDatabase) -> _Parts:
    return database.layout, database.log, database.segments, database.catalog


def _reading(root: AnyPath, opened: ExitStack) -> _Parts:
    layout = Layout(root, create=False, serves=False, older=True)
    log = CommitLog(layout)
    segments = opened.enter_context(closing(SegmentFiles(layout.segments, path=layout.segment)))
    return layout, log, segments, load_catalog(layout, log)[0]


class Successors:
    """The views of a fork that continue deliveries to external targets. before, after: the catalogs of the main
    database and of the fork.

    former: the dropped view of the main database that each new view of the fork continues, by id: the one with its
    name, or else the only one that wrote its target. kept: the views that both have, each by its own id.
    """

    def __init__(self, before: Catalog, after: Catalog) -> None:
        self._before, self._after = before.relations, after.relations
        there, made = _delivered_views(before), _delivered_views(after)
        self.kept = {i: i for i in made if i in there}
        gone = {i: v for i, v in there.items() if i not in made}
        new = {i: v for i, v in made.items() if i not in there}
        pairs = {(v.feeds, v.shown): i for i, v in gone.items()}
        self.former = {i: pairs[v.feeds, v.shown] for i, v in new.items() if (v.feeds, v.shown) in pairs}
        for target in {v.feeds for v in new.values()}:
            left = [i for i, v in gone.items() if v.feeds == target and i not in self.former.values()]
            begun = [i for i, v in new.items() if v.feeds == target and i not in self.former]
            if len(left) == len(begun) == 1:
                self.former[begun[0]] = left[0]

    def of(self, former: str) -> MaterializedView:
        """A dropped view of the main database."""
        found = self._before[former]
        assert isinstance(found, MaterializedView)
        return found

    def have_difference(self, made: str) -> bool:
        """Whether rows of a view and of the one that it continues can be compared."""
        return Pair(self._after[made], self.of(self.former[made])).has_rows_to_compare


def _delivered_views(catalog: Catalog) -> dict[str, MaterializedView]:
    known = catalog.relations
    found = (known[d.id] for d in deliveries(catalog))
    return {v.id: v for v in found if isinstance(v, MaterializedView)}
