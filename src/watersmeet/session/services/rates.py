"""Counters that rise to rates: means over the last few seconds, as epochs come in steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Final

_WINDOW_S: Final = 5.0


class Rates:
    """How fast counters rise, by name."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def update(self, counts: Mapping[str, int], now_s: float | None = None) -> dict[str, float]:
        """Rates a second, with `counts` as the newest look."""
        now_s = time.monotonic() if now_s is None else now_s
        self._seen.append((now_s, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        seconds = max(now_s - since_s, 1e-6)
        return {i: max(0, n - before.get(i, 0)) / seconds if len(self._seen) > 1 else 0.0 for i, n in counts.items()}
