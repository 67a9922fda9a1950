"""EXPLAIN ANALYZE of a relation: its operators with their metrics of the last epochs. The console shows the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from watersmeet.catalog import Catalog, MaterializedView, Relation, Sink
from watersmeet.circuit.operators import Constant, Scan
from watersmeet.database.definitions import relation_of_kind
from watersmeet.database.filling import producers_of
from watersmeet.database.sessions.context import Session, denied, error_at
from watersmeet.database.sessions.result import Result, lines_result
from watersmeet.dialects.statements.explaining import TITLE, ExplainAnalyze
from watersmeet.errors import Error
from watersmeet.planner import PlanTree, Producers
from watersmeet.planner.explain import stored_plan
from watersmeet.runtime.plans import kept_circuit
from watersmeet.runtime.status import OperatorStatus
from watersmeet.session.status import database_status
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import OperatorCounts

#: The default number of epochs, and the maximum if seconds are given.
EPOCHS: Final = 60

_MOST_EPOCHS: Final = 3600


@dataclass(frozen=True)
class Recent:
    """The newest epochs in which a relation ran.

    epochs: their number. began_us: the time of the commit before the first of them. ended_us: the time of the newest.
    duration_us, tasks_us, operators_us: sums over their `Metrics`. time_us: the sum over the epochs of the duration or
    of the tasks' time, whichever is longer. counts: those of each operator.
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
        """The seconds from the beginning to the end."""
        return max(0, self.ended_us - self.began_us) / 1e6


class OperatorMetrics(NamedTuple):
    """The work of one operator in some epochs, and its state after the newest. rows_in: None for another view's
    operator.

    took_us: its time in all tasks. made_rows: see `OperatorCounts`; only joins have it. merge_debt_bytes: the part of
    its state in unfinished merges.
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
        """The number of output rows for each input row."""
        return self.rows_out / self.rows_in if self.rows_in else None


@dataclass(frozen=True)
class AnalyzedOperator:
    """A line of a plan. plan: the fields of its operator, without inputs.

    metrics: None if the line is a part of the operator above it, or was shown before. shown_before: an earlier line
    shows the same operator with its inputs. shared_with: the names of other relations that use it.
    """

    plan: PlanTree
    operator_id: str
    metrics: OperatorMetrics | None
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
    """A relation's operators, with their metrics of the `recent` epochs."""

    root: AnalyzedOperator
    recent: Recent

    @property
    def own_us(self) -> int:
        """The time of all its operators."""
        return sum(node.metrics.took_us for node in self.root.walk() if node.metrics is not None)

    def share(self, took_us: int) -> float | None:
        """The part of the epochs' time that `took_us` is."""
        return took_us / self.recent.time_us if self.recent.time_us else None


