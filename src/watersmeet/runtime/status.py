"""What is known of a database's views, sources and operators: from the newest epoch commit and the packs it names."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from watersmeet import secretvalues
from watersmeet.catalog import Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import COPY
from watersmeet.errors import Error
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.runtime.database import Database
from watersmeet.runtime.hotkeys import hottest_keys
from watersmeet.runtime.idleness import inputs_of_views
from watersmeet.runtime.output import held_bytes, stored_state
from watersmeet.runtime.plans import kept_circuit
from watersmeet.runtime.sourcestatus import read_source_status
from watersmeet.serialization import to_json
from watersmeet.store.commits import Commit
from watersmeet.store.manifests import OperatorCounts, RelationTotals

_NOTHING: Final = RelationTotals()


class Size(NamedTuple):
    """What an operator keeps over all buckets. merge_debt_bytes: of its bytes, what waits for merges under way."""

    rows: int = 0
    size_bytes: int = 0
    merge_debt_bytes: int = 0


Sizes = dict[str, Size]


def database_status(db: Database, *, sources: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """The status as of the newest epoch; works in any process.

    sources: what they say of themselves; None in a process that does not have them: as they said last.
    epoch, commit (number), transaction, behind (transactions not reflected yet), backfill (JSON or None),
    duration_us, rows and requests (to the object store) of the newest epoch; cache_hits, cache_misses, fetched_bytes
        (objects, and blocks of large ones, that its tasks found on the local disk, or fetched); buckets_local,
        buckets_moved (steps that ran on the executor that ran them last, or on another one),
    views: by id: name, ready, rows_in (from its scans, since it was made), inserted, deleted, rows (inserted -
    deleted), late (left out as such),
        state_rows, state_bytes, merge_debt_bytes (of these what waits for merges under way), hot_keys (of its
        arrangements, see `hotkeys`), expression_errors, watermark (the least number of its inputs with an event time,
        as text; None as long as one has none), held_back_by (the name of that input), error (JSON: why it was stopped;
        or None),
    sources: by id (those with a connector or an event time): name, connector (None: a table that has an event time),
    rows, bytes, dead, expression_errors (of generated columns),
        late (with those that an ordered stream rejected), ahead, first_dead, watermark (text), idle, and what the
        source itself says (`sources`),
    read: by id, how many rows epochs read of each relation,
    operators: by id: kind, stage, rows_in, rows_out, made_rows (of joins, see `limits`), took_us (all four of the
        newest epoch), state_rows, state_bytes, merge_debt_bytes, expression_errors, hot_keys,
    failures: by operator, and by source with generated columns, the parts of expressions that failed
        (`store.manifests.FailedPart`).
    """
    commit = db.log.last_epoch()
    head = db.log.head()
    newest = db.log.newest_transaction(head)
    status: dict[str, Any] = {
        "epoch": 0,
        "commit": 0,
        "transaction": 0,
        "behind": newest,
        "backfill": None,
        "duration_us": 0,
        "rows": 0,
        "requests": 0,
        "cache_hits": 0,
        "cache_misses": 0,
        "fetched_bytes": 0,
        "buckets_local": 0,
        "buckets_moved": 0,
        "views": {},
        "sources": {},
        "read": {},
        "operators": {},
        "failures": {},
    }
    if commit is None or commit.frontier is None or commit.circuit is None:
        return status
    circuit = kept_circuit(db.layout, commit.circuit)
    status |= {
        "epoch": commit.epoch,
        "commit": commit.number,
        "transaction": commit.frontier.transaction,
        "behind": max(0, newest - commit.frontier.transaction),
        "backfill": to_json(commit.frontier.backfill),
        "duration_us": commit.metrics.duration_us,
        "rows": commit.metrics.rows,
        "requests": commit.metrics.requests,
        "cache_hits": commit.metrics.cache_hits,
        "cache_misses": commit.metrics.cache_misses,
        "fetched_bytes": commit.metrics.fetched_bytes,
        "buckets_local": commit.metrics.local,
        "buckets_moved": commit.metrics.moved,
        "time_us": commit.time_us,
    }
    status["operators"] = _operators(circuit, commit, _states(db, commit))
    status["failures"] = commit.metrics.failures
    known = db.catalog().relations
    totals = commit.metrics.totals
    status["read"] = {i: total.rows for i, total in totals.items() if total.rows}
    filling = () if commit.frontier.backfill is None else commit.frontier.backfill.purpose.views
    progress, inputs = commit.progress, inputs_of_views(circuit)
    for sink in circuit.sinks:
        if sink.relation_id in known:
            below = circuit.below_sinks[sink.relation_id]
            view = _view(below, status["operators"], totals.get(sink.relation_id, _NOTHING))
            view["late"] = progress.left_out.get(sink.relation_id, 0)
            view |= _held_back(inputs[sink.relation_id], progress.watermarks, commit.metrics.idle, known)
            status["views"][sink.relation_id] = {
                "name": known[sink.relation_id].shown,
                "ready": sink.relation_id not in filling,
                **view,
                "error": None,
            }
    for relation_id, failure in progress.failed.items():
        if relation_id in known:
            total, left_out = totals.get(relation_id, _NOTHING), progress.left_out.get(relation_id, 0)
            status["views"][relation_id] = _stopped(known[relation_id].shown, total, left_out, failure)
    said = read_source_status(db) if sources is None else sources
    status["sources"] = _sources(circuit, commit, db.log.read(head).rejected, known, said)
    return status


def _stopped(name: str, total: RelationTotals, left_out: int, failure: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a view that has no operators any more."""
    return {
        "name": name,
        "ready": True,
        **_kept(total),
        "late": left_out,
        "state_rows": 0,
        "state_bytes": 0,
        "merge_debt_bytes": 0,
        "hot_keys": [],
        "expression_errors": 0,
        "watermark": None,
        "held_back_by": None,
        "error": failure,
    }


