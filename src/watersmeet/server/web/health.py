"""Health: whether the process lives, and whether it can serve."""

from __future__ import annotations

from typing import Any

from watersmeet.session.access.context import Session


def is_alive() -> dict[str, Any]:
    """It answers."""
    return {"alive": True}


def readiness(session: Session) -> tuple[bool, dict[str, Any]]:
    """Whether the database is open and its engine has not failed, and why not. One that has nothing to do is ready; so
    is one where a view has stopped, as the others go on.
    """
    database = session.database
    if database.is_closed:
        return False, {"ready": False, "reason": "the database is closed"}
    failure = None if database.read_only else database.engine.failure
    if failure is not None:
        return False, {"ready": False, "condition": failure.condition, "reason": failure.message}
    return True, {"ready": True}
