"""Looking at the objects of a source, in a thread of its own: a store may take long to answer."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Final

from watersmeet.objectstores.access import open_store
from watersmeet.objectstores.base import StoreProblem
from watersmeet.sources.fileoptions import FileOptions
from watersmeet.sources.listing import COST_FACTOR, FileStat
from watersmeet.sources.news import News

#: How long who asks for what is there now waits for the store, and when a store that can't be reached is asked again.
_WAIT_S: Final = 10
_RETRY_US: Final = 2_000_000


class ObjectListing:
    """The objects of a source as they were at the last look; see `Listing`, whose rules for names these follow.

    Names are relative to the root. Objects in directories whose names begin with `.` or `_` are left out, too.
    """

    def __init__(self, options: FileOptions) -> None:
        assert options.store is not None
        self._options = options
        self._location = options.store
        self._pattern = options.names
        self.files: dict[str, FileStat] = {}
        self.problem: str | None = None
        self.not_read: dict[str, str] = {}
        """Always empty: what is listed can be read."""
        self._next_us = 0
        self._thread: threading.Thread | None = None
        self._found: dict[str, FileStat] | OSError | None = None
        self._took_us = 0
        self._news: News | None = None

    def listen(self, news: News) -> None:
        """From now on `news` is told when a look is over."""
        self._news = news

    def is_due(self, now_us: int) -> bool:
        """True if a look is over, or it's time for another one."""
        return self._found is not None or (self._thread is None and now_us >= self._next_us)

    def look(self, now_us: int, open_files: set[str], *, full: bool) -> set[str]:  # noqa: ARG002
        """The names whose entry is new, changed or gone. Without `full` that is what a look has found that is over; if
        none is, one is begun.
        """
        if full:
            self._wait()  # for one that may have begun too early
            self._found = None
            self._begin()
            self._wait()
            if self._found is None:
                self._found = StoreProblem(f"{self._location.shown} does not answer", passes=True)
        elif self._found is None:
            if self._thread is None:
                self._begin()
            return set()
        return self._taken(now_us)

    def fail(self, problem: StoreProblem, now_us: int) -> None:
        """The store does not give what it has listed: it is asked again soon."""
        self.problem = str(problem)
        self._next_us = now_us + _RETRY_US

    def _taken(self, now_us: int) -> set[str]:
        found, self._found = self._found, None
        if isinstance(found, OSError):
            self.problem = str(found)
            self._next_us = now_us + _RETRY_US
            return set()
        assert found is not None
        before, self.files, self.problem = self.files, found, None
        self._next_us = now_us + max(self._options.refresh_s * 1_000_000, COST_FACTOR * self._took_us)
        return {name for name, stat in found.items() if before.get(name) != stat} | (before.keys() - found.keys())

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._list, name="watersmeet-objects", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(_WAIT_S)

    def _list(self) -> None:
        began = time.perf_counter_ns()
        try:
            self._found = self.listed()
        except OSError as problem:
            self._found = problem
        except Exception as problem:  # the library's words for a name that it can't read
            self._found = OSError(f"{type(problem).__name__}: {problem}")
        self._took_us = (time.perf_counter_ns() - began) // 1000
        self._thread = None
        if self._news is not None:
            self._news.tell()

    def listed(self) -> dict[str, FileStat]:
        """The objects that there are now. StoreProblem."""
        options, found = self._options, {}
        for key, stat in open_store(self._location).list(options.root.rstrip("/")):
            name = key.removeprefix(options.root)
            if self._is_meant(name):
                number = int.from_bytes(hashlib.blake2b(f"{name}\0{stat.etag}".encode(), digest_size=8).digest()) >> 1
                found[name] = FileStat(stat.modified_ns, stat.size_bytes, number, etag=stat.etag)
        return found

    def _is_meant(self, name: str) -> bool:
        options = self._options
        if options.explicit is not None:
            return name == options.explicit
        if "/" in name and not options.recursive:
            return False
        if name.endswith((".tmp", "/")) or any(part.startswith((".", "_")) for part in name.split("/")):
            return False
        return self._pattern is None or self._pattern.fullmatch(name) is not None
