"""Limits of joins and failures of operators: the views that an epoch stops while the others continue.

State of a join (`join_max_buffered_bytes`; source: Timeplus, "Multi-JOINs and ASOF JOINs", "Append JOIN Append"): the
bytes of its two sides after the epoch, as SHOW JOBS counts them.

Output of a join (`max_join_amplification_rows`): rows times matches, summed over the keys of an epoch's changes, before
conditions other than the key are checked and before rows cancel each other. The limit is for all buckets together, so
parallelism only matters for deleted rows that still wait for a merge; a replay counts the same rows. A bucket that
already exceeds the limit outputs no rows.

A view over its limit fails in the commit of that epoch, which contains none of its changes: its content stays
unchanged, and it never runs again. Views that read it fail with it. Every later commit contains the failure, until the
view is refreshed or dropped.

An operator that raises an error stops all views that read it: the epoch is run again without them (`failures`), and its
commit records them in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from watersmeet.catalog import MOST_JOIN_ROWS, Catalog, MaterializedView, Query, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Rebuild, Refresh, Rescale, SplitKeys, StopViews
from watersmeet.circuit.operators import (
    Arrange,
    AsofJoin,
    GroupJoin,
    Join,
    MultiJoin,
    Operator,
    TemporalJoin,
    TopN,
    Versions,
)
from watersmeet.errors import Error, error
from watersmeet.runtime.engine import Database
from watersmeet.runtime.epochstatus import state_bytes
from watersmeet.runtime.taskcontract import Intent, Receipt
from watersmeet.store.manifests import Commit, Progress

_JOINS: Final = (AsofJoin, GroupJoin, Join, MultiJoin, TemporalJoin)
#: The number that means no limit.
_ANY: Final = 1 << 63

#: (operators that keep rows of the left side, operators that keep rows of the right side).
Sides = tuple[tuple[str, ...], tuple[str, ...]]


def most_rows(db: Database, circuit: Circuit) -> dict[str, tuple[int, int]]:
    """For each join, the least and the greatest number of rows that its views allow in an epoch; 0 for any number.

    Joins with two numbers MOST_JOIN_ROWS are omitted. A join of several views may output as many rows as any of them
    allows.
    """
    found: dict[str, list[int]] = {}
    for view in _own_joins(db, circuit, db.catalog()).values():
        for join in view.joins:
            found.setdefault(join.id, []).append(view.most_rows or _ANY)
    bounds = {i: (min(rows) % _ANY, max(rows) % _ANY) for i, rows in found.items()}
    return {i: both for i, both in bounds.items() if both != (MOST_JOIN_ROWS, MOST_JOIN_ROWS)}


def most_used(db: Database, circuit: Circuit, commit: Commit) -> float:
    """For the join nearest to its limit in an epoch, its number of rows divided by the limit."""
    made = {i: c.made_rows for i, c in commit.metrics.operators.items() if c.made_rows}
    bounds = most_rows(db, circuit) if made else {}
    least = {i: bounds.get(i, (MOST_JOIN_ROWS, MOST_JOIN_ROWS))[0] or _ANY for i in made}
    return max((rows / least[i] for i, rows in made.items()), default=0.0)


def stopped_operators(circuit: Circuit, failed: Collection[str]) -> tuple[str, ...]:
    """The operators that only views among `failed` read."""
    kept = circuit.without(failed).by_id
    return tuple(o.id for o in circuit.operators if o.id not in kept)


def readers(circuit: Circuit, operators: Collection[str]) -> set[str]:
    """The relations whose content depends on one of `operators`."""
    return {i for i, below in circuit.below_sinks.items() if not below.isdisjoint(operators)} if operators else set()


class Verdict:
    """The views that an epoch stops, from the receipts of its tasks.

    held: the bytes after the epoch of each operator of views with a limit of bytes, for the epoch's commit. failed: the
    errors of the views that were stopped before or by the epoch.
    """

    def __init__(
        self,
        db: Database,
        circuit: Circuit,
        intent: Intent,
        receipts: Sequence[Receipt],
        before: Progress,
        segments: Mapping[str, str],
        failures: Mapping[str, Error],
    ) -> None:
        """before: the commit of the previous epoch. segments: those with the state after the epoch. failures: the error
        of each failed operator.
        """
        catalog = db.catalog()
        self.failed = {i: f for i, f in before.failed.items() if i in catalog.relations}
        if isinstance(intent.mode, Refresh):
            self.failed = {i: f for i, f in self.failed.items() if i not in intent.mode.made}
        if isinstance(intent.mode, StopViews):
            self.failed |= intent.mode.stopped
        for operator_id, cause in failures.items():
            self._fail_readers(operator_id, cause, circuit, catalog)
        own = {} if isinstance(intent.mode, Rebuild) else _own_joins(db, circuit, catalog)
        wanted = {i for view in own.values() for both in view.sides for side in both for i in side}
        known = {} if isinstance(intent.mode, (Rescale, SplitKeys)) else before.held
        self.held = _summed(db, wanted, receipts, known, segments)
        made: Counter[str] = Counter()
        for receipt in receipts:
            made.update({i: counts.made_rows for i, counts in receipt.operators.items() if counts.made_rows})
        # In a backfill of other views, these views did not cause the growth.
        active = {s.relation_id for s in circuit.sinks if intent.mode.runs(s.id)}
        for relation_id, view in own.items():
            relation = catalog.relations[relation_id]
            if relation_id not in active:
                continue
            for left, right in view.sides:
                held = sum(self.held[i] for i in left), sum(self.held[i] for i in right)
                if relation_id not in self.failed and sum(held) > (relation.max_buffered_bytes or 0):
                    self._fail(relation, _keeps_too_much(relation, *held), circuit, catalog)
            for join in view.joins:
                if relation_id not in self.failed and made[join.id] > (view.most_rows or _ANY):
                    key = _hottest(db, join, relation, circuit, catalog, receipts)
                    self._fail(relation, _makes_too_much(relation, made[join.id], key), circuit, catalog)

    def _fail_readers(self, operator_id: str, cause: Error, circuit: Circuit, catalog: Catalog) -> None:
        """Stop the views whose own queries contain the operator, and then all that read these."""
        views = [catalog.relations[i] for i in readers(circuit, (operator_id,)) if i in catalog.relations]
        own = [v for v in views if operator_id in _own_operators(circuit, v, catalog)]
        for view in [*own, *views]:
            if view.id not in self.failed:
                self._fail(view, _raised(view, operator_id, cause, circuit), circuit, catalog)

    def _fail(self, relation: Relation, cause: Error, circuit: Circuit, catalog: Catalog) -> None:
        self.failed[relation.id] = cause.to_json()
        run = {s.relation_id for s in circuit.sinks}
        for above in [
            *catalog.dependents(relation.id),
            *(r for r in catalog.relations.values() if r.owner == relation.id),
        ]:
            if above.id in run and above.id not in self.failed:
                self.failed[above.id] = error(
                    "VIEW_FAILED",
                    f"{_called(above)} can't go on: {_called(relation)}, which it reads, was stopped",
                    detail=f"{cause.condition}: {cause.message}",
                    hint=f"REFRESH MATERIALIZED VIEW of {_called(relation)} also refreshes it."
                    if isinstance(relation, MaterializedView)
                    else f"Drop it, and {_called(relation)}.",
                ).to_json()


@dataclass(frozen=True)
class OwnJoins:
    """The joins of a view's own query. sides: those of each join, if their bytes are limited. most_rows: the limit of
    each join.

    view, sink_id, ends: the inputs from which the joins were determined.
    """

    view: Relation
    sink_id: str
    ends: frozenset[str]
    joins: tuple[Operator, ...]
    sides: tuple[Sides, ...]
    most_rows: int


def _own_joins(db: Database, circuit: Circuit, catalog: Catalog) -> dict[str, OwnJoins]:
    """The joins of each running view, by its id."""
    key = (circuit.fingerprint, catalog.version)
    if key not in db.joins:
        views = [(catalog.relations[s.relation_id], s.id) for s in circuit.sinks if s.relation_id in catalog.relations]
        known: dict[str, OwnJoins] = next(iter(db.joins.values()), {})
        found = {}
        for view, sink_id in views:
            ends = _ends(circuit, view, catalog)
            before = known.get(view.id)
            if before is not None and before.view is view and (before.sink_id, before.ends) == (sink_id, ends):
                found[view.id] = before
                continue
            joins = tuple(_between(circuit, sink_id, ends))
            kept = () if view.max_buffered_bytes is None else tuple(sides(o, circuit) for o in joins)
            making = tuple(o for o in joins if not isinstance(o, (AsofJoin, GroupJoin)))
            found[view.id] = OwnJoins(view, sink_id, ends, making, kept, view.most_join_rows)
        db.joins.clear()
        db.joins[key] = found
    return db.joins[key]


def _ends(circuit: Circuit, view: Relation, catalog: Catalog) -> frozenset[str]:
    """The operators whose output is the content that a view reads."""
    reads = catalog.upstream(view.depends_on)
    return frozenset(circuit.sink_of[i].inputs[0] for i in reads if i in circuit.sink_of)


def _own_operators(circuit: Circuit, view: Relation, catalog: Catalog) -> set[str]:
    return _above(circuit, circuit.sink_of[view.id].id, _ends(circuit, view, catalog))


def _above(circuit: Circuit, sink_id: str, ends: frozenset[str]) -> set[str]:
    """The operators of a view's own query, without those of the views that it reads."""
    return circuit.upstream({sink_id}, ends) - ends


