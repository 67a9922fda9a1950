"""Snapshots of the metrics of all relations (state, freshness, rates, sizes, errors), and their history of one hour.

A snapshot takes some milliseconds with hundreds of views, so all readers share one, at most one a second, and the
history has one every ten seconds. The history consists of sums that commits contain, so a step without a snapshot loses
nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from watersmeet.capture.capturing import Captures
from watersmeet.catalog import CapturedDatabase, Catalog, MaterializedView, Relation, Sink
from watersmeet.database.sessions.context import Session
from watersmeet.runtime.backfill import progress_of
from watersmeet.runtime.status import (
    CaptureStatus,
    SinkStatus,
    SourceStatus,
    Status,
    TableStatus,
    ViewStatus,
    failure_text,
)
from watersmeet.session.features.verifying import newest_verifications
from watersmeet.session.status import Rates, database_status, sink_statuses
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.manifests import Metrics
from watersmeet.store.positions import Verification
from watersmeet.store.readers import low_water_number, read_leases

#: The lags from which on a view is late or stale.
LATE_S: Final = 1.0
STALE_S: Final = 60.0
#: The health: fresh, late or stale (or stopped); None if unknown, because no process updates the database.
HealthLevel = Literal[0, 1, 2] | None
_FRESH: Final[HealthLevel] = 0
_LATE: Final[HealthLevel] = 1
_STALE: Final[HealthLevel] = 2
#: States of sources and sink writers that make no progress.
_STANDS: Final = ("stalled", "blocked", "waiting", "retrying", "stopped", "lost", "fenced")


class RelationMetrics(NamedTuple):
    """The metrics of a relation.

    state: running, filling, stopped, or a state of a source or sink. lag_s: the age of the oldest input that it does
    not reflect; None if unknown. rows_in, rows_out: rows per second. rows: those of the content. size_bytes: the size
    of a table on disk, or of the state of a view. errors: their number since its creation. note: a problem, or the
    cause of a delay. progress: that of a backfill, from 0 to 1. backlog: rows, messages or bytes (`unit`) to read or
    deliver. verified: the newest result of VERIFY.
    """

    state: str
    health: HealthLevel = _FRESH
    lag_s: float | None = None
    rows_in: float = 0
    rows_out: float = 0
    rows: int | None = None
    size_bytes: int | None = None
    errors: int = 0
    note: str | None = None
    watermark: str | None = None
    held_back_by: str | None = None
    late: int = 0
    progress: float | None = None
    backlog: int | None = None
    unit: str | None = None
    verified: str | None = None


def relation_metrics(
    status: Status,
    catalog: Catalog,
    inputs: Mapping[str, Sequence[str]],
    rates: Mapping[str, float],
    sinks: Iterable[SinkStatus] = (),
    progress: float | None = None,
    verified: Mapping[str, Verification] | None = None,
) -> dict[str, RelationMetrics]:
    """The metrics of all relations, by id.

    inputs: see `inputs_of_views`. rates: input rows per second by id, output rows by `>id`. progress: that of the
    current backfill. verified: the newest verifications by id.
    """
    running = status.state == "running"
    found = {t.id: _table(t, rates) for t in status.tables}
    for source in status.sources:
        if source.connector or source.id not in found:
            found[source.id] = _source(source, rates, running=running)
        else:
            found[source.id] = found[source.id]._replace(watermark=source.watermark, late=source.late)
    views = {}
    for view in status.views:
        reads = [(catalog.relations[i], found[i]) for i in inputs.get(view.id, ()) if i in found]
        views[view.id] = _verified(_view(view, status, reads, rates, progress), (verified or {}).get(view.id))
    return found | views | {sink.id: _sink(sink) for sink in sinks}


def inputs_of_views(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """For each view, the tables and sources that it reads, directly or through other views."""
    views = {r.id for r in catalog.relations.values() if isinstance(r, MaterializedView)}
    return {i: tuple(catalog.upstream([i]) - views) for i in views}


def health_of_lag(lag_s: float) -> HealthLevel:
    """The health of a view with that lag."""
    return _FRESH if lag_s < LATE_S else _LATE if lag_s < STALE_S else _STALE


def _table(table: TableStatus, rates: Mapping[str, float]) -> RelationMetrics:
    rows_in = _rounded(rates.get(table.id, 0))
    return RelationMetrics("running", rows_in=rows_in, rows=table.rows, size_bytes=table.size_bytes)


def _source(source: SourceStatus, rates: Mapping[str, float], *, running: bool) -> RelationMetrics:
    state, messages, size_bytes = source.health.state, source.backlog_messages, source.backlog_bytes
    health: HealthLevel = _STALE if state in _STANDS else _LATE if messages or size_bytes else _FRESH
    return RelationMetrics(
        state if running else "stopped",
        health if running else None,
        rows_in=_rounded(rates.get(source.id, 0)),
        rows=source.rows,
        size_bytes=source.size_bytes,
        errors=source.errors,
        note=source.health.reason,
        watermark=source.watermark,
        late=source.late,
        backlog=size_bytes if messages is None else messages,
        unit=None if messages is None and size_bytes is None else "bytes" if messages is None else "messages",
    )


def _view(
    view: ViewStatus,
    status: Status,
    reads: Sequence[tuple[Relation, RelationMetrics]],
    rates: Mapping[str, float],
    progress: float | None,
) -> RelationMetrics:
    state, health, lag_s, note = _freshness(view, status, reads)
    return RelationMetrics(
        state,
        health,
        lag_s,
        _rounded(rates.get(view.id, 0)),
        _rounded(rates.get(f">{view.id}", 0)),
        view.rows,
        view.state_bytes,
        view.expression_errors + (1 if view.error or view.writing else 0),
        note,
        view.watermark,
        view.held_back_by,
        view.late,
        progress if state == "filling" else None,
    )


def _verified(metrics: RelationMetrics, newest: Verification | None) -> RelationMetrics:
    """The metrics with the newest verification. A view that differs needs its users, even if it is fresh."""
    if newest is None:
        return metrics
    if newest.outcome == "differs":
        note = f"VERIFY: {newest.summary}"
        metrics = metrics._replace(health=_STALE, note=metrics.note or note, errors=metrics.errors + 1)
    return metrics._replace(verified=newest.summary)


def _freshness(
    view: ViewStatus, status: Status, reads: Sequence[tuple[Relation, RelationMetrics]]
) -> tuple[str, HealthLevel, float | None, str | None]:
    """The state, health and lag of a view, and the reason."""
    failure = status.health_of(view).reason
    if failure:
        return "stopped", _STALE, None, failure
    if status.state != "running":
        return "stopped", None, None, None
    if not view.ready:
        return "filling", None, None, None
    if view.paused:
        return "paused", None, None, None
    if view.writing:
        return "retrying", _STALE, None, failure_text(view.writing)
    # Transactions of the session are relevant only for views that read tables.
    lag_s = status.lag_seconds if any(not r.connector for r, _ in reads) else 0.0
    health = health_of_lag(lag_s)
    standing = [f'"{r.shown}" is {f.state}' for r, f in reads if f.health == _STALE]
    if standing:
        return "running", _STALE, _lag(lag_s), ", ".join(standing)
    behind = [f'"{r.shown}" has {f.backlog:,} {f.unit} to read' for r, f in reads if f.health == _LATE]
    if behind and health == _FRESH:
        return "running", _LATE, _lag(lag_s), ", ".join(behind)
    return "running", health, _lag(lag_s), None


def _sink(sink: SinkStatus) -> RelationMetrics:
    state, seconds = sink.state or "unknown", sink.lag_seconds
    health: HealthLevel = None if seconds is None else health_of_lag(seconds)
    return RelationMetrics(
        state,
        _STALE if state in _STANDS else health,
        None if seconds is None else _lag(seconds),
        rows=sink.delivered_rows,
        errors=1 if sink.detail else 0,
        note=sink.detail,
        backlog=sink.rows_behind,
        unit=None if sink.rows_behind is None else "rows",
    )


def _lag(lag_s: float) -> float:
    """The lag, rounded so that fresh views do not change between snapshots."""
    return round(lag_s, 1) if lag_s >= 0.1 else 0.0


def _rounded(rate: float) -> float:
    """The number with three significant digits, because more would change with each snapshot."""
    return float(f"{rate:.3g}")


STEP_S: Final = 10
STEPS: Final = 360
_STEP_US: Final = STEP_S * 1_000_000


class Sample(NamedTuple):
    """The counters of a relation at a moment. rows_in, rows_out: those since its creation. epoch_s: for the database,
    the duration of its newest epoch. NaN stands for unknown.
    """

    rows_in: float = math.nan
    rows_out: float = math.nan
    rows: float = math.nan
    lag_s: float = math.nan
    size_bytes: float = math.nan
    errors: float = math.nan
    epoch_s: float = math.nan


#: The id of the whole database among relations.
DATABASE: Final = ""

_WIDTH: Final = len(Sample._fields)

#: The values for which a step has the maximum of its samples.
_PEAKS: Final = [Sample._fields.index("lag_s"), Sample._fields.index("epoch_s")]

#: The maximum number of commits that are read at the start, evenly spread.
_MOST_READ: Final = 180


class History:
    """Samples of all relations. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0
        """The step of the newest sample: seconds since 1970 divided by STEP_S."""
        self._kept: dict[str, npt.NDArray[np.float64]] = {}
        self._times_us = np.full(STEPS, np.nan)
        """The time of the last samples of each step."""

    def add(self, time_us: int, samples: Mapping[str, Sample]) -> None:
        """Adds samples. Of several samples in one step the last counts; for lags and durations, the greatest value."""
        step = time_us // _STEP_US
        with self._lock:
            if step > self._newest:
                self._move(step - self._newest)
                self._newest = step
            place = STEPS - 1 - (self._newest - step)
            if place < 0:
                return
            self._times_us[place] = time_us
            for name, sample in samples.items():
                kept = self._kept.get(name)
                if kept is None:
                    kept = self._kept[name] = np.full((_WIDTH, STEPS), np.nan)
                before = kept[_PEAKS, place]
                kept[:, place] = sample
                kept[_PEAKS, place] = np.fmax(before, kept[_PEAKS, place])

    def forget(self, known: Iterable[str]) -> None:
        """Drops all relations that are not among the given ones."""
        with self._lock:
            kept = {DATABASE, *known}
            self._kept = {name: samples for name, samples in self._kept.items() if name in kept}

    def read(self, name: str) -> dict[str, object]:
        """The series of a relation as JSON, oldest step first; None for unknown values.

        end_s: the start of the last step. rows_in, rows_out: rows per second. For the others, see `Sample`.
        """
        with self._lock:
            kept = self._kept.get(name)
            found = np.full((_WIDTH, STEPS), np.nan) if kept is None else kept.copy()
            end_s, times_us = self._newest * STEP_S, self._times_us.copy()
        series: dict[str, object] = {"end_s": end_s, "step_s": STEP_S}
        for i, name_of_value in enumerate(Sample._fields):
            values = _rates(found[i], times_us) if name_of_value in ("rows_in", "rows_out") else found[i]
            series[name_of_value] = [None if math.isnan(v) else round(v, 3) for v in values.tolist()]
        return series

    def _move(self, steps: int) -> None:
        for kept in (*self._kept.values(), self._times_us[None, :]):
            if steps >= STEPS:
                kept[:] = np.nan
            else:
                kept[:, :-steps] = kept[:, steps:]
                kept[:, -steps:] = np.nan


