"""Whether what was measured is flat: after the start, the last third is not above the first one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.measuring import Sample

#: What must not grow, and the least that counts as growth: below it, a tenth is noise.
HELD = {
    "main_bytes": 8 << 20,
    "main_mapped_bytes": 8 << 20,
    "workers_bytes": 8 << 20,
    "workers_mapped_bytes": 8 << 20,
    "java_bytes": 16 << 20,
    "objects": 10_000,
    "arrow_bytes": 4 << 20,
    "malloc_bytes": 8 << 20,
    "descriptors": 4,
    "threads": 4,
    "files": 50,
    "directory_bytes": 1 << 20,
}
PROCESSOR = {"main_processor_ms": 2.0, "workers_processor_ms": 2.0, "java_processor_ms": 2.0}
#: Not judged on a machine that others work on, too.
TIMES = {"epoch_ms": 2.0, "flush_ms": 2.0, "select_ms": 2.0}
_MEDIANS = {**PROCESSOR, **TIMES}


@dataclass(frozen=True)
class Trend:
    """How one quantity did in the first and in the last third of what is judged: the mean, of times the median."""

    name: str
    first: float
    last: float
    grows: bool

    @property
    def percent(self) -> float:
        return 100.0 * (self.last / self.first - 1.0) if self.first else 0.0


def trends(samples: Sequence[Sample], *, warm_up_s: float, tolerance: float = 0.1) -> list[Trend]:
    """One for each quantity, from `warm_up_s` on. ValueError with fewer than 9 samples.

    A quantity grows whose last third is above the first by more than `tolerance` of it, by more than what is noise,
    and by more than its swings explain (two standard errors): files come and go in the rhythm of the clean-up.
    """
    judged = [s for s in samples if s.seconds >= warm_up_s]
    if len(judged) < 9:
        raise ValueError(f"{len(judged)} samples after {warm_up_s:.0f} s are too few to judge")
    third = len(judged) // 3
    found = []
    for name, noise in {**HELD, **_MEDIANS}.items():
        parts = [[float(getattr(s, name)) for s in part] for part in (judged[:third], judged[-third:])]
        first, last = (statistics.median(p) if name in _MEDIANS else statistics.fmean(p) for p in parts)
        swings = 2 * math.sqrt(sum(statistics.variance(p) / len(p) for p in parts))
        found.append(Trend(name, first, last, last - first > max(noise, tolerance * first, swings)))
    return found


def table(found: Sequence[Trend]) -> str:
    """The trends as lines of text."""
    return "\n".join(
        f"{t.name:<26}{_shown(t.name, t.first):>12}{_shown(t.name, t.last):>12}{t.percent:>+8.1f} %"
        f"{'  GROWS' if t.grows else ''}"
        for t in found
    )


def _shown(name: str, value: float) -> str:
    return f"{value / 1e6:,.1f} MB" if name.endswith("_bytes") else f"{value:,.1f}"
