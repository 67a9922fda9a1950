"""The picture of a database for its users."""

from __future__ import annotations

from typing import Literal

from watersmeet.catalog import Catalog, MaterializedView
from watersmeet.database.filling import producers_of
from watersmeet.database.sessions.context import Session
from watersmeet.drawing import place, to_dot, to_svg
from watersmeet.errors import error
from watersmeet.planner import Producers
from watersmeet.planner.topology import topology
from watersmeet.runtime.status import Status
from watersmeet.session.services.status import database_status

TopologyFormat = Literal["svg", "dot"]


def draw_topology(session: Session, kind: TopologyFormat) -> str:
    """All tables, sources and materialized views with their sizes and states, as SVG or DOT. INVALID_PARAMETER."""
    if kind not in ("svg", "dot"):
        raise error("INVALID_PARAMETER", f'unknown format "{kind}"', hint="The formats are svg and dot.")
    catalog, producers = session.catalog, producers_of(session)
    facts = _facts(database_status(session), catalog, producers)
    diagram = topology(catalog, producers, facts, "watersmeet")
    return to_svg(place(diagram)) if kind == "svg" else to_dot(diagram)


def _facts(status: Status, catalog: Catalog, producers: Producers) -> dict[str, list[str]]:
    """Rows and sizes by relation. The size of a view excludes what the views that it reads keep."""
    facts = {t.id: [f"{_rows(t.rows)}, {_size(t.size_bytes)}"] for t in status.tables}
    for source in status.sources:
        facts[source.id] = [f"{_rows(source.rows)} read"]
    for view in status.views:
        relation = catalog.relations[view.id]
        if isinstance(relation, MaterializedView):
            below = {op.id for i in relation.depends_on for op in producers.get(i, ())}
            kept = [
                status.operators[op.id]
                for op in producers[relation.id]
                if op.id not in below and op.id in status.operators
            ]
            rows, size = sum(k.state_rows for k in kept), sum(k.state_bytes for k in kept)
            facts[view.id] = [_rows(view.rows), f"keeps {_rows(rows)}, {_size(size)}"]
    return facts


def _rows(number: int) -> str:
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def _size(size: float) -> str:
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"
