"""The operators that a fill runs, each with its role; the relations that it reads; and whether live views can run in
between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from watersmeet.catalog import ARRIVAL, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Role, StoredContent
from watersmeet.circuit.operators import (
    ADDITIVE,
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
    GroupJoin,
    Join,
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
from watersmeet.kernel.operators import STATEFUL
from watersmeet.store.manifests import Backfill, Filling
from watersmeet.values.watermarks import NOW

#: The operators whose output depends only on the present rows of their inputs.
_TIMELESS: Final = (
    Aggregate, Arrange, AsofJoin, Constant, DynamicFilter, Exchange, GroupJoin, Join, Map, MultiJoin, Scan, Sink, TopN,
    Union, Unnest, Window,
)  # fmt: skip

_ENDS: Final = ("min", "max")


def can_run_beside(circuit: Circuit, history: Fill, whole: Fill) -> bool:
    """Whether live views can run between the pieces of a fill. history, whole: the operators that run in
    its first round, and in later ones.
    """
    new = [circuit.by_id[i] for i in whole.having("new")]
    # New state below the beginning of a query would lack the history that no operator reads.
    return not any(o.kind in STATEFUL and o.id not in history.roles for o in new)


def follows_clock(operator: Operator) -> bool:
    """Whether the time of epochs decides the output or the state of an operator."""
    kept_for = isinstance(operator, TemporalJoin) and (operator.ttl_us is not None or operator.clock)
    closes = isinstance(operator, SessionWindow) and operator.is_timed
    return kept_for or closes or f'"source":"{NOW}"' in operator.text


def waiting(circuit: Circuit, fill: Fill, *, gathers: bool) -> tuple[str, ...]:
    """The operators of a fill that output changes as rows. They process history at once: read in pieces, it would have
    more changes. gathers: also aggregates that can output each group once, after all history; otherwise each piece
    would output its groups again.
    """
    tests = (_depends_on_pieces, _can_gather) if gathers else (_depends_on_pieces,)
    return tuple(i for i in fill.roles if any(test(circuit.by_id[i], circuit, fill) for test in tests))


def _can_gather(op: Operator, circuit: Circuit, fill: Fill) -> bool:
    """Whether the groups of an aggregate are sums over the pieces of its history, and its input does not change after
    they have been read.
    """
    if not isinstance(op, Aggregate) or not op.keys or op.append_only:
        return False
    if not (circuit.upstream({op.id}, fill.content.keys()) & fill.roles.keys()).isdisjoint(circuit.timed):
        return False
    inserts = circuit.by_id[op.inputs[0]].append_only
    return all((c.function in ADDITIVE and not c.distinct) or (c.function in _ENDS and inserts) for c in op.calls)


def _depends_on_pieces(op: Operator, circuit: Circuit, fill: Fill) -> bool:
    if not isinstance(op, (ChangeLog, Changes, Records)) or all(circuit.by_id[i].append_only for i in op.inputs):
        return False
    below = (circuit.upstream({op.id}, fill.content.keys()) & fill.roles.keys()) - {op.id}
    # History is content, so only operators with state below a log make more changes of its pieces.
    return not isinstance(op, ChangeLog) or any(circuit.by_id[i].kind in STATEFUL for i in below)


def phase_levels(circuit: Circuit, waits: Collection[str]) -> dict[str, int]:
    """For each operator, the phase in which it reads the history of a fill: the greatest number of operators among
    `waits` upstream of it, on one path.
    """
    found: dict[str, int] = {}
    for op in circuit.operators:
        found[op.id] = max((found[i] + (i in waits) for i in op.inputs), default=0)
    return found


def must_replay(
    circuit: Circuit, history: Fill, whole: Fill, relations: Iterable[Relation], late: Mapping[str, int]
) -> bool:
    """Whether a fill beside live views must replay live epochs one by one, because its result depends on the moment at
    which rows arrive, or on the watermark of a relation that no live epoch reads, or because its history has rows that
    the state of live views lacks. history, whole: as in `can_run_beside`. relations: those that it reads. late: as in
    `reach`.
    """
    if not all(is_timeless(circuit.by_id[i]) for i in whole.roles):
        return True
    copied = (circuit.by_id[i] for i in history.having("copied"))
    if any(isinstance(o, Scan) and o.late != late.get(o.relation_id, 0) for o in copied):
        return True
    own = only_read_by(circuit, whole)
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
    copies: bool = False,
    replays: bool = False,
) -> Fill:
    """The first epoch that fills `views`. complete: relations whose content can be read.

    late: for each relation, the number of rows dropped as late. Arrangements of other views are replayed, unless they
    drop old rows, or omit null-key rows that a join outputs; or with `copies`. replays: include the operators that only
    run when live epochs are replayed, because they have no history.
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
    if copies:
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
    return Fill(True, roles, {o: ends[o] for o in sorted(reached & ends.keys())})


def _without_history(circuit: Circuit) -> set[str]:
    """The operators that output no history."""
    return {o.id for o in circuit.operators if isinstance(o, Cut) and o.keeps == "after"}


def reach_beside(circuit: Circuit, purpose: Filling, *, later: bool) -> Fill:
    """The first epoch of a fill beside live views, or of its `later` rounds, in which clones of shared operators
    process the changes that live views have processed meanwhile.

    A copy that has read history stays until the end if the result is the same at any moment. Otherwise the live state
    may differ from that of a copy, so it is cloned.
    """
    views, stored, late = purpose.views, purpose.stored, purpose.late
    history = reach(circuit, views, stored, late, copies=not purpose.cloned)
    whole = reach(circuit, views, stored, late, copies=True, replays=purpose.replays)
    roles = dict(whole.roles)
    for i, role in whole.roles.items():
        if purpose.cloned and role == "copied" and (purpose.replays or history.roles.get(i) != "copied"):
            roles[i] = "cloned"
    if later:
        return replace(whole, roles=roles, beside=True)
    clones = tuple(i for i, role in roles.items() if role == "cloned" and circuit.by_id[i].kind in STATEFUL)
    return replace(history, beside=True, clones=clones)


def later_rounds(circuit: Circuit, backfill: Backfill) -> Fill:
    """The epochs of the later rounds of a fill beside live views."""
    assert isinstance(backfill.purpose, Filling)
    return reach_beside(circuit, backfill.purpose, later=True)


def new_operators(circuit: Circuit, backfill: Backfill | None) -> frozenset[str]:
    """The operators that live epochs don't run, because only views have them that are being filled."""
    return frozenset() if backfill is None else later_rounds(circuit, backfill).having("new")


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
