"""The tasks of an epoch on Spark, on their preferred executors: as jobs, or on the driver's machine in standing tasks
(`standing`). Until the first of these has started, the driver runs small epochs.

Task affinity: an executor has in memory the state of the buckets that it ran. State is in files that any executor can
read, so affinity is only a preference, and losing it does no harm.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark.sql import DataFrame, Row, SparkSession

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Live
from watersmeet.errors import CONDITIONS, Error, error, error_from_json
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.runs.frames import Frame
from watersmeet.runtime.committer import Locality, job_of
from watersmeet.runtime.engine import Database
from watersmeet.runtime.failures import TaskFailedError, view_failed
from watersmeet.runtime.spark.session import is_local
from watersmeet.runtime.spark.shipping import in_buckets
from watersmeet.runtime.spark.standing import StandingTasks, run_stages
from watersmeet.runtime.spark.worker import (
    ERROR,
    FOLDER,
    FRAMES,
    JOB,
    BucketStage,
    Sent,
    Work,
    empty,
    is_transient,
    pack_job,
    picked_up,
    read,
    run_all,
)
from watersmeet.runtime.stages import forget_segments
from watersmeet.runtime.taskcontract import RECEIPT, Intent, Receipt
from watersmeet.runtime.tasks import run_here
from watersmeet.runtime.workers import Workers, workers_elsewhere, workers_here
from watersmeet.system.process import make_folder, remove_folder

#: The maximum number of buckets (or the part of all) that move in one epoch, because a moved bucket starts with a cold
#: cache.
_MOVES: Final = 2

_MOVED_PART: Final = 8

#: A stage and a bucket.
Step = tuple[int, int]


@dataclass(frozen=True)
class Executor:
    """An executor of Spark. id: Spark's id, which an application never reuses. cores: the number of tasks that it runs
    at a time.
    """

    id: str
    host: str
    cores: int = 1


@dataclass(frozen=True)
class TaskAffinity:
    """The preferred executors of all buckets, in order; empty before the first epoch with a task for each bucket.

    last: for each step, the id of the executor that ran it last, in a separate task or together with others.
    """

    of: tuple[Executor, ...] = ()
    last: Mapping[Step, str] = field(default_factory=dict)

    def rebalanced(self, buckets: int, executors: Collection[Executor]) -> TaskAffinity:
        """The affinity for an epoch with that many buckets on these executors.

        Law: every preferred executor is always one of `executors`; without executors there is none. A bucket whose
        executor is lost gets another one at once, on the same machine if that is equally good. Only a few of the other
        buckets move, and only to an executor that, with the bucket, has less load than their current one.
        """
        there = {e.id: e for e in sorted(executors, key=lambda e: e.id)}
        if not there:
            return replace(self, of=())
        before = self.of if len(self.of) == buckets else _resized(self.of, buckets)
        preferred: list[Executor | None] = [there.get(e.id) for e in before] if before else [None] * buckets
        load = Counter(e.id for e in preferred if e is not None)
        for bucket, executor in enumerate(preferred):
            if executor is None:
                host = before[bucket].host if before else None
                best = min(there.values(), key=lambda e: (_load(e, load, 1), e.host != host))
                preferred[bucket] = best
                load[best.id] += 1
        found = [e for e in preferred if e is not None]
        for _ in range(max(_MOVES, buckets // _MOVED_PART)):
            fullest = max(there.values(), key=lambda e: _load(e, load))
            emptiest = min(there.values(), key=lambda e: _load(e, load, 1))
            if _load(emptiest, load, 1) >= _load(fullest, load):
                break
            found[found.index(fullest)] = emptiest
            load[fullest.id] -= 1
            load[emptiest.id] += 1
        return replace(self, of=tuple(found))

    def of_all(self, executors: Collection[Executor]) -> Executor | None:
        """The executor for an epoch in one task: the one on which most steps ran last. None if that executor is not
        running.
        """
        there = {e.id: e for e in executors}
        ran = Counter(i for i in self.last.values() if i in there)
        return there[min(ran, key=lambda i: (-ran[i], i))] if ran else None

    def after(self, ran: Mapping[Step, str], executors: Collection[Executor], *, apart: bool) -> TaskAffinity:
        """The affinity after an epoch. ran: the id of the executor that ran each step. apart: whether each step was a
        separate task.

        An executor that ran a bucket in a separate task becomes the preferred one, because the former one was busy.
        """
        there = {e.id: e for e in executors}
        preferred = list(self.of)
        for (_, bucket), executor in sorted(ran.items()):
            if apart and bucket < len(preferred) and executor in there:
                preferred[bucket] = there[executor]
        return TaskAffinity(tuple(preferred), {**self.last, **ran})

    def locality(self, ran: Mapping[Step, str]) -> Locality:
        """The number of steps that ran on the same executor as last time, not counting steps without an earlier run."""
        same = [self.last[step] == executor for step, executor in ran.items() if step in self.last]
        return Locality(sum(same), len(same) - sum(same))


def _load(executor: Executor, load: Mapping[str, int], more: int = 0) -> float:
    """The buckets of each core, with `more` additional ones."""
    return (load.get(executor.id, 0) + more) / max(1, executor.cores)


def _resized(executors: Sequence[Executor], buckets: int) -> Sequence[Executor]:
    """The preferred executors for another number of buckets. Each new bucket gets that of the old bucket with the same
    hashes.
    """
    return [executors[bucket * len(executors) // buckets] for bucket in range(buckets)] if executors else ()


K = TypeVar("K")
V = TypeVar("V")


class Ahead(Generic[K, V]):
    """Creates objects for a key, each for one use; the next one is created in advance in another thread.

    make: also called in that thread. For one thread; `close` must be called.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "watersmeet-ahead")
        self._next: tuple[K, Future[V]] | None = None

    def take(self, key: K) -> V:
        """An object for `key`. Starts to create the next one, because most calls repeat the key.

        Raises the errors of `make`; after a failure in advance, tries again.
        """
        ready = self._next
        is_good = ready is not None and ready[0] == key and ready[1].exception() is None
        found = ready[1].result() if ready is not None and is_good else self._make(key)
        self._next = key, self._thread.submit(self._make, key)
        return found

    def close(self) -> None:
        """Stop after the object that is being created."""
        self._next = None
        self._thread.shutdown(cancel_futures=True)


