"""Objects of any store: it is opened, and objects are read as files."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import BinaryIO, Final

from watersmeet.objectstores.base import HDFS, Location, Store, StoreProblem, object_path
from watersmeet.objectstores.clouds import CloudStore
from watersmeet.objectstores.hdfs import HdfsStore
from watersmeet.system.secretvalues import revealed

BLOCK_BYTES: Final = 8 << 20
"""Objects are read in blocks of so many bytes, which begin at multiples of that."""
_KEPT_BLOCKS: Final = 8


def open_store(location: Location) -> Store:
    """The store of a location. Nothing is connected yet. LIBRARY_MISSING, CONNECTOR_OPTION, UNDEFINED_OBJECT."""
    return _opened(location, tuple((name, revealed(value)) for name, value in location.settings))


@lru_cache(maxsize=64)
def _opened(location: Location, settings: tuple[tuple[str, str], ...]) -> Store:
    return HdfsStore(location) if location.scheme == HDFS else CloudStore(location, dict(settings))


def check_objects(options: Mapping[str, str]) -> None:
    """Asks a store, if the options name one, whether it lets us in. CONNECTOR_OPTION, RUNTIME_UNAVAILABLE."""
    place = object_path(options)
    if place is not None:
        try:
            next(iter(open_store(place.location).list()), None)
        except StoreProblem as problem:
            raise problem.as_error() from problem


class ObjectFile(io.RawIOBase, BinaryIO):
    """The content of an object as a file for reading. etag: None for an object that is never written again. Not
    thread-safe.

    Reading raises FileNotFoundError, ObjectReplacedError if the object was written again, StoreProblem.
    """

    def __init__(self, location: Location, name: str, size_bytes: int, etag: str | None) -> None:
        super().__init__()
        self._location = location
        self._name = name
        self.size_bytes = size_bytes
        self.etag = etag
        self.problem: OSError | None = None
        """Why something could not be read. Readers of formats may take that for a damaged file."""
        self._place = 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._place = max(0, offset + (0, self._place, self.size_bytes)[whence])
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self._place
        end = self.size_bytes if size is None or size < 0 else min(self.size_bytes, begin + size)
        if begin >= end:
            return b""
        self._place = end
        first, last = begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return data[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def check(self) -> None:
        """Raises why something could not be read, if that is so."""
        if self.problem is not None:
            raise self.problem

    def _block(self, number: int) -> bytes:
        key = (self._location, self._name, self.etag, number)
        found = _BLOCKS.get(key)
        if found is None:
            begin = number * BLOCK_BYTES
            end = min(self.size_bytes, begin + BLOCK_BYTES)
            try:
                found = open_store(self._location).range(self._name, begin, end, self.etag)
            except OSError as problem:
                self.problem = problem
                raise
            _BLOCKS.keep(key, found)
        return found


class _Blocks:
    """The blocks that this process has read last: what is cut into slices is often read here, too. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Location, str, str | None, int], bytes] = OrderedDict()

    def get(self, key: tuple[Location, str, str | None, int]) -> bytes | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: tuple[Location, str, str | None, int], data: bytes) -> None:
        with self._lock:
            self._kept[key] = data
            while len(self._kept) > _KEPT_BLOCKS:
                self._kept.popitem(last=False)


_BLOCKS: Final = _Blocks()
