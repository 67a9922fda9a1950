"""Where the product touches what is simulated: clocks, locks, random numbers, and what it keeps for a process.

While `installed`, the modules of Watersmeet see stand-ins for `time`, `threading`, `secrets` and `random`. Without a
world, these do what the real ones do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

from tests.simulation.world import World
from watersmeet.objectstores import databasefiles, storage
from watersmeet.runtime import stages
from watersmeet.store import commits, readers
from watersmeet.system import files

#: The main thread lets another one run queries, to hear of Ctrl-C: there are no steps in them.
_REAL = ("watersmeet.kernel.evaluation.duck",)

_world: World | None = None


def world() -> World:
    assert _world is not None, "nothing is simulated now"
    return _world


class Lock:
    """`threading.Lock`, and with `reentrant` RLock: who must wait for it gives the turn away."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._me()
        if self._owner is me and self._reentrant:
            self._count += 1
            return True
        if self._owner is not None and not (
            blocking and world().wait(lambda: self._owner is None, None if timeout < 0 else timeout)
        ):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        assert self._owner is not None
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def let_go(self) -> int:
        """Releases it as a whole; how often it was held."""
        count, self._count, self._owner = self._count, 0, None
        return count

    def take_back(self, count: int) -> None:
        self.acquire()
        self._count = count

    def _me(self) -> object:
        return (_world and _world.current) or "outside"

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock(reentrant=True)
        self._told = 0

    def wait(self, timeout: float | None = None) -> bool:
        before = self._told
        count = self._lock.let_go()
        try:
            return world().wait(lambda: self._told > before, timeout)
        finally:
            self._lock.take_back(count)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        while not (found := predicate()):
            if not self.wait(timeout):
                return predicate()
        return found

    def notify_all(self) -> None:
        self._told += 1

    notify = notify_all

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Event:
    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or world().wait(self.is_set, timeout)


class InTurn:
    """In the place of a pool of threads: one after the other."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        return [function(value) for value in values]

    def submit(self, function: Callable[..., Any], *values: Any) -> Future[Any]:
        made = Future[Any]()
        try:
            made.set_result(function(*values))
        except Exception as cause:
            made.set_exception(cause)
        return made

    def shutdown(self, **_: object) -> None:
        pass


class OfProcess(dict):
    """In the place of a dictionary of a module: each simulated process has its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _own(self) -> dict:
        return world().process.memory.setdefault(self._name, {})

    def get(self, key, default=None):
        return self._own().get(key, default)

    def setdefault(self, key, default=None):
        return self._own().setdefault(key, default)

    def __setitem__(self, key, value) -> None:
        self._own()[key] = value


def remembered(name: str, function: Any) -> Callable[..., Any]:
    """In the place of a function that remembers its results (`lru_cache`): each process remembers its own."""

    def call(*args, **kwargs):
        known = world().process.memory.setdefault(name, {})
        key = (args, tuple(kwargs.items()))
        if key not in known:
            known[key] = function.__wrapped__(*args, **kwargs)
        return known[key]

    return call


def _times() -> SimpleNamespace:
    def now_us() -> int:
        return world().now_us + world().process.skew_us

    def since_us() -> int:
        return world().now_us

    return SimpleNamespace(
        **{k: v for k, v in vars(time).items() if not k.startswith("_")}
        | {
            "time": lambda: now_us() / 1e6,
            "time_ns": lambda: now_us() * 1000,
            "monotonic": lambda: since_us() / 1e6,
            "monotonic_ns": lambda: since_us() * 1000,
            "perf_counter": lambda: since_us() / 1e6,
            "perf_counter_ns": lambda: since_us() * 1000,
            "sleep": lambda seconds: world().sleep(seconds),
        }
    )


def _stand_ins() -> dict[str, tuple[object, object]]:
    """By name of a module: the real one, and what is seen in its place."""
    shared = {k: v for k, v in vars(threading).items() if not k.startswith("_")}
    locks = {"Lock": Lock, "RLock": lambda: Lock(reentrant=True), "Condition": Condition, "Event": Event}
    numbers = {k: getattr(world().random("numbers"), k) for k in ("uniform", "random", "randrange", "choice")}
    tokens = {"token_hex": lambda count=8: f"{world().random('tokens').getrandbits(8 * count):0{2 * count}x}"}
    return {
        "threading": (threading, SimpleNamespace(**shared | locks)),
        "time": (time, _times()),
        "random": (random, SimpleNamespace(**numbers)),
        "secrets": (secrets, SimpleNamespace(**tokens)),
    }


class _Os:
    """`os`, with the number of the simulated process."""

    def __init__(self, real: object) -> None:
        self._real = real

    def getpid(self) -> int:
        return world().process.pid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _NoLock:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _open_cached_properties() -> None:
    """Python 3.11 holds one lock for all objects of a class while it computes a cached property: simulated processes
    would share it.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("watersmeet."):
            for found in [v for v in vars(module).values() if isinstance(v, type)]:
                for value in vars(found).values():
                    if isinstance(value, functools.cached_property) and hasattr(value, "lock"):
                        value.lock = _NoLock()


@contextlib.contextmanager
def installed(simulated: World) -> Iterator[None]:
    """Inside, the product lives in that world."""
    global _world
    before, _world = _world, simulated
    _open_cached_properties()
    try:
        with contextlib.ExitStack() as patches:
            stand_ins = _stand_ins()
            for name, module in list(sys.modules.items()):
                if name.startswith("watersmeet.") and name not in _REAL:
                    for attribute, (real, instead) in stand_ins.items():
                        if vars(module).get(attribute) is real:
                            patches.enter_context(mock.patch.object(module, attribute, instead))
            for module, name, instead in (
                (databasefiles, "ThreadPoolExecutor", InTurn),
                (storage, "ThreadPoolExecutor", InTurn),
                (databasefiles, "_OF_PROCESS", OfProcess("requests")),
                (readers, "_HERE", OfProcess("holds")),
                (commits, "os", _Os(commits.os)),
                (commits, "socket", SimpleNamespace(gethostname=lambda: "simulated")),
                (files, "_counter", itertools.count()),
                (files, "_TOKEN", "simulated"),
                *(
                    (stages, n, remembered(n, getattr(stages, n)))
                    for n in ("_layout_of", "_segments_of", "_circuit_of")
                ),
            ):
                patches.enter_context(mock.patch.object(module, name, instead))
            yield
    finally:
        _world = before
