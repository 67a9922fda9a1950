"""What the operators of a view did in the last epochs: for EXPLAIN ANALYZE and the console."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.operators import Constant, Scan
from watersmeet.errors import Error
from watersmeet.planner import Producers
from watersmeet.planner.display import PlanTree
from watersmeet.planner.explain import stored_plan
from watersmeet.runtime.plans import kept_circuit
from watersmeet.runtime.status import OperatorStatus
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import OperatorCounts

#: So many epochs, unless all of the last seconds are wanted; and of these the newest ones.
EPOCHS: Final = 60
_MOST_EPOCHS: Final = 3600


@dataclass(frozen=True)
class Recent:
    """The newest epochs in which a relation ran.

    epochs: how many. began_us, ended_us: the time of the commit before the first of them, and of the newest.
    duration_us, tasks_us, operators_us: sums of the `Metrics`. time_us: the sum of the times of the epochs, in which
    those count as their tasks took that ran beside each other for longer. counts: by operator.
    """

    epochs: int = 0
    began_us: int = 0
    ended_us: int = 0
    duration_us: int = 0
    tasks_us: int = 0
    operators_us: int = 0
    time_us: int = 0
    counts: Mapping[str, OperatorCounts] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the beginning to the end."""
        return max(0, self.ended_us - self.began_us) / 1e6


class Figures(NamedTuple):
    """What one operator did in some epochs, and keeps as of the newest. rows_in: None of another view's operator.

    took_us: its time in all tasks. made_rows: of joins, see `OperatorCounts`. merge_debt_bytes: of its state,
    what waits for merges under way.
    """

    rows_in: int | None
    rows_out: int
    made_rows: int = 0
    took_us: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    merge_debt_bytes: int = 0

    @property
    def fan_out(self) -> float | None:
        """Rows out for each row in."""
        return self.rows_out / self.rows_in if self.rows_in else None


@dataclass(frozen=True)
class AnalyzedOperator:
    """A line of a plan. plan: with its own fields, without inputs.

    figures: None where the line is a part of the operator above it, or was shown before. shown_before: the same
    operator is above, with its inputs. shared_with: the names of other relations for which it works, too.
    """

    plan: PlanTree
    operator_id: str
    figures: Figures | None
    inputs: tuple[AnalyzedOperator, ...]
    shown_before: bool = False
    shared_with: tuple[str, ...] = ()

    def walk(self) -> Iterator[AnalyzedOperator]:
        """This line and all below it."""
        yield self
        for node in self.inputs:
            yield from node.walk()


@dataclass(frozen=True)
class Analysis:
    """A relation's operators, with what they did in the `recent` epochs."""

    root: AnalyzedOperator
    recent: Recent

    @property
    def own_us(self) -> int:
        """The time of all its operators."""
        return sum(node.figures.took_us for node in self.root.walk() if node.figures is not None)

    def share(self, took_us: int) -> float | None:
        """Which part of the epochs' time that is."""
        return took_us / self.recent.time_us if self.recent.time_us else None


def analyzed(
    relation: Relation, catalog: Catalog, producers: Producers, kept: Mapping[str, OperatorStatus], recent: Recent
) -> Analysis:
    """The operators of a relation that the circuit feeds. kept: by operator.

    Names of other relations are told as far as the catalog shows them.
    """
    operators = {op.id: op for op in producers[relation.id]}
    users = _users(relation, catalog, producers)
    seen: set[str] = set()

    def node(tree: PlanTree, above: str) -> AnalyzedOperator:
        fields = dict(tree.fields)
        operator_id = fields.pop("id")
        plan = PlanTree(tree.name, tuple(fields.items()), (), tree.flags)
        part = operator_id == above
        if operator_id in seen and not part:
            return AnalyzedOperator(plan, operator_id, None, (), shown_before=True)
        seen.add(operator_id)
        inputs = tuple(node(i, operator_id) for i in tree.inputs)
        if part:
            return AnalyzedOperator(plan, operator_id, None, inputs)
        did = recent.counts.get(operator_id, OperatorCounts())
        if not tree.inputs and not isinstance(operators[operator_id], (Constant, Scan)):
            return AnalyzedOperator(plan, operator_id, Figures(None, did.rows_out), ())
        keeps = kept.get(operator_id)
        figures = Figures(
            did.rows_in,
            did.rows_out,
            did.made_rows,
            did.took_us,
            *(() if keeps is None else (keeps.state_rows, keeps.state_bytes, keeps.merge_debt_bytes)),
        )
        return AnalyzedOperator(plan, operator_id, figures, inputs, shared_with=tuple(users.get(operator_id, ())))

    return Analysis(node(stored_plan(relation, catalog, producers), ""), recent)


def _users(relation: Relation, catalog: Catalog, producers: Producers) -> dict[str, list[str]]:
    """By operator, the names of the other relations for which it works; not of those that read one of these."""
    made = {i: {op.id for op in ops} for i, ops in producers.items()}
    found: dict[str, list[str]] = {}
    for other in (catalog.relations[i] for i in made if i in catalog.relations and i != relation.id):
        named = catalog.relations.get(other.owner) if other.owner else other
        if named is None or not named.is_named or not catalog.shows(named):
            continue
        read = (made[i] for i in catalog.upstream(other.depends_on) if i in made)
        for operator_id in (made[relation.id] & made[other.id]).difference(*read):
            found.setdefault(operator_id, []).append(named.shown)
    return found


def recent_epochs(log: CommitLog, layout: Layout, sink_id: str, seconds: int | None = None) -> Recent:
    """What the newest epochs with that operator did. seconds: those that were committed in the last seconds."""
    since_us = None if seconds is None else time.time_ns() // 1000 - seconds * 1_000_000
    commits: list[Commit] = []
    began_us = 0
    commit, circuit = log.last_epoch(), None
    while commit is not None and len(commits) < (EPOCHS if since_us is None else _MOST_EPOCHS):
        if since_us is not None and commit.time_us < since_us:
            break
        if commit.circuit != circuit:
            if commit.circuit is None or not _runs(layout, commit.circuit, sink_id):
                break
            circuit = commit.circuit
        commits.append(commit)
        earlier = log.find(commit.epoch_before) if commit.epoch_before else None
        began_us = commit.time_us - commit.metrics.duration_us if earlier is None else earlier.time_us
        commit = earlier
    if not commits:
        return Recent()
    metrics = [c.metrics for c in commits]
    counts: dict[str, list[OperatorCounts]] = {}
    for ran in metrics:
        for operator_id, did in ran.operators.items():
            counts.setdefault(operator_id, []).append(did)
    return Recent(
        len(commits),
        began_us,
        commits[0].time_us,
        sum(m.duration_us for m in metrics),
        sum(m.tasks_us for m in metrics),
        sum(m.operators_us for m in metrics),
        sum(max(m.duration_us, m.tasks_us) for m in metrics),
        {i: OperatorCounts(*map(sum, zip(*each, strict=True))) for i, each in counts.items()},
    )


def _runs(layout: Layout, fingerprint: str, operator_id: str) -> bool:
    """Whether a circuit has the operator; False if it is gone."""
    try:
        return operator_id in kept_circuit(layout, fingerprint).by_id
    except Error:
        return False
