"""The parts of an open database that the runtime uses, and its clock: the time of epochs, now() and PROCTIME()."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.errors import error
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectPath
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.segmentfiles import SegmentFiles

TICK_US: Final = 1_000_000


class Clock:
    """The time in microseconds since 1970 (UTC): that of the machine, until a test sets it. Thread-safe.

    tick_us: the shortest time between epochs that only let time pass.
    """

    def __init__(self, tick_us: int = TICK_US) -> None:
        self.tick_us = tick_us
        self._set_us: int | None = None

    def now_us(self) -> int:
        """The time now."""
        return time.time_ns() // 1000 if self._set_us is None else self._set_us

    def wait(self, condition: threading.Condition, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait on the condition, which the caller holds, until `is_over` or the time has passed."""
        condition.wait_for(is_over, seconds)

    def set(self, time_us: int) -> None:
        """The time is `time_us` until the next call. INVALID_PARAMETER if that would set it back."""
        if self._set_us is not None and time_us < self._set_us:
            raise error("INVALID_PARAMETER", "a clock can't be set back")
        self._set_us = time_us


#: Names the columns of an operator in messages; the operators in the mapping are shown as relations.
ColumnNames = Callable[[Circuit, Catalog, Mapping[str, Relation], str], Sequence[str]]


def positions(circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str) -> Sequence[str]:  # noqa: ARG001
    """The operator's own names of columns: c0, c1, …"""
    return [f.name for f in circuit.by_id[operator_id].schema]


class SentRequests:
    """The requests of this process to an object store."""

    def __init__(self, layout: Layout) -> None:
        self._space = layout.root.space if isinstance(layout.root, ObjectPath) else ""
        self._counted = databasefiles.requests(self._space)

    def fresh(self) -> int:
        """The number of requests for the database's files since the last call; 0 for a directory."""
        before, self._counted = self._counted, databasefiles.requests(self._space)
        return self._counted - before


@dataclass(frozen=True)
class Database:
    """An open database. log: opened as its writer. catalog: returns the newest catalog.

    clock: the time of its epochs. column_names: names of columns in messages. joins: a cache of `limits`: the joins of
    each view, for one circuit and catalog.
    """

    layout: Layout
    log: CommitLog
    segments: SegmentFiles
    catalog: Callable[[], Catalog]
    clock: Clock = field(default_factory=Clock)
    column_names: ColumnNames = positions
    joins: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def requests(self) -> SentRequests:
        """The requests of this process to an object store."""
        return SentRequests(self.layout)
