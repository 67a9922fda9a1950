"""Points by name at which tests let something go wrong. Outside of tests nothing happens there."""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def fault(point: str) -> None:
    """The program has come to `point`."""
    if _hook is not None:
        _hook(point)


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Calls `hook` with the name of each point from now on; None: nothing."""
    global _hook
    _hook = hook
