"""The status of a database (its engine, views, sources, tables and operators) as data classes for all interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from watersmeet.store.manifests import Backfill, Metrics
from watersmeet.values.serialization import to_json

ErrorJson = Mapping[str, Any]
"""`Error.to_json`."""

#: The states of sources, the worst last.
SOURCE_STATES: Final = ("running", "paused", "blocked", "waiting", "stalled")
#: Counters of errors that sources report themselves.
_REPORTED_ERRORS: Final = ("replaced_files", "history_lost_files", "unreadable_files")


def failure_text(failure: ErrorJson) -> str:
    """The text `CONDITION: message`."""
    return f"{failure['condition']}: {failure['message']}"


@dataclass(frozen=True)
class Health:
    """Whether a view or source is kept up to date.

    state: for a view running, filling, failed or stopped; for a source one of SOURCE_STATES. reason: the failure that
    stopped the view or the engine, or the reason why the source isn't running.
    """

    state: str
    reason: str | None = None


@dataclass(frozen=True)
class HotKeyStatus:
    """A key with many rows (approximately). split: whether its rows are in all buckets."""

    key: tuple[str | None, ...]
    rows: int
    split: bool

    @property
    def order(self) -> tuple[int, list[str]]:
        """Sorts by rows, most first, then by key."""
        return -self.rows, [v or "" for v in self.key]

    @property
    def text(self) -> str:
        """A text like `7: 123456 rows (split)`."""
        values = ", ".join("NULL" if v is None else v for v in self.key)
        return f"{values}: {self.rows} rows{' (split)' if self.split else ''}"


@dataclass(frozen=True)
class FailedExpression:
    """A part of an expression that was NULL in `rows` rows because of an error. reason: the error of the first one."""

    columns: tuple[str, ...]
    expression: str
    rows: int
    reason: str


@dataclass(frozen=True)
class OperatorStatus:
    """An operator: its rows and time in the newest epoch, and its state after it.

    made_rows: only joins have it, see `limits`. merge_debt_bytes: the bytes of its state that wait for unfinished
    merges.
    """

    kind: str
    stage: int
    rows_in: int = 0
    rows_out: int = 0
    made_rows: int = 0
    took_us: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    merge_debt_bytes: int = 0
    expression_errors: int = 0
    hot_keys: tuple[HotKeyStatus, ...] = ()


@dataclass(frozen=True)
class ViewStatus:
    """A view, with sums over its operators.

    ready: whether its history was read. rows_in: the rows that its scans read since it was created. late: rows dropped
    as late. recomputed: the number of epochs that computed it again. watermark: the lowest watermark of its inputs with
    an event time, as text; None while one has none. held_back_by: the name of the input with that watermark. error: why
    the view was stopped. paused: whether it stands still until it is resumed. writing: why the stream of INTO rejects
    its rows.
    """

    id: str
    name: str
    kind: str
    ready: bool = True
    rows_in: int = 0
    inserted: int = 0
    deleted: int = 0
    late: int = 0
    recomputed: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    merge_debt_bytes: int = 0
    expression_errors: int = 0
    hot_keys: tuple[HotKeyStatus, ...] = ()
    watermark: str | None = None
    held_back_by: str | None = None
    error: ErrorJson | None = None
    paused: bool = False
    writing: ErrorJson | None = None
    failures: tuple[FailedExpression, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows of its content."""
        return self.inserted - self.deleted

    @property
    def rows_out(self) -> int:
        """The number of rows in its changes since it was created."""
        return self.inserted + self.deleted

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**_plain(self), "rows": self.rows, "rows_out": self.rows_out}


@dataclass(frozen=True)
class SourceStatus:
    """A source, or a table with an event time, which has no connector.

    dead: the number of dead letters. expression_errors: those of generated columns. late: rows dropped as late,
    including those that an ordered stream rejected. reported: the source's own report, which depends on the connector:
    its state and problems, its backlog, counts and lists of files.
    """

    id: str
    name: str
    connector: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    size_bytes: int = 0
    dead: int = 0
    ahead: int = 0
    expression_errors: int = 0
    late: int = 0
    first_dead: Mapping[str, Any] | None = None
    watermark: str | None = None
    idle: bool = False
    failures: tuple[FailedExpression, ...] = ()
    reported: Mapping[str, Any] = field(default_factory=dict)

    @property
    def health(self) -> Health:
        """The source's state, and the reason if it isn't running."""
        reason = self.reported.get("reason") or self.problem
        return Health(self.reported.get("state") or "running", reason)

    @property
    def problem(self) -> str | None:
        """Its problem, if it has one."""
        problem = self.reported.get("problem")
        return str(problem) if problem else None

    @property
    def errors(self) -> int:
        """The number of all errors since it was created."""
        reported: int = sum(self.reported.get(n, 0) for n in _REPORTED_ERRORS)
        return self.dead + self.expression_errors + reported

    @property
    def backlog_messages(self) -> int | None:
        """The number of messages left to read; None if the source doesn't count messages."""
        found: int | None = self.reported.get("backlog_messages")
        return found

    @property
    def backlog_bytes(self) -> int | None:
        """The number of bytes left to read; None if the source doesn't count bytes."""
        found: int | None = self.reported.get("backlog_bytes")
        return found

    def to_dict(self) -> dict[str, Any]:
        """The source as JSON, including its own report."""
        own = _plain(self)
        named = {n: own.pop(n) for n in ("id", "name", "connector")}
        return {**named, **own.pop("reported"), "rows": own.pop("rows"), "bytes": own.pop("size_bytes"), **own}


