"""What this process may use of its machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Where control groups are, and those of this process.
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def cores() -> int:
    """The cores that this process may run on: those of its affinity mask where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory of the machine, or of the container if that is less."""
    return container_bytes() or _machine_bytes()


def container_bytes() -> int | None:
    """The memory of the container of this process; None if it has no limit below the memory of the machine.

    That is the least limit of its control group and of those above it, of version 1 or 2.
    """
    least = min(_limits(), default=0)
    return least if 0 < least < _machine_bytes() else None


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits() -> Iterator[int]:
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            top, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = top / group.strip("/")
        # A container may see itself as the top, though its group is told as the machine sees it.
        for directory in (place, *(p for p in place.parents if p.is_relative_to(top))):
            try:
                limit = (directory / name).read_text().strip()
            except OSError:
                continue
            if limit.isdigit():  # "max" where there is none
                yield int(limit)
