"""A simulated disk: a real directory that is only touched step by step, and that forgets what was not flushed.

The modules of the store see a stand-in for `os`. It notes which files and which entries of directories were flushed:
after a loss of power, of all others some are there, some not, and some in part.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from tests.simulation.objects import flipped
from tests.simulation.world import Killed, Process, World
from watersmeet.objectstores import storage
from watersmeet.store import layout, readers
from watersmeet.system import files


@dataclass(frozen=True)
class DiskRates:
    """How likely a call fails: as the disk is full, or with an error of the disk; how likely a bit is flipped, and a
    write takes only a part of what it is given.
    """

    full: float = 0.0
    broken: float = 0.0
    flip: float = 0.0
    short: float = 0.0


class _Node:
    """A file, whatever names it has. data: its content, once it is flushed or has lost a name; None before."""

    def __init__(self, *, flushed: bool) -> None:
        self.flushed = flushed
        self.data: bytes | None = None


class SimulatedDisk:
    """In the place of `os`."""

    def __init__(self, world: World, root: Path, *, rates: DiskRates) -> None:
        self.world, self.root, self.rates = world, root, rates
        self.changed: Callable[[str, str], None] = lambda kind, name: None
        """Told of each name that has come or gone."""
        self._random = world.random("faults")
        self._names: dict[int, str] = {}
        """By handle of an open file, its path."""
        self._volatile: dict[str, _Node] = {}
        self._durable: dict[str, dict[str, _Node]] = {}
        for directory, _, names in os.walk(root):
            kept = {name: _Node(flushed=True) for name in names}
            self._durable[directory] = kept
            self._volatile |= {os.path.join(directory, name): node for name, node in kept.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def getpid(self) -> int:
        return self.world.process.pid

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        path = os.fspath(path)
        makes = bool(flags & os.O_CREAT)
        if makes:
            self._step("create", path, self.rates.full, errno.ENOSPC)
        handle = os.open(path, flags, mode)
        self._names[handle] = path
        self._handles().add(handle)
        if makes:
            self._volatile.setdefault(path, _Node(flushed=False))
            self.changed("create", self._short(path))
        return handle

    def close(self, handle: int) -> None:
        if handle in self._handles():  # else its process is dead, and the handle may be another's
            self._handles().discard(handle)
            del self._names[handle]
            os.close(handle)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        self._check(handle)
        return os.pwrite(handle, data, offset)

    def ftruncate(self, handle: int, size: int) -> None:
        self._check(handle)
        os.ftruncate(handle, size)

    def writev(self, handle: int, pieces: Sequence[memoryview]) -> int:
        self._step("write", self._names[handle], self.rates.full, errno.ENOSPC)
        if self.rates.short and len(pieces[0]) > 1 and self._random.random() < self.rates.short:
            pieces = [pieces[0][: self._random.randrange(1, len(pieces[0]))]]
        written = os.writev(handle, pieces)
        self.changed("write", self._short(self._names[handle]))
        return written

    def fsync(self, handle: int) -> None:
        path = self._names[handle]
        self._step("flush", path, self.rates.broken, errno.EIO)
        if os.path.isdir(path):
            self._durable[path] = {
                os.path.basename(p): node for p, node in self._volatile.items() if os.path.dirname(p) == path
            }
        else:
            self._volatile.setdefault(path, _Node(flushed=False)).flushed = True

    def link(self, source: Any, target: Any) -> None:
        source, target = os.fspath(source), os.fspath(target)
        self._step("link", target, self.rates.full, errno.ENOSPC)
        os.link(source, target)
        self._volatile[target] = self._volatile[source]
        self.changed("link", self._short(target))

    def replace(self, source: Any, target: Any) -> None:
        source, target = os.fspath(source), os.fspath(target)
        self._step("replace", target, self.rates.broken, errno.EIO)
        self._keep(target)
        os.replace(source, target)
        self._volatile[target] = self._volatile.pop(source, None) or _Node(flushed=False)
        self.changed("replace", self._short(target))

    rename = replace

    def unlink(self, path: Any) -> None:
        path = os.fspath(path)
        self._step("unlink", path)
        self._keep(path)
        os.unlink(path)
        self._volatile.pop(path, None)
        self.changed("delete", self._short(path))

    def listdir(self, path: Any) -> list[str]:
        path = os.fspath(path)
        self._step("list", path)
        before = set(os.listdir(path))
        self._step("list on", path)
        after = set(os.listdir(path))
        # What comes or goes meanwhile may be among them.
        return [n for n in sorted(before | after) if n in before & after or self._random.random() < 0.5]

    def stat(self, path: Any, **options: Any) -> os.stat_result:
        path = os.fspath(path)
        if "." in os.path.basename(path):
            self._step("stat", path)
        return os.stat(path, **options)

    def read(self, path: Any, mode: str = "r") -> Any:
        """In the place of `open`."""
        self._step("read", os.fspath(path))
        with self._flipping(os.fspath(path)):
            return builtins.open(path, mode)

    def mapped(self, path: Path) -> pa.Buffer:
        """In the place of `storage.map_file`."""
        self._step("map", str(path))
        with pa.memory_map(str(path)) as file:
            buffer = file.read_buffer()
        if self._flips(str(path)):
            data = buffer.to_pybytes()
            return pa.py_buffer(flipped(data, self._random.randrange(8 * len(data))))
        return buffer

    def dies(self, process: Process) -> None:
        """The handles of a process that dies are closed, and so its locks are let go."""
        for handle in process.memory.pop("handles", ()):
            del self._names[handle]
            os.close(handle)

    def lose_power(self) -> None:
        """All processes die, and what was not flushed is there or not, or in part."""
        self.world.note("power is lost")
        for process in {id(a.process): a.process for a in self.world.actors}.values():
            if process.name != "supervisor":
                process.kill()
        found: dict[str, _Node] = {}
        contents: dict[str, bytes] = {}
        for path, node in self._volatile.items():
            if os.path.exists(path) and node.data is None:
                contents[path] = Path(path).read_bytes()
        for directory, durable in self._durable.items():
            names = {os.path.basename(p) for p in self._volatile if os.path.dirname(p) == directory}
            for name in sorted(names | durable.keys()):
                path = os.path.join(directory, name)
                here, there = self._volatile.get(path), durable.get(name)
                node = here if here is there or self._random.random() < 0.5 else there
                if node is not None:
                    found[path] = node
                    data = node.data if node.data is not None else contents.get(path) or self._elsewhere(node, contents)
                    if not node.flushed:
                        data = data[: self._random.choice((0, len(data) // 2, len(data)))]
                    contents[path] = data
        for directory in self._durable:
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                if os.path.isfile(path):
                    os.unlink(path)
        self._volatile = found
        for directory in self._durable:
            self._durable[directory] = {}
        for path, node in found.items():
            Path(path).write_bytes(contents[path])
            node.flushed, node.data = True, None
            self._durable[os.path.dirname(path)][os.path.basename(path)] = node

    def _elsewhere(self, node: _Node, contents: dict[str, bytes]) -> bytes:
        """The content of a file under another of its names."""
        return next(contents[p] for p, other in self._volatile.items() if other is node and p in contents)

    def _keep(self, path: str) -> None:
        """A name goes: the file may still be there after a loss of power."""
        node = self._volatile.get(path)
        if node is not None and os.path.exists(path):
            node.data = Path(path).read_bytes()

    def _step(self, kind: str, path: str, likely: float = 0.0, number: int = 0) -> None:
        self.world.step(f"{kind} {self._short(path)}")
        if likely and self.world.current is not None and self._random.random() < likely:
            self.world.note(f"{errno.errorcode[number]}: {kind} {self._short(path)}")
            raise OSError(number, os.strerror(number))

    def _flips(self, path: str) -> bool:
        if not self.rates.flip or self.world.current is None or self._random.random() >= self.rates.flip:
            return False
        self.world.note(f"bit flipped in {self._short(path)}")
        return True

    @contextlib.contextmanager
    def _flipping(self, path: str) -> Iterator[None]:
        """Inside, a file may be damaged."""
        data = Path(path).read_bytes() if self._flips(path) else b""
        if data:
            # What was opened keeps what it sees.
            os.rename(path, f"{path}.whole")
            Path(path).write_bytes(flipped(data, self._random.randrange(8 * len(data))))
        try:
            yield
        finally:
            if data:
                os.replace(f"{path}.whole", path)

    def _check(self, handle: int) -> None:
        if handle not in self._handles():
            raise Killed

    def _handles(self) -> set[int]:
        return self.world.process.memory.setdefault("handles", set())

    def _short(self, path: str) -> str:
        return os.path.relpath(path, self.root)


@contextlib.contextmanager
def used(disk: SimulatedDisk) -> Iterator[None]:
    """Inside, databases in directories are on that disk."""
    with contextlib.ExitStack() as patches:
        for module in (files, readers, layout, layout, layout):
            patches.enter_context(mock.patch.object(module, "os", disk))
        patches.enter_context(mock.patch.object(files, "open", disk.read, create=True))
        patches.enter_context(mock.patch.object(storage, "map_file", disk.mapped))
        yield
