"""The console's JSON of the topology: boxes and arrows with their positions, of the relations that a user may see."""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

from watersmeet.catalog import Catalog
from watersmeet.database.filling import producers_of
from watersmeet.database.sessions.context import Session
from watersmeet.drawing import Arrow, Box, Diagram, Picture, folded, place
from watersmeet.planner import Producers
from watersmeet.planner.topology import topology
from watersmeet.server.web.clientsessions import Sight

#: A line as long as the longest metrics of a box, so that boxes keep their size while metrics change.
_BOX_TEXT: Final = "888,888 rows/s  ·  888.8 s behind"

_TITLE: Final = "topology"
#: The number of relations with the same neighbors from which on they are one box.
_LEAST_GROUP: Final = 10
_GROUP: Final = "group:"
_PLURALS: Final = {"table": "tables", "source": "sources", "view": "views", "virtual": "views", "sink": "sinks"}


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
        """The catalog, and the diagram of all its relations."""
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


def shown_graph(
    catalog: Catalog, diagram: Diagram, sight: Sight, around: str | None, unfolded: Container[str] = ()
) -> object:
    """A diagram as JSON, with the positions of boxes and arrows.

    sight: the relations that the user may see. around: the name of a relation, to show only it and all upstream and
    downstream ones; the graph is empty if the user may not see it. unfolded: see `grouped`.
    """
    if sight.shown is not None:
        diagram = _seen(catalog, diagram, sight)
    if around is not None:
        start = next((b.id for b in diagram.boxes if b.title == around and b.id in catalog.relations), "")
        near = _reached(diagram, start, forward=True) | _reached(diagram, start, forward=False)
        diagram = _part(diagram, near)
    diagram, members = grouped(diagram, unfolded)
    return _json(catalog, folded(place(diagram)), members)


def grouped(diagram: Diagram, unfolded: Container[str] = ()) -> tuple[Diagram, dict[str, tuple[Box, ...]]]:
    """The diagram with one box for all relations of one kind with the same neighbors, if they are many; and the boxes
    of each group by its id.

    unfolded: names of relations whose groups stay as they are; `*` for all.
    """
    before: dict[str, set[str]] = {b.id: set() for b in diagram.boxes}
    after: dict[str, set[str]] = {b.id: set() for b in diagram.boxes}
    for arrow in diagram.arrows:
        before[arrow.target].add(arrow.source)
        after[arrow.source].add(arrow.target)
    alike: dict[tuple[object, ...], list[Box]] = {}
    for box in diagram.boxes:
        key = (box.style, box.lines, frozenset(before[box.id]), frozenset(after[box.id]))
        alike.setdefault(key, []).append(box)
    home: dict[str, str] = {}
    groups: dict[str, tuple[Box, ...]] = {}
    for (*_, sources, targets), boxes in alike.items():
        names = {b.title for b in boxes}
        if (
            len(boxes) < _LEAST_GROUP
            or not (sources or targets)
            or "*" in unfolded
            or any(n in unfolded for n in names)
        ):
            continue
        group = f"{_GROUP}{boxes[0].id}"
        groups[group] = tuple(boxes)
        home.update((b.id, group) for b in boxes)
    kept: dict[str, Box] = {}
    for box in diagram.boxes:
        group = home.get(box.id, "")
        kept.setdefault(group or box.id, _group_box(group, groups[group]) if group else box)
    labels: dict[tuple[str, str], set[str]] = {}
    for a in diagram.arrows:
        labels.setdefault((home.get(a.source, a.source), home.get(a.target, a.target)), set()).add(a.label)
    bundles = [
        Arrow(*ends, found.pop() if len(found) == 1 else "")
        for ends, found in labels.items()
        if ends[0] in groups or ends[1] in groups
    ]
    plain = [a for a in diagram.arrows if a.source not in home and a.target not in home]
    return replace(diagram, boxes=tuple(kept.values()), arrows=(*plain, *bundles)), groups


def _group_box(group: str, boxes: Sequence[Box]) -> Box:
    first, last = boxes[0], boxes[-1]
    noun = _PLURALS.get(first.style, "steps")
    return replace(
        first, id=group, title=f"{len(boxes):,} {noun}", lines=(f"{first.title} … {last.title}", *first.lines[1:])
    )


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


def _json(catalog: Catalog, picture: Picture, members: Mapping[str, Sequence[Box]]) -> dict[str, object]:
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
                "members": [{"id": b.id, "name": b.title} for b in members.get(p.box.id, ())],
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
