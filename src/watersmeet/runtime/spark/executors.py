"""Spark's executors as the driver knows them, and tasks that wish for one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from watersmeet.errors import error
from watersmeet.runtime.homes import Executor

#: Spark is asked so often at most. An executor that is gone meanwhile does no harm: Spark runs its tasks elsewhere.
_FRESH_S: Final = 1.0
_DRIVER: Final = "driver"


class Executors:
    """The executors of an application, as its driver knows them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: tuple[Executor, ...] = ()
        self._asked_s = -_FRESH_S

    def known(self) -> tuple[Executor, ...]:
        """Those that take tasks."""
        now = time.monotonic()
        if now - self._asked_s >= _FRESH_S:
            self._asked_s = now
            self._known = tuple(self._ask())
        return self._known

    def _ask(self) -> list[Executor]:
        listed = self._spark.sparkContext._jsc.sc().statusStore().executorList(True)
        found = []
        for i in range(listed.size()):
            one = listed.apply(i)
            if one.id() != _DRIVER and not one.isExcluded():
                found.append(Executor(one.id(), one.hostPort().rpartition(":")[0], one.totalCores()))
        return found


def pinned(frames: DataFrame, executors: Sequence[Executor]) -> DataFrame:
    """`frames` with a preferred executor for each partition, also for those behind a shuffle.

    Spark lets only an RDD say where its partitions are to be computed, and what reads a shuffle never does. So a layer
    is put around it that coalesces nothing: each of its partitions is one of those below, with a location.
    """
    session = frames.sparkSession
    jvm, gateway = session.sparkContext._jvm, session.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    below = frames._jdf.queryExecution().toRdd()
    number = below.getNumPartitions()
    nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    rdds = jvm.org.apache.spark.rdd
    layer = rdds.CoalescedRDD(below, number, nothing, jvm.scala.reflect.ClassTag.AnyRef())
    partitions = layer.partitions()  # the array itself: what is put into it counts
    if not number == len(partitions) == len(executors):
        raise error(
            "INTERNAL_ERROR", f"{len(executors)} executors are given for {number} partitions in {len(partitions)}"
        )
    places = {e.id: jvm.scala.Some(f"executor_{e.host}_{e.id}") for e in executors}
    for index, executor in enumerate(executors):
        parents = gateway.new_array(jvm.int, 1)
        parents[0] = index
        partitions[index] = rdds.CoalescedRDDPartition(index, below, parents, places[executor.id])
    rows = session._jsparkSession.internalCreateDataFrame(layer, frames._jdf.schema(), False)
    return DataFrame(rows, session)
