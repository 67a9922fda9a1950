"""The SparkSession, which is created with the settings that the engine needs, or adopted from the caller."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from watersmeet.errors import error
from watersmeet.runtime.spark.java import Java, check_java, set_python, take
from watersmeet.runtime.spark.shipping import DAEMON, ENGINE, is_remote, make_zip, python_path
from watersmeet.runtime.workers import workers_here
from watersmeet.system.process import cores, remove_folder

#: The attempts of a task in this process (on a cluster: spark.task.maxFailures).
_ATTEMPTS: Final = 3

_logger = logging.getLogger(__name__)
_lock = threading.RLock()

#: Settings of the session, also in adopted contexts.
_SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "8",
    "spark.sql.streaming.metricsEnabled": "false",
    # A frame has up to 16 MiB, so many frames would not fit in one Arrow batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    "spark.sql.execution.arrow.maxBytesPerBatch": "33554432",
}

_CONTEXT: Final = {
    "spark.app.name": "watersmeet",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.cleaner.periodicGC.interval": "10min",
    # Each epoch is a job, so the application must not keep a history of all jobs.
    "spark.ui.retainedJobs": "16",
    "spark.ui.retainedStages": "16",
    "spark.ui.retainedTasks": "64",
    "spark.ui.retainedDeadExecutors": "4",
    "spark.sql.ui.retainedExecutions": "8",
    "spark.sql.streaming.ui.enabled": "false",
}

#: The time that a task waits for the executor that has the state of its bucket, and then for one on the same machine:
#: about as long as a start without that state takes. Spark's default of 3 s is longer than most epochs.
LOCALITY_WAIT: Final = ("spark.locality.wait", "200ms")

#: Environment variable of glibc's allocator. Small workers return freed memory; getting it again in large pages costs
#: half as much.
_TUNABLES: Final = "GLIBC_TUNABLES"


@dataclass
class Shared:
    """The session that the engines of this process share. made: whether this module created it, so that the last engine
    stops it.

    java: its JVM, if this module launched it. shipped: the zip of the package, if one was created.
    """

    spark: SparkSession
    made: bool
    users: int = 0
    java: Java | None = None
    shipped: Path | None = None


_shared: list[Shared] = []


def acquire(spark: SparkSession | None, parallelism: int) -> SparkSession:
    """A session for one engine; return it with `release`. Raises RUNTIME_UNAVAILABLE if Spark can't run,
    FEATURE_NOT_SUPPORTED for Spark Connect.

    spark: the session to use; by default the active one. If there is none, this creates one, which all engines of the
    process share: with the master of WATERSMEET_MASTER or spark-submit, else local with as many threads as buckets or
    cores. A stopped session is not used again.
    """
    if is_remote(spark):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "views can't run in a session of Spark Connect",
            detail="Its client has no SparkContext, whose tasks views are.",
            hint="Give a classic session, SparkSession.builder.master(…) without .remote(…), in the driver itself.",
        )
    with _lock:
        if _shared and _is_stopped(_shared[0].spark):
            _end(_shared.pop())
        if not _shared:
            active = spark or SparkSession.getActiveSession()
            _shared.append(_adopt(active) if active is not None else _make(parallelism))
        shared = _shared[0]
        if spark is not None and spark.sparkContext is not shared.spark.sparkContext:
            raise error("RUNTIME_UNAVAILABLE", "this process uses another SparkSession already")
        shared.users += 1
        try:
            return _new_session(shared.spark, parallelism)
        except BaseException:
            release(shared.spark)
            raise


def release(session: SparkSession) -> None:
    """Return one engine's session; the last one ends Spark and its processes, if this module created them."""
    with _lock:
        if not _shared or _shared[0].spark.sparkContext is not session.sparkContext:
            return  # Other code stopped this session, and the next engine created another one.
        _shared[0].users -= 1
        if _shared[0].users == 0:
            _end(_shared.pop())


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run on this machine, in the driver's process tree."""
    return str(spark.sparkContext.master).startswith("local[") or spark.sparkContext.master == "local"


def spare_slots(spark: SparkSession) -> int:
    """The number of tasks of one engine that may stay on this machine: all slots of a session that this module created,
    because engines ask each other for room; in a user's session one, if it has others.
    """
    if not is_local(spark):
        return 0
    with _lock:
        made = bool(_shared) and _shared[0].made
        is_alone = made and _shared[0].users == 1
    slots = int(spark.sparkContext.defaultParallelism)
    if slots == 1:
        return 1 if is_alone else 0
    return slots if made else 1


def _new_session(spark: SparkSession, parallelism: int) -> SparkSession:
    session = spark.newSession()
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(parallelism))
    return session


def _is_stopped(spark: SparkSession) -> bool:
    """Whether the context was stopped, or the JVM has ended."""
    context = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except Exception:
        return True


def _adopt(spark: SparkSession) -> Shared:
    """The caller's session. The package is shipped to it; its settings stay unchanged."""
    zipped = make_zip()
    spark.sparkContext.addPyFile(str(zipped))
    if spark.sparkContext.getConf().get("spark.python.daemon.module", "") != DAEMON:
        _logger.warning(
            "this SparkSession uses its own Python daemon: each worker needs two seconds to start; "
            "spark.python.daemon.module = %s avoids that",
            DAEMON,
        )
    if not is_local(spark) and not spark.sparkContext.getConf().contains(LOCALITY_WAIT[0]):
        _logger.warning(
            "tasks of this SparkSession wait 3 s for an executor that has their state but is busy; %s = %s avoids that",
            *LOCALITY_WAIT,
        )
    return Shared(spark, made=False, shipped=zipped)


