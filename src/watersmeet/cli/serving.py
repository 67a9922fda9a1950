"""`watersmeet serve`: serves a database from one process, from several that only read, or from a standby, which takes
over when the server that writes ends or hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import typer

from watersmeet.cli.output import FAILED, Interrupts, errors_output, print_error, reporting
from watersmeet.cli.run import FULL, Pump, Script, run_all
from watersmeet.database.opened import OpenDatabase
from watersmeet.errors import Error, error
from watersmeet.server import service, workers
from watersmeet.session.connections import connect
from watersmeet.session.connections.connection import Connection
from watersmeet.store.layout import Layout, has_writer, writer_port
from watersmeet.store.retention import state_files
from watersmeet.system.process import exclude_from_collections, spark_module

_LOG: Final = logging.getLogger(__name__)

#: The interval of checks for a failed engine or a signal.
_LOOK_S = 0.1

#: The number of descriptors of a server besides those of its clients.
_OWN_DESCRIPTORS: Final = 512

#: The condition of a writer that another one has overtaken, and the interval at which it is checked.
FENCED: Final = "WRITER_FENCED"

_FENCE_S: Final = 1.0

#: The interval at which a standby copies new state, and at which it looks for a database that does not exist yet.
_NEAR_S: Final = 1.0

#: The statements that run one epoch.
_FIRST_EPOCH: Final = (
    "CREATE TABLE t (a int)",
    "CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a",
    "INSERT INTO t VALUES (1)",
    "FLUSH",
)


def print_line(text: str) -> None:
    """Prints a line for the user who started the server."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def log_line(text: str) -> None:
    """Writes a line to the log."""
    _LOG.info("%s", text)