def _sources(
    circuit: Circuit,
    commit: Commit,
    rejected: Mapping[str, int],
    known: Mapping[str, Relation],
    sources: Mapping[str, dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    found = {}
    progress, metrics = commit.progress, commit.metrics
    scanned = {s.relation_id for s in circuit.scans}
    for relation_id, relation in known.items():
        if relation_id in scanned and (relation.connector or relation.event_time):
            total = metrics.totals.get(relation_id, _NOTHING)
            found[relation_id] = {
                "name": relation.shown,
                "connector": secretvalues.shown(relation.connector),
                **sources.get(relation_id, {}),
                "rows": total.rows,
                "bytes": total.size_bytes,
                "dead": total.dead,
                "ahead": total.ahead,
                "expression_errors": total.expression_errors,
                "late": progress.late.get(relation_id, 0) + rejected.get(relation_id, 0),
                "first_dead": metrics.first_dead.get(relation_id),
                "watermark": _text(progress.watermarks.get(relation_id)),
                "idle": relation_id in metrics.idle,
            }
    return found


def _held_back(
    inputs: Iterable[str], numbers: Mapping[str, int], idle: Container[str], known: Mapping[str, Relation]
) -> dict[str, str | None]:
    """How far the event time of a view has come, and which of its inputs is the last: of equal ones one that is not
    idle.
    """
    timed = sorted(
        (numbers.get(i, -math.inf), i in idle, known[i].name) for i in inputs if i in known and known[i].event_time
    )
    if not timed:
        return {"watermark": None, "held_back_by": None}
    number, _, name = timed[0]
    return {"watermark": None if number == -math.inf else _text(int(number)), "held_back_by": name}


def _text(time_us: int | None) -> str | None:
    """A time as PostgreSQL writes it."""
    if time_us is None:
        return None
    try:
        return str(dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None) + dt.timedelta(microseconds=time_us))
    except OverflowError:
        return "-infinity" if time_us < 0 else "infinity"


def state_bytes(db: Database, packs: Mapping[str, str]) -> dict[str, int]:
    """By operator, the bytes of its state over all buckets. packs: by "stage/bucket"."""
    found: dict[str, int] = {}
    for key, pack in packs.items():
        if key[0].isdigit():
            for operator_id, size in held_bytes(stored_state(db.packs, pack, key)).items():
                found[operator_id] = found.get(operator_id, 0) + size
    return found


def state_sizes(db: Database, commit: Commit) -> Sizes:
    """The size of state by operator."""
    return _sizes(_states(db, commit))


def _states(db: Database, commit: Commit) -> dict[str, StateManifest]:
    """By "stage/bucket", what is stored of the state."""
    found = {}
    for key, pack in commit.packs.items():
        # If the clean-up was faster than we, the next status has it.
        with contextlib.suppress(Error):
            if key[0].isdigit():
                found[key] = stored_state(db.packs, pack, key)
    return found


def _sizes(states: Mapping[str, StateManifest]) -> Sizes:
    sizes: Sizes = {}
    for manifest in states.values():
        for state_id in manifest.operators:
            operator_id = state_id.removeprefix(COPY)
            before, refs = sizes.get(operator_id, Size()), manifest.refs_of(state_id)
            sizes[operator_id] = Size(
                before.rows + sum(r.rows for r in refs),
                before.size_bytes + sum(r.size_bytes for r in refs),
                before.merge_debt_bytes + manifest.merge_debt_bytes(state_id),
            )
    return sizes


def _operators(circuit: Circuit, commit: Commit, states: Mapping[str, StateManifest]) -> dict[str, dict[str, Any]]:
    found = {}
    sizes, hottest = _sizes(states), hottest_keys(circuit, states, commit.progress.split)
    ran, errors = commit.metrics.operators, commit.metrics.errors
    for o in circuit.operators:
        now = ran.get(o.id, OperatorCounts())
        size = sizes.get(o.id, Size())
        found[o.id] = {
            "kind": o.kind,
            "stage": circuit.stages[o.id],
            "rows_in": now.rows_in,
            "rows_out": now.rows_out,
            "made_rows": now.made_rows,
            "took_us": now.took_us,
            "state_rows": size.rows,
            "state_bytes": size.size_bytes,
            "merge_debt_bytes": size.merge_debt_bytes,
            "expression_errors": errors.get(o.id, 0),
            "hot_keys": hottest.get(o.id, []),
        }
    return found


def _view(operator_ids: Collection[str], operators: dict[str, dict[str, Any]], total: RelationTotals) -> dict[str, Any]:
    summed = ("state_rows", "state_bytes", "merge_debt_bytes", "expression_errors")
    found: dict[str, Any] = {**_kept(total), **dict.fromkeys(summed, 0), "hot_keys": []}
    for operator in map(operators.__getitem__, operator_ids):
        if operator["state_bytes"] or operator["expression_errors"]:
            for name in summed:
                found[name] += operator[name]
            found["hot_keys"] += operator["hot_keys"]
    found["hot_keys"].sort(key=lambda k: (-k["rows"], [v or "" for v in k["key"]]))
    return found


def _kept(total: RelationTotals) -> dict[str, int]:
    """What a view has shown since it was made."""
    return {
        "rows_in": total.rows_in,
        "inserted": total.inserted,
        "deleted": total.deleted,
        "rows": total.inserted - total.deleted,
    }
