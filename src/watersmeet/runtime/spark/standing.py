"""A task of Spark that stays for several small epochs.

A job of Spark takes 25 ms and more, most of a small epoch. So a task that has run one waits a while for the next: over
a line to the driver come jobs, and receipts go back. The line is a Unix socket, so this is for tasks on the driver's
machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from watersmeet.runtime.spark.session import has_spare_slot
from watersmeet.runtime.spark.worker import LINE
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
