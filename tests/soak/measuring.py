"""What is measured: a line of CSV every few seconds."""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from watersmeet.runtime.memory import Resident, processes, resident


@dataclass(frozen=True)
class Sample:
    """One look. life: how often the process was started. epochs: since the last look; times: medians since it.

    *_mapped_bytes: pages in memory of files of the database, once for each process. Libraries are left out: what of
    them counts for a process depends on who else on the machine uses them.
    *_processor_ms: what the processes worked since the last look, for each epoch since then: other programs on the
    machine change it far less than the times. objects, arrow_bytes, malloc_bytes: what the main process keeps of
    Python's objects (those that its garbage collector knows), of Arrow's memory and of C's, without what is free.
    read_files_bytes: the list of the files that were read, which has a line for each of them; directory_bytes: all else
    in the database's directory.
    """

    seconds: float
    life: int
    main_bytes: int
    main_mapped_bytes: int
    workers_bytes: int
    workers_mapped_bytes: int
    workers: int
    java_bytes: int
    descriptors: int
    threads: int
    files: int
    directory_bytes: int
    read_files_bytes: int
    objects: int
    arrow_bytes: int
    malloc_bytes: int
    epochs: int
    main_processor_ms: float
    workers_processor_ms: float
    java_processor_ms: float
    epoch_ms: float
    flush_ms: float
    select_ms: float


def look(main: int, directory: Path) -> dict[str, int]:
    """The memory of the child `main` and its like, and what its directory holds."""
    found = processes(main)
    own, workers, java = (resident(pids) or Resident() for pids in ([main], found.workers, found.java))
    files, size_bytes = _held(directory)
    read_files_bytes = _held(directory / "sources")[1]
    return {
        "main_bytes": own.own_bytes,
        "main_mapped_bytes": mapped_bytes([main], directory),
        "workers_bytes": workers.own_bytes,
        "workers_mapped_bytes": mapped_bytes(found.workers, directory),
        "workers": len(found.workers),
        "java_bytes": java.total_bytes,
        "descriptors": _entries(f"/proc/{main}/fd"),
        "threads": _entries(f"/proc/{main}/task"),
        "files": files,
        "directory_bytes": max(0, size_bytes - read_files_bytes),
        "read_files_bytes": read_files_bytes,
    }


def mapped_bytes(pids: Iterable[int], directory: Path) -> int:
    """The pages in memory of mapped files that lie, or lay, in `directory`: those of each process added up."""
    found, counts = 0, False
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split(maxsplit=5)
            if not words[0].endswith(":"):
                counts = len(words) == 6 and words[5].startswith(f"{directory.resolve()}/")
            elif counts and words[0] == "Rss:":
                found += int(words[1]) << 10
    return found


class Processors:
    """How long the processor worked for the child `main` and its like, since the last look.

    Of a process that has ended, what it did since the last look is left out.
    """

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def look(self, main: int) -> dict[str, float]:
        """Milliseconds by kind of process: main, workers, java."""
        found = processes(main)
        kinds = {"main": (main,), "workers": found.workers, "java": found.java}
        now = {pid: _processor_ms(pid) for pids in kinds.values() for pid in pids}
        spent = {kind: sum(now[pid] - self._known.get(pid, 0.0) for pid in pids) for kind, pids in kinds.items()}
        self._known = now
        return spent


def middle(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Writes them as CSV."""
    with path.open("w", newline="") as out:
        rows = csv.DictWriter(out, [f.name for f in fields(Sample)])
        rows.writeheader()
        rows.writerows(asdict(s) for s in samples)


def read_samples(path: Path) -> list[Sample]:
    """The inverse of `write_samples`."""
    kinds = {f.name: float if f.type == "float" else int for f in fields(Sample)}
    with path.open(newline="") as lines:
        return [Sample(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(lines)]


def _processor_ms(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * 1000.0 / os.sysconf("SC_CLK_TCK")


def _held(directory: Path) -> tuple[int, int]:
    files = size_bytes = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                size_bytes += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
            files += 1
    return files, size_bytes


def _entries(path: str) -> int:
    try:
        return len(os.listdir(path))
    except FileNotFoundError:
        return 0