@dataclass(frozen=True)
class CapturedTableStatus:
    """A captured table. state: running, snapshot, waiting or stalled. rows: those of its snapshot. reason: why it isn't
    read.
    """

    state: str
    rows: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class CaptureStatus:
    """A captured database. tables: by name. offset: the committed position in the server's log.

    lag_bytes: the bytes of that log left to read. retained_bytes: the bytes that the server keeps for this capture.
    Unknown values are None.
    """

    state: str
    reason: str | None
    tables: Mapping[str, CapturedTableStatus]
    offset: str
    lag_bytes: int | None = None
    retained_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class TableStatus:
    """A table. size_bytes: its size on disk. rows_in: the number of changes that epochs have read."""

    id: str
    name: str
    rows: int = 0
    size_bytes: int = 0
    rows_in: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        own = _plain(self)
        return {"bytes": own.pop("size_bytes"), **own}


@dataclass(frozen=True)
class SinkStatus:
    """A sink, its target, and its lag: the columns of SHOW SINKS.

    state: None if unknown. In a process that only reads, and for a sink INTO a table, only the state and the detail are
    known.
    """

    id: str
    name: str
    connector: str
    type: str
    state: str | None = None
    delivered_commit: int | None = None
    delivered_rows: int | None = None
    commits_behind: int | None = None
    rows_behind: int | None = None
    bytes_behind: int | None = None
    lag_seconds: float | None = None
    detail: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return _plain(self)


@dataclass(frozen=True)
class MemoryStatus:
    """The memory of this process (main), Spark's Java and its Python workers on this machine; None where the machine
    doesn't report it (only Linux does).

    *_bytes: their own memory. *_mapped_bytes: mapped files, mainly segments and libraries. workers: their number.
    segments_bytes: an upper bound of mapped segments read by this process. commits_bytes: the approximate size of the
    commits kept in memory.
    """

    main_bytes: int | None = None
    main_mapped_bytes: int | None = None
    workers: int | None = None
    workers_bytes: int | None = None
    workers_mapped_bytes: int | None = None
    java_bytes: int | None = None
    segments_bytes: int = 0
    commits_bytes: int = 0


@dataclass(frozen=True)
class Status:
    """The engine and everything that it keeps up to date, as of the newest epoch.

    runtime: inprocess or spark. error: the failure of the engine. In a process that only reads, both are None, and
    `state` is whether another process runs the database (unknown in an object store). commit, transaction: their
    numbers. time_us: the time of the commit; None before the first epoch. behind: the number of transactions that the
    epoch does not reflect. lag_seconds: the age of the oldest of these, else 0. metrics: those of the epoch. operators:
    by id. memory: None if it was not measured.
    """

    runtime: str | None = None
    state: Literal["running", "failed", "stopped", "unknown"] = "stopped"
    error: ErrorJson | None = None
    epoch: int = 0
    commit: int = 0
    transaction: int = 0
    time_us: int | None = None
    behind: int = 0
    lag_seconds: float = 0.0
    backfill: Backfill | None = None
    metrics: Metrics = field(default_factory=Metrics)
    views: tuple[ViewStatus, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    tables: tuple[TableStatus, ...] = ()
    operators: Mapping[str, OperatorStatus] = field(default_factory=dict)
    memory: MemoryStatus | None = None

    def health_of(self, view: ViewStatus) -> Health:
        """The health of a view. A failure of the engine stops all views."""
        if view.error is not None:
            return Health("failed", failure_text(view.error))
        if view.paused:
            return Health("paused")
        failure = failure_text(self.error) if self.state == "failed" and self.error is not None else None
        return Health(self.state if view.ready else "filling", failure)

    def view(self, relation_id: str) -> ViewStatus | None:
        """The view with that id."""
        return next((v for v in self.views if v.id == relation_id), None)

    def source(self, relation_id: str) -> SourceStatus | None:
        """The source with that id."""
        return next((s for s in self.sources if s.id == relation_id), None)

    def to_dict(self) -> dict[str, Any]:
        """The status as JSON, for users of `Connection.status`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        metrics = own.pop("metrics")
        counts = ("duration_us", "rows", "requests", "cache_hits", "cache_misses", "fetched_bytes")
        return {
            **own,
            "backfill": to_json(self.backfill),
            **{name: getattr(metrics, name) for name in counts},
            "buckets_local": metrics.local,
            "buckets_moved": metrics.moved,
            "views": [v.to_dict() for v in self.views],
            "sources": [s.to_dict() for s in self.sources],
            "tables": [t.to_dict() for t in self.tables],
            "operators": {i: _plain(o) for i, o in self.operators.items()},
            "memory": None if self.memory is None else asdict(self.memory),
        }


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a status, as JSON."""
    found = {f.name: getattr(value, f.name) for f in fields(value)}
    for name, items in found.items():
        if isinstance(items, tuple):
            found[name] = [{n: _listed(v) for n, v in asdict(item).items()} for item in items]
    return found


def _listed(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value
