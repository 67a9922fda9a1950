"""What the console shows of one relation: its text, columns, plan with figures, problems, dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from watersmeet import secretvalues
from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.planner import Producers
from watersmeet.planner.explain import stored_plan
from watersmeet.planner.plan_tree import PlanTree
from watersmeet.server.web.watch import Look
from watersmeet.session.access.context import Session
from watersmeet.session.statements.show import create_text
from watersmeet.sources.dead_letters import newest_dead_letters, place_of, text_of
from watersmeet.store.commits import CommitLog
from watersmeet.store.manifests import OperatorCounts

#: The figures of a plan are of so many epochs.
_EPOCHS: Final = 60
_LETTERS: Final = 100
#: Figures of an operator's state, as of the newest epoch.
_KEPT: Final = ("stage", "state_rows", "state_bytes", "expression_errors")
#: What sources say of themselves that has a place of its own elsewhere.
_KNOWN: Final = ("id", "name", "connector", "first_dead")


def relation_json(session: Session, relation: Relation, look: Look, producers: Producers) -> dict[str, Any]:
    """All that who asks may know of a relation. session: of who asks.

    How it is made, and why it was stopped, is told to those who may know of all that it reads.
    """
    catalog = session.catalog
    knows = catalog.knows([relation.id])
    source = next((s for s in look.status["sources"] if s["id"] == relation.id), None)
    view = next((v for v in look.status["views"] if v["id"] == relation.id), None)
    sink = next((s for s in look.sinks if s["id"] == relation.id), None)
    found: dict[str, Any] = {
        "id": relation.id,
        "name": relation.shown,
        "what": relation.role,
        "dialect": relation.dialect,
        "sql": create_text(catalog, relation) if knows else "",
        "columns": [{"name": c.name, "type": c.type.sql, "nullable": c.nullable} for c in relation.columns],
        "key": list(relation.primary_key),
        "reads": _named(catalog, relation.depends_on),
        "read_by": _named(catalog, [r.id for r in catalog.relations.values() if relation.id in r.depends_on]),
        "connector": secretvalues.shown(relation.connector) if knows else {},
        "error": None if view is None or not knows else view["error"] or view["writing"],
        "source": None if source is None else {k: v for k, v in source.items() if k not in _KNOWN},
        "captured": look.captured.get(relation.id),
        "sink": sink,
        "plan": None,
    }
    if knows and isinstance(relation, MaterializedView) and relation.id in producers:
        found["plan"] = _plan_json(session.database.log, relation, catalog, look, producers)
    return found


def letters_json(session: Session, relation: Relation) -> list[dict[str, Any]]:
    """The newest dead letters of a source, or of the sources that a view reads: place, reason, text."""
    found = []
    for source in _sources_of(session.catalog, relation):
        for letter in newest_dead_letters(session.database.layout.dead(source.id), _LETTERS):
            file, line = place_of(letter)
            found.append(
                {
                    "source": source.shown,
                    "place": file,
                    "number": line,
                    "is_message": "topic" in letter,
                    "reason": letter["reason"],
                    "text": "" if "rows" in letter and "text" not in letter else text_of(letter),
                }
            )
    return found[:_LETTERS]


def _sources_of(catalog: Catalog, relation: Relation) -> Sequence[Relation]:
    below = catalog.upstream([relation.id])
    return [r for i in sorted(below) if (r := catalog.relations[i]).connector and catalog.shows(r)]


def _named(catalog: Catalog, ids: Sequence[str]) -> list[dict[str, str]]:
    known = [catalog.relations[i] for i in ids if i in catalog.relations]
    return [{"id": r.id, "name": r.shown, "what": r.role} for r in known if r.is_named and catalog.shows(r)]


def _plan_json(log: CommitLog, view: Relation, catalog: Catalog, look: Look, producers: Producers) -> dict[str, Any]:
    counts, epochs = _recent_counts(log)
    operators = look.status["operators"]

    def node(tree: PlanTree) -> dict[str, Any]:
        fields = dict(tree.fields)
        operator_id = fields.pop("id", None)
        ran = counts.get(operator_id) if operator_id is not None else None
        kept = operators.get(operator_id, {})
        return {
            "name": tree.name,
            "flags": list(tree.flags),
            "fields": fields,
            "figures": {
                **({} if ran is None else {"rows_in": ran[0], "rows_out": ran[1], "made_rows": ran[2]}),
                **{name: kept[name] for name in _KEPT if name in kept},
            },
            "inputs": [node(i) for i in tree.inputs],
        }

    return {"epochs": epochs, "root": node(stored_plan(view, catalog, producers))}


def _recent_counts(log: CommitLog) -> tuple[Mapping[str, tuple[int, int, int]], int]:
    """By operator, rows in and out and rows made by joins, over the newest epochs there are; how many these are."""
    rows_in, rows_out, made = Counter[str](), Counter[str](), Counter[str]()
    seen: set[str] = set()
    epochs = 0
    commit = log.last_epoch()
    while commit is not None and epochs < _EPOCHS:
        epochs += 1
        ran: Mapping[str, OperatorCounts] = commit.metrics.operators
        for operator_id, c in ran.items():
            seen.add(operator_id)
            rows_in[operator_id] += c.rows_in
            rows_out[operator_id] += c.rows_out
            made[operator_id] += c.made_rows
        commit = log.find(commit.epoch_before) if commit.epoch_before else None
    return {i: (rows_in[i], rows_out[i], made[i]) for i in seen}, epochs
