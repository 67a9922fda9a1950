"""Memory and CPU of a process and of all that it started, from /proc."""

from __future__ import annotations

import cProfile
import os
import pstats
import threading
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from watersmeet.runtime.memory import Resident, family, resident
from watersmeet.system.process import memory_bytes

#: Calls of libraries are attributed to the calling module through this many functions.
_DEPTH = 6

_TICK = os.sysconf("SC_CLK_TCK")


def pss_bytes(root: int) -> int:
    """Proportional memory of the family: shared pages count once."""
    return (resident(family(root)) or Resident()).total_bytes


def cpu_seconds(root: int) -> float:
    """User and system time of the family so far: of its living processes. That of processes that ended is not in it."""
    return sum(map(own_seconds, family(root)))


def own_seconds(pid: int) -> float:
    """User and system time of one process so far, without its children; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def touch_memory(size_bytes: int = 4 << 30) -> None:
    """Use this many bytes of memory once, at most half of the free memory, and free them.

    The host of a virtual machine provides a page when it is first used. Otherwise the first program measured would pay
    for the pages of all later ones: 8 of 18 seconds of processor time for rows of 1 kB.
    """
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    np.ones(min(size_bytes, free_bytes // 2, memory_bytes() // 2), np.uint8)


class PeakMemory:
    """Samples `pss_bytes` in the background; `peak_bytes` is the largest seen. cpu_s: what that has cost."""

    def __init__(self, root: int | None = None, every_s: float = 2.0) -> None:
        self.peak_bytes = 0
        self.cpu_s = 0.0
        self._root = root or os.getpid()
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._stop.is_set():
            self.peak_bytes = max(self.peak_bytes, pss_bytes(self._root))
            self.cpu_s = time.thread_time()
            self._stop.wait(self._every_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def seconds_by_module(profile: cProfile.Profile) -> list[tuple[str, float]]:
    """The seconds of each module of Watersmeet, the most first: those of its functions, and of the functions of
    libraries that these call.
    """
    # {function: (calls, calls, own seconds, all seconds, {caller: the same four})}
    found: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    inside = {f for f in found if "/watersmeet/" in f[0]}
    own = {f: stats[2] for f, stats in found.items()}
    for _ in range(_DEPTH):
        moved: dict[Any, float] = dict.fromkeys(own, 0.0)
        for f, seconds in own.items():
            callers = {} if f in inside else {c: stats[3] for c, stats in found[f][4].items()}
            total = sum(callers.values())
            if not total:
                moved[f] += seconds
            for caller, part in callers.items() if total else ():
                moved[caller] += seconds * part / total
        own = moved
    modules: dict[str, float] = {}
    for f, seconds in own.items():
        name = f[0].rpartition("/watersmeet/")[2] if f in inside else "others"
        modules[name] = modules.get(name, 0.0) + seconds
    return sorted(modules.items(), key=lambda item: -item[1])


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def wait_until(condition, timeout_s: float, every_s: float = 0.002) -> float:
    """Seconds until `condition()` is true; TimeoutError after `timeout_s`."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > timeout_s:
            raise TimeoutError
        time.sleep(every_s)
    return time.perf_counter() - started
