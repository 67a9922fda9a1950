"""Measures the memory of this process, Spark's Java and its Python workers, and returns freed memory to the system.
Linux only.

Memory is counted by proportional shares (PSS): a page shared by processes counts in part for each of them, so that the
numbers add up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

import pyarrow as pa

_PROC: Final = Path("/proc")
#: The minimum time between measurements, because reading all processes takes up to 50 ms on a busy machine.
_INTERVAL_S: Final = 1.0


#: Parameters of glibc (malloc.h): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD.
_KEEPING: Final = ((-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 64 << 20))
_RETURNING: Final = ((-3, 1 << 20), (-1, 4 << 20), (-2, 1 << 20))


@dataclass(frozen=True)
class Resident:
    """Memory of processes in RAM.

    own_bytes: heaps, stacks, and shared memory without a file. mapped_bytes: mapped files (libraries, segments), whose
    pages the system reclaims when it needs them.
    """

    own_bytes: int = 0
    mapped_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum of both."""
        return self.own_bytes + self.mapped_bytes

    def __add__(self, other: Self) -> Resident:
        return Resident(self.own_bytes + other.own_bytes, self.mapped_bytes + other.mapped_bytes)


@dataclass(frozen=True)
class Processes:
    """The ids of an engine's processes. main: its own. java: that of Spark's Java. workers: the children of Spark's
    Java.
    """

    main: int
    java: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Usage:
    """The memory of this process and of its helpers on the same machine."""

    main: Resident
    workers: Resident
    worker_count: int
    java: Resident


class Meter:
    """Measures the memory of this process and its helpers, at most once a second. Thread-safe.

    now_s: the clock; for tests.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._measured_s = -_INTERVAL_S
        self._usage: Usage | None = None

    def read(self) -> Usage | None:
        """The last measurement; None on a machine that doesn't report memory."""
        with self._lock:
            if self._now_s() >= self._measured_s + _INTERVAL_S:
                self._usage = _measured()
                self._measured_s = self._now_s()
            return self._usage


def _measured() -> Usage | None:
    found = processes()
    main, workers, java = (resident(pids) for pids in ((found.main,), found.workers, found.java))
    if main is None or workers is None or java is None:
        return None
    return Usage(main, workers, len(found.workers), java)


def keep_freed() -> None:
    """Keep freed memory in this process until `give_back`. A worker calls it before it uses much memory.

    Otherwise the allocators return large pieces at once, and the system clears the pages of the next pieces, which
    takes a fifth of the processor time of a large epoch. Does nothing without glibc.
    """
    if _set_malloc(_KEEPING):
        pa.set_memory_pool(pa.system_memory_pool())


@cache
def return_freed() -> None:
    """End `keep_freed`. For a worker with little memory, where kept memory would displace the files of state.

    Does nothing without glibc.
    """
    _set_malloc(_RETURNING)
    give_back()


def _set_malloc(options: Iterable[tuple[int, int]]) -> bool:
    """Set options of C's allocator up to the first failure; False if one fails, or without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, value) for option, value in options)


def give_back() -> None:
    """Return freed memory of Arrow's and C's allocators to the system.

    This takes milliseconds, so call it only after large work.
    """
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


class IdleTimer:
    """Calls `action` after `after_s` seconds without work since `begin`, in a separate thread.

    It is for `give_back`: a task that starts soon can reuse the freed memory. For one thread.
    """

    def __init__(self, after_s: float, action: Callable[[], None] = give_back) -> None:
        self._after_s = after_s
        self._action = action
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Work has ended."""
        self.end()
        self._timer = threading.Timer(self._after_s, self._action)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Work starts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def processes(main: int | None = None) -> Processes:
    """The processes that currently work for `main` (by default this one) on its machine.

    Under spark-submit Java is an ancestor of `main`, else a descendant.
    """
    main = os.getpid() if main is None else main
    parents = _parents()
    above = parents.get(main)
    java = [pid for pid in (above, *family(main, parents)) if pid is not None and _name(pid) == "java"]
    below = {pid for root in java for pid in family(root, parents)}
    return Processes(main, tuple(java), tuple(sorted(below - {main, *java})))


def family(root: int, parents: dict[int, int] | None = None) -> list[int]:
    """`root` and all its descendants. parents: the parent of each process id; by default, the current ones."""
    children: dict[int, list[int]] = {}
    for pid, parent in (_parents() if parents is None else parents).items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def resident(pids: Iterable[int]) -> Resident | None:
    """The memory of processes together, without ended ones; None where /proc doesn't report it."""
    if not (_PROC / "self" / "smaps_rollup").exists():
        return None
    total = Resident()
    for pid in pids:
        try:
            text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        lines = {words[0]: int(words[1]) << 10 for line in text.splitlines()[1:] if (words := line.split())}
        total += Resident(lines.get("Pss_Anon:", 0) + lines.get("Pss_Shmem:", 0), lines.get("Pss_File:", 0))
    return total


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    if not _PROC.is_dir():
        return found
    for name in os.listdir(_PROC):
        if name.isdigit():
            try:
                stat = (_PROC / name / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
