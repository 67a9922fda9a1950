"""Named points at which tests inject failures."""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def fault(point: str) -> None:
    """Calls the hook of a test, if there is one, with the name of a point of the program."""
    if _hook is not None:
        _hook(point)


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Sets the hook that `fault` calls; None removes it."""
    global _hook
    _hook = hook