#: The minimum time between requests to Spark. A lost executor does no harm, because Spark runs its tasks elsewhere.
_FRESH_S: Final = 1.0

_DRIVER: Final = "driver"


class Executors:
    """The executors that the driver of an application knows."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: tuple[Executor, ...] = ()
        self._asked_s = -_FRESH_S

    def known(self) -> tuple[Executor, ...]:
        """The executors that run tasks."""
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
    """`frames` with a preferred executor for each partition, even after a shuffle.

    In Spark only RDDs have preferred locations, and an RDD that reads a shuffle has none. So this adds an RDD that
    coalesces nothing: each of its partitions is a parent partition with a location.
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
    partitions = layer.partitions()  # the array itself, so that its changes take effect
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


#: The size, for each saved shuffle, up to which an epoch runs as one task, bucket after bucket. A shuffle and its tasks
#: take about 0.2 seconds, longer than these rows.
SMALL_ROWS: Final = 20_000

SMALL_BYTES: Final = 4 << 20

#: … unless the last such epoch took longer than this for each stage: then its work is larger than its input.
_STAGE_S: Final = 0.2

_LONGEST_PAUSE: Final = 16

#: Spark's condition of a job that its user or another program has cancelled.
_CANCELLED: Final = "SPARK_JOB_CANCELLED"
_ERROR: Final = re.compile(r"error\[(\w+)\] \w{5}: (.+)")


class _Shape(NamedTuple):
    """The parameters of the job of an epoch with a shuffle. tasks: the number of tasks of stage 0."""

    tasks: int
    buckets: int
    last_stage: int


class _Placed(NamedTuple):
    """The same with the executors of all buckets, or none without affinity."""

    shape: _Shape
    executors: tuple[Executor, ...] = ()


