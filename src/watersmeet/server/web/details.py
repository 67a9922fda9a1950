"""The console's JSON of one relation (text, columns, plan, problems, dead letters), and of the names of all
relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watersmeet.catalog import CapturedTable, Catalog, MaterializedView, Relation
from watersmeet.connectors.base.deadletters import newest_dead_letters, place_of, text_of
from watersmeet.database.sessions.context import Session
from watersmeet.planner import Producers
from watersmeet.server.web.watch import Snapshot
from watersmeet.session.statements.analyzing import AnalyzedOperator, analyzed, metrics_json, recent_epochs
from watersmeet.session.statements.show import create_text
from watersmeet.store.positions import Verification
from watersmeet.system import secretvalues

_LETTERS: Final = 100

#: Metrics of an operator's state, as of the newest epoch.
_KEPT: Final = ("stage", "state_rows", "state_bytes", "expression_errors")

#: Fields of the status of a source that are shown elsewhere.
_KNOWN: Final = ("id", "name", "connector", "first_dead")


def relation_json(session: Session, relation: Relation, snapshot: Snapshot, producers: Producers) -> dict[str, object]:
    """The details of a relation that the user of a session may see.

    The definition and errors are only for users who may see all relations that it reads.
    """
    catalog = session.catalog
    knows = catalog.knows([relation.id])
    source, view = snapshot.status.source(relation.id), snapshot.status.view(relation.id)
    sink = next((s.to_dict() for s in snapshot.sinks if s.id == relation.id), None)
    found: dict[str, object] = {
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
        "error": None if view is None or not knows else view.error or view.writing,
        "source": None if source is None else {k: v for k, v in source.to_dict().items() if k not in _KNOWN},
        "captured": None if (capture := snapshot.captured.get(relation.id)) is None else capture.to_dict(),
        "sink": sink,
        "verified": _verified(snapshot.verified.get(relation.id)) if knows else None,
        "plan": None,
    }
    if knows and isinstance(relation, MaterializedView) and relation.id in producers:
        found["plan"] = _plan_json(session, relation, catalog, snapshot, producers)
    return found


def _verified(newest: Verification | None) -> dict[str, object] | None:
    """The newest verification of a view."""
    if newest is None:
        return None
    return {
        "outcome": newest.outcome,
        "commit": newest.commit,
        "missing": newest.missing,
        "extra": newest.extra,
        "reason": newest.reason or None,
        "time_us": newest.verified_us,
        "signed_by": newest.signed_by or None,
    }


def named(catalog: Catalog, name: str) -> Relation | None:
    """The visible relation with a name in the form of `Relation.shown`."""
    found = [r for r in catalog.shown if r.shown == name and not r.staged]
    return min(found, key=lambda r: bool(r.owner), default=None)


def columns_json(catalog: Catalog) -> list[dict[str, object]]:
    """The visible relations that statements can read, by name, with their columns."""
    found = sorted((r for r in catalog.shown if r.is_named and r.columns and not r.staged), key=lambda r: r.shown)
    return [
        {"name": r.shown, "what": r.role, "columns": [{"name": c.name, "type": c.type.sql} for c in r.columns]}
        for r in found
    ]


def letters_json(session: Session, relation: Relation) -> list[dict[str, object]]:
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


def _plan_json(
    session: Session, view: Relation, catalog: Catalog, snapshot: Snapshot, producers: Producers
) -> dict[str, object]:
    operators = snapshot.status.operators
    database = session.database
    recent = recent_epochs(database.log, database.layout, producers[view.id][-1].id)
    found = analyzed(view, catalog, producers, operators, recent)

    def node(shown: AnalyzedOperator) -> dict[str, object]:
        is_own = shown.metrics is not None and shown.metrics.rows_in is not None
        kept = operators.get(shown.operator_id) if is_own else None
        state = {} if kept is None else {name: getattr(kept, name) for name in _KEPT}
        return {
            "name": shown.plan.name,
            "flags": list(shown.plan.flags),
            "fields": dict(shown.plan.fields),
            "metrics": {**state, **metrics_json(found, shown)},
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
