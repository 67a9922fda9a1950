"""A limit on the memory of each Python worker of Spark, as a container would set it: by memory cgroups of version 1."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from watersmeet.runtime.memory import processes

_CGROUPS = Path("/sys/fs/cgroup/memory")
_LOOK_S = 0.2
#: Workers that never had so much are not told of.
_TOLD_BYTES = 10_000_000


@contextlib.contextmanager
def limits(worker_bytes: int | None) -> Iterator[list[str]]:
    """Limits all workers that there are, and those that come; None: none. Gives the lines that tell of it, at the end.

    What a worker has when it is found counts for the group that it was in. OSError where no cgroup can be made.
    """
    told: list[str] = []
    if worker_bytes is None:
        yield told
        return
    own = next(line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    made: dict[int, Path] = {}
    ended = threading.Event()

    def limit() -> None:
        while not ended.wait(_LOOK_S):
            for pid in processes().workers:
                if pid not in made:
                    made[pid] = _limited(_CGROUPS / own.strip("/") / f"worker-{os.getpid()}-{pid}", pid, worker_bytes)

    watching = threading.Thread(target=limit, daemon=True)
    watching.start()
    try:
        yield told
    finally:
        ended.set()
        watching.join()
        killed = 0
        for pid, group in made.items():
            most = int((group / "memory.max_usage_in_bytes").read_text())
            hits = int((group / "memory.failcnt").read_text())
            control = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
            killed += int(control.get("oom_kill", 0))
            if most > _TOLD_BYTES:
                told.append(f"worker {pid}: at most {most / 1e9:.2f} GB, {hits:,} times at its limit")
            _remove(group)
        told.append(f"{killed} workers were killed at their limit")


def _limited(group: Path, pid: int, worker_bytes: int) -> Path:
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(worker_bytes))
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))
    return group


def _remove(group: Path) -> None:
    """Gives back what is in the group, and removes it."""
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:  # the last process has only just left
            time.sleep(0.1)
        else:
            return
    group.rmdir()
