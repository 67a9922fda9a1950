"""The streaming query of an engine, its source, and the bell that wakes it.

The streaming source: its offset is the number of the newest planned epoch. It carries no data.

Loaded into a process of its own beside the driver, so it imports as little as possible.

The streaming query that carries the numbers of epochs.

A bell: one process of a machine wakes another one, which waits without asking again and again.

Loaded into the process of the streaming source, so it imports as little as possible.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StreamingQuery

from watersmeet.store.layout import Layout
from watersmeet.system.process import make_folder, remove_folder


class Bell:
    """The end that rings: a named pipe in a folder of its own, until `remove`."""

    def __init__(self) -> None:
        self._folder = make_folder("bell")
        self.path = os.path.join(self._folder, "bell")
        os.mkfifo(self.path, 0o600)

    def ring(self) -> None:
        """Wakes who waits, or who waits next; nobody may have come yet."""
        with contextlib.suppress(OSError):  # nobody is there, or it rang so often that the pipe is full
            pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b"!")
            finally:
                os.close(pipe)

    def remove(self) -> None:
        """Deletes it. Who still waits is not woken any more."""
        remove_folder(self._folder)


class Listener:
    """The end that waits."""

    def __init__(self, path: str) -> None:
        # For writing, too: a pipe whose last writer has gone would be at its end for ever.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, seconds: float) -> None:
        """Until it rings, or has rung since the last call; at most so long."""
        if select.select([self._pipe], [], [], max(0.0, seconds))[0]:
            os.read(self._pipe, 1 << 16)

    def close(self) -> None:
        os.close(self._pipe)


NAME: Final = "watersmeet"

#: How long `latestOffset` waits for news: asking costs Spark far more than waiting here. Bounds the time to stop.
_WAIT_S: Final = 0.25


class EpochReader(DataSourceStreamReader):  # type: ignore[misc]
    """Finds planned epochs by the names of their files: one look per poll, whatever the history."""

    def __init__(self, directory: str, first: int, bell: str) -> None:
        self._directory = directory
        self._bell = bell
        self._listener: Listener | None = None
        self._first = first
        self._last = first

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"epoch": self._first}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._listener is None:  # the process that plans, not those that were given this reader
            self._listener = Listener(self._bell)
        deadline = time.monotonic() + _WAIT_S
        before = self._last
        while True:
            while self._is_planned(self._last + 1):
                self._last += 1
            if self._last > before or time.monotonic() >= deadline:
                return {"epoch": self._last}
            self._listener.wait(deadline - time.monotonic())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002 - Spark's signature
        return [InputPartition(end["epoch"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield (partition.value,)

    def _is_planned(self, epoch: int) -> bool:
        try:
            os.stat(os.path.join(self._directory, f"{epoch:012d}.json"))
        except FileNotFoundError:
            return False
        return True


class EpochSource(DataSource):  # type: ignore[misc]
    """Options: `directory` (intents of the database), `first` (the last epoch that is committed already), `bell` (the
    path of the bell that rings when an epoch is planned).
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "epoch long"

    def streamReader(self, schema: Any) -> EpochReader:  # noqa: ARG002, N802 - Spark's signature
        # This runs in the source's own process. Ctrl-C in a terminal reaches it, too, but is meant for the driver
        # alone.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return EpochReader(self.options["directory"], int(self.options["first"]), self.options["bell"])


#: So often a query is started whose Python process came too late.
ATTEMPTS: Final = 4

#: What Spark says of a process for planning that was not there after ten seconds, which can't be set: a busy machine
#: takes longer to import what it needs.
_LATE: Final = "failed to connect back"

#: Spark's own logs of a stream's progress took 150 ms of each micro-batch, and nobody ever reads them.
_OPTIONS: Final = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "600000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}

_logger = logging.getLogger(__name__)


def start_query(
    session: SparkSession, layout: Layout, first: int, bell: str, run: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Starts the query, which calls `run` when there are intents above `first`.

    bell: the path of the bell that rings then. Tries again if a process of Python came too late.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return _started(session, layout, first, bell, run)
        except Exception as cause:
            if not _came_late(cause):
                raise
            _logger.warning("a Python process of Spark started too late, attempt %d of %d", attempt, ATTEMPTS)
    return _started(session, layout, first, bell, run)


def _came_late(cause: object) -> bool:
    """True for the failure of a query whose Python process was not there in time: another start may do."""
    return _LATE in str(cause)


def _started(
    session: SparkSession, layout: Layout, first: int, bell: str, run: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    stream = session.readStream.format(NAME).option("directory", str(layout.intents)).option("first", str(first))
    stream = stream.option("bell", bell)
    writer = stream.load().writeStream.foreachBatch(run).options(**_OPTIONS)
    checkpoint = layout.checkpoint / uuid.uuid4().hex
    return writer.option("checkpointLocation", checkpoint.as_uri()).queryName(f"watersmeet {layout.root}").start()
