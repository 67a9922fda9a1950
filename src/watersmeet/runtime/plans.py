"""Saved circuits, their number of buckets, whether state belongs to a circuit, whether history can rebuild it, and the
operators that history fills.

A database always runs the circuit that was saved when its views were created, never a new one. Each set of views that
ran together has a file with all its operators, compressed to a tenth of its size. The number of buckets is that of the
circuit of the newest epoch; before the first epoch that of a file.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from watersmeet.catalog import ARRIVAL, Relation
from watersmeet.catalog import Source as CatalogSource
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.epochs import Fill, Role, StoredContent
from watersmeet.circuit.operators import (
    Aggregate,
    Arrange,
    ArrivalAsofJoin,
    ArrivalJoin,
    AsofJoin,
    ChangeLog,
    Changes,
    Constant,
    Cut,
    DynamicFilter,
    Exchange,
    Join,
    LateRowFilter,
    Map,
    MultiJoin,
    Operator,
    Records,
    Scan,
    Sink,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Versions,
    Window,
)
from watersmeet.circuit.sessions import SessionWindow
from watersmeet.errors import Error, OperationalError, error
from watersmeet.kernel.operators import STATEFUL
from watersmeet.objectstores import storage
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Filling, Progress, Rebuilding
from watersmeet.values.serialization import from_json
from watersmeet.values.watermarks import NOW


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


#: The operators whose output depends only on the present rows of their inputs.
_TIMELESS: Final = (
    Aggregate, Arrange, AsofJoin, Constant, DynamicFilter, Exchange, Join, Map, MultiJoin, Scan, Sink, TopN, Union,
    Unnest, Window,
)  # fmt: skip


def can_run_beside(
    circuit: Circuit,
    fill: Fill,
    relations: Iterable[Relation],
    complete: Collection[str],
    late: Mapping[str, int],
) -> bool:
    """Whether live views can run between the pieces of a fill: at its end, the copies of shared operators have the same
    state as the live ones. fill: all that runs in it (`reach` with `replays`). relations: those that it reads.
    complete: as in `begin`. late: as in `reach`.
    """
    copied = [circuit.by_id[i] for i in fill.having("copied")]
    shared, own = {o.relation_id for o in copied if isinstance(o, Scan)}, only_read_by(circuit, fill)
    if not all(map(is_timeless, copied)):
        return False
    if any(isinstance(o, Scan) and o.late != late.get(o.relation_id, 0) for o in copied):
        return False
    for relation in relations:
        if (
            relation.id in shared
            and relation.id not in complete
            and relation.connector
            and ARRIVAL in relation.defaults.values()
        ):
            return False  # the copies would have other times of arrival
        if relation.id in own and relation.event_time is not None and relation.event_time.idle_us is not None:
            return False  # a source is not idle because a fill has not read its rows yet
    new = [circuit.by_id[i] for i in fill.having("new")]
    if any(isinstance(o, LateRowFilter) and o.idle is not None for o in new):
        return False  # a clock that rises while its relation is idle would have to know which rows wait
    if any(_depends_on_pieces(o, circuit, fill) for o in new):
        return False
    tops = {i for i in fill.roles if isinstance(circuit.by_id[i], Sink)}
    history = circuit.upstream(tops, fill.content.keys() | _without_history(circuit))
    return not any(circuit.by_id[i].kind in STATEFUL for i in fill.roles.keys() - history)


def follows_clock(operator: Operator) -> bool:
    """Whether the time of epochs decides the output or the state of an operator."""
    kept_for = isinstance(operator, TemporalJoin) and (operator.ttl_us is not None or operator.clock)
    closes = isinstance(operator, SessionWindow) and operator.is_timed
    return kept_for or closes or f'"source":"{NOW}"' in operator.text


def can_be_copied(operators: Iterable[Operator], running: Circuit) -> bool:
    """Whether live views may run while a view with `operators` is filled in the circuit `running`, as far as its
    operators decide that.
    """
    return all(
        is_timeless(o) or not (o.id in running.by_id or (isinstance(o, LateRowFilter) and o.idle is not None))
        for o in operators
    )


def _depends_on_pieces(op: Operator, circuit: Circuit, fill: Fill) -> bool:
    """Whether an operator outputs changes that history only has because it is read in pieces."""
    if not isinstance(op, (ChangeLog, Changes, Records)) or all(circuit.by_id[i].append_only for i in op.inputs):
        return False
    below = (circuit.upstream({op.id}, fill.content.keys()) & fill.roles.keys()) - {op.id}
    # The content of the relations below a log was reduced to their rows before it was created.
    return not isinstance(op, ChangeLog) or any(circuit.by_id[i].kind in STATEFUL for i in below)


def must_replay(circuit: Circuit, fill: Fill, relations: Iterable[Relation]) -> bool:
    """Whether a fill beside live views must replay live epochs one by one, because its result depends on the moment at
    which rows arrive, or on the watermark of a relation that no live epoch reads.
    """
    if not all(is_timeless(circuit.by_id[i]) for i in fill.roles):
        return True
    own = only_read_by(circuit, fill)
    return any(
        (r.connector and ARRIVAL in r.defaults.values()) or (r.id in own and r.event_time is not None)
        for r in relations
    )


def is_timeless(operator: Operator) -> bool:
    """Whether the output depends only on the present rows and, at the end, on the time.

    Watermarks are unknown until the end of a fill. The time of epochs is known, and rises while history is read: a
    filter then only deletes rows that it would also delete at the end.
    """
    if isinstance(operator, TimeFilter):
        return not operator.stays
    if isinstance(operator, Scan):
        return not operator.ordered
    return type(operator) in _TIMELESS and not follows_clock(operator)


def reach(
    circuit: Circuit,
    views: Iterable[str],
    complete: Iterable[str],
    late: Mapping[str, int],
    *,
    beside: bool = False,
    replays: bool = False,
) -> Fill:
    """The first epoch that fills `views`. complete: relations whose content can be read.

    late: for each relation, the number of rows dropped as late. Arrangements of other views are replayed, unless they
    drop old rows, or omit null-key rows that a join outputs, or beside live views, which change them. replays: include
    the operators that only run when live epochs are replayed, because they have no history.
    """
    filled, stored = set(views), set(complete)
    ends: dict[str, StoredContent] = {}
    for sink in circuit.sinks:
        top = circuit.by_id[sink.inputs[0]]
        if sink.relation_id not in stored or (isinstance(top, Scan) and top.late == late.get(top.relation_id, 0)):
            continue  # this view copies the content of its relation
        spread = tuple((i,) for i in range(len(top.schema)))
        ends.setdefault(top.id, StoredContent(sink.relation_id, spread if sink.keys is None else sink.keys))
    tops = {s.id for s in circuit.sinks if s.relation_id in filled}
    later = set() if replays else _without_history(circuit)
    looked_up = {i for o in circuit.operators for i in _first(o)}
    live = circuit.upstream({s.id for s in circuit.sinks if s.relation_id not in filled})
    history = {o.id for o in circuit.operators if isinstance(o, Versions) and o.id in live}  # only these have it
    replayed = {o.id for o in circuit.operators if isinstance(o, Arrange) and o.id in live and o.keeps_all} | history
    if any(_first(circuit.by_id[i]) for i in circuit.upstream(tops, ends.keys())):
        replayed = replayed & looked_up | history  # these rows are only looked up after all have arrived
    if beside:
        replayed = set()
    while True:
        reached = circuit.upstream(tops, ends.keys() | replayed | later)
        joins = [o for o in circuit.operators if isinstance(o, (AsofJoin, Join)) and o.id in reached - ends.keys()]
        lacking = {i for join in joins for i in _showing_null_keys(join, circuit)} & replayed
        if not lacking:
            break
        replayed -= lacking

    def role(operator_id: str) -> Role:
        if operator_id in replayed:
            return "replayed"
        return "copied" if operator_id in live else "new"

    roles = {i: role(i) for i in sorted(reached - ends.keys())}
    return Fill(True, roles, {o: ends[o] for o in sorted(reached & ends.keys())}, beside=beside)


def _without_history(circuit: Circuit) -> set[str]:
    """The operators that output no history."""
    return {o.id for o in circuit.operators if isinstance(o, Cut) and o.keeps == "after"}


def reach_beside(circuit: Circuit, purpose: Filling, *, replays: bool) -> Fill:
    """The first epoch of a fill beside live views. replays: as in `reach`."""
    return reach(circuit, purpose.views, purpose.stored, purpose.late, beside=True, replays=replays)


def looked_up_first(
    circuit: Circuit, running: Collection[str], stored: Mapping[str, StoredContent], *, live: bool = False
) -> frozenset[str]:
    """The relations that are read before others, because rows of the others look up theirs on arrival.

    running: the operators that run. stored: see `epochs.Mode`. live: whether the epochs are live, so that left and
    right joins on arrival don't wait for the side that is looked up.
    """
    joins = [
        i
        for o in circuit.operators
        if o.id in running and not (live and isinstance(o, ArrivalJoin) and o.join_kind in ("left", "right"))
        for i in _first(o)
    ]
    reached = circuit.upstream(set(joins), stored.keys()) if joins else set()
    return frozenset(
        [
            *(o.relation_id for o in circuit.scans if o.id in reached),
            *(content.relation_id for i, content in stored.items() if i in reached),
        ]
    )


def _first(op: Operator) -> tuple[str, ...]:
    """The inputs of an operator whose rows must be present before rows of its other inputs arrive."""
    if isinstance(op, ArrivalJoin):
        return {"right": op.inputs[:1], "full": ()}.get(op.join_kind, op.inputs[1:])
    return op.inputs[1:] if isinstance(op, (ArrivalAsofJoin, TemporalJoin)) else ()


def preserved(join: Operator) -> list[str]:
    """The inputs of which a join also outputs rows without a match."""
    if not isinstance(join, (AsofJoin, Join)):
        return []
    kinds = ("left", "full", "anti"), ("right", "full")
    return [i for i, outer in zip(join.inputs, kinds, strict=True) if join.join_kind in outer]


def _showing_null_keys(join: AsofJoin | Join, circuit: Circuit) -> Iterator[str]:
    """The inputs whose rows with a NULL key a join outputs. No arrangement keeps such rows."""
    for arrangement in preserved(join):
        op = circuit.by_id[arrangement]
        if isinstance(op, Arrange) and any(
            op.schema[k].nullable and not safe for k, safe in zip(op.keys, op.null_safe, strict=True)
        ):
            yield arrangement


def only_read_by(circuit: Circuit, fill: Fill) -> frozenset[str]:
    """The relations that no other views scan than those of a fill."""
    live = circuit.upstream({s.id for s in circuit.sinks if s.id not in fill.roles})
    return read_by(circuit, fill) - {s.relation_id for s in circuit.scans if s.id in live}


def read_by(circuit: Circuit, fill: Fill) -> frozenset[str]:
    """The relations that a fill scans."""
    return frozenset(s.relation_id for s in circuit.scans if s.id in fill.roles)
