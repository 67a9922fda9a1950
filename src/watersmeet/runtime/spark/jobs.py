"""Epochs as Spark jobs, or in tasks that stay from epoch to epoch.

Spark's executors as the driver knows them, and tasks that wish for one of them.

Making the next thing while the one before it is in use.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark.sql import DataFrame, Row, SparkSession

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill
from watersmeet.errors import CONDITIONS, Error, error, error_from_json
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.runs.frames import Frame
from watersmeet.runtime.committer import job_of
from watersmeet.runtime.database import Database
from watersmeet.runtime.failures import TaskFailedError, view_failed
from watersmeet.runtime.homes import Executor, Homes, Returns
from watersmeet.runtime.intents import Intent
from watersmeet.runtime.receipts import RECEIPT, Receipt
from watersmeet.runtime.spark.session import is_local
from watersmeet.runtime.spark.shipping import in_buckets
from watersmeet.runtime.spark.standing import StandingTask
from watersmeet.runtime.spark.worker import (
    ERROR,
    FOLDER,
    FRAMES,
    JOB,
    BucketStage,
    Sent,
    empty,
    pack_job,
    picked_up,
    read,
    run_all,
)
from watersmeet.runtime.workers import Workers, workers_elsewhere, workers_here
from watersmeet.system.process import make_folder, remove_folder

K = TypeVar("K")
V = TypeVar("V")


class Ahead(Generic[K, V]):
    """Makes things of a key, each for one use, one of them ahead of its use, in a thread of its own.

    make: is called there, too. For one thread; `close` must be called.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "watersmeet-ahead")
        self._next: tuple[K, Future[V]] | None = None

    def take(self, key: K) -> V:
        """One for `key`, and begins to make another one: whoever takes one mostly goes on with the same key.

        Raises what `make` raises; what failed ahead is tried again.
        """
        ready = self._next
        is_good = ready is not None and ready[0] == key and ready[1].exception() is None
        found = ready[1].result() if ready is not None and is_good else self._make(key)
        self._next = key, self._thread.submit(self._make, key)
        return found

    def close(self) -> None:
        """Makes no more, and waits for the one that is being made."""
        self._next = None
        self._thread.shutdown(cancel_futures=True)


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


#: Epochs up to this size, for each shuffle that is saved, run as one task, all buckets in turn: a shuffle and the tasks
#: behind it cost about 0.2 seconds, more than these rows do.
SMALL_ROWS: Final = 20_000

SMALL_BYTES: Final = 4 << 20

#: … unless the last such epoch took longer than this for each stage: then its work is not as small as its input.
_STAGE_S: Final = 0.2

_LONGEST_PAUSE: Final = 16
_ERROR: Final = re.compile(r"error\[(\w+)\] \w{5}: (.+)")


class _Shape(NamedTuple):
    """What the job of an epoch with a shuffle depends on. tasks: of stage 0."""

    tasks: int
    buckets: int
    last_stage: int


class _Placed(NamedTuple):
    """The same, and where each bucket is to run; nowhere special if there are no homes."""

    shape: _Shape
    homes: tuple[Executor, ...] = ()


