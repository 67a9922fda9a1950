"""The console's JSON of one relation (text, columns, plan, problems, dead letters), and of the topology."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from watersmeet.catalog import CapturedTable, Catalog, MaterializedView, Relation
from watersmeet.connectors.base.deadletters import newest_dead_letters, place_of, text_of
from watersmeet.database.filling import producers_of
from watersmeet.database.sessions.context import Session
from watersmeet.drawing import Diagram, Picture, folded, place
from watersmeet.planner import Producers
from watersmeet.planner.topology import topology
from watersmeet.server.web.clientsessions import Sight
from watersmeet.server.web.watch import Snapshot
from watersmeet.session.statements.analyzing import AnalyzedOperator, analyzed, metrics_json, recent_epochs
from watersmeet.session.statements.show import create_text
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
        "plan": None,
    }
    if knows and isinstance(relation, MaterializedView) and relation.id in producers:
        found["plan"] = _plan_json(session, relation, catalog, snapshot, producers)
    return found


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


#: A line as long as the metrics of a box may get: boxes keep their size while metrics change.
_BOX_TEXT: Final = "888,888 rows/s  ·  888.8 s behind"

_TITLE: Final = "topology"


class Graphs:
    """The diagram of the newest catalog, and its plans. Safe for several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._version: tuple[int, int] | None = None
        self._diagram = Diagram(_TITLE, (), ())
        self._producers: Producers = {}

    def producers(self) -> Producers:
        """The operators of the relations that the circuit feeds, by relation id."""
        self.diagram()
        return self._producers

    def diagram(self) -> tuple[Catalog, Diagram]:
        """The catalog, and all that is in it."""
        database = self._session.database
        with self._lock:
            catalog = self._session.catalog
            made = len(database.plans.producers) if not database.read_only else -1
            if self._version != (catalog.version, made):
                self._producers = dict(producers_of(self._session))
                facts = dict.fromkeys(catalog.relations, (_BOX_TEXT,))
                self._diagram = topology(catalog, self._producers, facts, _TITLE)
                self._version = (catalog.version, made)
            return catalog, self._diagram


def shown_graph(catalog: Catalog, diagram: Diagram, sight: Sight, around: str | None) -> object:
    """A diagram as JSON, with the positions of boxes and arrows.

    sight: the relations that the user may see. around: only this relation with all upstream and downstream ones; empty
    if the user may not see it.
    """
    if sight.shown is not None:
        diagram = _seen(catalog, diagram, sight)
    if around is not None:
        near = _reached(diagram, around, forward=True) | _reached(diagram, around, forward=False)
        diagram = _part(diagram, near)
    return _json(catalog, folded(place(diagram)))


def _part(diagram: Diagram, ids: set[str]) -> Diagram:
    """The boxes of these ids, with the arrows between them."""
    boxes = tuple(b for b in diagram.boxes if b.id in ids)
    arrows = tuple(a for a in diagram.arrows if a.source in ids and a.target in ids)
    return replace(diagram, boxes=boxes, arrows=arrows)


def _seen(catalog: Catalog, diagram: Diagram, sight: Sight) -> Diagram:
    """The diagram that a user may see: steps only between visible relations, and no labels on arrows to relations whose
    definition the user may not see.
    """
    shown = {b.id for b in diagram.boxes if b.id not in catalog.relations or sight.shows(b.id)}
    while True:
        part = _part(diagram, shown)
        sources, targets = {a.source for a in part.arrows}, {a.target for a in part.arrows}
        between = {i for i in shown if i in catalog.relations or (i in sources and i in targets)}
        if between == shown:
            break
        shown = between
    arrows = tuple(a if a.target in sight.known else replace(a, label="") for a in part.arrows)
    return replace(part, arrows=arrows)


def _reached(diagram: Diagram, start: str, *, forward: bool) -> set[str]:
    """`start` and all boxes downstream of it, or upstream."""
    reached, pending = {start}, [start]
    next_of: dict[str, list[str]] = {}
    for arrow in diagram.arrows:
        here, there = (arrow.source, arrow.target) if forward else (arrow.target, arrow.source)
        next_of.setdefault(here, []).append(there)
    while pending:
        for found in next_of.get(pending.pop(), ()):
            if found not in reached:
                reached.add(found)
                pending.append(found)
    return reached


def _json(catalog: Catalog, picture: Picture) -> dict[str, object]:
    return {
        "version": catalog.version,
        "width": round(picture.width),
        "height": round(picture.height),
        "boxes": [
            {
                "id": p.box.id,
                "name": p.box.title,
                "kind": p.box.style,
                "what": p.box.lines[0] if p.box.lines else "",
                "x": round(p.x, 1),
                "y": round(p.y, 1),
                "width": round(p.width, 1),
                "height": round(p.height, 1),
            }
            for p in picture.boxes
        ],
        "arrows": [
            {
                "from": p.arrow.source,
                "to": p.arrow.target,
                "label": p.arrow.label,
                "points": [[round(x, 1), round(y, 1)] for x, y in p.points],
            }
            for p in picture.arrows
        ],
    }
