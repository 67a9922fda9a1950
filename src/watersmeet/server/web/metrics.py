"""Health, and metrics for Prometheus. Series without a value are omitted, as placeholders would trigger alerts.

Names end with their unit. Labels contain names of relations, which stay the same when these are created again.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watersmeet import __version__
from watersmeet.database.sessions.context import Session
from watersmeet.errors import error
from watersmeet.objectstores.base import BOUNDS_S, Times, request_times
from watersmeet.runtime.memory import Usage
from watersmeet.server.web.watch import Snapshot
from watersmeet.system.process import lazy_import, library

if TYPE_CHECKING:
    import prometheus_client as prometheus
    from prometheus_client import core
    from prometheus_client.metrics_core import Metric
else:
    prometheus = lazy_import("prometheus_client")
    core = lazy_import("prometheus_client.core")

PREFIX: Final = "watersmeet_"


@dataclass(frozen=True)
class Clients:
    """Connections by protocol, finished statements by kind and SQLSTATE, current subscriptions."""

    connections: Mapping[str, int]
    statements: Mapping[tuple[str, str], int]
    subscriptions: int


@dataclass(frozen=True)
class Family:
    """A metric: its kind, its documentation and its labels."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


#: All metrics by their names without the prefix. Prometheus appends `_total` to counters, `_bucket` … to histograms.
FAMILIES: Final[dict[str, Family]] = {
    "build_info": Family("gauge", "The release, as a label.", ("version",)),
    "engine_failed": Family("gauge", "1 if the engine has failed, which stops all views."),
    "last_commit_timestamp_seconds": Family("gauge", "Time of the newest epoch's commit."),
    "epoch_duration_seconds": Family("histogram", "Duration of epochs."),
    "epoch_rows": Family("counter", "Input rows of epochs."),
    "buckets_local": Family("counter", "Buckets run by their previous executor."),
    "buckets_moved": Family("counter", "Buckets run by another executor than before."),
    "cache_hits": Family("counter", "Objects and blocks that tasks read from the local cache."),
    "cache_misses": Family("counter", "Objects and blocks that tasks fetched from the store."),
    "store_fetched_bytes": Family("counter", "Bytes that tasks fetched from the store."),
    "transactions_behind": Family("gauge", "Transactions that the newest epoch does not reflect."),
    "lag_seconds": Family("gauge", "Age of the oldest input that a view does not reflect.", ("view",)),
    "view_failed": Family("gauge", "1 if a view has stopped.", ("view",)),
    "view_filling": Family("gauge", "1 while a new view is being filled.", ("view",)),
    "view_rows": Family("gauge", "Rows in a view.", ("view",)),
    "view_rows_in": Family("counter", "Input rows of a view since its creation.", ("view",)),
    "view_rows_out": Family("counter", "Output changes of a view since its creation.", ("view",)),
    "view_recomputed": Family("counter", "Epochs that computed a view again instead of its changes.", ("view",)),
    "state_bytes": Family("gauge", "State of a view, including shared parts.", ("view",)),
    "merge_debt_bytes": Family("gauge", "State of a view that waits for a merge.", ("view",)),
    "expression_errors": Family("counter", "Values of a view that are NULL because an expression failed.", ("view",)),
    "late_rows": Family("counter", "Late rows that a view dropped.", ("view",)),
    "view_verified_commit": Family("gauge", "The commit at which VERIFY compared a view last.", ("view",)),
    "view_verified_timestamp_seconds": Family("gauge", "Time when VERIFY compared a view last.", ("view",)),
    "view_mismatches": Family("gauge", "Missing and wrong rows that VERIFY found last in a view.", ("view",)),
    "watermark_timestamp_seconds": Family("gauge", "Watermark: no earlier event can arrive.", ("relation",)),
    "source_rows": Family("counter", "Rows read from a source.", ("source",)),
    "source_late": Family("counter", "Late rows of a source.", ("source",)),
    "source_dead": Family("counter", "Dead letters of a source.", ("source",)),
    "source_running": Family("gauge", "0 if a source is waiting, blocked or stalled.", ("source",)),
    "source_backlog_bytes": Family("gauge", "Unread bytes of a source.", ("source",)),
    "source_backlog_messages": Family("gauge", "Unread messages of a source.", ("source",)),
    "sink_running": Family("gauge", "0 if a sink is retrying or stopped.", ("sink",)),
    "sink_lag_seconds": Family("gauge", "Age of the oldest undelivered change.", ("sink",)),
    "sink_backlog_rows": Family("gauge", "Undelivered changes.", ("sink",)),
    "memory_bytes": Family("gauge", "Memory on this machine: of processes, or of mapped files.", ("part", "kind")),
    "commits_retained": Family("gauge", "Stored commits."),
    "oldest_hold_commits": Family("gauge", "Commits since the oldest one that a reader uses."),
    "store_request_seconds": Family("histogram", "Duration of this process's requests to the store.", ("op",)),
    "store_failures": Family("counter", "Failed requests of this process to the store.", ("op",)),
    "connections": Family("gauge", "Connected clients.", ("protocol",)),
    "subscriptions": Family("gauge", "Running queries and subscriptions of clients."),
    "queries": Family("counter", "Finished statements of clients.", ("kind", "sqlstate")),
}