class EpochRunner:
    """Runs epochs of one database. For one thread at a time."""

    def __init__(self, spark: SparkSession, db: Database) -> None:
        self._spark = spark
        self._db = db
        self._single: tuple[Executor | None, DataFrame] | None = None
        self._last: tuple[_Shape, DataFrame] | None = None
        """The job of the last epoch with a shuffle."""
        self._executors = None if is_local(spark) else Executors(spark)
        self._affinity = TaskAffinity()
        self._ahead = Ahead(self._made)
        """Jobs of epochs whose buckets have executors. Each is used once, and takes 0.1 s or more to create."""
        self._standing = StandingTasks(spark, self._whole_tasks)
        self._ran_here = False
        """Whether this process ran the newest epochs."""
        self._folder = make_folder("frames") if is_local(spark) else None
        """The folder of frames in files."""
        self._large_until = 0
        """The epoch up to which epochs are shuffled, even small ones."""
        self._pause = 1
        """The number of epochs, after a slow one-task epoch, that are shuffled: few at first, because the start of
        Python may be the cause.
        """

    @property
    def workers(self) -> Workers:
        """The workers that run tasks."""
        if self._executors is None:
            return workers_here(self._cores)
        return workers_elsewhere(sum(e.cores for e in self._executors.known()) or self._cores)

    @cached_property
    def _cores(self) -> int:
        """Spark's default parallelism, asked once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def run(
        self, circuit: Circuit, intent: Intent, failures: Mapping[str, Error] = MappingProxyType({})
    ) -> tuple[list[Receipt], Locality]:
        """The receipts of all tasks, and their locality. Raises the error of the first task that failed permanently.

        failures: the operators that failed in an earlier attempt, which don't run.
        """
        if not intent.has_work:
            return [], Locality()
        made = job_of(self._db, circuit, intent, self.workers, failures)
        if self._runs_here(circuit, intent):
            self._ran_here = True
            try:
                return run_here(made), Locality()
            except Exception as cause:
                if not is_transient(cause):
                    raise
        elif self._ran_here:
            self._ran_here = False
            forget_segments()
        single = self._is_single(circuit, intent)
        executors = () if self._executors is None else self._executors.known()
        job = pack_job(replace(made, is_sent=not single and self._folder is None))
        began = time.monotonic()
        try:
            slots = self._standing.slots
            if single and slots:
                frames = _bodies(self._standing.run([Work(job.encode())])[0])
            elif slots > 1 and self._folder is not None:
                tasks = max(1, len(intent.tasks))
                sent = run_stages(self._standing, job.encode(), tasks, circuit.last_stage, str(self._folder), slots)
                frames = _bodies(sent)
            else:
                self._standing.hang_up()  # the slots of the standing tasks are needed now
                if single:
                    work = self._single_task(self._affinity.of_all(executors))
                else:
                    self._affinity = self._affinity.rebalanced(circuit.buckets, executors)
                    work = self._stages(circuit, intent)
                frames = self._run_job(job, work)
        except Exception as cause:
            raise _failure(cause) from cause
        finally:
            if self._folder is not None:
                empty(self._folder)
        if single and circuit.buckets > 1:
            slow = time.monotonic() - began > _STAGE_S * (circuit.last_stage + 1)
            self._large_until = intent.epoch + self._pause if slow else 0
            self._pause = min(4 * self._pause, _LONGEST_PAUSE) if slow else 1
        for channel, body in frames:
            if channel == ERROR:
                raise _described(json.loads(body))
        receipts = [Receipt.from_bytes(body) for channel, body in frames if channel == RECEIPT]
        # Stage 0 has no state, unless it is the only one.
        ran = {(r.stage, r.bucket): r.executor for r in receipts if r.executor and (r.stage or circuit.buckets == 1)}
        returns = self._affinity.locality(ran)
        self._affinity = self._affinity.after(ran, executors, apart=not single)
        return receipts, returns

    def close(self) -> None:
        """End the standing tasks."""
        self._standing.close()
        self._ahead.close()
        if self._folder is not None:
            remove_folder(self._folder)

    def _run_job(self, job: str, frames: DataFrame) -> list[tuple[str, bytes]]:
        """The channels and bodies of the frames that a job of Spark returns."""
        self._standing.ask_others_for_room()
        context = self._spark.sparkContext
        context.setLocalProperty(JOB, job)
        context.setLocalProperty(FOLDER, None if self._folder is None else str(self._folder))
        try:
            return _bodies(_sent(row) for row in frames.collect())
        finally:
            context.setLocalProperty(JOB, None)
            context.setLocalProperty(FOLDER, None)

    def warm_up(self) -> None:
        """Let Spark start its Python processes, without waiting for them, so that the first epoch finds them."""
        if self._folder is not None:
            self._standing.begin()
        else:
            # If this fails, the first epoch reports the error.
            warm_up = self._single_task().collect
            threading.Thread(target=_try, args=(warm_up,), name="watersmeet-warm-up", daemon=True).start()

    def expect(self) -> None:
        """Let the tasks of the next epoch start. From any thread. If this fails, the epoch reports the error."""
        if self._folder is not None:
            _try(self._standing.begin)

    def _runs_here(self, circuit: Circuit, intent: Intent) -> bool:
        """Whether an epoch runs in the driver: it is small, and Spark's first worker on this machine still starts."""
        can_run = self._folder is not None and not self.workers.are_small and type(intent.mode) in (Live, Fill)
        return can_run and _is_small(circuit, intent) and self._standing.are_starting

    def _is_single(self, circuit: Circuit, intent: Intent) -> bool:
        return circuit.buckets == 1 or (_is_small(circuit, intent) and intent.epoch > self._large_until)

    def _single_task(self, executor: Executor | None = None) -> DataFrame:
        # Planned once, because planning and pickling would take as long as the rest of a small epoch (30 to 50 ms).
        if self._single is None or self._single[0] != executor:
            task = self._spark.range(0, 1, 1, 1)
            if executor is not None:
                task = pinned(task, [executor])
            self._single = executor, task.mapInArrow(run_all, FRAMES)
        return self._single[1]

    def _whole_tasks(self, number: int) -> DataFrame:
        return (
            self._single_task() if number == 1 else self._spark.range(0, number, 1, number).mapInArrow(run_all, FRAMES)
        )

    def _stages(self, circuit: Circuit, intent: Intent) -> DataFrame:
        shape = _Shape(max(1, len(intent.tasks)), circuit.buckets, circuit.last_stage)
        if self._affinity.of:
            return self._ahead.take(_Placed(shape, self._affinity.of))
        # Created once for each shape, because that takes 50 to 100 ms, longer than many epochs.
        if self._last is None or self._last[0] != shape:
            self._last = shape, self._made(_Placed(shape))
        # This plan itself never runs: a second run would reuse the shuffled frames of the first one.
        return self._last[1].select("*")

    def _made(self, placed: _Placed) -> DataFrame:
        shape, executors = placed
        frames = self._spark.range(0, shape.tasks, 1, shape.tasks).mapInArrow(read, FRAMES)
        for stage in range(1, shape.last_stage + 1):
            frames = in_buckets(frames, shape.buckets)
            if executors:
                frames = pinned(frames, executors)
            frames = frames.mapInArrow(BucketStage(stage), FRAMES)
        return frames


