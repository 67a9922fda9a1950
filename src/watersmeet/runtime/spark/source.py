"""The streaming source: its offset is the number of the newest planned epoch. It carries no data.

Loaded into a process of its own beside the driver, so it imports as little as possible.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from watersmeet.runtime.spark.bell import Listener

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
