"""How long this process has known commits: those have times of clocks that may have been wrong."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import Final

#: When there are so many …
_MOST: Final = 2048
#: … those go without which two others are not farther apart than this part of their age: so much later it is seen.
_PART: Final = 0.05


class Ages:
    """Which commit was there when, by the process' own clock, which never jumps. Takes a fixed amount of memory."""

    def __init__(self) -> None:
        self._known: list[tuple[float, int]] = []

    def note(self, number: int) -> None:
        """Commit `number` is there now. Numbers never fall."""
        self._known.append((time.monotonic(), number))
        if len(self._known) > _MOST:
            now = self._known[-1][0]
            kept = self._known[-1:]
            for (before, _), known in zip(self._known[-3::-1], self._known[-2:0:-1], strict=True):
                if kept[-1][0] - before > _PART * (now - before):
                    kept.append(known)
            self._known = [self._known[0], *reversed(kept)]

    def known_for(self, seconds: float) -> int:
        """The newest commit that was noted so long ago, or before; 0 if none was."""
        before = time.monotonic() - seconds
        place = bisect_right(self._known, before, key=lambda known: known[0])
        return self._known[place - 1][1] if place else 0
