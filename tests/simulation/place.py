"""Where the database of a run is: in a simulated object store, or on a simulated disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from tests.simulation import disk as disks
from tests.simulation import objects
from tests.simulation.audit import Audit
from tests.simulation.disk import DiskRates, SimulatedDisk
from tests.simulation.objects import Rates, SimulatedStore
from tests.simulation.world import Violation, World
from watersmeet.objectstores import storage
from watersmeet.store import layout
from watersmeet.store.segmentfiles import SegmentFiles

Kind = Literal["objects", "disk"]
#: By name, `folder/name`.
Files = Mapping[str, bytes]

_URL = "s3://simulated/db"
_PREFIX = "db/"


class Place:
    """Holds `files`. What is changed there is looked at by an `Audit`; `changed` is called after it."""

    def __init__(
        self,
        world: World,
        kind: Kind,
        directory: Path,
        files: Files,
        *,
        rates: Rates = Rates(),
        page: int = 1000,
        disk_rates: DiskRates = DiskRates(),
    ) -> None:
        self._world, self._directory = world, directory
        self.changed: Callable[[str, str], None] = lambda kind, name: None
        self.store: SimulatedStore | None = None
        self.disk: SimulatedDisk | None = None
        self._root = directory / "db"
        if kind == "objects":
            self.path = _URL
            self.store = SimulatedStore(world, rates=rates, page=page)
            self.store.objects = {_PREFIX + name: data for name, data in files.items()}
        else:
            self.path = str(self._root)
            self._root.mkdir(mode=0o700)
            for folder in layout.DIRECTORIES if files else ():
                (self._root / folder).mkdir(exist_ok=True)
            for name, data in files.items():
                (self._root / name).write_bytes(data)
            self.disk = SimulatedDisk(world, self._root, rates=disk_rates)
            world.died = self.disk.dies
        self._segments = SegmentFiles(storage.path_at(self.path) / "segments")
        self.audit = Audit(self._names, self._read, self._state)
        self._audits = bool(files)
        (self.store or self.disk).changed = self._noted

    def used(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the product finds it."""
        if self.store is not None:
            return objects.used(self.store, self._directory)
        assert self.disk is not None
        return disks.used(self.disk)

    def files(self) -> Files:
        """All that is there."""
        return {name: self._read(name) for name in self._names()}

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        if self.store is not None:
            self.store.rates, self.store.refusing = Rates(), 0
        if self.disk is not None:
            self.disk.rates = DiskRates()

    def lose_power(self) -> None:
        """The machine with the disk is without power for a moment."""
        assert self.disk is not None
        self.disk.lose_power()
        self.audit.begin_anew()

    def _noted(self, kind: str, name: str) -> None:
        name = name.removeprefix(_PREFIX)
        if self._audits and "/." not in name and (kind == "delete" or name.startswith("commits/")):
            try:
                self.audit.look()
            except Violation as violation:
                self._world.fail(violation, self._world.process.name)
        self.changed(kind, name)

    def _state(self, segment: str, place: str) -> set[str]:
        with self._world.unseen():
            return self._segments.referenced_files(segment, place)

    def _names(self) -> list[str]:
        if self.store is not None:
            return [name.removeprefix(_PREFIX) for name in self.store.objects]
        found = []
        for entry in os.scandir(self._root):
            found += [f"{entry.name}/{name}" for name in os.listdir(entry)] if entry.is_dir() else [entry.name]
        return [name for name in found if not (self._root / name).is_dir()]

    def _read(self, name: str) -> bytes:
        if self.store is not None:
            return self.store.objects[_PREFIX + name]
        return (self._root / name).read_bytes()
