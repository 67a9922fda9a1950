"""The engine on Spark: a thread plans epochs, a streaming query runs them."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeGuard

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Rebuild, StateDistribution
from watersmeet.connectors.base.sources import Notification
from watersmeet.errors import Error, again, error
from watersmeet.runtime.committer import commit_epoch
from watersmeet.runtime.coordinator import Coordinator, Flush
from watersmeet.runtime.engine import LIMITED_S, Database
from watersmeet.runtime.epochstatus import epoch_status
from watersmeet.runtime.failures import report_committed, report_failed, run_without_failing, view_failed
from watersmeet.runtime.inputs import Backoffs
from watersmeet.runtime.plans import load_circuit
from watersmeet.runtime.spark.jobs import EpochRunner, was_cancelled
from watersmeet.runtime.spark.session import acquire, is_local, release
from watersmeet.runtime.spark.source import ATTEMPTS, Notifier, register_source, start_query
from watersmeet.runtime.status import Status
from watersmeet.runtime.taskcontract import Intent
from watersmeet.store.commits import Commit
from watersmeet.system import files

#: The maximum number of planned, uncommitted epochs: one runs, the next one waits.
_AHEAD: Final = 2
#: The minimum time between polls of sources without backlog; the session announces transactions by `notify`, …
_CADENCE_S: Final = 0.1
#: … or longer, so that epochs take at most a third of the time: a trickle of rows must not keep the machine busy.
_MAX_CADENCE_S: Final = 0.5
#: After a notification a source is polled sooner, but epochs still take at most two thirds of the time.
_NOTIFIED_S: Final = 0.05
_NOTIFIED_EPOCHS: Final = 1.5
_IDLE_S: Final = 1.0
#: The maximum number of epochs in a micro-batch, and the time without a planned epoch after which it ends. A
#: micro-batch for each epoch would add 40 ms to the epoch.
_BATCH_EPOCHS: Final = 32
_LINGER_S: Final = 0.25
#: The stream's reader reads one file after another, and may be a batch behind.
_KEPT_INTENTS: Final = 2 * _BATCH_EPOCHS
_STOP_S: Final = 30.0

_logger = logging.getLogger(__name__)


class SparkEngine:
    """An `Engine` whose tasks run on Spark, continuously, in the background. Thread-safe.

    Each start has a new Spark checkpoint: only the commit log records reads and writes, so no checkpoint can be lost or
    contradict it.
    """

    def __init__(
        self,
        db: Database,
        spark: SparkSession | None = None,
        *,
        parallelism: int = 1,
        make_coordinator: Callable[[Database], Coordinator] = Coordinator,
    ) -> None:
        self._db = db
        self._given = spark
        self._parallelism = parallelism
        self._make = make_coordinator
        self._changed = threading.Condition(threading.RLock())
        self._in_batch = threading.Lock()
        """The lock that a micro-batch holds: a micro-batch of an ended query may still wait when the next query
        starts.
        """
        self._woken = threading.Event()
        self._notification = Notification(self._woken)
        self._notifier: Notifier | None = None
        self._coordinator: Coordinator | None = None
        self._planned: deque[Intent] = deque()
        self._flushes: deque[_Flushing] = deque()
        self._failure: Error | None = None
        self._installing = 0
        self._ask_at = 0.0
        """The time of the next poll (monotonic)."""
        self._hear_at = 0.0
        """The time of the next poll after a notification."""
        self._duration_s = 0.0
        """The duration of the newest epoch."""
        self._stopping = False
        self._session: SparkSession | None = None
        self._runner: EpochRunner | None = None
        self._query: StreamingQuery | None = None
        self._unread: _Unread | None = None
        """The reason why the planned epochs can't be read now."""
        self._given_up: Error | None = None
        """The reason why the last views could not be filled."""
        self._backoffs = Backoffs()
        self._attempts = 0
        """The number of times that the query may still be restarted, and cancelled epochs repeated, before an epoch is
        committed.
        """
        self._threads: tuple[threading.Thread, ...] = ()
        """Those that start the query, plan epochs and run the first ones."""
        self._starter: threading.Thread | None = None
        """The one that starts the query."""
        self._in_batches = False
        """Whether Spark has begun the first micro-batch."""

    @property
    def circuit(self) -> Circuit | None:
        coordinator = self._coordinator or self._running()
        return coordinator.circuit

    @property
    def live_views(self) -> frozenset[str]:
        with self._changed:
            return self._running().live_views

    @property
    def failure(self) -> Error | None:
        return self._failure

    def start(self) -> None:
        session = acquire(self._given, self._parallelism)
        if self._session is not None:
            self.stop()  # after `acquire`, because Spark keeps running while its session has a user
        self._failure = None
        self._stopping = False
        self._unread = None
        self._session = session
        try:
            self._begin(session)
        except BaseException:
            self.stop()
            raise

    def install(
        self, circuit: Circuit, new_views: Sequence[str] = (), check: Callable[[], None] = lambda: None
    ) -> Mapping[str, str]:
        with self._planning_held():
            if self._failure is not None:
                self.start()  # This call may remove the views that failed.
            with self._changed:
                self._given_up = None
                while True:
                    coordinator = self._drained()
                    coordinator.install(circuit)
                    if new_views or not (coordinator.fills_beside and coordinator.runs(circuit)):
                        coordinator = self._filled(coordinator, check)
                    coordinator.check_filled(new_views)
                    if coordinator.shows(new_views) and coordinator.runs(circuit):
                        return coordinator.lost

    def fill(self, check: Callable[[], None]) -> None:
        with self._planning_held(), self._changed:
            self._given_up = None
            self._filled(self._running(), check)

    def _filled(self, coordinator: Coordinator, check: Callable[[], None]) -> Coordinator:
        """As `_work_off`. After an error of the fill, its views are given up."""
        try:
            return self._work_off(coordinator, check)
        except Error as cause:
            present = self._coordinator
            is_given_up = self._given_up is None and cause.condition not in ("QUERY_CANCELED", "CONNECTION_CLOSED")
            if is_given_up and present is not None and present.backfill is not None:
                self._unread = _Unread(cause, filling=True)  # no caller waits for this error any more
            raise

    def expect(self) -> None:
        runner = self._runner
        if runner is not None:
            runner.expect()

    def notify(self) -> None:
        self._woken.set()

    def override_watermark(self, relation_id: str, time_us: int) -> None:
        with self._changed:
            self._running().override_watermark(relation_id, time_us)
        self._woken.set()

    def flush(self) -> Commit | None:
        flushing = _Flushing()
        with self._changed:
            coordinator = self._running()
            if coordinator.circuit is None or not coordinator.circuit.sinks:
                return self._db.log.last_epoch()
            self._backoffs.retry_stopped()
            self._flushes.append(flushing)
            self._woken.set()
            try:
                # Meanwhile planned epochs and their coordinator may become void.
                while flushing.epoch is None or self._running().committed_epoch < flushing.epoch:
                    self._wait()
            finally:
                self._flushes.remove(flushing)
        return self._db.log.last_epoch()

    def status(self) -> Status:
        with self._changed:
            sources = self.sources()
            state: Literal["running", "failed", "stopped"]
            state = "failed" if self._failure is not None else "stopped" if self._coordinator is None else "running"
            failure = None if self._failure is None else self._failure.to_json()
        return replace(epoch_status(self._db, sources=sources), runtime="spark", state=state, error=failure)

    def sources(self) -> dict[str, dict[str, Any]]:
        with self._changed:
            return {} if self._coordinator is None else self._coordinator.inputs.status()

    def rebuild(self, circuit: Circuit) -> None:
        with self._planning_held(), self._changed:
            self._drained().give_up_filling()
            coordinator = self._gathered()
            coordinator.rebuild(circuit)
            self._work_off(coordinator)

    def rescale(self, circuit: Circuit, distributions: Mapping[str, Mapping[str, StateDistribution]]) -> None:
        with self._planning_held(), self._changed:
            coordinator = self._gathered()
            self._add(coordinator.rescale(circuit, distributions))
            self._drained()

    def refresh(self, circuit: Circuit, made: Mapping[str, str], catalog: str = "") -> None:
        with self._planning_held(), self._changed:
            coordinator = self._gathered()
            self._add(coordinator.refresh(circuit, made, catalog))
            self._drained()

    def stop_views(self, stopped: Mapping[str, dict[str, Any]], *, reset_clock: bool = False) -> None:
        with self._planning_held(), self._changed:
            coordinator = self._gathered()
            self._add(coordinator.stop_views(stopped, reset_clock=reset_clock))
            self._drained()

    def replaced(self, commit: Callable[[], None]) -> None:
        with self._planning_held():
            with self._changed:
                self._drained()
            commit()
            self.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._woken.set()
        threads, self._threads = self._threads, ()
        for thread in threads:
            if thread not in (threading.current_thread(), self._starter):
                thread.join(_STOP_S)
        query, self._query = self._query, None
        if query is not None:
            with contextlib.suppress(Exception):
                query.stop()
        session, self._session = self._session, None
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        if session is not None:
            release(session)
        starter, self._starter = self._starter, None
        if starter is not None:
            starter.join(_STOP_S)  # takes seconds, unless Spark has ended
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            notifier.remove()
        coordinator, self._coordinator = self._coordinator, None
        self._planned.clear()
        if coordinator is not None:
            coordinator.close()
        _empty(self._db)

    def _begin(self, session: SparkSession) -> None:
        layout = self._db.layout
        if not is_local(session) and not layout.durable:
            raise error(
                "RUNTIME_UNAVAILABLE",
                "a temporary database can't be used on a cluster",
                detail=f"Spark's master is {session.sparkContext.master}.",
                hint="Connect with a path on storage that the driver and all executors share.",
            )
        _empty(self._db)
        self._runner = EpochRunner(session, self._db)
        self._runner.warm_up()  # while the query starts, which takes as long
        self._coordinator = self._made()
        self._coordinator.budget.workers = self._runner.workers
        self._attempts = ATTEMPTS
        self._in_batches = False
        self._starter = threading.Thread(
            target=self._start_first_query, args=(session, self._coordinator), name="watersmeet-query", daemon=True
        )
        self._threads = (
            self._starter,
            threading.Thread(target=self._plan, name="watersmeet-coordinator", daemon=True),
            threading.Thread(target=self._run_first, name="watersmeet-first-epochs", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def _start_first_query(self, session: SparkSession, coordinator: Coordinator) -> None:
        """Start the query, for which Spark starts Python processes. The first epochs don't wait for it."""
        try:
            register_source(session)
            query = None if self._stopping else self._start_query(session, coordinator.committed_epoch)
            with self._changed:
                if not self._stopping:
                    self._query, query = query, None
            if query is not None:
                query.stop()
        except Exception as cause:
            self._fail(cause if isinstance(cause, Error) else _query_failed("Spark did not start the query", cause))

    def _made(self) -> Coordinator:
        coordinator = self._make(self._db)
        coordinator.inputs.listen(self._notification)
        coordinator.inputs.backoffs = self._backoffs
        return coordinator

    def _start_query(self, session: SparkSession, first: int) -> StreamingQuery:
        """Starts a query with a new notification pipe, because the last query's process may still listen on the old
        one.
        """
        before, self._notifier = self._notifier, Notifier()
        if before is not None:
            before.remove()
        return start_query(session, self._db.layout, first, self._notifier.path, self._run_planned)

    @contextlib.contextmanager
    def _planning_held(self) -> Iterator[None]:
        """A context in which the planning thread plans nothing, even if an engine is started within it."""
        with self._changed:
            self._installing += 1
        try:
            yield
        finally:
            with self._changed:
                self._installing -= 1
            self._woken.set()

    def _running(self) -> Coordinator:
        if self._failure is not None:
            raise again(self._failure)
        if self._coordinator is None or self._stopping:
            raise error("CONNECTION_CLOSED", "the engine is stopped")
        return self._coordinator

    def _wait(self, seconds: float = _IDLE_S) -> None:
        """Wait for the next change, with the lock released; raises if the engine has failed."""
        self._running()
        self._changed.wait(seconds)
        self._check_query()
        self._running()

    def _drained(self) -> Coordinator:
        """The coordinator, after all planned epochs are committed. The planning thread must be paused."""
        while self._unread is not None or not self._running().is_drained:
            self._wait()
        return self._running()

    def _gathered(self) -> Coordinator:
        """The coordinator after all views are filled, no key is split, and all planned epochs are committed."""
        coordinator = self._work_off(self._drained())
        coordinator.gather()
        return self._work_off(coordinator)

    def _work_off(self, coordinator: Coordinator, check: Callable[[], None] = lambda: None) -> Coordinator:
        """Plan and await all epochs of a backfill and of an install; between those of a fill beside live views also
        live ones. Returns the coordinator, which a source that can't be read may have replaced meanwhile. check: as in
        `install`.

        Raises the error of a source whose history can't be read.
        """
        while coordinator.backfill is not None or coordinator.has_chores:
            check()
            full = len(self._planned) >= _AHEAD
            if full or not self._plan_beside(coordinator):
                self._wait(_IDLE_S if full or not coordinator.fills_beside else LIMITED_S)
                coordinator = self._after_replacement(coordinator)
        while not coordinator.is_drained:
            self._wait()
            coordinator = self._after_replacement(coordinator)
        return coordinator

    def _plan_beside(self, coordinator: Coordinator) -> bool:
        """Plan the next epoch of a backfill or of live views beside it; False if none is due."""
        if coordinator.is_views_turn(_now_us()) and not coordinator.must_drain:
            flushing = self._next_flush
            if flushing is None:
                return self._plan_live(coordinator) == 0.0
            self._plan_flush(coordinator, flushing)
            return True
        intent = coordinator.plan(_now_us(), sources=False)
        self._add(intent)
        return intent is not None

    @property
    def _next_flush(self) -> _Flushing | None:
        """The first flush that is not planned yet."""
        return next((f for f in self._flushes if f.epoch is None), None)

    def _plan_flush(self, coordinator: Coordinator, flushing: _Flushing) -> Intent | None:
        """Plan the next epoch of a flush, if one is due."""
        intent = flushing.flush.plan(coordinator)
        self._add(intent)
        if flushing.flush.is_planned:
            flushing.epoch = coordinator.epoch
            self._changed.notify_all()
        return intent

    def _after_replacement(self, coordinator: Coordinator) -> Coordinator:
        """The present coordinator. Raises the error for which it has replaced one that was filling views."""
        if self._coordinator is coordinator:
            return coordinator
        if self._given_up is not None:
            raise again(self._given_up)
        return self._running()

    def _plan(self) -> None:
        """The planning thread. It ends the query after a failure of the engine."""
        while not self._stopping:
            if self._failure is not None:
                if self._query is not None:
                    with contextlib.suppress(Exception):
                        self._query.stop()
                return
            try:
                if self._unread is not None:
                    self._plan_anew(self._unread)
                pause_s = self._plan_next()
            except Exception as cause:
                self._fail(cause)
                continue
            if pause_s > 0:
                self._woken.wait(pause_s)
                self._woken.clear()

    def _plan_next(self) -> float:
        """Plan the next epoch, if one is due. Returns the pause before the next call."""
        with self._changed:
            self._check_query()
            coordinator = self._coordinator
            if self._stopping or coordinator is None or self._failure is not None:
                return 0.0
            full = len(self._planned) >= _AHEAD or coordinator.must_drain
            if full or self._installing:
                return _IDLE_S
            if (change := coordinator.plan_split()) is not None:
                self._add(change)
                return 0.0
            flushing = self._next_flush
            if flushing is None:
                return self._plan_live(coordinator)
            intent = self._plan_flush(coordinator, flushing)
            if flushing.flush.is_planned:
                return 0.0
            again_us = flushing.flush.again_us
            return 0.0 if intent is not None or again_us is None else max(0.001, (again_us - _now_us()) / 1e6)

    def _plan_anew(self, unread: _Unread) -> None:
        """Discard planned epochs that can't be read for now. Continue without their source for a while, or without the
        views that they would have filled.
        """
        if self._starter is not None:
            self._starter.join()
        with self._changed:  # so that a query that has ended is not started again
            (query, self._query), session = (self._query, None), self._session
        if query is not None:
            query.stop()  # without the lock, because the query's last batch may need it
        with self._changed:
            coordinator = self._coordinator
            if self._stopping or session is None or coordinator is None:
                return
            coordinator.abandon()
            _empty(self._db)
            self._planned.clear()
            self._coordinator = coordinator = self._made()
            if unread.filling:
                coordinator.give_up_filling()
                self._given_up = unread.cause
            else:
                self._backoffs.back_off(unread.cause, _now_us())
            for flushing in self._flushes:
                flushing.restart()
            self._query = self._start_query(session, coordinator.epoch)
            self._unread = None
            self._changed.notify_all()

    def _plan_live(self, coordinator: Coordinator) -> float:
        now = time.monotonic()
        due = now >= (self._hear_at if self._notification.is_set else self._ask_at)
        if due:
            self._notification.take()
        intent = coordinator.plan(_now_us(), sources=due)
        self._add(intent)
        if due and not coordinator.inputs.more:
            self._ask_at = now + min(max(_CADENCE_S, 2 * self._duration_s), _MAX_CADENCE_S)
            self._hear_at = now + min(max(_NOTIFIED_S, _NOTIFIED_EPOCHS * self._duration_s), _MAX_CADENCE_S)
        if intent is not None:
            return 0.0
        if not coordinator.inputs.sources:
            return min(_IDLE_S, self._db.clock.tick_us / 1e6)
        return max(0.001, (self._hear_at if self._notification.is_set else self._ask_at) - now)

    def _add(self, intent: Intent | None) -> None:
        """Hand a planned epoch to the query, which waits for the epoch's file."""
        if intent is not None:
            self._planned.append(intent)
            self.expect()  # while Spark begins a micro-batch
            path = self._db.layout.intent(intent.epoch)
            files.replace_file(path, intent.to_text().encode(), durable=False)
            if self._notifier is not None:
                self._notifier.notify()
            self._changed.notify_all()

    def _run_planned(self, batch: DataFrame, batch_id: int) -> None:
        """A micro-batch: runs and commits the planned epochs. Called by Spark; never raises."""
        del batch, batch_id
        self._in_batches = True
        self._run_epochs()

    def _run_first(self) -> None:
        """Run planned epochs until Spark begins the first micro-batch, for which it starts two Python processes."""
        while not (self._in_batches or self._ends):
            self._run_epochs()

    def _run_epochs(self) -> None:
        """Run and commit the planned epochs, until none is planned for a while. Never raises."""
        with self._in_batch:
            following: Intent | None = None
            for _ in range(_BATCH_EPOCHS):
                intent = following or self._next_planned()
                if intent is None:
                    return
                try:
                    following = self._run(intent)
                except Exception as cause:
                    if was_cancelled(cause) and self._attempts > 0:
                        self._attempts -= 1
                        following = None
                        _logger.warning("the Spark job of epoch %d was cancelled: it is run again", intent.epoch)
                        continue
                    if _passes(cause) and not isinstance(intent.mode, Rebuild):
                        _logger.warning("%s", cause)
                        self._unread = _Unread(cause, filling=isinstance(intent.mode, Fill))
                        self._woken.set()
                    else:
                        # Raising would make Spark print the error; the planning thread ends the query.
                        self._fail(cause)
                    return

    def _next_planned(self) -> Intent | None:
        """The epoch to run next; None if none is planned for a while, or the query must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._planned or self._ends, _LINGER_S)
            return None if self._ends or not self._planned else self._planned[0]

    @property
    def _ends(self) -> bool:
        """Whether the query must not run another epoch."""
        return self._stopping or self._failure is not None or self._unread is not None

    def _run(self, intent: Intent) -> Intent | None:
        """Run and commit an epoch. Returns the next one if it is planned: it need not wait for the lock, which the
        planning thread takes now.
        """
        coordinator, runner = self._coordinator, self._runner
        if coordinator is None or runner is None:
            return None
        began, began_ns = time.perf_counter(), time.time_ns()
        circuit = coordinator.circuit
        if circuit is None or circuit.fingerprint != intent.circuit:
            circuit = load_circuit(self._db.layout, intent.circuit)
        (receipts, locality), failures = run_without_failing(intent.mode, partial(runner.run, circuit, intent))
        duration_s = time.perf_counter() - began
        duration_us = round(duration_s * 1e6)
        commit = commit_epoch(
            self._db, circuit, intent, receipts, duration_us=duration_us, locality=locality, failures=failures
        )
        with self._changed:
            coordinator.done(commit, duration_s)
            self._duration_s = duration_s
            self._attempts = ATTEMPTS
            self._backoffs.clear(p.relation for p in intent.slices)
            self._planned.popleft()
            following = self._planned[0] if self._planned and not self._ends else None
            self._changed.notify_all()
        self._woken.set()
        report_committed(self._db.log, self._db.catalog(), commit, receipts, began_ns)
        if self._in_batches:  # before, the stream's reader has read none
            files.remove_files([self._db.layout.intent(intent.epoch - _KEPT_INTENTS)])
        return following

    def _fail(self, cause: Exception) -> None:
        with self._changed:
            if self._failure is None and not self._stopping:
                self._failure = view_failed(self._db.log.explain(cause))
                report_failed(self._failure, None if self._coordinator is None else self._coordinator.epoch)
            self._changed.notify_all()
        self._woken.set()

    def _check_query(self) -> None:
        """Restart a query that Spark has ended."""
        query, session, coordinator = self._query, self._session, self._coordinator
        if (
            query is None
            or session is None
            or coordinator is None
            or self._stopping
            or self._failure is not None
            or query.isActive
        ):
            return
        cause = query.exception()
        if self._attempts > 0:
            # Its Python process started too late, or died. The query only transports numbers, so every epoch that it
            # ran is committed, and planned epochs can still run.
            self._attempts -= 1
            _logger.warning("Spark ended the query, which is started again: %s", str(cause).partition("\n")[0][:200])
            try:
                self._query = self._start_query(session, coordinator.committed_epoch)
            except Exception as again:
                cause = again
            else:
                return
        self._fail(_query_failed("Spark ended the query", cause))


@dataclass(frozen=True)
class _Unread:
    """The reason why planned epochs can't be read. filling: whether they read history for views that are being
    filled.
    """

    cause: Error
    filling: bool


class _Flushing:
    """A call of `flush`. epoch: the last epoch that it waits for, once planned."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Starts the flush again, because its planned epochs are void."""
        self.flush = Flush()
        self.epoch: int | None = None


def _passes(cause: Exception) -> TypeGuard[Error]:
    """Whether the error ends when one source can be read again; meanwhile the others are read."""
    return isinstance(cause, Error) and cause.source is not None


def _query_failed(message: str, cause: object) -> Error:
    return error(
        "VIEW_FAILED",
        message,
        detail=str(cause or "")[:2000] or None,
        hint="Open the database again: nothing that was committed is lost.",
    )


def _now_us() -> int:
    return time.time_ns() // 1000


def _empty(db: Database) -> None:
    """Delete files that are only needed while a query runs: planned epochs, Spark's own checkpoint."""
    files.remove_files(db.layout.intents / n for n in files.list_names(db.layout.intents))
    for path in db.layout.checkpoint.iterdir():
        shutil.rmtree(path, ignore_errors=True)
