"""The topology for the console: the boxes and arrows of the drawing, placed, as JSON."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Final

from watersmeet.catalog import Catalog
from watersmeet.drawing import Diagram, Picture, folded, place
from watersmeet.planner import Producers
from watersmeet.planner.topology import topology
from watersmeet.server.web.tabs import Sight
from watersmeet.session.access.context import Session
from watersmeet.session.access.planning import producers_of

#: A line as long as the figures of a box may get: boxes keep their size while figures change.
_FIGURES: Final = "888,888 rows/s  ·  888.8 s behind"
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
                facts = dict.fromkeys(catalog.relations, (_FIGURES,))
                self._diagram = topology(catalog, self._producers, facts, _TITLE)
                self._version = (catalog.version, made)
            return catalog, self._diagram


def shown_graph(catalog: Catalog, diagram: Diagram, sight: Sight, around: str | None) -> Any:
    """A diagram as JSON: places of boxes, ways of arrows.

    sight: the relations that may be shown. around: only what feeds that relation, and what it feeds, on ways that are
    shown; nothing if it is not shown itself.
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
    """The diagram as a user may see it: steps only between relations that are shown, and arrows without a word about
    how a relation is made that the user may not know.
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
    """`start` and what rows of it reach, or what reaches it."""
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


def _json(catalog: Catalog, picture: Picture) -> dict[str, Any]:
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
