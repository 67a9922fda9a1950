"""Views that were stopped for good, as commits tell it."""

from __future__ import annotations

from typing import Any

from watersmeet.store.commits import Commit


def failed_views(commit: Commit | None) -> dict[str, Any]:
    """By id of a view, the error that stopped it, as JSON; as of the commit, the newest of an epoch."""
    found: dict[str, Any] = commit.metrics.get("failed", {}) if commit is not None else {}
    return found
