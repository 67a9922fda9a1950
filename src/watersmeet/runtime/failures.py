"""The error that a failed epoch shows."""

from __future__ import annotations

import traceback
from typing import Final

from watersmeet.errors import Error, error

#: Conditions that say enough by themselves: the store's, the sources' and our own.
_OWN = frozenset(
    {
        "CONNECTOR_OPTION",
        "DATABASE_ACCESS",
        "DATABASE_DAMAGED",
        "DATABASE_FORMAT",
        "DATABASE_IN_USE",
        "DISK_FULL",
        "FEATURE_NOT_SUPPORTED",
        "PARALLELISM_MISMATCH",
        "RUNTIME_UNAVAILABLE",
        "SOURCE_STOPPED",
        "SOURCE_UNAVAILABLE",
        "STATE_DAMAGED",
        "STATE_MISMATCH",
        "UNDEFINED_OBJECT",
        "VIEW_FAILED",
        "WRITER_FENCED",
    }
)
_NO_SPACE: Final = "No space left on device"


def view_failed(cause: Exception) -> Error:
    """`cause` itself if it is an error with a name that helps, otherwise VIEW_FAILED with its text."""
    if isinstance(cause, Error) and cause.condition in _OWN:
        return cause
    if isinstance(cause, Error):
        return error("VIEW_FAILED", f"the views can't go on: {cause.message}", detail=cause.detail, hint=cause.hint)
    if _NO_SPACE in str(cause):
        # Not the store's own: where Spark or DuckDB put what does not fit into memory.
        return error(
            "DISK_FULL",
            "no space left for temporary files",
            detail=str(cause).strip().splitlines()[0],
            hint="Free some space and open the database again: nothing of the failed step was kept.",
        )
    last = traceback.extract_tb(cause.__traceback__)[-1:]
    place = f" ({last[0].name} in {last[0].filename.rpartition('/')[2]})" if last else ""
    return error(
        "VIEW_FAILED",
        f"the views can't go on: {type(cause).__name__}: {cause}",
        detail=f"An epoch failed{place}. Nothing of it was kept.",
        hint="The content is as of the epoch before. Open the database again to try once more.",
    )
