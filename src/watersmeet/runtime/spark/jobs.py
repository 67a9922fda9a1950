"""Epochs as Spark jobs, or in tasks that stay from epoch to epoch.

Spark's executors as the driver knows them, and tasks that wish for one of them.

Making the next thing while the one before it is in use.

Where buckets live: the executor on which each of them is to run, because its state is there. Decisions alone.

State is files that any executor can read. So a home is only a wish, and what is known here may be lost.

A task of Spark that stays for several small epochs.

A job of Spark takes 25 ms and more, most of a small epoch. So a task that has run one waits a while for the next: over
a line to the driver come jobs, and receipts go back. The line is a Unix socket, so this is for tasks on the driver's
machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark.sql import DataFrame, Row, SparkSession

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill
from watersmeet.errors import CONDITIONS, Error, error, error_from_json
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.runs.frames import Frame
from watersmeet.runtime.committer import Returns, job_of
from watersmeet.runtime.database import Database
from watersmeet.runtime.failures import TaskFailedError, view_failed
from watersmeet.runtime.spark.session import has_spare_slot, is_local
from watersmeet.runtime.spark.shipping import in_buckets
from watersmeet.runtime.spark.worker import (
    ERROR,
    FOLDER,
    FRAMES,
    JOB,
    LINE,
    BucketStage,
    Sent,
    empty,
    pack_job,
    picked_up,
    read,
    run_all,
)
from watersmeet.runtime.taskcontract import RECEIPT, Intent, Receipt
from watersmeet.runtime.workers import Workers, workers_elsewhere, workers_here
from watersmeet.system.process import make_folder, remove_folder

#: The bytes that the path of a Unix socket may have. In a deeper folder for temporary files no task stays.
_MAX_PATH: Final = 100

#: How often it is looked whether Spark has given up the task that should call.
_LOOK_S: Final = 0.02

#: How long the task may take to end at the most: it may be in the middle of an epoch.
_LEAVE_S: Final = 10.0

#: Held by the one task of a process that stays: it takes a slot of Spark.
_staying = threading.Lock()


class StandingTask:
    """The driver's end. For one thread at a time, but for `hang_up`, `close`.

    Law: a job is run as often as it takes to get its answer, as Spark does with tasks. Attempts that are overtaken have
    no effect.
    """

    def __init__(self, spark: SparkSession, task: Callable[[], DataFrame]) -> None:
        """task: what runs it, with `LINE` as a property of the job."""
        self._spark = spark
        self._task = task
        self._folder = make_folder("line")
        self._path = os.path.join(self._folder, "line")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._can_call = len(os.fsencode(self._path)) <= _MAX_PATH
        if self._can_call:
            self._socket.bind(self._path)
            self._socket.listen()
            self._socket.settimeout(_LOOK_S)
        self._line: Connection | None = None
        self._job: Future[None] | None = None

    @property
    def can_run(self) -> bool:
        """Whether it runs, or Spark has a slot for it."""
        return self._is_there or (self._can_call and has_spare_slot(self._spark) and not _staying.locked())

    def run(self, job: bytes) -> list[tuple[str, bytes]]:
        """The channels and bodies of the frames that the task gives for a packed job.

        Raises what Spark says when it gave the task up.
        """
        began = False
        while True:
            if not self._is_there:
                self._check(began=began)
                self._begin()
                began = True
            try:
                line = self._line or self._answered()
                if line is not None:
                    line.send_bytes(job)
                    answer: list[tuple[str, bytes]] = line.recv()
                    return answer
            except (EOFError, OSError):
                if self._socket.fileno() < 0:
                    raise
                self.hang_up()  # it has left, or its process has died and Spark tries it again

    def hang_up(self) -> None:
        """Lets the task end when it has run what it was given."""
        line, self._line = self._line, None
        if line is not None:
            with socket.socket(fileno=os.dup(line.fileno())) as end, contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes who reads, which closing it would not

    def close(self) -> None:
        """Ends it for good. Waits until Spark's job is over: Spark may be stopped next."""
        self._socket.close()
        self.hang_up()
        if self._job is not None:
            wait([self._job], _LEAVE_S)
        remove_folder(self._folder)

    @property
    def _is_there(self) -> bool:
        return self._job is not None and not self._job.done()

    def _check(self, *, began: bool) -> None:
        """Raises why Spark gave up a task that was begun for the present job; one from before is only begun anew."""
        if began and self._job is not None and (cause := self._job.exception()) is not None:
            raise cause

    def _answered(self) -> Connection | None:
        """The line of a task that calls; None if none has for a moment."""
        try:
            accepted, _ = self._socket.accept()
        except TimeoutError:
            return None
        self._line = Connection(accepted.detach())
        return self._line

    def _begin(self) -> None:
        self._job = job = Future[None]()
        threading.Thread(target=self._stand, args=(job,), name="watersmeet-standing", daemon=True).start()

    def _stand(self, job: Future[None]) -> None:
        with _staying:
            try:
                self._spark.sparkContext.setLocalProperty(LINE, self._path)
                self._task().collect()
            except BaseException as cause:
                job.set_exception(cause)
            else:
                job.set_result(None)


