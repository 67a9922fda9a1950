"""A simulated object store: every request is a step, and may go wrong in each way in which requests do."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.memorystore import WRITES, MemoryStore, no_answer
from tests.simulation.world import World
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectStat
from watersmeet.objectstores.databasefiles import ObjectCache

#: What is delayed is done after at most so many steps.
_LATEST_STEPS = 400
#: So many requests in a row are refused when the store has too much to do.
_BURST_REQUESTS = 12


@dataclass(frozen=True)
class Rates:
    """How likely a request goes wrong. burst: how likely it begins a time in which all are refused."""

    write: float = 0.0
    read: float = 0.0
    burst: float = 0.0
    flip: float = 0.0


class SimulatedStore(MemoryStore):
    """page: so many names are listed in one step; others may come and go between two of them."""

    def __init__(self, world: World, *, rates: Rates, page: int = 1000) -> None:
        super().__init__()
        self.rates, self.page = rates, page
        self.world = world
        self.refusing = 0
        self.changed: Callable[[str, str], None] = lambda kind, name: None
        """Told of each request that writes, once it is done."""
        self._random = world.random("faults")

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        while True:
            found = list(super().list(prefix, after))
            yield from found[: self.page]
            if len(found) <= self.page:
                return
            after = found[self.page - 1][0]

    def get(self, name: str) -> bytes:
        data = super().get(name)
        if self.rates.flip and self.world.current is not None and self._random.random() < self.rates.flip:
            self.world.note(f"bit flipped in {name}")
            return flipped(data, self._random.randrange(8 * len(data)))
        return data

    def fault_of(self, kind: str, name: str) -> str | None:
        if self.world.current is None or self._random.random() >= self.rates.write:
            return None
        fault = self._random.choice(WRITES)
        self.world.note(f"{fault}: {kind} {name}")
        return fault

    def delay(self, do: Callable[[], object]) -> None:
        self.world.later(1 + self._random.randrange(_LATEST_STEPS), do)

    def _write(self, kind: str, name: str, do: Callable[[], bool]) -> bool:
        def told() -> bool:
            made = do()
            self.changed(kind, name)
            return made

        return super()._write(kind, name, told)

    def _request(self, kind: str, name: str) -> None:
        self.world.step(f"{kind} {name}")
        if self.world.current is None:
            return
        if self.refusing:
            self.refusing -= 1
            raise no_answer()
        if self.rates.burst and self._random.random() < self.rates.burst:
            self.world.note("503")
            self.refusing = self._random.randrange(_BURST_REQUESTS)
            raise no_answer()
        reads = kind in ("get", "stat", "list", "range")
        if reads and self.rates.read and self._random.random() < self.rates.read:
            self.world.note(f"lost: {kind} {name}")
            raise no_answer()

    def checksum(self) -> int:
        """Of all that is there."""
        found = 0
        for name in sorted(self.objects):
            found = zlib.crc32(self.objects[name], zlib.crc32(name.encode(), found))
        return found


def flipped(data: bytes, bit: int) -> bytes:
    """The data with one bit that is another one."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextlib.contextmanager
def used(store: SimulatedStore, directory: Path) -> Iterator[None]:
    """Inside, all databases at URLs are in that store. directory: of the copies of each process."""

    def cache() -> ObjectCache:
        process = store.world.process
        if "cache" not in process.memory:
            place = directory / process.name
            place.mkdir(exist_ok=True)
            process.memory["cache"] = ObjectCache(place, 1 << 30)
        return process.memory["cache"]

    with (
        mock.patch.object(databasefiles, "open_store", lambda location: store),
        mock.patch.object(databasefiles, "cache", cache),
    ):
        yield
