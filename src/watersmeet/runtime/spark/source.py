"""The streaming query of an engine, its source, and the notifier that wakes the process of the source.

The offset of the source is the number of the newest planned epoch; the source has no data. Spark loads this module into
a process next to the driver, so it imports as little as possible.
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


class Notifier:
    """The sender of notifications between processes: a named pipe in a temporary folder, until `remove`."""

    def __init__(self) -> None:
        self._folder = make_folder("notifier")
        self.path = os.path.join(self._folder, "notifier")
        os.mkfifo(self.path, 0o600)

    def notify(self) -> None:
        """Ends the current wait of a listener, or the next one."""
        with contextlib.suppress(OSError):  # there is no listener, or the pipe is full of notifications
            pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b"!")
            finally:
                os.close(pipe)

    def remove(self) -> None:
        """Deletes the pipe. Listeners get no further notifications."""
        remove_folder(self._folder)


class Listener:
    """The receiver of notifications."""

    def __init__(self, path: str) -> None:
        # Also opened for writing: otherwise the pipe would end as soon as the last writer closes it.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, seconds: float) -> None:
        """Waits for a notification since the last call, at most `seconds`."""
        if select.select([self._pipe], [], [], max(0.0, seconds))[0]:
            os.read(self._pipe, 1 << 16)

    def close(self) -> None:
        os.close(self._pipe)


NAME: Final = "watersmeet"

#: The maximum wait in `latestOffset`. Waiting is cheaper than more calls by Spark, but delays a stop.
_WAIT_S: Final = 0.25


class EpochReader(DataSourceStreamReader):  # type: ignore[misc]
    """Finds planned epochs by the names of their files: one directory listing per poll, whatever the history."""

    def __init__(self, directory: str, first: int, notifier: str) -> None:
        self._directory = directory
        self._notifier = notifier
        self._listener: Listener | None = None
        self._first = first
        self._last = first

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"epoch": self._first}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._listener is None:  # the process that plans, not those that received this reader
            self._listener = Listener(self._notifier)
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
    """Options: `directory` (intents of the database), `first` (the last committed epoch), `notifier` (the path of the
    notifier of planned epochs).
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "epoch long"

    def streamReader(self, schema: Any) -> EpochReader:  # noqa: ARG002, N802 - Spark's signature
        # This runs in the source's own process. Ctrl-C in a terminal also reaches this process, but is only meant for
        # the driver.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return EpochReader(self.options["directory"], int(self.options["first"]), self.options["notifier"])


#: The number of times that a query is started again after its Python process started too late.
ATTEMPTS: Final = 4

#: Spark's error for a planning process that did not connect within ten seconds, a limit that can't be configured: on a
#: busy machine the imports take longer.
_LATE: Final = "failed to connect back"

#: Spark's own logs of a stream's progress took 150 ms of each micro-batch, and nobody ever reads them.
_OPTIONS: Final = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "600000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}

_logger = logging.getLogger(__name__)


def register_source(session: SparkSession) -> None:
    """Register the source of epochs in the session.

    Spark looks for an existing source with this name in the active session of this thread, which may be an earlier one
    (createDataFrame activates its session). So meanwhile the new session is active, which has no such source.
    """
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        session.dataSource.register(EpochSource)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def start_query(
    session: SparkSession, layout: Layout, first: int, notifier: str, run: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Starts the query, which calls `run` when there are intents above `first`.

    notifier: its path. Tries again if a Python process started too late.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return _started(session, layout, first, notifier, run)
        except Exception as cause:
            if not _missed_callback(cause):
                raise
            _logger.warning("a Python process of Spark started too late, attempt %d of %d", attempt, ATTEMPTS)
    return _started(session, layout, first, notifier, run)


def _missed_callback(cause: object) -> bool:
    """True if a query failed because its Python process started too late: another start may succeed."""
    return _LATE in str(cause)


def _started(
    session: SparkSession, layout: Layout, first: int, notifier: str, run: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    stream = session.readStream.format(NAME).option("directory", str(layout.intents)).option("first", str(first))
    stream = stream.option("notifier", notifier)
    writer = stream.load().writeStream.foreachBatch(run).options(**_OPTIONS)
    checkpoint = layout.checkpoint / uuid.uuid4().hex
    return writer.option("checkpointLocation", checkpoint.as_uri()).queryName(f"watersmeet {layout.root}").start()