def _between(circuit: Circuit, sink_id: str, ends: frozenset[str]) -> Iterator[Operator]:
    """The joins of a view's own query, without those of the views that it reads."""
    reached = sorted(_above(circuit, sink_id, ends), key=circuit.order.__getitem__)
    return (o for o in map(circuit.by_id.__getitem__, reached) if isinstance(o, _JOINS))


def sides(join: Operator, circuit: Circuit) -> Sides:
    """The operators with the state of a join's sides: the arrangements that it reads, the operators that select their
    rows, and the join itself for its left rows.
    """
    left, *right = [tuple(_kept(i, circuit)) for i in join.inputs]
    others = tuple(i for side in right for i in side)
    if isinstance(join, TemporalJoin) and join.ttl_us is not None:
        return left, (*others, join.id)  # the stored answers
    return (*left, join.id), others


def _kept(operator_id: str, circuit: Circuit) -> Iterator[str]:
    yield operator_id
    below = circuit.by_id[operator_id]
    while len(below.inputs) == 1:
        below = circuit.by_id[below.inputs[0]]
        if isinstance(below, TopN):
            yield below.id


def _summed(
    db: Database, wanted: set[str], receipts: Iterable[Receipt], known: Mapping[str, int], segments: Mapping[str, str]
) -> dict[str, int]:
    """For each operator, the bytes in all buckets: those before the epoch plus the growth, or read from all
    segments.
    """
    if not wanted <= known.keys():
        found = state_bytes(db, segments)
        return {i: found.get(i, 0) for i in wanted}
    held = {i: known[i] for i in wanted}
    for receipt in receipts:
        for operator_id, size in receipt.grown.items():
            if operator_id in held:
                held[operator_id] += size
    return held


