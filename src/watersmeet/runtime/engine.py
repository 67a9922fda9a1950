"""What the session knows of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Placing
from watersmeet.errors import Error
from watersmeet.runtime.status import Status
from watersmeet.store.commits import Commit


class Engine(Protocol):
    """Keeps the views of one database up to date. There are two: `InProcessEngine` and `spark.SparkEngine`.

    The catalog is read through the `Database`, so the session saves it before it calls. Methods raise the error
    that made the engine stop: VIEW_FAILED, or what the store or a source raised. After an error `start` may be called
    again.
    """

    @property
    def circuit(self) -> Circuit | None:
        """The circuit that runs; after `start`, that of the newest epoch. None if there never was one.

        Told also when an error has made the engine stop.
        """
        ...

    @property
    def live_views(self) -> frozenset[str]:
        """Ids of the views whose content is complete, as of the newest epoch.

        A view in the catalog that is not among them was being created when the process ended: `install` it
        again, and its backfill goes on.
        """
        ...

    @property
    def failure(self) -> Error | None:
        """The error that made it stop, None while it can go on."""
        ...

    def start(self) -> None:
        """Takes up from the newest commit. Call before anything else, and before a compactor is started."""
        ...

    def install(self, circuit: Circuit, new_views: Sequence[str] = ()) -> Mapping[str, str]:
        """Runs `circuit` (of all views that the catalog has) from now on. Returns when all its views are ready: by
        relation of whose history they were filled, what of it is no longer there.

        Call after each CREATE and DROP of a materialised view. new_views: those among its sinks that must become ready
        (more may: see `live_views`). VIEW_FAILED if one can't be filled: then drop it from the catalog and install the
        circuit without it.
        """
        ...

    def notify(self) -> None:
        """A transaction was committed, or a source has new input. Returns at once."""
        ...

    def override_watermark(self, relation_id: str, time_us: int) -> None:
        """From the next epoch on the relation's event time is at least that (microseconds since 1970, UTC), without a
        row.
        """
        ...

    def flush(self) -> Commit | None:
        """Returns when the newest transaction and all input of the sources is reflected.

        Input: every complete record that was in the sources' files at the call. Gives the epoch's commit; None
        if no view was ever made.
        """
        ...

    def status(self) -> Status:
        """The status as of the newest epoch, without tables and memory."""
        ...

    def sources(self) -> dict[str, dict[str, Any]]:
        """By id, what the sources say of themselves, as in `status`."""
        ...

    def rebuild(self, circuit: Circuit) -> None:
        """Makes all state anew from the inputs, for `circuit`, which has the same sinks (and maybe other buckets)."""
        ...

    def rescale(self, circuit: Circuit, placings: Mapping[str, Mapping[str, Placing]]) -> None:
        """Runs `circuit` from now on, which has the same operators for another number of buckets; in one commit.

        placings: as in `Rescale`. Views that are being filled are filled first.
        """
        ...

    def refresh(self, circuit: Circuit, made: Mapping[str, str]) -> None:
        """Runs `circuit` from now on, in which stopped views have the operators of hidden views; in one commit.

        made: as in `Refresh`. DATABASE_DAMAGED if the content of a view can't be read.
        """
        ...

    def reset_clock(self, stopped: Mapping[str, dict[str, Any]]) -> None:
        """Lets the time of epochs begin again at the machine's clock, in one commit. stopped: as in `ResetClock`."""
        ...

    def stop(self) -> None:
        """Stops at the end of an epoch. May be called again, and at any time."""
        ...
