"""Saved circuits, their number of buckets, whether state belongs to a circuit, and whether history can rebuild it.

A database always runs the circuit that was saved when its views were created, never a new one. Each set of views that
ran together has a file with all its operators, compressed to a tenth of its size. The number of buckets is that of the
circuit of the newest epoch; before the first epoch that of a file.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from watersmeet.catalog import ARRIVAL, Relation
from watersmeet.catalog import Source as CatalogSource
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.epochs import Fill
from watersmeet.circuit.operators import (
    ArrivalAsofJoin,
    ArrivalJoin,
    ChangeLog,
    Cut,
    LateRowFilter,
    Operator,
    Records,
    Scan,
    TemporalJoin,
    Versions,
)
from watersmeet.errors import Error, OperationalError, error
from watersmeet.kernel.operators import STATEFUL
from watersmeet.objectstores import storage
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Progress, Rebuilding
from watersmeet.values.serialization import from_json


def save_circuit(layout: Layout, circuit: Circuit, *, over: bool = False) -> None:
    """Store the circuit under its fingerprint, unless the file exists. over: also replace a damaged file."""
    path = layout.circuit(circuit.fingerprint)
    if over or not storage.exists(path):
        deflated = base64.b64encode(zlib.compress(circuit.text.encode(), 4)).decode("ascii")
        value = {"state_format": STATE_FORMAT_VERSION, "deflated_circuit": deflated}
        storage.replace_file(path, layout.seal(path, value), durable=layout.durable)


def load_circuit(layout: Layout, fingerprint: str) -> Circuit:
    """The circuit with that fingerprint.

    Raises DATABASE_DAMAGED if it is missing, STATE_MISMATCH if another release made it.
    """
    path = layout.circuit(fingerprint)
    try:
        value = layout.unseal(path)
    except FileNotFoundError as cause:
        raise error("DATABASE_DAMAGED", f"plan {path.name} is missing from {path.parent}") from cause
    if value.get("state_format") != STATE_FORMAT_VERSION:
        raise error(
            "STATE_MISMATCH",
            f"the state has format {value.get('state_format')}, this release has {STATE_FORMAT_VERSION}",
            hint="Use the release that wrote it, or rebuild the views.",
        )
    circuit = from_json(Circuit, json.loads(zlib.decompress(base64.b64decode(value["deflated_circuit"]))))
    if circuit.fingerprint != fingerprint:
        raise error(
            "STATE_MISMATCH",
            f"plan {path.name} does not have the fingerprint in its name",
            detail="It was changed, or this release reads it differently.",
        )
    return circuit


@lru_cache(maxsize=4)
def kept_circuit(layout: Layout, fingerprint: str) -> Circuit:
    """Like `load_circuit`, with a cache of the last circuits."""
    return load_circuit(layout, fingerprint)


MAX_PARALLELISM: Final = 256
_FILE: Final = "PARALLELISM"


def check_parallelism(wanted: int) -> None:
    """Raises INVALID_PARAMETER for an impossible number of buckets."""
    if not 1 <= wanted <= MAX_PARALLELISM:
        raise error(
            "INVALID_PARAMETER", f"parallelism can't be {wanted}", hint=f"It must be between 1 and {MAX_PARALLELISM}."
        )


def parallelism(layout: Layout, log: CommitLog) -> int | None:
    """The number of buckets of the state as of the newest commit; None in a new database."""
    last = log.last_epoch()
    if last is not None and last.circuit is not None:
        backfill = None if last.frontier is None else last.frontier.backfill
        purpose = None if backfill is None else backfill.purpose
        # The new state of a rebuild is not in use yet.
        try:
            return kept_circuit(layout, purpose.before if isinstance(purpose, Rebuilding) else last.circuit).buckets
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            # The circuit is created again from the plans of the views, for the stored number of buckets.
    try:
        return int(json.loads(storage.read_file(layout.root / _FILE))["buckets"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as cause:
        raise error("DATABASE_DAMAGED", f"cannot read the file {_FILE} of the database") from cause


def begin_parallelism(layout: Layout, buckets: int) -> None:
    """Store the number of buckets of a new database, unless another process has done so."""
    with contextlib.suppress(FileExistsError):
        storage.create_file(layout.root / _FILE, _text(buckets), durable=layout.durable)


def store_parallelism(layout: Layout, buckets: int) -> None:
    """Store another number of buckets, for a database without epochs."""
    storage.replace_file(layout.root / _FILE, _text(buckets), durable=layout.durable)


def _text(buckets: int) -> bytes:
    return (json.dumps({"buckets": buckets}) + "\n").encode()


def check_state(stored: Circuit, circuit: Circuit, live: frozenset[str]) -> None:
    """Raises STATE_MISMATCH if a live view's operators are not those of the stored state."""
    if stored.buckets != circuit.buckets:
        raise error("PARALLELISM_MISMATCH", f"the state is for parallelism {stored.buckets}, not {circuit.buckets}")
    check_operators(stored, circuit, circuit.upstream({s.id for s in circuit.sinks if s.relation_id in live}))


