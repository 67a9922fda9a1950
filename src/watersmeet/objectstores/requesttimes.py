"""How long requests of this process for the files of databases take, and how many fail: for metrics."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Upper bounds of the classes of durations, in seconds.
BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: What these say is an answer: that a file is there, or that it is not.
_ANSWERS: Final = (FileNotFoundError, FileExistsError)


@dataclass
class Times:
    """counts: by class of `BOUNDS_S`, the last for what took longer. seconds: all together."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0
    failures: int = 0


_LOCK: Final = threading.Lock()
_TIMES: Final[dict[str, Times]] = {}


def timed(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Counts the calls of a function as requests of that kind. With all attempts that a call makes."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            began_s = time.perf_counter()
            failed = False
            try:
                return function(*arguments, **options)
            except _ANSWERS:
                raise
            except Exception:
                failed = True
                raise
            finally:
                _count(operation, time.perf_counter() - began_s, failed=failed)

        return call

    return decorated


def request_times() -> dict[str, Times]:
    """What was counted so far, by kind of request."""
    with _LOCK:
        return {name: Times([*t.counts], t.seconds, t.failures) for name, t in _TIMES.items()}


def _count(operation: str, seconds: float, *, failed: bool) -> None:
    with _LOCK:
        times = _TIMES.setdefault(operation, Times())
        times.counts[bisect_left(BOUNDS_S, seconds)] += 1
        times.seconds += seconds
        times.failures += failed
