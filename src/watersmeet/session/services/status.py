"""The state of views and sources, as JSON: for SHOW JOBS, progress displays and tests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from watersmeet.catalog import MaterializedView, Table
from watersmeet.circuit.operators import Operator, TemporalJoin
from watersmeet.dialects.schemas import relation_written
from watersmeet.errors import error
from watersmeet.expressions.casts import NO_INTEGER
from watersmeet.kernel.joins.memo import MEMO
from watersmeet.kernel.joins.unmatched import WAITING
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.shares import RunRef, load
from watersmeet.planner.failures import Failures, generated_text
from watersmeet.runtime.database import Database
from watersmeet.runtime.output import stored_state
from watersmeet.runtime.status import database_status as stored_status
from watersmeet.session.access.context import Session
from watersmeet.session.access.planning import producers_of
from watersmeet.store.commits import CommitLog
from watersmeet.store.lock import has_writer
from watersmeet.store.manifests import FailedPart
from watersmeet.store.sizes import RelationSize

_MEASURED: Final = (
    "main_bytes",
    "main_mapped_bytes",
    "workers",
    "workers_bytes",
    "workers_mapped_bytes",
    "java_bytes",
)

_EMPTY: Final = RelationSize()
#: By whether there is a process that writes.
_STATES: Final = {True: "running", False: "stopped", None: "unknown"}


def database_status(session: Session, *, memory: bool = True) -> dict[str, Any]:
    """The state of the engine and of everything that it keeps up to date.

    memory: measure memory, too, which takes longer than all the rest.

    state: running, failed or stopped; on a connection that only reads: whether another process runs the database,
        unknown in an object store.
    error: JSON or None, always None on a connection that only reads.
    epoch, commit, transaction, duration_us, rows, requests (to the object store), cache_hits, cache_misses,
        fetched_bytes, buckets_local, buckets_moved: of the newest epoch, as `runtime.status` says.
    behind: the number of transactions that it does not reflect. lag_seconds: the age of the oldest of them, else 0.
    views: a list, each with id, name, kind, ready, rows, rows_in, rows_out, late, state_rows, state_bytes,
        merge_debt_bytes, hot_keys, expression_errors, watermark, held_back_by, error (why it was stopped, JSON or
        None), writing (why the stream of INTO does not take what it gives, JSON or None), failures.
    sources: a list, each with id, name, connector, rows, bytes, dead, failures and what the source says.
    failures: the parts of expressions that were NULL because of an error, each with columns (of the relation),
        expression, rows (how often it failed) and reason (the first one).
    tables: a list, each with id, name, rows, bytes (on disk), rows_in (changes that epochs read).
    memory: as `memory_status`.
    """
    database = session.database
    if database.read_only:
        opened = Database(database.layout, database.log, database.packs, lambda: database.catalog)
        status = {
            "runtime": None,
            "state": _STATES[has_writer(database.layout)],
            "error": None,
            **stored_status(opened),
        }
    else:
        status = database.engine.status()
    catalog = session.catalog
    status["behind"], status["lag_seconds"] = _lag(database.log, status["transaction"])
    problems = database.unwritten.to_json()
    status["views"] = [
        _view(i, v, catalog.relations[i].role, problems.get(i))
        for i, v in status["views"].items()
        if i in catalog.relations and not catalog.relations[i].owner and not catalog.relations[i].staged
    ]
    status["sources"] = [{"id": i, **s} for i, s in status["sources"].items() if i in catalog.relations]
    _tell_failures(session, status)
    sizes, read = database.sizes.read(), status.pop("read")
    status["tables"] = [
        {
            "id": r.id,
            "name": r.shown,
            "rows": size.rows,
            "bytes": size.size_bytes,
            "rows_in": read.get(r.id, 0),
        }
        for r in catalog.relations.values()
        if isinstance(r, Table) and not r.staged
        for size in [sizes.get(r.id, _EMPTY)]
    ]
    if memory:
        status["memory"] = memory_status(session)
    return status


def _tell_failures(session: Session, status: dict[str, Any]) -> None:
    """Adds to views and sources the parts of their expressions that failed."""
    catalog, found = session.catalog, status.pop("failures")
    for source in status["sources"]:
        generated = catalog.relations[source["id"]].generated
        source["failures"] = [
            _failure([p.name], generated_text(generated[p.name], p.sql), p)
            for p in found.get(source["id"], ())
            if p.name in generated
        ]
    producers = producers_of(session) if found else {}
    for view in status["views"]:
        view["failures"] = []
        if view["expression_errors"] and view["id"] in producers:
            names = Failures(catalog.relations[view["id"]], catalog, producers)
            view["failures"] += [
                _failure(names.columns(i, p.column), names.text(i, p.column, p.sql), p)
                for i in names.operators
                for p in found.get(i, ())
            ]
            view["failures"].sort(key=lambda f: (f["columns"], f["expression"]))


def _failure(columns: list[str], expression: str, part: FailedPart) -> dict[str, Any]:
    return {
        "columns": columns,
        "expression": expression,
        "rows": part.rows,
        "reason": part.reason.replace(NO_INTEGER, ""),
    }


def memory_status(session: Session) -> dict[str, int | None]:
    """The memory that this process (main), Spark's Java and its Python workers use on this machine. Measured at most
    once a second; None where the machine doesn't report it (only Linux does).

    main_bytes, workers_bytes, java_bytes: their own memory.
    main_mapped_bytes, workers_mapped_bytes: mapped files, mainly packs and libraries.
    workers: their number.
    packs_bytes: the most that mapped packs read by this process take.
    commits_bytes: about what the commits kept in memory take.
    """
    database = session.database
    usage = database.meter.read()
    measured: dict[str, int | None] = dict.fromkeys(_MEASURED)
    if usage is not None:
        measured = {
            "main_bytes": usage.main.own_bytes,
            "main_mapped_bytes": usage.main.mapped_bytes,
            "workers": usage.worker_count,
            "workers_bytes": usage.workers.own_bytes,
            "workers_mapped_bytes": usage.workers.mapped_bytes,
            "java_bytes": usage.java.total_bytes,
        }
    return {**measured, "packs_bytes": database.packs.mapped_bytes, "commits_bytes": database.log.cached_bytes}


def join_state(session: Session, name: str) -> dict[str, int]:
    """How many rows the last join of a view or running query keeps of its `left` and `right` inputs.

    UNDEFINED_RELATION, FEATURE_NOT_SUPPORTED.

    Counts the rows of the arrangements that it reads; for a temporal join, the left rows that wait or whose look-up is
    remembered.
    """
    running = (r for r in session.catalog.relations.values() if r.hidden and r.name == name)
    relation = next(running, None) or relation_written(session.catalog, name)
    if not isinstance(relation, MaterializedView):
        raise error("UNDEFINED_RELATION", f'materialized view "{name}" does not exist')
    operators = session.database.plans.producers[relation.id]
    joins = [o for o in operators if o.kind in ("asof", "arrivalasof", "join", "multijoin", "temporal")]
    if joins and joins[-1].kind == "multijoin":
        raise error(
            "FEATURE_NOT_SUPPORTED", f'the last join of materialized view "{name}" has {len(joins[-1].inputs)} inputs'
        )
    if not joins:
        raise error("FEATURE_NOT_SUPPORTED", f'materialized view "{name}" has no join')
    epoch = session.database.log.last_epoch()
    held = {"left": 0, "right": 0}
    if epoch is None:
        return held
    kept = [(i, ROWS) for i in joins[-1].inputs]
    if joins[-1].kind == "temporal":
        waits = isinstance(joins[-1], TemporalJoin) and joins[-1].waits
        kept = [
            (joins[-1].id, WAITING if waits else MEMO),
            *_kept_by(joins[-1].inputs[1], {o.id: o for o in operators}),
        ]
    sides = list(zip(held, kept, strict=False))
    for key, pack in epoch.packs.items():
        if key[0].isdigit():
            manifest = stored_state(session.database.packs, pack, key)
            for side, (operator_id, trace) in sides:
                references = manifest.operators.get(operator_id, {}).get(trace, ())
                held[side] += sum(_live_rows(session, r) for r in references)
    return held


def _kept_by(arrangement: str, operators: Mapping[str, Operator]) -> list[tuple[str, str]]:
    """What a look-up join keeps of its right side: nothing if the relation is stored anyway."""
    below = arrangement
    while operators[below].inputs:
        below = operators[below].inputs[0]
        if operators[below].kind in ("topn", "upsert"):
            return [(arrangement, ROWS)]
    return []


def _live_rows(session: Session, ref: RunRef) -> int:
    """The rows of a run, less those that cancel rows of older runs."""
    return int(load(ref, session.database.packs.read_blob(ref.blob)).diff.sum())


def _view(relation_id: str, view: dict[str, Any], kind: str, problem: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": relation_id, "kind": kind, "rows_out": view["inserted"] + view["deleted"], **view, "writing": problem}


def _lag(log: CommitLog, transaction: int) -> tuple[int, float]:
    """How many transactions come after `transaction`, and how many seconds ago the first of them was committed."""
    behind, lag_seconds = 0, 0.0
    for commit in log.transactions(transaction, log.head()):
        behind += 1
        if behind == 1:
            lag_seconds = max(0.0, time.time() - commit.time_us / 1e6)
    return behind, lag_seconds