class Exporter:
    """Writes the metrics of a snapshot. Raises LIBRARY_MISSING."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], clients: Callable[[], Clients], memory: Callable[[], Usage | None]
    ) -> None:
        library("prometheus_client", "metrics")
        self._snapshot, self._clients, self._memory = snapshot, clients, memory
        self._registry = prometheus.CollectorRegistry()
        self._registry.register(self)
        prometheus.ProcessCollector(registry=self._registry)

    def text(self) -> tuple[bytes, str]:
        """All metrics, and the content type. Blocks."""
        return prometheus.generate_latest(self._registry), prometheus.CONTENT_TYPE_LATEST

    def describe(self) -> list[Metric]:
        """Returns nothing: the registry would only check names, and a snapshot is too expensive for that."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics as objects of the library."""
        found = _Found()
        snapshot = self._snapshot()
        _of_database(found, snapshot)
        _of_views(found, snapshot)
        _of_sources(found, snapshot)
        _of_sinks(found, snapshot)
        _of_clients(found, self._clients())
        _of_memory(found, self._memory())
        for operation, times in request_times().items():
            found.add("store_failures", times.failures, operation)
            found.histogram(
                "store_request_seconds",
                dict(zip(BOUNDS_S, _rising(times), strict=True)),
                sum(times.counts),
                times.seconds,
                operation,
            )
        return iter(found.metrics.values())


class _Found:
    """Collects metrics with values."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Adds a value, unless it is None."""
        if value is not None:
            family = self._family(name)
            assert isinstance(family, (core.GaugeMetricFamily, core.CounterMetricFamily))
            family.add_metric(list(labels), float(value))

    def histogram(self, name: str, buckets: Mapping[float, int], count: int, total: float, *labels: str) -> None:
        """Adds a histogram. buckets: the number of values up to each bound."""
        rows = [*((str(bound), n) for bound, n in buckets.items()), ("+Inf", count)]
        family = self._family(name)
        assert isinstance(family, core.HistogramMetricFamily)
        family.add_metric(list(labels), rows, sum_value=total)

    def _family(self, name: str) -> Metric:
        if name not in self.metrics:
            family = FAMILIES[name]
            kinds = {
                "gauge": core.GaugeMetricFamily,
                "counter": core.CounterMetricFamily,
                "histogram": core.HistogramMetricFamily,
            }
            self.metrics[name] = kinds[family.kind](PREFIX + name, family.text, labels=family.labels)
        return self.metrics[name]


def _of_database(found: _Found, snapshot: Snapshot) -> None:
    status = snapshot.status
    found.add("build_info", 1, __version__)
    found.add("engine_failed", status.state == "failed")
    if status.time_us:
        found.add("last_commit_timestamp_seconds", status.time_us / 1e6)
    if snapshot.epochs is not None:
        found.add("epoch_rows", snapshot.epochs.rows)
        found.add("buckets_local", snapshot.epochs.local)
        found.add("buckets_moved", snapshot.epochs.moved)
        found.add("cache_hits", snapshot.epochs.cache_hits)
        found.add("cache_misses", snapshot.epochs.cache_misses)
        found.add("store_fetched_bytes", snapshot.epochs.fetched_bytes)
        found.histogram(
            "epoch_duration_seconds", snapshot.epochs.buckets, snapshot.epochs.number, snapshot.epochs.seconds
        )
    found.add("transactions_behind", status.behind)
    found.add("commits_retained", snapshot.retained)
    found.add("oldest_hold_commits", snapshot.oldest_hold)


