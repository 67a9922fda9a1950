"""The topology for the console: the boxes and arrows of the drawing, placed, as JSON."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Final

from watersmeet.catalog import Catalog
from watersmeet.drawing import Diagram, Picture, folded, place
from watersmeet.planner import Producers
from watersmeet.planner.topology import topology
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


def shown_graph(catalog: Catalog, diagram: Diagram, shown: frozenset[str] | None, around: str | None) -> Any:
    """A diagram as JSON: places of boxes, ways of arrows.

    shown: the relations that may be, None for all. around: only what feeds that relation, and what it feeds.
    """
    ids = {b.id for b in diagram.boxes}
    if shown is not None:
        ids = {i for i in ids if i in shown or i not in catalog.relations}
    if around is not None:
        ids &= _reached(diagram, around, forward=True) | _reached(diagram, around, forward=False)
    arrows = tuple(a for a in diagram.arrows if a.source in ids and a.target in ids)
    touched = {i for a in arrows for i in (a.source, a.target)}
    # A step between relations that nobody may see is none that anybody sees.
    boxes = tuple(b for b in diagram.boxes if b.id in ids and (b.id in catalog.relations or b.id in touched))
    return _json(catalog, folded(place(replace(diagram, boxes=boxes, arrows=arrows))))


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
