"""What the console shows of one relation: its text, columns, plan with figures, problems, dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from watersmeet import secretvalues
from watersmeet.catalog import CapturedTable, Catalog, MaterializedView, Relation
from watersmeet.planner import Producers
from watersmeet.server.web.watch import Look
from watersmeet.session.access.context import Session
from watersmeet.session.services.analysis import AnalyzedOperator, analyzed, recent_epochs
from watersmeet.session.statements.analyzing import figures_json
from watersmeet.session.statements.show import create_text
from watersmeet.sources.dead_letters import newest_dead_letters, place_of, text_of

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
        found["plan"] = _plan_json(session, relation, catalog, look, producers)
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
    found = (catalog.relations[i] for i in sorted(below))
    return [r for r in found if (r.connector or isinstance(r, CapturedTable)) and catalog.shows(r)]


def _named(catalog: Catalog, ids: Sequence[str]) -> list[dict[str, str]]:
    known = [catalog.relations[i] for i in ids if i in catalog.relations]
    return [{"id": r.id, "name": r.shown, "what": r.role} for r in known if r.is_named and catalog.shows(r)]


def _plan_json(session: Session, view: Relation, catalog: Catalog, look: Look, producers: Producers) -> dict[str, Any]:
    operators = look.status["operators"]
    database = session.database
    recent = recent_epochs(database.log, database.layout, producers[view.id][-1].id)
    found = analyzed(view, catalog, producers, operators, recent)

    def node(shown: AnalyzedOperator) -> dict[str, Any]:
        is_own = shown.figures is not None and shown.figures.rows_in is not None
        kept = operators.get(shown.operator_id, {}) if is_own else {}
        return {
            "name": shown.plan.name,
            "flags": list(shown.plan.flags),
            "fields": dict(shown.plan.fields),
            "figures": {**{name: kept[name] for name in _KEPT if name in kept}, **figures_json(found, shown)},
            "shared_with": list(shown.shared_with),
            "shown_before": shown.shown_before,
            "inputs": [node(i) for i in shown.inputs],
        }

    return {
        "epochs": recent.epochs,
        "seconds": recent.seconds,
        "duration_us": recent.duration_us,
        "tasks_us": recent.tasks_us,
        "share": found.share(found.own_us),
        "root": node(found.root),
    }
