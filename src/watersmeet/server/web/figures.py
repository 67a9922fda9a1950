"""What the console shows of each relation at one moment: state, freshness, rates, sizes, errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.runtime.status import SinkStatus, SourceStatus, Status, TableStatus, ViewStatus, failure_text

#: From which lag on a view is late, and from which on it is stale.
LATE_S: Final = 1.0
STALE_S: Final = 60.0
#: How fresh: as far as is known, a second behind or less; behind; a minute behind or more, or not followed at all.
#: None: nothing can be said, as nobody keeps it up to date.
Level = Literal[0, 1, 2] | None
_FRESH: Final[Level] = 0
_LATE: Final[Level] = 1
_STALE: Final[Level] = 2
#: Of a source, or of what delivers a sink: states that mean that nothing goes on until something changes.
_STANDS: Final = ("stalled", "blocked", "waiting", "retrying", "stopped", "lost", "fenced")


class Figures(NamedTuple):
    """The figures of a relation.

    state: running, filling, stopped, and those of sources and sinks. level: see `Level`. lag_s: how old the oldest
    input is that it does not reflect; None if that is not known. rows_in, rows_out: a second. rows: of the content.
    size_bytes: of a table on disk, of a view its state. errors: of all kinds, since it was made. note: what is wrong,
    or holds it back. progress: of one that is filled, from 0 to 1. backlog: what is left to be read or delivered, in
    units of `unit`.
    """

    state: str
    level: Level = _FRESH
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


def figures(
    status: Status,
    catalog: Catalog,
    inputs: Mapping[str, Sequence[str]],
    rates: Mapping[str, float],
    sinks: Iterable[SinkStatus] = (),
    progress: float | None = None,
) -> dict[str, Figures]:
    """The figures of all relations, by id.

    inputs: by view, as `inputs_of_views` says. rates: a second, by id what comes in, by `>id` what goes out. progress:
    of the views that are being filled.
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
        views[view.id] = _view(view, status, reads, rates, progress)
    return found | views | {sink.id: _sink(sink) for sink in sinks}


def inputs_of_views(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """By view, the tables and sources that it reads, through other views, too."""
    views = {r.id for r in catalog.relations.values() if isinstance(r, MaterializedView)}
    return {i: tuple(catalog.upstream([i]) - views) for i in views}


def level_of(lag_s: float) -> Level:
    """The level of what is that far behind."""
    return _FRESH if lag_s < LATE_S else _LATE if lag_s < STALE_S else _STALE


def _table(table: TableStatus, rates: Mapping[str, float]) -> Figures:
    rows_in = _rounded(rates.get(table.id, 0))
    return Figures("running", rows_in=rows_in, rows=table.rows, size_bytes=table.size_bytes)


def _source(source: SourceStatus, rates: Mapping[str, float], *, running: bool) -> Figures:
    health, messages, size_bytes = source.health, source.backlog_messages, source.backlog_bytes
    level: Level = _STALE if health.state in _STANDS else _LATE if messages or size_bytes else _FRESH
    return Figures(
        health.state if running else "stopped",
        level if running else None,
        rows_in=_rounded(rates.get(source.id, 0)),
        rows=source.rows,
        size_bytes=source.size_bytes,
        errors=source.errors,
        note=health.reason,
        watermark=source.watermark,
        late=source.late,
        backlog=size_bytes if messages is None else messages,
        unit=None if messages is None and size_bytes is None else "bytes" if messages is None else "messages",
    )


def _view(
    view: ViewStatus,
    status: Status,
    reads: Sequence[tuple[Relation, Figures]],
    rates: Mapping[str, float],
    progress: float | None,
) -> Figures:
    state, level, lag_s, note = _freshness(view, status, reads)
    return Figures(
        state,
        level,
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


def _freshness(
    view: ViewStatus, status: Status, reads: Sequence[tuple[Relation, Figures]]
) -> tuple[str, Level, float | None, str | None]:
    """The state, how fresh it is, how far it is behind, and why."""
    failure = status.health_of(view).reason
    if failure:
        return "stopped", _STALE, None, failure
    if status.state != "running":
        return "stopped", None, None, None
    if not view.ready:
        return "filling", None, None, None
    if view.writing:
        return "retrying", _STALE, None, failure_text(view.writing)
    # Transactions of the session concern those that read tables.
    lag_s = status.lag_seconds if any(not r.connector for r, _ in reads) else 0.0
    level = level_of(lag_s)
    standing = [f'"{r.shown}" is {f.state}' for r, f in reads if f.level == _STALE]
    if standing:
        return "running", _STALE, _lag(lag_s), ", ".join(standing)
    behind = [f'"{r.shown}" has {f.backlog:,} {f.unit} to read' for r, f in reads if f.level == _LATE]
    if behind and level == _FRESH:
        return "running", _LATE, _lag(lag_s), ", ".join(behind)
    return "running", level, _lag(lag_s), None


def _sink(sink: SinkStatus) -> Figures:
    state, seconds = sink.state or "unknown", sink.lag_seconds
    level: Level = None if seconds is None else level_of(seconds)
    return Figures(
        state,
        _STALE if state in _STANDS else level,
        None if seconds is None else _lag(seconds),
        rows=sink.delivered_rows,
        errors=1 if sink.detail else 0,
        note=sink.detail,
        backlog=sink.rows_behind,
        unit=None if sink.rows_behind is None else "rows",
    )


def _lag(lag_s: float) -> float:
    """So that what is fresh stays as it is from one look to the next."""
    return round(lag_s, 1) if lag_s >= 0.1 else 0.0


def _rounded(rate: float) -> float:
    """Three digits: more would change with each look."""
    return float(f"{rate:.3g}")