def _rates(sums: npt.NDArray[np.float64], times_us: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Increases per second. Steps without a sample have the rate between their neighbors. At a decrease, because the
    relation was created again, there is no rate.
    """
    rates = np.full(STEPS, np.nan)
    there = np.flatnonzero(~np.isnan(sums))
    for before, now in zip(there[:-1].tolist(), there[1:].tolist(), strict=True):
        rise, seconds = sums[now] - sums[before], (times_us[now] - times_us[before]) / 1e6
        if rise >= 0 and seconds > 0:
            rates[before + 1 : now + 1] = rise / seconds
    return rates


def read_commits(history: History, layout: Layout, log: CommitLog, now_us: int) -> None:
    """Adds samples from the stored commits of the last hour. They must be older than all other samples."""
    numbers = [n for n in file_numbers(layout.commits) if n <= log.head()]
    found: list[Commit] = []
    for number in numbers[:: -max(1, len(numbers) // _MOST_READ)]:
        commit = log.find(number)
        if commit is None or commit.time_us < now_us - STEPS * _STEP_US:
            break
        if commit.epoch is not None:
            found.append(commit)
    for commit in reversed(found):
        history.add(commit.time_us, samples_of(commit))


def samples_of(commit: Commit) -> dict[str, Sample]:
    """Samples of all relations and of the database from the commit of an epoch."""
    metrics = commit.metrics
    found = {}
    for relation_id, t in metrics.totals.items():
        written = t.inserted + t.deleted
        # The size of a relation that the circuit only reads is unknown.
        rows = math.nan if t.rows and not written else t.inserted - t.deleted
        found[relation_id] = Sample(t.rows_in or t.rows, written, rows)
    rows = sum(t.rows for t in metrics.totals.values())
    return {**found, DATABASE: Sample(rows_in=rows, epoch_s=metrics.duration_us / 1e6)}


_LOG: Final = logging.getLogger(__name__)

#: The age up to which a snapshot is reused.
_FRESH_S: Final = 0.9
#: The minimum interval of snapshots, and the maximum part of a core that they may use.
_PAUSE_S: Final = 1.0
_PART: Final = 0.005
#: The minimum interval of queries to servers of captured databases, and of reading verifications from files.
_ASK_S: Final = 10.0
#: States without a problem.
_FINE: Final = ("running", "filling", "paused")

#: Upper bounds of the classes of epochs' durations, in seconds.
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class Epochs:
    """Sums over the epochs since the start of this process.

    buckets: for each upper bound in seconds, the number of epochs up to it. For the others, see
    `store.manifests.Metrics`.
    """

    number: int = 0
    rows: int = 0
    seconds: float = 0.0
    buckets: Mapping[float, int] = field(default_factory=lambda: dict.fromkeys(BOUNDS_S, 0))
    local: int = 0
    moved: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0

    def with_epoch(self, epoch: Metrics) -> Epochs:
        """The sums including one more epoch."""
        seconds = epoch.duration_us / 1e6
        return replace(
            self,
            number=self.number + 1,
            seconds=self.seconds + seconds,
            buckets={bound: n + (seconds <= bound) for bound, n in self.buckets.items()},
            **{name: getattr(self, name) + getattr(epoch, name) for name in _SUMS},
        )


_SUMS: Final = ("rows", "local", "moved", "cache_hits", "cache_misses", "fetched_bytes")


@dataclass(frozen=True)
class Snapshot:
    """The state of the database at a moment.

    metrics: those of relations, by id. status: without memory. captured: the status of captured databases, by id.
    retained: the number of stored commits. oldest_hold: the number of commits since the oldest one that a reader pins;
    None without readers. verified: the newest verifications by the id of the view.
    """

    time_us: int
    catalog: Catalog
    status: Status
    metrics: dict[str, RelationMetrics]
    sinks: tuple[SinkStatus, ...]
    captured: dict[str, CaptureStatus]
    epochs: Epochs | None
    retained: int
    oldest_hold: int | None
    verified: Mapping[str, Verification] = field(default_factory=dict)

    @property
    def database(self) -> dict[str, object]:
        """The state of the whole database as JSON."""
        status, metrics = self.status, self.status.metrics
        return {
            "runtime": status.runtime,
            "state": status.state,
            "error": status.error,
            "epoch": status.epoch,
            "commit": status.commit,
            "transaction": status.transaction,
            "duration_us": metrics.duration_us,
            "rows": metrics.rows,
            "behind": status.behind,
            "requests": metrics.requests,
            "time_us": status.time_us,
            "lag_s": round(status.lag_seconds, 1),
        }


class Watch:
    """Takes snapshots, and keeps the last hour. `snapshot` blocks; safe for several threads."""

    def __init__(self, session: Session) -> None:
        """session: one with all privileges, which is not shared."""
        self.history = History()
        self.session = session
        self._lock = threading.Lock()
        self._rates = Rates()
        self._snapshot: Snapshot | None = None
        self._price_s = 0.0
        self._taken_s = -math.inf
        self._asked_s = -math.inf
        self._captured: dict[str, CaptureStatus] = {}
        self._verified: Mapping[str, Verification] = {}
        self._verified_s = -math.inf
        self._followed = 0
        self._epochs = Epochs()
        self._inputs: tuple[int, dict[str, tuple[str, ...]]] = (-1, {})
        self._said: dict[str, tuple[str, str | None]] = {}
        self._kept_step = 0

    @property
    def pause_s(self) -> float:
        """Seconds until the next snapshot: one, or more if snapshots are expensive, as with very many views."""
        return min(max(_PAUSE_S, self._price_s / _PART), STEP_S)

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot, of any age."""
        return self._snapshot

    def begin(self) -> None:
        """Reads the commits of the last hour. Blocks."""
        database = self.session.database
        read_commits(self.history, database.layout, database.log, time.time_ns() // 1000)
        self._followed = database.log.head()

    def snapshot(self, most_age_s: float = _FRESH_S) -> Snapshot:
        """A snapshot that is at most that old."""
        with self._lock:
            if self._snapshot is None or time.monotonic() - self._taken_s > most_age_s:
                began_s = time.thread_time()
                self._snapshot = self._take()
                self._price_s = time.thread_time() - began_s
                self._taken_s = time.monotonic()
            return self._snapshot

    def _take(self) -> Snapshot:
        session = self.session
        database, catalog = session.database, session.catalog
        time_us = time.time_ns() // 1000
        status = database_status(session, memory=False)
        sinks = [r for r in catalog.relations.values() if isinstance(r, Sink) and not r.staged]
        sink_states = sink_statuses(session, sinks)
        rates = self._rates.update(_counts(status))
        progress = None if status.backfill is None else progress_of(status.backfill)
        if self._inputs[0] != catalog.version:
            self._inputs = (catalog.version, inputs_of_views(catalog))
        verified = self._verifications()
        found = relation_metrics(status, catalog, self._inputs[1], rates, sink_states, progress, verified)
        head = database.log.head()
        holds = [h.commit for h in read_leases(database.layout)]
        snapshot = Snapshot(
            time_us,
            catalog,
            status,
            found,
            tuple(sink_states),
            self._ask(catalog),
            None if database.read_only else self._follow(head),
            head - low_water_number(database.layout),
            head - min(holds) if holds else None,
            verified,
        )
        self._say(snapshot)
        if time_us // (STEP_S * 1_000_000) > self._kept_step:
            self._keep(snapshot)
        return snapshot

    def _keep(self, snapshot: Snapshot) -> None:
        """Adds the snapshot to the history, once per step."""
        self._kept_step = snapshot.time_us // (STEP_S * 1_000_000)
        last = self.session.database.log.last_epoch()
        samples = {} if last is None else samples_of(last)
        for relation_id, shown in snapshot.metrics.items():
            samples[relation_id] = samples.get(relation_id, Sample())._replace(
                rows=_number(shown.rows),
                lag_s=_number(shown.lag_s),
                size_bytes=_number(shown.size_bytes),
                errors=shown.errors,
            )
        whole = samples.get(DATABASE, Sample())
        samples[DATABASE] = whole._replace(lag_s=snapshot.status.lag_seconds)
        self.history.add(snapshot.time_us, samples)
        self.history.forget(snapshot.metrics)

    def _follow(self, head: int) -> Epochs:
        """Adds epochs up to the given commit. In the writer's process, their commits are in memory."""
        log = self.session.database.log
        for number in range(max(self._followed, low_water_number(self.session.database.layout)) + 1, head + 1):
            commit: Commit | None = log.find(number)
            if commit is not None and commit.epoch is not None:
                self._epochs = self._epochs.with_epoch(commit.metrics)
        self._followed = head
        return self._epochs

    def _verifications(self) -> Mapping[str, Verification]:
        """The newest verifications. A process that only reads takes them from files, which it reads rarely."""
        database = self.session.database
        if not database.read_only or time.monotonic() - self._verified_s >= _ASK_S:
            self._verified_s = time.monotonic()
            self._verified = newest_verifications(database)
        return self._verified

    def _ask(self, catalog: Catalog) -> dict[str, CaptureStatus]:
        """The status of captured databases by id."""
        captures = self.session.database.service(Captures)
        if captures is None or time.monotonic() - self._asked_s < _ASK_S:
            return self._captured
        self._asked_s = time.monotonic()
        ids = [r.id for r in catalog.relations.values() if isinstance(r, CapturedDatabase)]
        self._captured = {i: said for i in ids if (said := captures.status(i)) is not None}
        return self._captured

    def _say(self, snapshot: Snapshot) -> None:
        """Logs state changes of sources and sinks since the previous snapshot. The epochs log those of views."""
        known = snapshot.catalog.relations
        said = {
            i: (f.state, f.note)
            for i, f in snapshot.metrics.items()
            if snapshot.status.state == "running" and i in known and not isinstance(known[i], MaterializedView)
        }
        for relation_id, (state, note) in said.items():
            before = self._said.get(relation_id, ("running", None))
            if state == before[0] and (note == before[1] or state in _FINE):
                continue
            relation = known[relation_id]
            _LOG.log(
                logging.INFO if state in _FINE else logging.WARNING,
                "%s is %s%s",
                relation.title,
                state,
                f": {note}" if note else "",
                extra={"epoch": snapshot.status.epoch, "relation": relation.shown, "state": state},
            )
        self._said = said or self._said


def _counts(status: Status) -> dict[str, int]:
    """The counters whose rates the console shows: inserted rows by id, output rows by `>id`."""
    counts = {t.id: t.rows_in for t in status.tables}
    counts |= {s.id: s.rows for s in status.sources if s.connector}
    counts |= {v.id: v.rows_in for v in status.views}
    return counts | {f">{v.id}": v.rows_out for v in status.views}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