def _make(parallelism: int) -> Shared:
    set_python()
    shared = _start(parallelism, own_daemon=True)
    if not is_local(shared.spark) and not _can_run(shared.spark):
        _logger.warning(
            "executors can't load %s: Spark's own Python daemon is used, each worker needs two seconds to start", DAEMON
        )
        _end(shared)
        shared = _start(parallelism, own_daemon=False)
    return shared


def _can_run(spark: SparkSession) -> bool:
    """Whether Python tasks run at all."""
    try:
        return bool(spark.sparkContext.parallelize([0], 1).map(bool).collect() == [False])
    except Exception:
        return False


def _start(parallelism: int, *, own_daemon: bool) -> Shared:
    master = _master(parallelism)
    is_here = master is not None and master.startswith("local")
    java = (take() if is_here else None) or Java(is_local=is_here)
    zipped = None if is_here else make_zip()
    builder: Any = SparkSession.builder
    for name, value in _context_settings(master, java, zipped, own_daemon=own_daemon).items():
        builder = builder.config(name, value)
    # A failed call to the JVM raises its error. py4j would also print it, for an interrupted call with the traceback.
    logging.getLogger().addFilter(_not_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        spark = _get_or_create(builder, java)
    except BaseException as cause:
        tail = java.log
        java.end()
        if not isinstance(cause, Exception):
            raise
        check_java()
        raise error(
            "RUNTIME_UNAVAILABLE",
            f"Spark did not start: {_first_line(cause)}",
            detail=tail or None,
            hint="Check the Java installation and the memory that is free, or use runtime='inprocess'.",
        ) from cause
    # Settings of the user, for example in spark-defaults.conf, stay unchanged. Spark reads this setting for each set of
    # tasks.
    spark.sparkContext._jsc.sc().conf().setIfMissing(*LOCALITY_WAIT)
    return Shared(spark, made=True, java=java, shipped=zipped)


def _master(parallelism: int) -> str | None:
    """The master to request; None if spark-submit has set it."""
    if "WATERSMEET_MASTER" in os.environ:
        return os.environ["WATERSMEET_MASTER"]
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    return f"local[{max(1, min(parallelism, cores()))},{_ATTEMPTS}]"


def _context_settings(master: str | None, java: Java, zipped: Path | None, *, own_daemon: bool) -> dict[str, str]:
    settings = {
        **_CONTEXT,
        **java.settings,
        "spark.local.dir": str(java.directory / "local"),
        "spark.sql.warehouse.dir": str(java.directory / "warehouse"),
        "spark.executorEnv.PYTHONPATH": python_path(local=zipped is None),
    }
    if own_daemon:
        settings |= {"spark.python.daemon.module": DAEMON, f"spark.executorEnv.{ENGINE}": "1"}
    if workers_here(cores()).are_small and _TUNABLES not in os.environ:
        settings[f"spark.executorEnv.{_TUNABLES}"] = "glibc.malloc.hugetlb=1"
    if master is not None:
        settings["spark.master"] = master
    if zipped is None:
        # On one machine, shuffled frames stay in the page cache, so compressing them would only cost time.
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.shuffle.compress": "false",
            # Not on YARN: the folders of its containers are too long for the path of a socket.
            "spark.python.unix.domain.socket.enabled": "true",
        }
    else:
        settings["spark.submit.pyFiles"] = str(zipped)
    return settings


def _get_or_create(builder: Any, java: Java) -> SparkSession:
    """The session. If this fails or is interrupted, the launched JVM is killed, because PySpark would forget it and
    leave it running.

    Spark starts in another thread. So an interrupt reaches this thread at once, never within a call to the JVM, and
    PySpark does not change the handler of SIGINT.
    """
    before = java_gateway.Popen
    java_gateway.Popen = java.popen
    starter = ThreadPoolExecutor(1, "watersmeet-spark")
    started: Future[SparkSession] = starter.submit(builder.getOrCreate)
    try:
        spark = started.result()
        # Sets what Spark would have set in this thread.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        return spark  # noqa: TRY300 - an interrupt until here ends the JVM
    except BaseException:
        while True:  # also processes launched meanwhile
            java.kill()
            if started.done():
                break
            wait([started], timeout=0.05)
        _forget_context()
        raise
    finally:
        java_gateway.Popen = before
        starter.shutdown(wait=False)


def _not_py4j(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not py4j's."""
    return record.module != "java_gateway"


def _end(shared: Shared) -> None:
    """Delete the session's files; end Spark if this module created it and it was not replaced since."""
    if shared.made and SparkContext._active_spark_context in (None, shared.spark.sparkContext):
        _stop_java(shared.spark)
    if shared.java is not None:
        remove_folder(shared.java.directory)
    if shared.shipped is not None:
        remove_folder(shared.shipped.parent)


def _stop_java(spark: SparkSession) -> None:
    process = getattr(SparkContext._gateway, "proc", None)
    with contextlib.suppress(Exception):
        spark.stop()
    _forget_context()
    if process is not None:
        # The JVM ends when its input does.
        with contextlib.suppress(Exception):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5)


def _forget_context() -> None:
    """Clears PySpark's state for the next session, and ends its threads, even if the JVM has died and `stop` fails."""
    accumulators = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    for server in (SparkContext._gateway, accumulators):
        with contextlib.suppress(Exception):
            if server is not None:
                server.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _first_line(cause: Exception) -> str:
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:300]