#: In one epoch so many buckets at most, or this part of all, move to executors that have fewer than others: each of
#: them begins cold.
_MOVES: Final = 2

_MOVED_PART: Final = 8

#: A stage and a bucket.
Step = tuple[int, int]


@dataclass(frozen=True)
class Executor:
    """id: Spark's, which no other executor of the application ever has. cores: how many tasks it runs at a time."""

    id: str
    host: str
    cores: int = 1


@dataclass(frozen=True)
class Homes:
    """The homes of all buckets, in their order; none before the first epoch that is cut by buckets.

    last: the id of the executor that ran each step last, be it in a task of its own or in one that ran all of them.
    """

    of: tuple[Executor, ...] = ()
    last: Mapping[Step, str] = field(default_factory=dict)

    def settled(self, buckets: int, executors: Collection[Executor]) -> Homes:
        """As an epoch of so many buckets is to run, on executors that are there.

        Law: every home is one of `executors`; there is none if that is empty. Buckets whose home is gone get another
        one at once, on the same machine if that is as good. Of the others only a few move, and only to an executor
        that has less to do, with the bucket, than the one that had it.
        """
        there = {e.id: e for e in sorted(executors, key=lambda e: e.id)}
        if not there:
            return replace(self, of=())
        before = self.of if len(self.of) == buckets else _resized(self.of, buckets)
        homes: list[Executor | None] = [there.get(e.id) for e in before] if before else [None] * buckets
        load = Counter(e.id for e in homes if e is not None)
        for bucket, home in enumerate(homes):
            if home is None:
                host = before[bucket].host if before else None
                best = min(there.values(), key=lambda e: (_load(e, load, 1), e.host != host))
                homes[bucket] = best
                load[best.id] += 1
        found = [e for e in homes if e is not None]
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
        """Where an epoch that is one task is to run: where most steps ran last. None if no such executor is there."""
        there = {e.id: e for e in executors}
        ran = Counter(i for i in self.last.values() if i in there)
        return there[min(ran, key=lambda i: (-ran[i], i))] if ran else None

    def after(self, ran: Mapping[Step, str], executors: Collection[Executor], *, apart: bool) -> Homes:
        """After an epoch. ran: by step, the id of the executor that ran it. apart: each step was a task of its own.

        Who ran a bucket in a task of its own is its home now: the one before had no time for it.
        """
        there = {e.id: e for e in executors}
        homes = list(self.of)
        for (_, bucket), executor in sorted(ran.items()):
            if apart and bucket < len(homes) and executor in there:
                homes[bucket] = there[executor]
        return Homes(tuple(homes), {**self.last, **ran})

    def returns(self, ran: Mapping[Step, str]) -> Returns:
        """How many of these steps came back. Steps that never ran before count nowhere."""
        same = [self.last[step] == executor for step, executor in ran.items() if step in self.last]
        return Returns(sum(same), len(same) - sum(same))


def _load(executor: Executor, load: Mapping[str, int], more: int = 0) -> float:
    """The buckets of each of its cores, with so many more."""
    return (load.get(executor.id, 0) + more) / max(1, executor.cores)


def _resized(homes: Sequence[Executor], buckets: int) -> Sequence[Executor]:
    """The homes for another number of buckets: each is a range of hashes, and so are those before it."""
    return [homes[bucket * len(homes) // buckets] for bucket in range(buckets)] if homes else ()


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