def analyzed(
    relation: Relation, catalog: Catalog, producers: Producers, kept: Mapping[str, OperatorStatus], recent: Recent
) -> Analysis:
    """The operators of a relation that the circuit feeds. kept: the state of each operator.

    Only names of other relations that the catalog shows are reported.
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
            return AnalyzedOperator(plan, operator_id, OperatorMetrics(None, did.rows_out), ())
        keeps = kept.get(operator_id)
        metrics = OperatorMetrics(
            did.rows_in,
            did.rows_out,
            did.made_rows,
            did.took_us,
            *(() if keeps is None else (keeps.state_rows, keeps.state_bytes, keeps.merge_debt_bytes)),
        )
        return AnalyzedOperator(plan, operator_id, metrics, inputs, shared_with=tuple(users.get(operator_id, ())))

    return Analysis(node(stored_plan(relation, catalog, producers), ""), recent)


def _users(relation: Relation, catalog: Catalog, producers: Producers) -> dict[str, list[str]]:
    """For each operator, the names of the other relations that use it, but not of those that read these."""
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
    """The metrics of the newest epochs with that operator. seconds: only epochs committed in that many last seconds."""
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
        earlier = log.epoch_before(commit)
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
    """Whether a circuit has the operator; False if the circuit was deleted."""
    try:
        return operator_id in kept_circuit(layout, fingerprint).by_id
    except Error:
        return False


#: The version of the JSON form, raised when a field is removed or changes its meaning.
JSON_VERSION: Final = 1

#: Fields of operators that VERBOSE shows.
_LONG: Final = ("columns", "exprs", "output", "pk", "pk_columns", "pk_conflict", "append_only", "stream_key")

_HEAD: Final = (
    "ms/epoch", "share", "rows in", "rows out", "out/epoch", "out/s", "fan-out", "state rows", "state bytes",
)  # fmt: skip

#: The maximum number of shown relations that share an operator.
_NAMES: Final = 5


def explain_analyze(session: Session, statement: ExplainAnalyze) -> Result:
    """EXPLAIN ANALYZE [MATERIALIZED VIEW] v: runs nothing, and reports measurements of past epochs."""
    if statement.format == "dot":
        raise error_at(
            statement, statement.span, "FEATURE_NOT_SUPPORTED", "EXPLAIN ANALYZE has no FORMAT DOT", hint="Use JSON."
        )
    named = relation_of_kind(session, statement, statement.name, statement.kind, "EXPLAIN ANALYZE")
    catalog = session.catalog
    if not catalog.knows([named.id]):
        detail = "It reads relations that are not granted to you."
        raise denied(f"how {named.title} is made", statement.text, detail=detail)
    producers = producers_of(session)
    relation = _fed(named, list(catalog.relations.values()), producers)
    if relation is None:
        raise error_at(
            statement,
            statement.name.span,
            "FEATURE_NOT_SUPPORTED",
            f"{named.title} has no operators that run",
            hint="Views that are kept up to date have them. EXPLAIN ANALYZE SELECT … shows what a query does.",
        )
    database = session.database
    recent = recent_epochs(database.log, database.layout, producers[relation.id][-1].id, statement.seconds)
    kept = database_status(session, memory=False).operators
    found = analyzed(relation, catalog, producers, kept, recent)
    title = f"{named.title[0].upper()}{named.title[1:]}"
    if statement.format == "json":
        text = json.dumps(_json(named, found), indent=2, ensure_ascii=False)
        return lines_result("EXPLAIN", TITLE, text.split("\n"))
    return lines_result("EXPLAIN", TITLE, _lines(title, found, verbose=statement.verbose))


def _fed(named: Relation, relations: Sequence[Relation], producers: Producers) -> Relation | None:
    """The relation whose operators run: the named one; for a sink its query, or the view that it delivers."""
    for relation in relations:
        if relation.id in producers and named.id in (relation.id, relation.owner):
            return relation
    if isinstance(named, Sink):
        return next((r for r in relations if r.id == named.delivers and r.id in producers), None)
    return None


def _json(named: Relation, found: Analysis) -> dict[str, Any]:
    recent = found.recent
    return {
        "version": JSON_VERSION,
        "relation": named.shown,
        "kind": named.role if isinstance(named, MaterializedView) else named.what,
        "epochs": recent.epochs,
        "seconds": recent.seconds,
        "duration_us": recent.duration_us,
        "tasks_us": recent.tasks_us,
        "time_us": recent.time_us,
        "operators_us": found.own_us,
        "other_operators_us": max(0, recent.operators_us - found.own_us),
        "plan": _node_json(found, found.root),
    }


def _node_json(found: Analysis, node: AnalyzedOperator) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": node.operator_id,
        **node.plan.to_json(),
        "metrics": metrics_json(found, node),
        "shared_with": list(node.shared_with),
        "shown_before": node.shown_before,
    }
    value["children"] = [_node_json(found, i) for i in node.inputs]
    return value


def metrics_json(found: Analysis, node: AnalyzedOperator) -> dict[str, Any]:
    """The metrics of an operator; empty if its line has none."""
    metrics, recent = node.metrics, found.recent
    if metrics is None or not recent.epochs:
        return {}
    rates = {"rows_out_per_epoch": metrics.rows_out / recent.epochs}
    if recent.seconds:
        rates["rows_out_per_second"] = metrics.rows_out / recent.seconds
    if metrics.rows_in is None:
        return {"rows_out": metrics.rows_out, **rates}
    return {
        **metrics._asdict(),
        **rates,
        "fan_out": metrics.fan_out,
        "us_per_epoch": metrics.took_us / recent.epochs,
        "share": found.share(metrics.took_us),
    }


def _lines(title: str, found: Analysis, *, verbose: bool) -> list[str]:
    """A line for each operator: its metrics, then its position in the tree."""
    recent = found.recent
    if not recent.epochs:
        first = [f"{title}: no epoch has run it in this time"]
        return [*first, "", *_tree(found.root, verbose=verbose)]
    epochs = f"{recent.epochs:,} epoch{'' if recent.epochs == 1 else 's'}"
    ago = max(0.0, time.time() - recent.ended_us / 1e6)
    first = [
        f"{title} in its last {epochs}: within {recent.seconds:,.1f} s, the newest {ago:,.1f} s ago",
        f"An epoch took {_ms(found, recent.duration_us)} ms, its tasks {_ms(found, recent.tasks_us)} ms",
    ]
    debt_bytes = sum(n.metrics.merge_debt_bytes for n in found.root.walk() if n.metrics is not None)
    if debt_bytes:
        first.append(f"Of the state {debt_bytes:,} bytes wait for merges under way")
    cells: list[tuple[str, ...]] = [_HEAD, *[_cells(found, node) for node in found.root.walk()]]
    texts = ["operator", *_tree(found.root, verbose=verbose)]
    rest = (
        ("other operators", recent.operators_us - found.own_us),
        ("reading, decoding and keeping", recent.tasks_us - recent.operators_us),
        ("starting tasks, writing files", recent.time_us - recent.tasks_us),
    )
    for name, took_us in rest:
        texts.append(f"({name})")
        cells.append((*_time(found, max(0, took_us)), *[""] * (len(_HEAD) - 2)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        *first,
        "",
        *[
            "  ".join([*[c.rjust(w) for c, w in zip(row, widths, strict=True)], text])
            for row, text in zip(cells, texts, strict=True)
        ],
    ]


def _tree(node: AnalyzedOperator, *, verbose: bool) -> list[str]:
    """The texts of an operator and of all below it, in the order of `walk`."""

    def shown(node: AnalyzedOperator) -> PlanTree:
        fields = node.plan.fields if verbose else tuple(f for f in node.plan.fields if f[0] not in _LONG)
        fields += (("id", node.operator_id),) if verbose else ()
        if node.shared_with:
            more = len(node.shared_with) - _NAMES
            names = [*node.shared_with[:_NAMES], *([f"{more} more"] if more > 0 else [])]
            fields += (("shared_with", f"[{', '.join(names)}]"),)
        flags = (*node.plan.flags, "shown above") if node.shown_before else node.plan.flags
        return PlanTree(node.plan.name, fields, tuple(map(shown, node.inputs)), flags)

    return shown(node).lines()


def _cells(found: Analysis, node: AnalyzedOperator) -> tuple[str, ...]:
    metrics, recent = node.metrics, found.recent
    if metrics is None:
        return ("",) * len(_HEAD)
    fan_out = metrics.fan_out
    time_cells = ("", "") if metrics.rows_in is None else _time(found, metrics.took_us)
    return (
        *time_cells,
        "" if metrics.rows_in is None else f"{metrics.rows_in:,}",
        f"{metrics.rows_out:,}",
        _rounded(metrics.rows_out / recent.epochs),
        _rounded(metrics.rows_out / recent.seconds) if recent.seconds else "",
        "" if fan_out is None else _rounded(fan_out),
        f"{metrics.state_rows:,}" if metrics.state_rows else "",
        f"{metrics.state_bytes:,}" if metrics.state_bytes else "",
    )


def _time(found: Analysis, took_us: int) -> tuple[str, str]:
    share = found.share(took_us)
    return _ms(found, took_us), "" if share is None else f"{100 * share:.1f} %"


def _ms(found: Analysis, took_us: int) -> str:
    """Milliseconds per epoch."""
    return f"{took_us / 1000 / found.recent.epochs:,.2f}"


def _rounded(number: float) -> str:
    return f"{number:,.2f}" if number < 10 else f"{number:,.1f}" if number < 1000 else f"{number:,.0f}"
