"""An object store in memory that lets requests go wrong, by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectReplacedError, ObjectStat, StoreProblem
from watersmeet.objectstores.databasefiles import cache

URL = "s3://memory/db"

#: What may happen to a request that writes.
WRITES = (
    "lost",  # not done, no answer
    "answer lost",  # done, no answer
    "sent twice",  # done, and the answer is that of the second time, which found the name taken
    "conflict",  # not done, and the answer is that the name is taken (409)
    "delayed",  # no answer, and done some time later
    "repeated",  # done, and done again some time later
)
#: What may happen to one that reads.
READS = ("lost",)


class MemoryStore:
    """`objectstores.Store`. before: called with the kind and name of each request before it is done.

    fault, at: what happens to request number `at`, which counts those that write. later: after how many requests what
    is delayed is done; None: at `deliver`. read_bytes: how many it has sent. listed: how many names.
    """

    def __init__(self, fault: str | None = None, at: int = 0, later: int | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda kind, name: None
        self.fault, self.at, self.later = fault, at, later
        self.writes = 0
        self.read_bytes = 0
        self.listed = 0
        self._lock = threading.RLock()
        self._delayed: list[tuple[int | None, Callable[[], object]]] = []

    def create(self, name: str, data: bytes) -> bool:
        def do() -> bool:
            return self.objects.setdefault(name, data) is data

        return self._write("create", name, do)

    def put(self, name: str, *pieces: bytes | memoryview) -> None:
        data = b"".join(pieces)

        def do() -> bool:
            self.objects[name] = data
            return True

        self._write("put", name, do)

    def get(self, name: str) -> bytes:
        self._request("get", name)
        return self._sent(self._found(name))

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        self._request("range", name)
        found = self._found(name)
        if etag is not None and etag != str(hash(found)):
            raise ObjectReplacedError(name)
        return self._sent(found[begin:end])

    def stat(self, name: str) -> ObjectStat:
        self._request("stat", name)
        found = self._found(name)
        return ObjectStat(len(found), 0, str(hash(found)))

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        self._request("list", prefix)
        with self._lock:
            names = sorted(n for n in self.objects if (n.startswith(f"{prefix}/") or not prefix) and n > after)
            self.listed += len(names)
        return iter([(n, ObjectStat(0, 0, "")) for n in names])

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)

        def do() -> bool:
            for name in wanted:
                self.objects.pop(name, None)
            return True

        self._write("delete", wanted[0], do)

    def discard_unfinished(self, prefix: str) -> int:
        del prefix
        return 0

    def deliver(self) -> None:
        """All that was delayed is done now."""
        delayed, self._delayed = self._delayed, []
        for _, do in delayed:
            do()

    def _write(self, kind: str, name: str, do: Callable[[], bool]) -> bool:
        self._request(kind, name)
        with self._lock:
            self.writes += 1
            fault = self.fault_of(kind, name)
            if fault == "lost":
                raise no_answer()
            if fault == "conflict":
                if kind == "create":
                    return False
                raise no_answer()
            if fault == "delayed":
                self.delay(do)
                raise no_answer()
            made = do()
            if fault == "repeated":
                self.delay(do)
            if fault == "answer lost":
                raise no_answer()
            return made and fault != "sent twice"

    def fault_of(self, kind: str, name: str) -> str | None:
        """What happens to the request that writes which is done now: one of WRITES, or nothing."""
        return self.fault if self.writes == self.at else None

    def delay(self, do: Callable[[], object]) -> None:
        """Does it later."""
        self._delayed.append((None if self.later is None else len(self.requests) + self.later, do))

    def _request(self, kind: str, name: str) -> None:
        self.before(kind, name)
        with self._lock:
            self.requests.append((kind, name))
            due = [do for at, do in self._delayed if at is not None and at <= len(self.requests)]
            self._delayed = [d for d in self._delayed if d[0] is None or d[0] > len(self.requests)]
            for do in due:
                do()

    def _sent(self, data: bytes) -> bytes:
        with self._lock:
            self.read_bytes += len(data)
        return data

    def _found(self, name: str) -> bytes:
        with self._lock:
            if name not in self.objects:
                raise FileNotFoundError(name)
            return self.objects[name]


def forget_copies() -> None:
    """The machine has no copies of objects any more, as one that is new."""
    for copy in cache().directory.iterdir():
        copy.unlink()


def no_answer() -> StoreProblem:
    return StoreProblem("the store can't be reached", passes=True)


def use(monkeypatch, store: MemoryStore, cache: object) -> MemoryStore:
    """From now on all databases in object stores are in that one; their copies are in the directory `cache`."""
    monkeypatch.setattr(databasefiles, "open_store", lambda location: store)
    monkeypatch.setattr(databasefiles, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(cache))
    return store