def _raised(view: Relation, operator_id: str, cause: Error, circuit: Circuit) -> Error:
    called = _called(view)
    return error(
        cause.condition,
        f"{called} was stopped: {cause.message}",
        detail=f"An operator of kind {circuit.by_id[operator_id].kind} failed. {called[0].upper()}{called[1:]} shows "
        f"nothing of the epoch in which that happened; the other views continue.{' ' if cause.detail else ''}"
        f"{cause.detail or ''}",
        hint=cause.hint if isinstance(view, MaterializedView) else "Drop it and create it again.",
    )


def _keeps_too_much(view: Relation, left: int, right: int) -> Error:
    called = _called(view)
    return error(
        "BUFFER_LIMIT",
        f"Streaming join's memory reaches max size: {view.max_buffered_bytes}, current total: {left + right}, "
        f"left total: {left}, right total: {right}",
        detail=f"{called[0].upper()}{called[1:]} was stopped. "
        "It shows nothing of the epoch in which that happened; the other views continue.",
        hint="Set join_max_buffered_bytes to a higher value in SETTINGS, or bound what the join keeps, "
        "with date_diff_within or a stream that has a primary key.",
    )


def _hottest(
    db: Database, join: Operator, view: Relation, circuit: Circuit, catalog: Catalog, receipts: Iterable[Receipt]
) -> tuple[int, str]:
    """The greatest number of rows that the join outputs for one key, and that key as text (empty without a key)."""
    found = [r.hottest[join.id] for r in receipts if join.id in r.hottest]
    rows, values = max(found, key=lambda f: (f[0], [v or "" for v in f[1]]), default=(0, ()))
    arrangement = circuit.by_id[join.inputs[-1]]
    if not isinstance(arrangement, (Arrange, Versions)):
        raise error("INTERNAL_ERROR", f"{join.id} reads {arrangement.id}, which is not an arrangement")
    reads, scans = catalog.upstream(view.depends_on), {s.id for s in circuit.scans}
    leaves = {
        s.inputs[0]: catalog.relations[s.relation_id]
        for s in circuit.sinks
        if s.relation_id in reads and s.inputs[0] not in scans
    }
    columns = db.column_names(circuit, catalog, leaves, arrangement.id)
    pairs = zip([columns[k] for k in arrangement.keys], values, strict=False)  # without values, which were not reported
    return rows, ", ".join(f"{name} = {'NULL' if value is None else value}" for name, value in pairs)


def _makes_too_much(view: Relation, rows: int, hottest: tuple[int, str]) -> Error:
    called = _called(view)
    key = f"Of the key {hottest[1]} alone it would have made {hottest[0]}. " if hottest[1] else ""
    return error(
        "AMPLIFICATION_LIMIT",
        f"a join would make {rows} rows in one epoch, more than max_join_amplification_rows = {view.most_join_rows}",
        detail=f"{key}{called[0].upper()}{called[1:]} was stopped. It shows nothing of the epoch in which that "
        "happened; the other views continue.",
        hint="Join by a key that fewer rows share, or create it again with a higher max_join_amplification_rows "
        "(SET, or an option of the view); 0 means no limit.",
    )


def _called(relation: Relation) -> str:
    return "the query" if isinstance(relation, Query) else relation.title
