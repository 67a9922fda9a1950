"""Looking at a directory, cheaply."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from watersmeet.sources.fileoptions import FileOptions, glob_regex

MIN_INTERVAL_US: Final = 200_000
COST_FACTOR: Final = 20
"""A look is repeated after this many times its own duration at the earliest: 5 % of a core at most."""
FULL_INTERVAL_US: Final = 10_000_000
RECENT_NS: Final = 60_000_000_000
TICK_NS: Final = 50_000_000
"""Entries made within the tick of a directory's time stamp may not change that stamp again."""


class FileStat(NamedTuple):
    """What a listing says of a file."""

    mtime_ns: int
    size: int
    inode: int


class Listing:
    """The files of a source as they were at the last look; names are relative to the root, with `/`.

    Hidden names (`.` or `_` first) and `.tmp` are left out. A look stats everything; if the directory's own
    time stamp shows that no name came or went, only files that may grow, until the next full look.
    """

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self._pattern: re.Pattern[str] | None = glob_regex(options.pattern) if options.pattern else None
        self.files: dict[str, FileStat] = {}
        self.problem: str | None = None
        self._directory_ns = 0
        self._next_us = 0
        self._next_full_us = 0

    def is_due(self, now_us: int) -> bool:
        """True if it's time for another look."""
        return now_us >= self._next_us

    def look(self, now_us: int, open_files: set[str], *, full: bool) -> tuple[set[str], bool]:
        """(names whose entry is new, changed or gone; whether all were looked at)."""
        began = time.perf_counter_ns()
        full = full or self._options.recursive or now_us >= self._next_full_us
        try:
            directory_ns = os.stat(self._options.root).st_mtime_ns
            full = full or directory_ns != self._directory_ns
            found = dict(self._walk(self._options.root, "")) if full else self._recent(now_us, open_files)
            self.problem = None
        except OSError as problem:
            self.problem = f"{self._options.root}: {problem.strerror}"
            self._next_us = now_us + MIN_INTERVAL_US
            return set(), False
        before = self.files
        changed = {name for name, stat in found.items() if before.get(name) != stat}
        if full:
            changed |= before.keys() - found.keys()
            self.files = found
            # A stamp that young could stand for an entry that the walk missed.
            self._directory_ns = directory_ns if now_us * 1000 - directory_ns > TICK_NS else 0
        else:
            self.files = {**before, **found} if changed else before
        took_us = (time.perf_counter_ns() - began) // 1000
        self._next_us = now_us + max(MIN_INTERVAL_US, COST_FACTOR * took_us)
        if full:
            self._next_full_us = now_us + max(FULL_INTERVAL_US, 10 * COST_FACTOR * took_us)
        return changed, full

    def _walk(self, directory: str, prefix: str) -> Iterator[tuple[str, FileStat]]:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = prefix + entry.name
                if not self._is_wanted(entry.name, name):
                    continue
                try:
                    if entry.is_dir():
                        if self._options.recursive:
                            yield from self._walk(entry.path, name + "/")
                    elif entry.is_file() and (self._pattern is None or self._pattern.fullmatch(name)):
                        yield name, _stat(entry.stat())
                except FileNotFoundError:
                    continue

    def _is_wanted(self, base: str, name: str) -> bool:
        if self._options.explicit is not None:
            return name == self._options.explicit
        return not base.startswith((".", "_")) and not base.endswith(".tmp")

    def _recent(self, now_us: int, open_files: set[str]) -> dict[str, FileStat]:
        """The files that may have grown, as they are now."""
        oldest_ns = now_us * 1000 - RECENT_NS
        found = {}
        for name, stat in self.files.items():
            if stat.mtime_ns >= oldest_ns or name in open_files:
                try:
                    found[name] = _stat(os.stat(os.path.join(self._options.root, name)))
                except FileNotFoundError:
                    continue
        return found


def _stat(result: os.stat_result) -> FileStat:
    return FileStat(result.st_mtime_ns, result.st_size, result.st_ino)
