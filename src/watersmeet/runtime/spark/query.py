"""The streaming query that carries the numbers of epochs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from watersmeet.runtime.spark.source import NAME
from watersmeet.store.layout import Layout

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
