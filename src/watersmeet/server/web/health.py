"""Health: whether the process lives, and whether it can serve."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.session.access.context import Session

#: A disk with less space than this can't take a transaction.
_LEAST_BYTES: Final = 1 << 20


def is_alive() -> dict[str, Any]:
    """It answers."""
    return {"alive": True}


def readiness(session: Session) -> tuple[bool, dict[str, Any]]:
    """Whether the database is open, its engine has not failed and its disk has space, and why not. One that has nothing
    to do is ready; so is one where a view has stopped, as the others go on.
    """
    database = session.database
    if database.is_closed:
        return False, {"ready": False, "reason": "the database is closed"}
    failure = None if database.read_only else database.engine.failure
    if failure is None and not database.read_only and _is_full(database.layout.directory):
        failure = error("DISK_FULL", "no space left for the database")
    if failure is not None:
        return False, {"ready": False, "condition": failure.condition, "reason": failure.message}
    return True, {"ready": True}


def _is_full(directory: Path | None) -> bool:
    """Whether the disk of a database is full; False for one in an object store."""
    return directory is not None and shutil.disk_usage(directory).free < _LEAST_BYTES