def raise_descriptors(wanted: int) -> None:
    """Raises the limit of open files and connections of this process. Logs a warning if the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        _LOG.warning("the system allows %d descriptors (ulimit -n), and all clients together may need %d", most, wanted)


@dataclass(frozen=True, slots=True)
class Task:
    """The work of a server: it runs scripts, each as a transaction if `transaction` is set, and listens.

    say: prints the addresses. ending: see `Interrupts`.
    """

    scripts: Sequence[Script]
    endpoint: service.Endpoint
    transaction: bool = False
    say: Callable[[str], None] = print_line
    ending: Callable[[int], None] = lambda _: None


def _descriptors(endpoint: service.Endpoint) -> int:
    return 2 * (endpoint.limits.connections + endpoint.limits.starting) + _OWN_DESCRIPTORS


def serve(connection: Connection, task: Task) -> int:
    """Runs scripts, then serves until SIGTERM or SIGINT, or until the engine fails for a reason other than a full disk.
    Returns the exit code.
    """
    failure = _served(connection, task)
    if failure is None:
        return 0
    print_error(failure, as_json=False)
    return FAILED


def _served(connection: Connection, task: Task, fence: Fence | None = None) -> Error | None:
    """Like `serve`; returns the failure of the engine, or the error of the fence."""
    console, endpoint = errors_output(), task.endpoint
    raise_descriptors(_descriptors(endpoint))
    server = service.Server(connection.opened, endpoint)
    with Interrupts(task.ending) as interrupts:
        if task.scripts:
            run_all(connection, task.scripts, console, transaction=task.transaction, as_json=False)
        interrupts.armed = True
        if connection.opened.read_only:
            return asyncio.run(_serve(server, endpoint, interrupts, lambda: None, task.say, lambda _: None))
        with Pump(connection, interrupts.event, resumes=True) as pump:
            failed = partial(_failure, connection, pump, fence)
            return asyncio.run(_serve(server, endpoint, interrupts, failed, task.say, connection.opened.serves))


def serve_workers(path: str, count: int, task: Task) -> int:
    """Serves a database by `count` read-only processes on one port, until a signal or the end of one of them. Returns
    the exit code.
    """
    endpoint = task.endpoint
    with (
        workers.reserved(endpoint.host, endpoint.port) as kept,
        tempfile.TemporaryDirectory(prefix="watersmeet-workers-") as folder,
        Interrupts(task.ending) as interrupts,
    ):
        found = replace(endpoint, port=kept.getsockname()[1])
        placed = [workers.Worker(i, count, Path(folder)) for i in range(count)]
        processes = workers.WorkerProcesses(partial(_serve_worker, path, found), placed)
        try:
            interrupts.armed = True
            if not processes.begin():
                return FAILED
            task.say(f"listening on {found.host}:{found.port}")
            while not interrupts.event.is_set():
                if processes.has_ended(_LOOK_S):
                    return FAILED
            return 0
        finally:
            processes.stop()


def _serve_worker(path: str, endpoint: service.Endpoint, worker: workers.Worker, ready: Any) -> None:
    """Runs one worker in its process. ready: the pipe to which it reports that it listens."""
    workers.end_with_parent()
    try:
        with reporting(), connect(path, dialect=endpoint.dialect, read_only=True) as connection:
            code = serve(connection, Task((), replace(endpoint, worker=worker), say=ready.send))
    except typer.Exit as ended:
        code = ended.exit_code
    sys.exit(code)


def _say_console(endpoint: service.Endpoint, http_port: int | None, say: Callable[[str], None]) -> None:
    if http_port is not None:
        scheme = "http" if endpoint.certificate is None else "https"
        say(f"the console is at {scheme}://{endpoint.host}:{http_port}/")


async def _serve(
    server: service.Server,
    endpoint: service.Endpoint,
    interrupts: Interrupts,
    failed: Callable[[], Error | None],
    say: Callable[[str], None],
    started: Callable[[int], None],
) -> Error | None:
    """Serves until a signal, or until `failed` returns an error, which this returns. started: called with the port."""
    await server.start()
    started(server.port)
    say(f"listening on {endpoint.host}:{server.port}")
    _say_console(endpoint, server.http_port, say)
    warming = asyncio.create_task(asyncio.to_thread(_warm, server))
    failure: Error | None = None
    try:
        while not interrupts.event.is_set() and failure is None:
            await asyncio.sleep(_LOOK_S)
            failure = failed()
    finally:
        with contextlib.suppress(Error):  # a client would get the same one
            await warming
        await server.stop()
    return failure


def _warm(server: service.Server) -> None:
    """Loads the modules of the first statements, and excludes their objects from garbage collections."""
    server.host.warm()
    exclude_from_collections()


def _failure(connection: Connection, pump: Pump, fence: Fence | None) -> Error | None:
    """The reason why the engine has failed, or None. The event loop calls it ten times a second, so it must be fast."""
    if fence is not None and fence.error is not None:
        return fence.error
    failure = connection.opened.engine.failure
    if failure is None or failure.condition == FULL:  # the pump resumes after a full disk
        return pump.failure
    return failure


class Fence:
    """Checks every second, inside the block, whether another process has taken the database over. error: that of the
    fence.
    """

    def __init__(self, connection: Connection) -> None:
        self.error: Error | None = None
        self._log = connection.opened.log
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._check, name="watersmeet-fence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _check(self) -> None:
        while self.error is None and not self._ended.wait(_FENCE_S):
            try:
                self._log.check()
            except Error as err:
                if err.condition == FENCED:  # others, such as a store out of reach, may pass
                    self.error = err


class Watch:
    """Whether a standby should take a database over.

    A directory is free when nobody has the writer's lock. Without a lock, in an object store, the writer must be
    `other`. It also counts as lost if it writes and has not answered for `silent_s`. That it writes, its port in the
    file of the lock shows, or an earlier answer.
    """

    def __init__(self, layout: Layout, other: service.OtherServer | None, silent_s: float) -> None:
        if other is None and layout.directory is None:
            raise error(
                "INVALID_PARAMETER",
                "a standby in an object store needs the address of the other server",
                hint="Give --other HOST:PORT.",
            )
        self._layout, self._other, self._limit_s = layout, other, silent_s
        self._wrote = False
        self._heard_s = time.monotonic()
        self.breaks = False
        """Whether the lock must be taken from a process that hangs."""

    def is_free(self) -> bool:
        """Asks the lock and the other server. Takes up to a quarter of `silent_s`."""
        locked = has_writer(self._layout.root)
        self.breaks = False
        if locked is False:
            return True
        if self._other is None:
            return False
        writes = self._other.is_writer(self._limit_s / 4)
        self._wrote |= writes is True
        port = writer_port(self._layout.root)
        holds_lock = self._wrote if port is None else port == self._other.port
        if writes or (locked and (writes is False or not holds_lock)):
            self._heard_s = time.monotonic()
        self.breaks = time.monotonic() - self._heard_s >= self._limit_s
        return self.breaks


@dataclass(frozen=True)
class Openings:
    """How a standby opens its database.

    reader: to read it. writer: to write it, with the argument `take_over` of `connect`. warm: until the end of its
    block, keeps Spark ready for that number of buckets. other, silent_s: see `Watch`.
    """

    reader: Callable[[], Connection]
    writer: Callable[..., Connection]
    warm: Callable[[int], contextlib.AbstractContextManager[None]]
    other: service.OtherServer | None
    silent_s: float


def stand_by(openings: Openings, task: Task) -> int:
    """Serves a database read-only while another process writes it, then takes over and serves it like `serve`. Becomes
    a standby again if it is overtaken. Returns the exit code.
    """
    while True:
        found = _awaited(openings, task)
        if found is None:
            return 0
        connection, task = found
        with connection, Fence(connection) as fence:
            try:
                failure = _served(connection, task, fence)
            except Error as err:
                if err.condition != FENCED:
                    raise
                failure = err
        if failure is None:
            return 0
        if failure.condition != FENCED:
            print_error(failure, as_json=False)
            return FAILED
        task.say(f"another server has taken over: {failure.message}")


def _awaited(openings: Openings, task: Task) -> tuple[Connection, Task] | None:
    """Serves read-only until this process can write; then returns its connection, and the task with the ports that
    clients know. None after a signal.
    """
    raise_descriptors(_descriptors(task.endpoint))
    with Interrupts(task.ending) as interrupts, contextlib.ExitStack() as held:
        interrupts.armed = True
        reader, watch, serves, near_s = None, None, False, time.monotonic()
        while not interrupts.event.is_set():
            if reader is None:
                reader = _reader(openings, held)
                watch = None if reader is None else Watch(reader.layout, openings.other, openings.silent_s)
            if watch is None or watch.is_free():
                connection = _writer(openings, breaks=watch is not None and watch.breaks)
                if connection is not None and interrupts.event.is_set():
                    connection.close()
                elif connection is not None:
                    return connection, task
            elif reader is not None and not serves:
                server = held.enter_context(service.BackgroundServer(reader, task.endpoint))
                serves = True
                task = replace(task, endpoint=replace(task.endpoint, port=server.port, http_port=server.http_port))
                held.enter_context(openings.warm(reader.buckets))
                task.say(f"standing by on {task.endpoint.host}:{server.port}")
                _say_console(task.endpoint, server.http_port, task.say)
            if reader is not None and time.monotonic() - near_s >= _NEAR_S:
                _keep_near(reader)
                near_s = time.monotonic()
            interrupts.event.wait(_LOOK_S if reader is not None else _NEAR_S)
    return None


def _reader(openings: Openings, held: contextlib.ExitStack) -> OpenDatabase | None:
    """The database, read-only until the end of the block; None if it does not exist yet."""
    try:
        return held.enter_context(openings.reader()).opened
    except Error as err:
        if err.condition != "DATABASE_FORMAT":
            raise
        return None


def _writer(openings: Openings, *, breaks: bool) -> Connection | None:
    """A connection that writes; None if another process was faster."""
    try:
        return openings.writer(take_over=breaks)
    except Error as err:
        if err.condition not in ("DATABASE_IN_USE", FENCED):
            raise
        return None


def _keep_near(database: OpenDatabase) -> None:
    """Copies the newest state of a database in an object store to this machine."""
    if database.layout.directory is None:
        with contextlib.suppress(Error), database.log.same_head():  # a file may be deleted meanwhile
            head = database.log.head()
            last = database.log.read(head) if head else None
            database.segments.prefetch(state_files(database.log, last, database.segments))


@contextmanager
def warm_nothing(parallelism: int) -> Iterator[None]:
    """A block for a runtime that starts at once."""
    del parallelism
    yield


@contextmanager
def warm_spark(parallelism: int) -> Iterator[None]:
    """A block in which Spark runs. On one machine it has run an epoch, so that Java and Python have loaded all code."""
    session = spark_module("watersmeet.runtime.spark.session")
    spark = session.acquire(None, parallelism)
    try:
        with contextlib.ExitStack() as held:
            if session.is_local(spark):
                temporary = held.enter_context(connect(parallelism=parallelism))
                for text in _FIRST_EPOCH:
                    temporary.execute(text)
            yield
    finally:
        session.release(spark)
