"""Waiting for what another thread or process does, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(is_so: Callable[[], object], seconds: float = 60) -> None:
    """Returns when it is so; a failed assertion if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)