def _is_small(circuit: Circuit, intent: Intent) -> bool:
    shuffles = max(1, circuit.last_stage)
    replays = isinstance(intent.mode, Fill) and intent.mode.parts > 1
    return intent.rows <= SMALL_ROWS * shuffles and intent.bytes <= SMALL_BYTES * shuffles and not replays


def _try(action: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        action()


def _bodies(sent: Iterable[Sent]) -> list[tuple[str, bytes]]:
    """The channels and bodies of frames."""
    return [(f.channel, f.to_bytes()) for f in picked_up(sent)]


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


def was_cancelled(failure: Exception) -> bool:
    """Whether an epoch failed because its job of Spark was cancelled, so that another attempt may succeed."""
    return _CANCELLED in str(failure.__cause__)


def _failure(cause: Exception) -> Error:
    """The error of a job after Spark's last attempt."""
    text = str(cause)
    found = _ERROR.search(text)
    if found and found.group(1) in CONDITIONS:
        return view_failed(error(found.group(1), found.group(2).strip()))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next(
        (line for line in reversed(lines) if re.match(r"[A-Za-z_.]*(Error|Exception)\b", line)),
        lines[0] if lines else "",
    )
    if _CANCELLED in text:
        reason = "the Spark job of an epoch was cancelled"
    return error(
        "VIEW_FAILED",
        f"the views can't continue: {reason[:300]}",
        detail="Spark gave up the epoch after several attempts. Nothing of it was kept.",
        hint="The content is as of the epoch before. Open the database again to try once more.",
    )
