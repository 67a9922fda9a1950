"""Views that keep more than they may: they stop, the others go on.

Document 003, "Append JOIN Append": `join_max_buffered_bytes` (TP-24, ruling D-003-14). What counts is what a join's two sides keep, in
bytes as SHOW JOBS counts them, after the epoch. A view over its limit fails in the commit of that epoch, which shows nothing of what
it made of it: its content stays as it was, and it is never run again. Views that read it fail with it. The failures are in every commit
from then on, until the view is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import AsofJoin, Join, MultiJoin, Operator, TemporalJoin, TopN
from watersmeet.errors import Error, error
from watersmeet.runtime.database import Database
from watersmeet.runtime.intents import Intent
from watersmeet.runtime.receipts import Receipt
from watersmeet.runtime.status import state_bytes
from watersmeet.store.commits import Commit

_JOINS: Final = (AsofJoin, Join, MultiJoin, TemporalJoin)

#: (operators that keep rows of the left side, those of the right side).
Sides = tuple[tuple[str, ...], tuple[str, ...]]


def failed_views(commit: Commit | None) -> dict[str, Any]:
    """By id of a view, the error that stopped it, as JSON; as of the commit, the newest of an epoch."""
    found: dict[str, Any] = commit.metrics.get("failed", {}) if commit is not None else {}
    return found


class Held:
    """What the limited views' joins keep after an epoch.

    bytes: by operator, to be kept in the epoch's commit. failed: by view, those of before and those that the epoch stops.
    """

    def __init__(self, db: Database, circuit: Circuit, intent: Intent, receipts: Iterable[Receipt], before: Commit | None,
                 packs: Mapping[str, str]) -> None:
        """packs: those with the state after the epoch."""
        catalog = db.catalog()
        self.failed = {i: f for i, f in failed_views(before).items() if i in catalog.relations}
        joins = {} if intent.rebuilding else _limited(db, circuit, catalog)
        wanted = {i for found in joins.values() for both in found for side in both for i in side}
        self.bytes = _summed(db, wanted, receipts, before, packs)
        # In a backfill of other views what it grows is not theirs.
        active = {s.relation_id for s in circuit.sinks if intent.active is None or s.id in intent.active}
        for relation_id in [i for i in joins if i in active]:
            relation = catalog.relations[relation_id]
            for left, right in joins[relation_id]:
                held = sum(self.bytes[i] for i in left), sum(self.bytes[i] for i in right)
                if relation_id not in self.failed and sum(held) > (relation.max_buffered_bytes or 0):
                    self._fail(relation, _too_much(relation, *held), circuit, catalog)

    def _fail(self, relation: Relation, cause: Error, circuit: Circuit, catalog: Catalog) -> None:
        self.failed[relation.id] = cause.to_json()
        run = {s.relation_id for s in circuit.sinks}
        for above in [*catalog.dependents(relation.id), *(r for r in catalog.relations.values() if r.owner == relation.id)]:
            if above.id in run and above.id not in self.failed:
                self.failed[above.id] = error(
                    "VIEW_FAILED", f"{_called(above)} can't go on: {_called(relation)}, which it reads, was stopped",
                    detail=f"{cause.condition}: {cause.message}", hint=f"Drop it, and {_called(relation)}.").to_json()


def _limited(db: Database, circuit: Circuit, catalog: Catalog) -> dict[str, list[Sides]]:
    """By id of each view with a limit that the circuit runs, the sides of its joins."""
    key = (circuit.fingerprint, catalog.version)
    if key not in db.joins:
        views = [(catalog.relations[s.relation_id], s.id) for s in circuit.sinks if s.relation_id in catalog.relations]
        found = {r.id: [sides(o, circuit) for o in own_joins(circuit, r, sink_id, catalog)] for r, sink_id in views
                 if r.max_buffered_bytes is not None}
        db.joins.clear()
        db.joins[key] = found
    return db.joins[key]


def own_joins(circuit: Circuit, view: Relation, sink_id: str, catalog: Catalog) -> Iterator[Operator]:
    """The joins of a view's own query, not those of the views that it reads."""
    reads = catalog.upstream(view.depends_on)
    ends = {s.inputs[0] for s in circuit.sinks if s.relation_id in reads}
    reached = circuit.upstream({sink_id}, ends)
    return (o for o in circuit.operators if o.id in reached - ends and isinstance(o, _JOINS))


def sides(join: Operator, circuit: Circuit) -> Sides:
    """Where a join's sides are kept: by the arrangements that it reads, by what picks their rows, by the join itself for its left rows."""
    left, *right = [tuple(_kept(i, circuit)) for i in join.inputs]
    others = tuple(i for side in right for i in side)
    if isinstance(join, TemporalJoin) and join.ttl_us is not None:
        return left, (*others, join.id)  # its answers
    return (*left, join.id), others


def _kept(operator_id: str, circuit: Circuit) -> Iterator[str]:
    yield operator_id
    below = circuit.by_id[operator_id]
    while len(below.inputs) == 1:
        below = circuit.by_id[below.inputs[0]]
        if isinstance(below, TopN):
            yield below.id


def _summed(db: Database, wanted: set[str], receipts: Iterable[Receipt], before: Commit | None, packs: Mapping[str, str]) -> dict[str, int]:
    """By operator, the bytes that all buckets keep: those of before and what they have grown, or what all packs say."""
    known = before.metrics.get("held", {}) if before is not None else {}
    if not wanted <= known.keys():
        found = state_bytes(db, packs)
        return {i: found.get(i, 0) for i in wanted}
    held = {i: known[i] for i in wanted}
    for receipt in receipts:
        for operator_id, size in receipt.grown.items():
            if operator_id in held:
                held[operator_id] += size
    return held


def _too_much(view: Relation, left: int, right: int) -> Error:
    called = _called(view)
    return error("BUFFER_LIMIT", f"Streaming join's memory reaches max size: {view.max_buffered_bytes}, current total: {left + right}, "
                 f"left total: {left}, right total: {right}", detail=f"{called[0].upper()}{called[1:]} was stopped. "
                 "Nothing of the epoch in which that happened was shown of it; the other views go on.",
                 hint="Give join_max_buffered_bytes a higher value behind SETTINGS, or bound what the join keeps, "
                      "with date_diff_within or a stream that has a primary key.")


def _called(relation: Relation) -> str:
    return "the query" if relation.hidden else f'materialized view "{relation.shown}"'
