"""Standing tasks: the tasks of one Spark job that run many epochs.

A job of Spark takes at least 25 ms, and each shuffle another 100 ms: most of a small epoch, and a third of a large one.
Therefore, on the driver's machine, tasks that have run a part of an epoch wait a while for the next one. They receive
work and return frames by Unix sockets to the driver, which sends each stage its frames. Large bodies stay in files
(`worker`). Work of a bucket goes to the process that ran the bucket last, because that has its state in memory.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import ClassVar, Final

from pyspark.sql import DataFrame, SparkSession

from watersmeet.runtime.spark.session import spare_slots
from watersmeet.runtime.spark.worker import ERROR, LINE, Sent, Work
from watersmeet.runtime.taskcontract import RECEIPT
from watersmeet.system.process import make_folder, remove_folder

#: The maximum bytes of a Unix socket's path. If the folder for temporary files has a longer path, no task stands.
_MAX_PATH: Final = 100

#: The time between checks whether Spark has given up the tasks whose calls are expected.
_POLL_S: Final = 0.01

#: The maximum time to wait for the end of the tasks, which may be running an epoch.
_LEAVE_S: Final = 10.0

#: The time after which tasks end if Spark has other jobs, so that these can run; and for which an engine that was asked
#: for room has only one task.
_STAY_S: Final = 1.0

#: Tasks without work for this long end if another engine needs their slots.
_IDLE_S: Final = 0.1


class StandingTasks:
    """The driver's side of standing tasks. For one thread at a time, except `begin`, `hang_up` and `close`; other
    engines call `_leave_room`.

    Law: work is always repeated until its answer arrives, as Spark does with tasks. Superseded attempts have no effect.
    """

    _standing: ClassVar[set[StandingTasks]] = set()
    """Those of all engines of this process that have a job. Usually these are those of one engine, because they occupy
    slots of Spark.
    """

    def __init__(self, spark: SparkSession, tasks: Callable[[int], DataFrame]) -> None:
        """tasks: the DataFrame that runs that many tasks, with `LINE` as a property of the Spark job."""
        self._spark = spark
        self._tasks = tasks
        self._folder = make_folder("line")
        self._path = os.path.join(self._folder, "line")
        self._can_call = len(os.fsencode(self._path)) <= _MAX_PATH
        self._listener: socket.socket | None = None
        """Accepts the calls of the job's tasks; None if they must end, also those that still start."""
        self._is_closed = False
        self._lock = threading.Lock()
        self._lines: dict[Connection, int] = {}
        """The process at the other end of each connection; changed with the lock."""
        self._busy: dict[Connection, int] = {}
        """The number of the work that each busy process runs."""
        self._last: dict[tuple[bool, int], int] = {}
        """The process that ran each bucket last, and the one that ran the last small epoch."""
        self._job: Future[None] | None = None
        self._size = 0
        """The number of tasks of that job."""
        self._called = 0
        """The number of their calls. A task that Spark repeats calls again."""
        self._have_stood = False
        """Whether a task of any job has called."""
        self._most = 0
        """The maximum number of them that may stay."""
        self._is_incomplete = False
        """Whether one of them has ended."""
        self._is_running = False
        self._worked_s = time.monotonic()
        self._checked_s = 0.0
        self._asked_s = -_STAY_S

    @property
    def slots(self) -> int:
        """The number of tasks that can stand now."""
        return self._spare if self._can_call and (self._is_there or self.ask_others_for_room()) else 0

    @property
    def _spare(self) -> int:
        spare = spare_slots(self._spark)
        return min(spare, 1) if self._was_asked else spare

    @property
    def are_starting(self) -> bool:
        """Whether the first tasks were started, and none of them has called yet."""
        self._accept_all()
        return self._is_there and not self._have_stood

    def run(self, works: Sequence[Work], tasks: int = 1) -> list[list[Sent]]:
        """The frames that each work returns. tasks: the number of tasks that run at a time.

        Raises Spark's error if a task failed permanently.
        """
        waiting = dict.fromkeys(range(len(works)))
        answers: dict[int, list[Sent]] = {}
        began = False
        with self._lock:
            self._is_running = True
        try:
            self._prepare(tasks)
            while len(answers) < len(works):
                if not self._is_there:
                    self._check(began=began)
                    with self._lock:
                        self._begin(tasks)
                    began = True
                self._hand_out(works, waiting)
                self._hear(waiting, answers)
        finally:
            for line in list(self._busy):
                self._drop(line)
            self._worked_s = time.monotonic()
            self._is_running = False
        if len(self._lines) > len(works):  # otherwise the idle tasks would end, and large epochs lack them
            for line in list(self._lines):
                with contextlib.suppress(OSError):
                    line.send(None)
        return [answers[i] for i in range(len(works))]

    def begin(self) -> None:
        """Start as many tasks as can stand, unless tasks stand, so that the next epoch need not wait for them. The
        first ones start as soon as those of another engine leave their slots.
        """
        if not self._can_call or self._is_there:
            return
        has_room = self.ask_others_for_room() or self._job is None
        slots = self._spare if has_room else 0
        with self._lock:
            if slots and not (self._is_there or self._is_running or self._is_closed):
                self._begin(slots)

    def hang_up(self) -> None:
        """Let the tasks end after their current work, and those that still start at once."""
        self._accept_all()
        with self._lock:
            self._refuse()
            lines, self._lines = self._lines, {}
        for line in lines:
            _shut(line)

    def ask_others_for_room(self) -> bool:
        """Ask for slots of other engines of this process. Returns whether they have given up all of their slots."""
        left = [other._leave_room() for other in list(StandingTasks._standing) if other is not self]
        return all(left)

    def _leave_room(self) -> bool:
        """Let all tasks end if they have no work. Otherwise all but one end, and False is returned. Both include tasks
        that still start.
        """
        self._accept_all()
        with self._lock:
            is_idle = not self._is_running and time.monotonic() - self._worked_s >= _IDLE_S
            if is_idle:
                self._refuse()
            else:
                self._asked_s = time.monotonic()
                self._most = 1
            free = [line for line in self._lines if line not in self._busy]
            for line in free if is_idle else free[: len(self._lines) - 1]:
                del self._lines[line]
                self._is_incomplete = True
                _shut(line)
        return is_idle

    def close(self) -> None:
        """End the tasks permanently. Waits until Spark's job has ended, because Spark may be stopped next; but not for
        tasks to start, which takes seconds and after which they end at once, unless another one has work.
        """
        self._is_closed = True
        is_busy = bool(self._busy)
        self.hang_up()
        if self._job is not None and (is_busy or self._called >= self._size):
            wait_for([self._job], _LEAVE_S)
        remove_folder(self._folder)

    @property
    def _is_there(self) -> bool:
        return self._job is not None and not self._job.done()

    @property
    def _was_asked(self) -> bool:
        return time.monotonic() - self._asked_s < _STAY_S

    def _prepare(self, tasks: int) -> None:
        """End tasks whose slots others need, and those of a job that has too few."""
        for line in list(self._lines):
            if line.poll():  # the other end has closed
                self._drop(line)
        if not self._is_there:
            return
        if len(self._lines) < tasks:
            self.ask_others_for_room()
        now = time.monotonic()
        if now - self._checked_s >= _STAY_S:
            self._checked_s = now
            active = self._spark.sparkContext.statusTracker().getActiveJobsIds()
            if len(active) > len(StandingTasks._standing):
                self.hang_up()
        if self._size < tasks or (self._is_incomplete and len(self._lines) < tasks):
            self.hang_up()

    def _hand_out(self, works: Sequence[Work], waiting: dict[int, None]) -> None:
        """Send work to all idle tasks: work of buckets to the process that ran them last, if that is idle."""
        for takes_any in (False, True):
            with self._lock:
                idle = {line: process for line, process in self._lines.items() if line not in self._busy}
            for line, process in idle.items():
                chosen = next((n for n in waiting if takes_any or self._last.get(_place(works[n])) == process), None)
                if chosen is None:
                    continue
                try:
                    line.send(works[chosen])
                except OSError:
                    self._drop(line)
                else:
                    del waiting[chosen]
                    self._busy[line] = chosen
                    self._last[_place(works[chosen])] = process

    def _hear(self, waiting: dict[int, None], answers: dict[int, list[Sent]]) -> None:
        """Receive answers and calls, for a moment. Raises EOFError if this is closed."""
        listener = self._listener
        calls = [] if listener is None else [listener]
        with contextlib.suppress(EOFError, OSError, ValueError):  # a connection was closed meanwhile
            for one in wait(dict.fromkeys([*self._lines, *self._busy, *calls]), _POLL_S):
                if isinstance(one, Connection):
                    self._receive(one, waiting, answers)
                elif listener is not None:
                    self._accept(listener)
        if self._is_closed:
            raise EOFError

    def _receive(self, line: Connection, waiting: dict[int, None], answers: dict[int, list[Sent]]) -> None:
        number = self._busy.pop(line, None)
        try:
            answer: list[Sent] = line.recv()
        except (EOFError, OSError):
            self._drop(line)  # the task has ended, or its process has died and Spark retries it
            if number is not None:
                waiting[number] = None
            return
        if number is not None:
            answers[number] = answer
        if self._was_asked and len(self._lines) > 1:
            self._drop(line)

    def _drop(self, line: Connection) -> None:
        with self._lock:
            self._lines.pop(line, None)
        self._busy.pop(line, None)
        self._is_incomplete = True
        _shut(line)

    def _check(self, *, began: bool) -> None:
        """Raise Spark's error if the failed tasks were started for the current work; older ones are started again."""
        if began and self._job is not None and (cause := self._job.exception()) is not None:
            raise cause

    def _accept_all(self) -> None:
        """Add the connections of all tasks that are calling."""
        with contextlib.suppress(EOFError, OSError, ValueError):  # closed meanwhile
            while (listener := self._listener) is not None and wait([listener], 0):
                self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        """Add the connection of a calling task, or end it if the task must not stay."""
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            return
        line = Connection(accepted.detach())
        process: int = line.recv()
        with self._lock:
            self._called += 1
            self._have_stood = True
            if listener is self._listener and len(self._lines) < self._most:
                self._lines[line] = process
                return
            self._is_incomplete = True
        _shut(line)

    def _refuse(self) -> None:
        """Accept no more calls. Needs the lock."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            os.unlink(self._path)

    def _begin(self, tasks: int) -> None:
        """Start a job, after the end of the last one. Needs the lock."""
        self._refuse()  # calls of the last job
        if self._is_closed:
            raise EOFError
        ended, self._lines = self._lines, {}
        for line in ended:
            _shut(line)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen()
        self._listener.settimeout(_POLL_S)
        self._called = 0
        self._most = tasks
        self._job = job = Future[None]()
        self._size = tasks
        self._is_incomplete = False
        self._checked_s = time.monotonic()
        StandingTasks._standing.add(self)
        threading.Thread(target=self._stand, args=(job, tasks), name="watersmeet-standing", daemon=True).start()

    def _stand(self, job: Future[None], tasks: int) -> None:
        found: BaseException | None = None
        try:
            self._spark.sparkContext.setLocalProperty(LINE, self._path)
            self._tasks(tasks).collect()
        except BaseException as cause:
            found = cause
        StandingTasks._standing.discard(self)
        if found is None:
            job.set_result(None)
        else:
            job.set_exception(found)


def _place(work: Work) -> tuple[bool, int]:
    """A bucket, or another part of an epoch."""
    return bool(work.stage), work.number


def _shut(line: Connection) -> None:
    """End a connection. This wakes its readers; closing it would not."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def run_stages(standing: StandingTasks, job: bytes, tasks: int, last_stage: int, folder: str, slots: int) -> list[Sent]:
    """The receipts of an epoch, or its errors. tasks: the number of tasks of stage 0. slots: the number of tasks that
    run at a time. folder: that of frames in files.
    """
    found: list[Sent] = []
    works = [Work(job, 0, number, folder=folder) for number in range(tasks)]
    for stage in range(1, last_stage + 2):
        by_bucket: dict[int, list[Sent]] = {}
        for sent in chain.from_iterable(standing.run(works, slots)):
            if sent.frame.channel in (RECEIPT, ERROR):
                found.append(sent)
            else:
                by_bucket.setdefault(sent.frame.bucket, []).append(sent)
        if any(sent.frame.channel == ERROR for sent in found):
            break
        works = [Work(job, stage, bucket, tuple(by_bucket[bucket]), folder) for bucket in sorted(by_bucket)]
    return found
