"""What `storage` does with the files of a database that are objects of a store.

An answer of a store other than plain success says nothing about what became of an object: a request whose answer was
lost is sent again, and is then told that the name is taken, by itself. So what is there is read after each such answer.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.objectstores.access import open_store
from watersmeet.objectstores.base import ObjectPath, Store, StoreProblem
from watersmeet.objectstores.cache import BlockCopy, cache
from watersmeet.system.files import Bytes
from watersmeet.system.process import seconds_of

Item = TypeVar("Item")
Result = TypeVar("Result")
Given = ParamSpec("Given")

PATIENCE: Final = "WATERSMEET_STORE_PATIENCE_SECONDS"
"""Environment: for how long a request that a store did not answer is sent again."""
_PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
#: So many objects are read at a time.
_AT_ONCE: Final = 16


class _Patience:
    """How long one request goes on. INVALID_PARAMETER."""

    def __init__(self) -> None:
        given_s = seconds_of(PATIENCE)
        self._end = time.monotonic() + (_PATIENCE_S if given_s is None else given_s)
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, problem: StoreProblem) -> None:
        """Waits for the next attempt. DATABASE_ACCESS if there is to be none."""
        if not problem.passes or time.monotonic() + self._pause_s > self._end:
            raise failure(problem) from problem
        time.sleep(self._pause_s * random.uniform(0.5, 1))  # noqa: S311 - so that many don't come at once
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


@dataclass
class Requests:
    """How many requests were sent. hits, misses: objects that never change, or blocks of large ones, which were read on
    the local disk, or had to be fetched. fetched_bytes: of these.
    """

    count: int = 0
    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0


class _Here(threading.local):
    """requests: where those of this thread are counted; None: with those of the process."""

    requests: Requests | None = None


_HERE: Final = _Here()
_LOCK: Final = threading.Lock()
_OF_PROCESS: Final[dict[str, int]] = {}


@contextlib.contextmanager
def counting() -> Iterator[Requests]:
    """Counts the requests that this thread sends inside, and leaves them out of `requests`."""
    before, _HERE.requests = _HERE.requests, Requests()
    try:
        yield _HERE.requests
    finally:
        _HERE.requests = before


def requests(space: str) -> int:
    """How many requests this process has sent for the files of a database (`ObjectPath.space`)."""
    return _OF_PROCESS.get(space, 0)


def _sent(place: ObjectPath) -> Store:
    """The store of an object to which a request is sent now."""
    with _LOCK:
        if _HERE.requests is not None:
            _HERE.requests.count += 1
        else:
            _OF_PROCESS[place.space] = _OF_PROCESS.get(place.space, 0) + 1
    return open_store(place.location)


def looked_up(*, hits: int = 0, misses: int = 0, fetched_bytes: int = 0) -> None:
    """Counts what was looked for on the local disk, if anybody counts in this thread."""
    if _HERE.requests is not None:
        _HERE.requests.hits += hits
        _HERE.requests.misses += misses
        _HERE.requests.fetched_bytes += fetched_bytes


def failure(problem: StoreProblem) -> Error:
    """The error that stands for a problem of a store."""
    return error("DATABASE_ACCESS", problem.message, detail=problem.detail, hint=problem.hint)


def create(place: ObjectPath, data: Bytes) -> None:
    """Makes an object; FileExistsError if there is one with other content. DATABASE_ACCESS: it may be there or not."""
    patience = _Patience()
    while True:
        try:
            if _sent(place).create(place.path, bytes(data)):
                return
            problem = StoreProblem(f"{place} is there and is not", passes=True)
        except StoreProblem as cause:
            problem = cause
        try:
            found = read(place)
        except FileNotFoundError:
            patience.wait(problem)
            continue
        if found != data:
            raise FileExistsError(f"there is another {place}")
        return


def put(place: ObjectPath, pieces: Sequence[Bytes]) -> None:
    """Makes an object of the joined `pieces`, instead of what is there."""
    _again(lambda: _sent(place).put(place.path, *pieces))


def publish(place: ObjectPath, pieces: Sequence[Bytes], *, direct: bool = False) -> None:
    """As `put`, for an object that never changes: it is kept on the local disk, too, unless it is `direct`, which
    nobody is expected to read soon.
    """
    put(place, pieces)
    if not direct:
        cache().put(place, pieces)


def read(place: ObjectPath) -> bytes:
    """The content; FileNotFoundError."""
    return _again(lambda: _sent(place).get(place.path))


def mapped(place: ObjectPath) -> pa.Buffer:
    """The content of an object that never changes, from the local disk if it is there. FileNotFoundError."""
    found = cache().get(place)
    if found is not None:
        looked_up(hits=1)
        return found
    looked_up(misses=1)
    data = read(place)
    looked_up(fetched_bytes=len(data))
    cache().put(place, [data])
    # Mapped, it is not memory of the process: the machine takes its pages back.
    found = cache().get(place)
    return pa.py_buffer(data) if found is None else found


def read_many(places: Sequence[ObjectPath]) -> list[bytes | None]:
    """The contents of objects, several at a time; None of those that are not there."""
    return _at_once(_read_if_there, places)


def fetch(places: Sequence[ObjectPath]) -> None:
    """Gets copies of objects that never change, several at a time, of those of which there are none yet."""
    missing = [place for place in places if not cache().has(place)]
    if len(missing) > 1:
        looked_up(misses=len(missing))
        for begin in range(0, len(missing), _AT_ONCE):
            part = missing[begin : begin + _AT_ONCE]
            for place, data in zip(part, read_many(part), strict=True):
                if data is not None:
                    looked_up(fetched_bytes=len(data))
                    cache().put(place, [data])


def is_here(place: ObjectPath) -> bool:
    """Whether there is a whole copy of an object."""
    return cache().has(place)


def in_parts(place: ObjectPath, size_bytes: int, block_bytes: int) -> BlockCopy:
    """A copy of an object of that size which is to be filled block by block."""
    return cache().in_parts(place, size_bytes, block_bytes)


def fetch_ranges(wanted: Sequence[tuple[ObjectPath, int, int, Callable[[bytes], None]]]) -> None:
    """Hands bytes [begin, end) of each of some objects that never change to what takes them, several at a time.

    FileNotFoundError. Fewer bytes come of an object that is shorter.
    """

    def request(number: int) -> None:
        place, begin, end, take = wanted[number]
        take(_again(lambda: _sent(place).range(place.path, begin, end)))

    _at_once(request, range(len(wanted)))


def _read_if_there(place: ObjectPath) -> bytes | None:
    try:
        return read(place)
    except FileNotFoundError:
        return None


def _at_once(request: Callable[[Item], Result], places: Sequence[Item]) -> list[Result]:
    """What a request gives for each of several objects."""
    if len(places) < 2:
        return [request(place) for place in places]
    with ThreadPoolExecutor(min(_AT_ONCE, len(places)), "watersmeet-objects") as pool:
        return list(pool.map(counted(request), places))


def counted(request: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same for another thread: its requests are counted with those of this one."""
    here = _HERE.requests

    def requested(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        _HERE.requests = here
        return request(*args, **kwargs)

    return requested


def exists(place: ObjectPath) -> bool:
    """Whether there is an object."""
    try:
        _again(lambda: _sent(place).stat(place.path))
    except FileNotFoundError:
        return False
    return True


def missing(places: Sequence[ObjectPath]) -> list[ObjectPath]:
    """Those of some objects that are not there; several are looked for at a time."""
    return [place for place, there in zip(places, _at_once(exists, places), strict=True) if not there]


def names(directory: ObjectPath, *, after: str = "") -> list[str]:
    """The names of the objects in a directory that are greater than `after`, sorted."""
    prefix = f"{directory.path}/" if directory.path else ""

    def listed() -> list[str]:
        found = _sent(directory).list(directory.path, after and prefix + after)
        return [name.removeprefix(prefix) for name, _ in found]

    return sorted(n for n in _again(listed) if "/" not in n)


def remove_unfinished(directory: ObjectPath) -> int:
    """Deletes what crashed attempts left in a directory, where the store can't help leaving it; how much that was."""
    return _again(lambda: open_store(directory.location).discard_unfinished(directory.path))


def is_empty(directory: ObjectPath) -> bool:
    """Whether there is no object in or below a directory."""
    return _again(lambda: next(iter(_sent(directory).list(directory.path)), None)) is None


def delete(places: Iterable[ObjectPath]) -> int:
    """Deletes objects, in their order if a request is not answered; how many, those that were gone already too."""
    found = list(places)
    if found:
        _again(lambda: _sent(found[0]).delete([p.path for p in found]))
    return len(found)


def _again(request: Callable[[], Result]) -> Result:
    """What a request gives that may be sent any number of times."""
    patience = _Patience()
    while True:
        try:
            return request()
        except StoreProblem as problem:
            patience.wait(problem)