def check_operators(stored: Circuit, circuit: Circuit, operators: Iterable[str]) -> None:
    """Raises STATE_MISMATCH if one of `operators` of a circuit has no state in the stored one."""
    for o in operators:
        if circuit.by_id[o].kind not in STATEFUL:
            continue  # its id may change
        moved = stored.buckets == circuit.buckets and stored.stages.get(o) != circuit.stages[o]
        if o not in stored.by_id or moved:
            raise error(
                "STATE_MISMATCH",
                f"there is no state for operator {o}",
                detail="The plan of a view is not the one with which its state was built.",
                hint="Use the plan that was saved with the view, or drop the view and create it again.",
            )


class LateRowsError(OperationalError):
    """Rows were dropped as late after a view was compiled and before it was filled, so it must be compiled again."""

    def __init__(self) -> None:
        super().__init__(
            "STATE_MISMATCH", "late rows arrived while a view was being created", hint="Create the view again."
        )


def check_shared(circuit: Circuit, live: frozenset[str], fill: Fill, progress: Progress) -> None:
    """Raises LateRowsError if operators of live views, from which new views read all rows, dropped rows after the new
    views were compiled.

    live: the live views. fill: the first epoch of the new views. progress: that of the newest epoch.
    """
    read = [circuit.by_id[i] for i in fill.roles.keys() - fill.having("replayed")]
    scans = {o.id for o in read if isinstance(o, Scan) and o.late != progress.late.get(o.relation_id, 0)}
    filters = {o.id for o in read if isinstance(o, LateRowFilter)}
    if not scans and not (filters and progress.left_out):
        return
    for sink in circuit.sinks:
        if sink.relation_id not in live:
            continue
        below = circuit.upstream({sink.id})
        if below & scans or (progress.left_out.get(sink.relation_id) and below & filters):
            raise LateRowsError


def check_rebuild(circuit: Circuit, progress: Progress, known: Mapping[str, Relation]) -> None:
    """Raises FEATURE_NOT_SUPPORTED if the history now differs from the rows that the views' content was computed
    from.
    """
    for kind, (what, detail, then) in _REFUSALS.items():
        if any(isinstance(op, kind) and not _has_history(op, circuit) for op in circuit.operators):
            again = f"Drop the view, rebuild, and create it again: {then}"
            raise _no_rebuild(f"the state of a view {what}", detail, again)
    for sink in circuit.sinks:
        if late := progress.left_out.get(sink.relation_id, 0):
            raise _no_rebuild(
                f"the state of {known[sink.relation_id].reader if sink.relation_id in known else sink.relation_id}",
                f"{late} of the rows that it joins arrived late: its state lacks them, their history has them.",
                "Drop it, rebuild, and create it again: nothing is late for it then.",
            )
    for relation_id in sorted({s.relation_id for s in circuit.scans}):
        relation = known.get(relation_id)
        name = relation_id if relation is None else relation.shown
        again = "Drop the views over it, rebuild, and create them again:"
        if isinstance(relation, CatalogSource) and ARRIVAL in relation.defaults.values():
            raise _no_rebuild(
                f'the state of views over "{name}"',
                "When its rows arrived is stored only in the state and in the views' content.",
                f"{again} its rows then arrive again.",
            )
        if late := progress.late.get(relation_id, 0):
            raise _no_rebuild(
                f'the state of views over "{name}"',
                f"{late} of its rows arrived late: the views don't have them, but its history does.",
                f"{again} they then show these rows, too.",
            )


_MATCHED: Final = "What its rows matched when they arrived is stored only in the state and in the view's content."
_JOINED: Final = "its rows are then joined with what is there."
#: For each operator whose state history can't rebuild: (the view, the reason, the effect of creating the view again).
_REFUSALS: Final[Mapping[type[Operator], tuple[str, str, str]]] = {
    TemporalJoin: ("with a temporal join", _MATCHED, _JOINED),
    ArrivalAsofJoin: ("with EMIT ON ARRIVAL", _MATCHED, _JOINED),
    ArrivalJoin: ("with EMIT ON ARRIVAL", _MATCHED, _JOINED),
    Cut: (
        "that begins at a moment",
        "Which rows its inputs had when it was created is stored only in the state.",
        "it then begins at that moment.",
    ),
    Versions: (
        "that reads versions of a table",
        "Which rows the table had earlier is stored only in the state.",
        "it then starts with the present rows.",
    ),
    ChangeLog: (
        "of AS CHANGELOG",
        "Which changes its input had earlier is stored only in the view's content.",
        "it then begins with the present rows.",
    ),
    Records: (
        "with join_restore_nulls = 0",
        "Which rows once had a partner is stored only in the state.",
        "rows without a partner then show NULLs.",
    ),
}


def _has_history(op: Operator, circuit: Circuit) -> bool:
    """Whether history can rebuild the operator's state although its kind is in `_REFUSALS`."""
    return isinstance(op, Records) and (op.keys is not None or circuit.by_id[op.inputs[0]].append_only)


def _no_rebuild(what: str, detail: str, hint: str) -> Error:
    return error("FEATURE_NOT_SUPPORTED", f"{what} can't be rebuilt", detail=detail, hint=hint)


def check_whole(lost: Mapping[str, str]) -> None:
    """Raises FEATURE_NOT_SUPPORTED if a part of the history no longer exists. lost: see
    `coordinator.Coordinator.lost`.
    """
    for what in lost.values():
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the state can't be rebuilt without {what}",
            detail="What they were joined with, or counted in, is stored only in the state.",
            hint="Drop the views that read them, rebuild, and create the views again.",
        )