def _of_views(found: _Found, snapshot: Snapshot) -> None:
    for view in snapshot.status.views:
        name, metrics = view.name, snapshot.metrics[view.id]
        found.add("lag_seconds", metrics.lag_s, name)
        found.add("view_failed", bool(view.error), name)
        found.add("view_filling", not view.ready, name)
        found.add("view_rows", view.rows, name)
        found.add("view_rows_in", view.rows_in, name)
        found.add("view_rows_out", view.rows_out, name)
        found.add("view_recomputed", view.recomputed, name)
        found.add("state_bytes", view.state_bytes, name)
        found.add("merge_debt_bytes", view.merge_debt_bytes, name)
        found.add("expression_errors", view.expression_errors, name)
        found.add("late_rows", view.late, name)
        found.add("watermark_timestamp_seconds", seconds_of(view.watermark), name)
        verified = snapshot.verified.get(view.id)
        if verified is not None and verified.compared:
            found.add("view_verified_commit", verified.commit, name)
            found.add("view_verified_timestamp_seconds", verified.verified_us / 1e6, name)
            found.add("view_mismatches", verified.missing + verified.extra, name)


def _of_sources(found: _Found, snapshot: Snapshot) -> None:
    for source in snapshot.status.sources:
        name = source.name
        found.add("watermark_timestamp_seconds", seconds_of(source.watermark), name)
        if not source.connector:  # this is a table with an event time
            continue
        found.add("source_rows", source.rows, name)
        found.add("source_late", source.late, name)
        found.add("source_dead", source.dead, name)
        found.add("source_running", source.health.state in ("running", "paused"), name)
        found.add("source_backlog_bytes", source.backlog_bytes, name)
        found.add("source_backlog_messages", source.backlog_messages, name)
    for relation_id, capture in snapshot.captured.items():
        relation = snapshot.catalog.relations.get(relation_id)
        if relation is not None:
            found.add("source_running", capture.state in ("running", "filling", "starting"), relation.shown)
            found.add("source_backlog_bytes", capture.lag_bytes, relation.shown)


def _of_sinks(found: _Found, snapshot: Snapshot) -> None:
    for sink in snapshot.sinks:
        found.add("sink_running", None if sink.state is None else sink.state == "running", sink.name)
        found.add("sink_lag_seconds", sink.lag_seconds, sink.name)
        found.add("sink_backlog_rows", sink.rows_behind, sink.name)


def _of_clients(found: _Found, clients: Clients) -> None:
    for protocol, number in clients.connections.items():
        found.add("connections", number, protocol)
    found.add("subscriptions", clients.subscriptions)
    for (kind, sqlstate), number in clients.statements.items():
        found.add("queries", number, kind, sqlstate)


def _of_memory(found: _Found, usage: Usage | None) -> None:
    if usage is not None:
        for part, memory in (("main", usage.main), ("workers", usage.workers), ("java", usage.java)):
            found.add("memory_bytes", memory.own_bytes, part, "own")
            found.add("memory_bytes", memory.mapped_bytes, part, "mapped")


def seconds_of(text: str | None) -> float | None:
    """The seconds since 1970 (UTC) of a time in PostgreSQL's form; None for an infinite one."""
    try:
        return None if text is None else dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None


def _rising(times: Times) -> list[int]:
    """The cumulative number of requests up to each bound."""
    found, total = [], 0
    for count in times.counts[:-1]:
        total += count
        found.append(total)
    return found


#: The minimum free space of a disk that can store a transaction.
_LEAST_BYTES: Final = 1 << 20


def is_alive() -> dict[str, object]:
    """The answer to a liveness probe."""
    return {"alive": True}


def readiness(session: Session) -> tuple[bool, dict[str, object]]:
    """Whether the database is open, its engine works and its disk has space; the reason if not. Stopped views do not
    count, as the others continue.
    """
    database = session.database
    if database.is_closed:
        return False, {"ready": False, "reason": "the database is closed"}
    failure = None if database.read_only else database.engine.failure
    if failure is None and not database.read_only and _is_full(database.layout.directory):
        failure = error("DISK_FULL", "no space left for the database")
    if failure is not None:
        return False, {"ready": False, "condition": failure.condition, "reason": failure.message}
    return True, {"ready": True}


def _is_full(directory: Path | None) -> bool:
    """Whether the disk of a database is full; False for one in an object store."""
    return directory is not None and shutil.disk_usage(directory).free < _LEAST_BYTES
