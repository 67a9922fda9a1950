"""The contract between the session and an engine, and the parts of an open database that engines use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import StateDistribution
from watersmeet.connectors.base.sources import Feed
from watersmeet.errors import Error
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectPath
from watersmeet.runtime.status import Status
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.threads import Clock

#: The time after which a fill that a limit of rows per second has stopped is tried again.
LIMITED_S: Final = 0.05

#: A function that names the columns of an operator in messages. The operators in the mapping are shown as relations.
ColumnNames = Callable[[Circuit, Catalog, Mapping[str, Relation], str], Sequence[str]]


def positions(circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str) -> Sequence[str]:  # noqa: ARG001
    """The operator's own column names: c0, c1, …"""
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
    """An open database. log: opened as the database's writer. catalog: returns the newest catalog.

    clock: the clock of its epochs. column_names: names columns in messages. feed: the input of sources, in a fork.
    joins: the cache of `limits` with the joins of each view, for one circuit and catalog.
    """

    layout: Layout
    log: CommitLog
    segments: SegmentFiles
    catalog: Callable[[], Catalog]
    clock: Clock = field(default_factory=Clock)
    column_names: ColumnNames = positions
    feed: Feed | None = None
    joins: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def requests(self) -> SentRequests:
        """The requests of this process to an object store."""
        return SentRequests(self.layout)


class Engine(Protocol):
    """Keeps the views of one database up to date. Implemented by `InProcessEngine` and `spark.engine.SparkEngine`.

    The engine reads the catalog through the `Database`, so the session saves it before each call. Methods raise the
    error that stopped the engine: VIEW_FAILED, or an error of the store or a source. `start` may be called again after
    an error.
    """

    @property
    def circuit(self) -> Circuit | None:
        """The running circuit; after `start`, that of the newest epoch; None if there never was one. It is also
        available after an error.
        """
        ...

    @property
    def live_views(self) -> frozenset[str]:
        """Ids of the views whose content is complete as of the newest epoch.

        If a view of the catalog is missing, the process ended while the view was created: `install` continues its
        backfill.
        """
        ...

    @property
    def failure(self) -> Error | None:
        """The error that stopped the engine; None while it runs."""
        ...

    def start(self) -> None:
        """Continue from the newest commit. Call this first, before a compactor is started."""
        ...

    def install(
        self, circuit: Circuit, new_views: Sequence[str] = (), check: Callable[[], None] = lambda: None
    ) -> Mapping[str, str]:
        """Run `circuit` (of all views of the catalog) from now on. Returns when it runs and `new_views` are ready: for
        each relation, the part of its history that no longer exists.

        Call after each CREATE and DROP of a materialized view. new_views: those of its sinks that must become ready.
        Without any, a fill beside live views goes on afterwards (`fill`). Raises VIEW_FAILED if one can't be filled:
        drop it from the catalog and install the circuit without it. check: called between epochs of a fill; the fill
        rests when it raises an error.
        """
        ...

    def fill(self, check: Callable[[], None]) -> None:
        """Fill the views whose fill has begun. check: as in `install`."""
        ...

    def expect(self) -> None:
        """An epoch will soon be due. Returns at once."""
        ...

    def notify(self) -> None:
        """A transaction was committed, or a source has new rows. Returns at once."""
        ...

    def override_watermark(self, relation_id: str, time_us: int) -> None:
        """From the next epoch on, the relation's event time is at least `time_us` (microseconds since 1970, UTC),
        without a row.
        """
        ...

    def flush(self) -> Commit | None:
        """Return when views reflect the newest transaction and all complete records that the sources had at the call.

        Returns the epoch's commit; None if no view was ever created.
        """
        ...

    def status(self) -> Status:
        """The status as of the newest epoch, without tables and memory."""
        ...

    def sources(self) -> dict[str, dict[str, Any]]:
        """The reports of the sources by id, as in `status`."""
        ...

    def rebuild(self, circuit: Circuit) -> None:
        """Rebuild all state from the inputs for `circuit`, which has the sinks that are not being filled, and possibly
        another number of buckets. A fill ends without its views.
        """
        ...

    def rescale(self, circuit: Circuit, distributions: Mapping[str, Mapping[str, StateDistribution]]) -> None:
        """Run `circuit`, which has the same operators for another number of buckets, in one commit.

        distributions: as in `Rescale`. Views that are being filled are filled first.
        """
        ...

    def refresh(self, circuit: Circuit, made: Mapping[str, str], catalog: str = "") -> None:
        """Run `circuit`, in which views have the operators of hidden views, in one commit.

        made, catalog: as in `Refresh`. Raises DATABASE_DAMAGED if the content of a view can't be read.
        """
        ...

    def stop_views(self, stopped: Mapping[str, dict[str, Any]], *, reset_clock: bool = False) -> None:
        """Stop views, in one commit. stopped: as in `StopViews`. reset_clock: whether to restart the time of epochs at
        the machine's clock.
        """
        ...

    def replaced(self, commit: Callable[[], None]) -> None:
        """Call `commit` while no epoch is planned or runs, and continue from the commit that is then the newest."""
        ...

    def stop(self) -> None:
        """Stop at the end of an epoch. May be called again, and at any time."""
        ...
