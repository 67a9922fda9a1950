"""The engine without Spark, for small databases: the same epochs, tasks and commits in the caller's thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import StateDistribution
from watersmeet.errors import Error
from watersmeet.kernel.evaluation.duck import is_interrupt
from watersmeet.runtime.committer import commit_epoch, job_of
from watersmeet.runtime.coordinator import Coordinator, Flush
from watersmeet.runtime.engine import LIMITED_S, Database
from watersmeet.runtime.epochstatus import epoch_status
from watersmeet.runtime.failures import report_committed, report_failed, run_without_failing, view_failed
from watersmeet.runtime.inputs import Backoffs
from watersmeet.runtime.status import Status
from watersmeet.runtime.taskcontract import Intent, Receipt
from watersmeet.runtime.tasks import run_here
from watersmeet.runtime.workers import workers_here
from watersmeet.store.commits import Commit


class InProcessEngine:
    """An `Engine` that works only during `install`, `flush` and `rebuild`. Thread-safe."""

    def __init__(self, db: Database, *, make_coordinator: Callable[[Database], Coordinator] = Coordinator) -> None:
        self._db = db
        self._make = make_coordinator
        self._coordinator: Coordinator | None = None
        self._failure: Error | None = None
        self._backoffs = Backoffs()
        self._lock = threading.RLock()
        self._waiting = 0
        """The number of threads that wait for the lock, for which a fill beside live views pauses."""
        self._counting = threading.Lock()
        self._left = threading.Condition(self._lock)
        """Notified when a thread for which a fill has paused is done."""

    @property
    def circuit(self) -> Circuit | None:
        return self._ready().circuit

    @property
    def live_views(self) -> frozenset[str]:
        return self._ready().live_views

    @property
    def failure(self) -> Error | None:
        return self._failure

    def start(self) -> None:
        with self._lock:
            self._failure = None
            self._ready()

    def install(
        self, circuit: Circuit, new_views: Sequence[str] = (), check: Callable[[], None] = lambda: None
    ) -> Mapping[str, str]:
        with self._entered():
            self._failure = None
            while True:
                coordinator = self._ready()
                coordinator.install(circuit)
                if new_views or not (coordinator.fills_beside and coordinator.runs(circuit)):
                    coordinator = self._drain(check)
                coordinator.check_filled(new_views)
                if coordinator.shows(new_views) and coordinator.runs(circuit):
                    return coordinator.lost

    def fill(self, check: Callable[[], None]) -> None:
        with self._entered():
            self._drain(check)

    def expect(self) -> None:
        pass

    def notify(self) -> None:
        pass

    def override_watermark(self, relation_id: str, time_us: int) -> None:
        with self._lock:
            self._ready().override_watermark(relation_id, time_us)

    def flush(self) -> Commit | None:
        with self._entered():
            if self._ready().circuit is None:
                return self._db.log.last_epoch()
            self._backoffs.retry_all()
            flush = Flush()
            while not flush.is_planned:
                coordinator = self._ready()
                intent = flush.plan(coordinator)
                if intent is not None:
                    try:
                        self._run(coordinator, intent)
                    except Error as cause:
                        if cause.source is None or intent.mode.reads_history:
                            raise
                        self._backoffs.back_off(cause, time.time_ns() // 1000)
                        flush = Flush()
                elif flush.again_us is not None:
                    time.sleep(max(0.0, flush.again_us / 1e6 - time.time()))
            return self._db.log.last_epoch()

    def status(self) -> Status:
        with self._entered():
            coordinator = self._coordinator
            state: Literal["running", "failed", "stopped"] = "running"
            if coordinator is None:
                state = "stopped" if self._failure is None else "failed"
            failure = None if self._failure is None else self._failure.to_json()
            status = epoch_status(self._db, sources=self.sources())
            return replace(status, runtime="inprocess", state=state, error=failure)

    def sources(self) -> dict[str, dict[str, Any]]:
        with self._entered():
            return {} if self._coordinator is None else self._coordinator.inputs.status()

    def rebuild(self, circuit: Circuit) -> None:
        with self._lock:
            self._ready().give_up_filling()
            coordinator = self._gathered()
            coordinator.rebuild(circuit)
            self._drain()

    def rescale(self, circuit: Circuit, distributions: Mapping[str, Mapping[str, StateDistribution]]) -> None:
        with self._lock:
            coordinator = self._gathered()
            self._run(coordinator, coordinator.rescale(circuit, distributions))

    def refresh(self, circuit: Circuit, made: Mapping[str, str], catalog: str = "") -> None:
        with self._lock:
            coordinator = self._gathered()
            self._run(coordinator, coordinator.refresh(circuit, made, catalog))

    def stop_views(self, stopped: Mapping[str, dict[str, Any]], *, reset_clock: bool = False) -> None:
        with self._lock:
            coordinator = self._gathered()
            self._run(coordinator, coordinator.stop_views(stopped, reset_clock=reset_clock))

    def replaced(self, commit: Callable[[], None]) -> None:
        with self._lock:
            self._drain()
            self.stop()
            commit()
            self.start()

    def stop(self) -> None:
        with self._lock:
            if self._coordinator is not None:
                self._coordinator.close()
                self._coordinator = None

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """A context with the lock. A fill of another thread beside live views releases it after its current piece."""
        with self._counting:
            self._waiting += 1
        is_waiting = True
        try:
            with self._lock:
                with self._counting:
                    self._waiting -= 1
                is_waiting = False
                try:
                    yield
                finally:
                    self._left.notify_all()
        finally:
            if is_waiting:
                with self._counting:
                    self._waiting -= 1

    def _ready(self) -> Coordinator:
        with self._lock:
            if self._coordinator is None:
                self._coordinator = self._make(self._db)
                self._coordinator.budget.workers = workers_here()
                self._coordinator.inputs.backoffs = self._backoffs
            return self._coordinator

    def _gathered(self) -> Coordinator:
        """The coordinator after all views are filled and no key is split."""
        self._drain().gather()
        return self._drain()

    def _drain(self, check: Callable[[], None] = lambda: None) -> Coordinator:
        """Run all epochs of a backfill and of an install. While views are filled beside live ones, other threads
        take the lock in between. check: as in `install`.
        """
        while (coordinator := self._ready()).backfill is not None or coordinator.has_chores:
            check()
            intent = coordinator.plan(time.time_ns() // 1000, sources=False)
            if intent is not None:
                self._run(coordinator, intent)
            if coordinator.yields and self._waiting:
                self._left.wait()
            elif intent is None:  # a limit of rows per second does not allow the next piece
                self._left.wait(LIMITED_S)
        return coordinator

    def _run(self, coordinator: Coordinator, intent: Intent) -> None:
        began, began_ns = time.perf_counter(), time.time_ns()
        circuit = coordinator.circuit
        assert circuit is not None
        try:
            receipts, failures = run_without_failing(intent.mode, partial(run_epoch, self._db, circuit, intent))
            duration_s = time.perf_counter() - began
            duration_us = round(duration_s * 1e6)
            commit = commit_epoch(self._db, circuit, intent, receipts, duration_us=duration_us, failures=failures)
        except BaseException as cause:
            # The planned epochs are void; the next call starts from the log again.
            coordinator.abandon()
            self._coordinator = None
            if isinstance(cause, Error) and cause.source is not None:
                raise  # The other sources can still be read.
            if isinstance(cause, Exception) and not is_interrupt(cause):
                self._failure = view_failed(self._db.log.explain(cause))
                report_failed(self._failure, intent.epoch)
                raise self._failure from cause
            raise
        self._failure = None
        report_committed(self._db.log, self._db.catalog(), commit, receipts, began_ns)
        self._backoffs.clear(p.relation for p in intent.slices)
        coordinator.done(commit, duration_s)


def run_epoch(
    db: Database, circuit: Circuit, intent: Intent, failures: Mapping[str, Error] = MappingProxyType({})
) -> list[Receipt]:
    """Run all tasks of an epoch in this process, stage by stage. Return their receipts.

    failures: the operators that failed in an earlier attempt, which don't run.
    """
    if not intent.has_work:
        return []
    return run_here(job_of(db, circuit, intent, workers_here(), failures))
