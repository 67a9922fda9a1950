"""Views that were stopped for good: reading them says why."""

from __future__ import annotations

from collections.abc import Iterable

from watersmeet.errors import Error, error_from_json
from watersmeet.runtime.stopped import failed_views
from watersmeet.session.access.context import Session


def failure_of(session: Session, relation_id: str) -> Error | None:
    """The error that stopped a view or running query, or None."""
    failed = failed_views(session.database.log.last_epoch())
    return error_from_json(failed[relation_id]) if relation_id in failed else None


def check_running(session: Session, relation_ids: Iterable[str]) -> None:
    """Raises the error of the first view among the relations, or below plain views among them, that was stopped."""
    known = session.catalog.relations
    todo = [i for i in relation_ids if i in known and known[i].kind in ("materialized view", "view")]
    if not todo or not (failed := failed_views(session.database.log.last_epoch())):
        return
    while todo:
        relation = known[todo.pop(0)]
        if relation.id in failed:
            found = error_from_json(failed[relation.id])
            if found.condition != "VIEW_FAILED":  # which says so itself
                found.message = f"{relation.reader} was stopped: {found.message}"
            raise found
        if relation.kind == "view":
            todo += relation.depends_on
