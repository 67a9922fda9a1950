"""Views that an epoch computes again from the present content of tables, because that is cheaper than the change.

An incremental epoch joins, aggregates and merges each deleted row once more. An epoch that recomputes reads the rows
that are left instead, and makes new state of them. All operators that read changed rows downstream of such a table
begin again, of all views at once; arrangements of other tables stay (`beginning_again`). The commit of the epoch has
the difference between the old and the new content of each view.

**Costs** are counted in processed rows. An incremental epoch processes each inserted row once, and each deleted row
`DELETED` times: it is read, matched, retracted and merged with the rows that it cancels. An epoch that recomputes reads
all stored rows, of which deleted ones are compared with the changes that delete them (`READ`), and processes each row
that is left once. If a transaction deletes all earlier rows of a table, only its inserted rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from watersmeet.catalog import MOST_JOIN_ROWS, MaterializedView, Relation, SinkConflicts, SinkQuery, Table
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Recompute
from watersmeet.circuit.operators import Arrange, AsofJoin, Join, MultiJoin, Operator
from watersmeet.runtime.backfill import stored_slices
from watersmeet.runtime.engine import Database
from watersmeet.runtime.inputs import Batch
from watersmeet.runtime.reach import is_timeless, preserved
from watersmeet.store.checkpoints import Checkpoint, newest_checkpoint
from watersmeet.store.manifests import Commit
from watersmeet.values.slices import ChangeSlice, Slice

#: The work for a deleted row in an incremental epoch, as a multiple of that for an inserted row.
DELETED: Final = 2.5

#: The work for reading a stored row that may be deleted, likewise.
READ: Final = 0.3

#: A table is read again if a batch deletes at least this part of its rows …
LEAST_PART: Final = 0.25

#: … and at least this many, below which the fixed costs of an epoch decide.
LEAST_ROWS: Final = 20_000

#: The maximum number of rows that are read, as a multiple of those of the batch, if that is more than the largest
#: epoch may have: a transaction is never cut, so its rows are in memory anyway.
MOST_READ: Final = 2

#: Relations whose content is stored and depends only on their query.
_KINDS: Final = (MaterializedView, SinkQuery, SinkConflicts)

_JOINS: Final = (AsofJoin, Join, MultiJoin)


@dataclass(frozen=True)
class Plan:
    """The mode and the slices of an epoch that recomputes. lease: the commit that must stay until it has run, with all
    later ones.
    """

    mode: Recompute
    slices: tuple[Slice, ...]
    lease: int


@dataclass
class _Changes:
    """The changes of a table in a batch. commits: the number of those that change it; first: the first of them."""

    first: int
    inserted: int = 0
    deleted: int = 0
    commits: int = 0


def plan_recompute(
    db: Database,
    circuit: Circuit,
    batch: Batch,
    before: int,
    most: tuple[int, int],
    pin: Callable[[], None],
) -> Plan | None:
    """The plan by which views are computed again; None if the epoch is to process its changes.

    before: the last transaction of the previous epoch. most: the maximum rows and bytes of the largest epoch. pin: pins
    all commits that can be read.
    """
    known = db.catalog().relations
    views = [v for s in circuit.sinks if isinstance(v := known.get(s.relation_id), MaterializedView)]
    forced = {v.id for v in views if v.recompute == "always"}
    rows = sum(s.rows for s in batch.slices if isinstance(s, ChangeSlice))
    if not rows or (rows < LEAST_ROWS and not forced):
        return None
    tables = {s.relation_id for s in circuit.scans}
    changes = _changes(db.log.transactions(before, batch.frontier.transaction), tables)
    large = {i for i, c in changes.items() if c.deleted >= LEAST_ROWS}
    wanted = {s.relation_id for s in circuit.scans if any(s.id in circuit.below_sinks[v] for v in forced)}
    if not large and not changes.keys() & wanted:
        return None
    pin()
    checkpoint = newest_checkpoint(db.layout, db.log)
    content = _Content(db, checkpoint, before)
    large = {i for i in large if changes[i].deleted >= LEAST_PART * content.rows(i)} | (changes.keys() & wanted)
    again = beginning_again(circuit, [s.id for s in circuit.scans if s.relation_id in large])
    if not again or not _can_begin_again(db, circuit, again, known):
        return None
    scanned = {s.relation_id for s in circuit.scans if s.id in again}
    if any(content.has(i, changes[i].first) for i in scanned & changes.keys()):
        return None
    # Each commit of these tables has a row at most once, so deleted rows are distinct, and existed before.
    plain = {i for i in scanned & changes.keys() if type(known[i]) is Table and changes[i].commits == 1}
    emptied = {i for i in plain if changes[i].deleted == content.rows(i) > 0}
    read = [replace(s, earlier=True) for i in sorted(scanned - emptied) for s in content.slices(i)]
    read_rows = sum(s.rows for s in read) + rows
    size_bytes = sum(s.size_bytes for s in (*read, *batch.slices))
    if read_rows > max(most[0], MOST_READ * rows) or size_bytes > max(
        most[1], MOST_READ * sum(s.size_bytes for s in batch.slices)
    ):
        return None
    again_views = {s.relation_id for s in circuit.sinks if s.id in again}
    if not again_views & forced:
        inserted = sum(changes[i].inserted for i in scanned & changes.keys())
        deleted = sum(changes[i].deleted for i in scanned & changes.keys())
        left = sum(content.rows(i) for i in scanned) + inserted - deleted
        if inserted + DELETED * deleted <= READ * read_rows + left:
            return None
    mode = Recompute(operators=tuple(i for i in circuit.by_id if i in again), emptied=tuple(sorted(emptied)))
    return Plan(mode, (*read, *batch.slices), checkpoint.moment.transaction)


def beginning_again(circuit: Circuit, scans: Collection[str]) -> frozenset[str]:
    """The operators that begin again if these scans read the content of their tables: all that read their output, and
    all whose content these need.

    A join needs no content of an arrangement if its output would be empty without its other inputs: it probes the rows
    that the arrangement has.
    """
    found = set(scans)
    while True:
        before = len(found)
        for op in circuit.operators:
            if op.id in found or any(i in found for i in op.inputs):
                found.add(op.id)
                found.update(i for i in op.inputs if not _stays(circuit, op, i))
                if isinstance(op, _JOINS) and not any(i in found for i in op.inputs):
                    found.update(op.inputs)
        if len(found) == before:
            return frozenset(found)


def _stays(circuit: Circuit, op: Operator, given: str) -> bool:
    """Whether `op` can begin again while its input `given` does not."""
    return isinstance(op, _JOINS) and isinstance(circuit.by_id[given], Arrange) and given not in preserved(op)


def _can_begin_again(db: Database, circuit: Circuit, operators: Collection[str], known: Mapping[str, Relation]) -> bool:
    """Whether the output of operators only depends on the present rows of tables, and their views allow it."""
    if db.log.progress().split:
        return False
    below = circuit.upstream(set(operators))
    for scan in circuit.scans:
        table = known.get(scan.relation_id)
        if scan.id in below and (table is None or table.connector or table.event_time is not None or scan.late):
            return False
    if not all(is_timeless(op) and not op.is_timed for op in (circuit.by_id[i] for i in operators)):
        return False
    if any(isinstance(op, Arrange) and not op.keeps_all for op in (circuit.by_id[i] for i in operators)):
        return False
    return all(_may_recompute(known.get(s.relation_id)) for s in circuit.sinks if s.id in operators)


def _may_recompute(view: Relation | None) -> bool:
    return (
        isinstance(view, MaterializedView)
        and type(view) in _KINDS
        and view.recompute != "never"
        and view.period is None
        and view.most_join_rows in (0, MOST_JOIN_ROWS)
    )


def _changes(commits: Iterable[Commit], tables: Collection[str]) -> dict[str, _Changes]:
    found: dict[str, _Changes] = {}
    for commit in commits:
        for relation_id, change in commit.relations.items():
            if relation_id in tables:
                sums = found.setdefault(relation_id, _Changes(commit.number))
                sums.inserted += change.inserted_rows
                sums.deleted += change.deleted_rows
                sums.commits += 1
    return found


class _Content:
    """The content of tables as of transaction `upto`, by a checkpoint and later commits."""

    def __init__(self, db: Database, checkpoint: Checkpoint, upto: int) -> None:
        self._db, self._checkpoint, self._upto = db, checkpoint, upto
        self._rows: dict[str, int] = {}

    def rows(self, table: str) -> int:
        """The number of rows, counting duplicates."""
        if not self._rows:
            self._rows = {i: s.rows for i, s in self._checkpoint.relations.items()}
            for number in range(self._checkpoint.moment.transaction + 1, self._upto + 1):
                for relation_id, change in self._db.log.read(number).relations.items():
                    snapshot = self._checkpoint.relations.get(relation_id)
                    if snapshot is None or number > snapshot.upto:
                        added = change.inserted_rows - change.deleted_rows
                        self._rows[relation_id] = self._rows.get(relation_id, 0) + added
        return self._rows.get(table, 0)

    def has(self, table: str, number: int) -> bool:
        """Whether the checkpoint has the changes of commit `number`."""
        snapshot = self._checkpoint.relations.get(table)
        return snapshot is not None and snapshot.upto >= number

    def slices(self, table: str) -> list[ChangeSlice]:
        """The slices with the content."""
        return stored_slices(self._db, self._checkpoint.moment.head, table, self._upto)