class EpochRunner:
    """Runs epochs of one database. For one thread at a time."""

    def __init__(self, spark: SparkSession, db: Database) -> None:
        self._spark = spark
        self._db = db
        self._single: tuple[Executor | None, DataFrame] | None = None
        self._last: tuple[_Shape, DataFrame] | None = None
        """What the last epoch with a shuffle was made of."""
        self._executors = None if is_local(spark) else Executors(spark)
        self._homes = Homes()
        self._ahead = Ahead(self._made)
        """Jobs of epochs whose buckets have homes: each serves once, and takes 0.1 s and more to make."""
        self._standing = StandingTask(spark, self._single_task)
        self._folder = make_folder("frames") if is_local(spark) else None
        """Where frames wait in files."""
        self._large_until = 0
        """Epochs up to this one are shuffled, however small."""
        self._pause = 1
        """For how many epochs, if one task was slow again: the first time it may have been the start of Python."""

    @property
    def workers(self) -> Workers:
        """Who runs the tasks, as far as that is known now."""
        if self._executors is None:
            return workers_here(self._cores)
        return workers_elsewhere(sum(e.cores for e in self._executors.known()) or self._cores)

    @cached_property
    def _cores(self) -> int:
        """What Spark says when it is asked: once, and not for each epoch."""
        return int(self._spark.sparkContext.defaultParallelism)

    def run(
        self, circuit: Circuit, intent: Intent, failures: Mapping[str, Error] = MappingProxyType({})
    ) -> tuple[list[Receipt], Returns]:
        """The receipts of all tasks, and how many of these came back. Raises the error of the first that failed for
        good.

        failures: the operators that failed in an earlier attempt, which don't run.
        """
        if not intent.has_work:
            return [], Returns()
        single = self._is_single(circuit, intent)
        executors = () if self._executors is None else self._executors.known()
        made = job_of(self._db, circuit, intent, self.workers, failures)
        job = pack_job(replace(made, is_sent=not single and self._folder is None))
        began = time.monotonic()
        try:
            if single and self._standing.can_run:
                frames = self._standing.run(job.encode())
            else:
                self._standing.hang_up()  # its slot is of use now
                if single:
                    work = self._single_task(self._homes.of_all(executors))
                else:
                    self._homes = self._homes.settled(circuit.buckets, executors)
                    work = self._stages(circuit, intent)
                frames = self._run_job(job, work)
        except Exception as cause:
            raise _failure(cause) from cause
        if single and circuit.buckets > 1:
            slow = time.monotonic() - began > _STAGE_S * (circuit.last_stage + 1)
            self._large_until = intent.epoch + self._pause if slow else 0
            self._pause = min(4 * self._pause, _LONGEST_PAUSE) if slow else 1
        for channel, body in frames:
            if channel == ERROR:
                raise _described(json.loads(body))
        receipts = [Receipt.from_bytes(body) for channel, body in frames if channel == RECEIPT]
        # Stage 0 has no state, unless it is all there is.
        ran = {(r.stage, r.bucket): r.executor for r in receipts if r.executor and (r.stage or circuit.buckets == 1)}
        returns = self._homes.returns(ran)
        self._homes = self._homes.after(ran, executors, apart=not single)
        return receipts, returns

    def close(self) -> None:
        """Ends the task that stays."""
        self._standing.close()
        self._ahead.close()
        if self._folder is not None:
            remove_folder(self._folder)

    def _run_job(self, job: str, frames: DataFrame) -> list[tuple[str, bytes]]:
        """The channels and bodies of the frames that a job of Spark gives."""
        context = self._spark.sparkContext
        context.setLocalProperty(JOB, job)
        context.setLocalProperty(FOLDER, None if self._folder is None else str(self._folder))
        try:
            return [(f.channel, bytes(f.body)) for f in picked_up(_sent(row) for row in frames.collect())]
        finally:
            context.setLocalProperty(JOB, None)
            context.setLocalProperty(FOLDER, None)
            if self._folder is not None:
                empty(self._folder)

    def warm_up(self) -> None:
        """Lets Spark start its Python processes, so that the first epoch need not wait for them."""
        self._single_task().collect()

    def _is_single(self, circuit: Circuit, intent: Intent) -> bool:
        if circuit.buckets == 1:
            return True
        shuffles = max(1, circuit.last_stage)
        replays = isinstance(intent.mode, Fill) and intent.mode.parts > 1
        small = intent.rows <= SMALL_ROWS * shuffles and intent.bytes <= SMALL_BYTES * shuffles and not replays
        return small and intent.epoch > self._large_until

    def _single_task(self, executor: Executor | None = None) -> DataFrame:
        # Planned once: planning and pickling would take as long as the rest of a small epoch (30 to 50 ms).
        if self._single is None or self._single[0] != executor:
            task = self._spark.range(0, 1, 1, 1)
            if executor is not None:
                task = pinned(task, [executor])
            self._single = executor, task.mapInArrow(run_all, FRAMES)
        return self._single[1]

    def _stages(self, circuit: Circuit, intent: Intent) -> DataFrame:
        shape = _Shape(max(1, len(intent.tasks)), circuit.buckets, circuit.last_stage)
        if self._homes.of:
            return self._ahead.take(_Placed(shape, self._homes.of))
        # Made once for each shape: that takes longer (50 to 100 ms) than many an epoch.
        if self._last is None or self._last[0] != shape:
            self._last = shape, self._made(_Placed(shape))
        # Never run itself: the second time Spark would take the shuffled frames of the first time.
        return self._last[1].select("*")

    def _made(self, placed: _Placed) -> DataFrame:
        shape, homes = placed
        frames = self._spark.range(0, shape.tasks, 1, shape.tasks).mapInArrow(read, FRAMES)
        for stage in range(1, shape.last_stage + 1):
            frames = in_buckets(frames, shape.buckets)
            if homes:
                frames = pinned(frames, homes)
            frames = frames.mapInArrow(BucketStage(stage), FRAMES)
        return frames


def _sent(row: Row) -> Sent:
    return Sent(Frame(row.bucket, row.channel, row.seq, row.body), row.file, row.offset, row.length)


def _described(value: dict[str, Any]) -> Exception:
    """The error that a task described."""
    notes = "; ".join(value["notes"])
    found: Exception
    if value["condition"] in CONDITIONS:
        detail = value["detail"] or (None if value["operators"] else notes or None)
        found = error(value["condition"], value["message"], detail=detail, hint=value["hint"])
        found.source = value.get("source")
    else:
        found = TaskFailedError(value["message"], notes, value["trace"], error_from_json(value["failed"]))
    if value["operators"]:
        mark_failing(found, *value["operators"])
    return found


def _failure(cause: Exception) -> Error:
    """The error for a job that Spark gave up."""
    text = str(cause)
    found = _ERROR.search(text)
    if found and found.group(1) in CONDITIONS:
        return view_failed(error(found.group(1), found.group(2).strip()))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next(
        (line for line in reversed(lines) if re.match(r"[A-Za-z_.]*(Error|Exception)\b", line)),
        lines[0] if lines else "",
    )
    return error(
        "VIEW_FAILED",
        f"the views can't go on: {reason[:300]}",
        detail="Spark gave up the epoch after several attempts. Nothing of it was kept.",
        hint="The content is as of the epoch before. Open the database again to try once more.",
    )
