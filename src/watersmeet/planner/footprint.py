"""What a view costs: its stages, exchanges and arrangements, and what bounds its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import (
    COLLECTED,
    FOREVER_US,
    Aggregate,
    Arrange,
    DynamicFilter,
    Exchange,
    Join,
    Map,
    Operator,
    TemporalJoin,
    TimeFilter,
    TopN,
    Upsert,
    Versions,
)
from watersmeet.planner.display import columns_of, interval_text
from watersmeet.planner.names import Names
from watersmeet.planner.physical import distribution_text, listed

#: By the comparison of a time filter, how the rows that it keeps compare with its bound.
_WAITS: Final = {"<": ">=", "<=": ">", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class Arrangement:
    """Rows that an operator keeps, ordered by key.

    readers: the joins that read them. bound: what limits their number. shared: the relations that already keep them.
    """

    operator: str
    readers: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    bound: str
    append_only: bool
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """An exchange: its stages, its mode, and the columns that it sends."""

    operator: str
    stages: tuple[int, int]
    distribution: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Footprint:
    """All costs of a circuit. stages: operator ids by stage number."""

    buckets: int
    stages: tuple[tuple[str, ...], ...]
    transfers: tuple[Transfer, ...]
    arrangements: tuple[Arrangement, ...]

    def lines(self) -> list[str]:
        """The text that EXPLAIN shows below the tree."""
        found = [f"Stages: {len(self.stages)}, buckets: {self.buckets}"]
        found += [f"  stage {n}: {', '.join(ids)}" for n, ids in enumerate(self.stages)]
        found.append("Exchanges:" if self.transfers else "Exchanges: none")
        found += [
            f"  {t.operator}: stage {t.stages[0]} to {t.stages[1]}, {t.distribution}, columns {listed(t.columns)}"
            for t in self.transfers
        ]
        found.append("Arrangements:" if self.arrangements else "Arrangements: none, no state is kept")
        for a in self.arrangements:
            flag = ", append-only" if a.append_only else ""
            readers = f"; read by {', '.join(a.readers)}" if a.readers else ""
            shared = f"; shared with {', '.join(a.shared)}" if a.shared else ""
            found.append(
                f"  {a.operator}: key {listed(a.key)}, columns {listed(a.columns)}{flag}; {a.bound}{readers}{shared}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value. By hand: EXPLAIN gives it to programs, with all keys."""
        return asdict(self)


def footprint(circuit: Circuit, names: Names, keepers: Mapping[str, tuple[str, ...]]) -> Footprint:
    """The costs of a circuit. keepers: by operator, the relations that already keep it."""
    stages = tuple(tuple(o.id for o in circuit.in_stage(n)) for n in range(circuit.last_stage + 1))
    transfers = []
    for op in circuit.operators:
        if isinstance(op, Exchange) and circuit.buckets > 1:
            arrives = min((circuit.stages[c] for c in circuit.consumers[op.id]), default=circuit.stages[op.id] + 1)
            transfers.append(
                Transfer(op.id, (circuit.stages[op.id], arrives), distribution_text(op, names), names.columns(op.id))
            )
    arrangements = tuple(
        replace(a, shared=keepers.get(op.id, ())) for op in circuit.operators for a in _arrangements(op, circuit, names)
    )
    return Footprint(circuit.buckets, stages, tuple(transfers), arrangements)


def _arrangements(op: Operator, circuit: Circuit, names: Names) -> Iterator[Arrangement]:
    if isinstance(op, TemporalJoin):
        yield from _remembered(op, names)
    if type(op) not in _BOUNDS:
        return
    is_content = isinstance(op, (Arrange, Versions, Upsert))  # it keeps its output; others keep their input
    columns = names.columns(op.id if is_content else op.inputs[0])
    keys = (op.column,) if isinstance(op, (DynamicFilter, TimeFilter)) else op.keys  # type: ignore[attr-defined]
    yield Arrangement(
        op.id,
        circuit.consumers[op.id] if isinstance(op, (Arrange, Versions)) else (),
        tuple(columns[k] for k in keys),
        columns,
        _BOUNDS[type(op)](op, circuit, names),
        append_only=op.append_only
        if isinstance(op, Arrange)
        else not is_content and circuit.by_id[op.inputs[0]].append_only,
    )


def _remembered(op: TemporalJoin, names: Names) -> Iterator[Arrangement]:
    """What a look-up join keeps beside the arrangement of its right side."""
    left, right = (names.columns(i) for i in op.inputs)
    if op.ttl_us is not None:
        ends = op.ttl_us < FOREVER_US
        bound = f"bounded: keeps what keys were answered with for {interval_text(op.ttl_us)}"
        bound = bound if ends else "unbounded: keeps what each key was answered with"
        yield Arrangement(op.id, (), tuple(right[k] for k in op.right_keys), right, bound, append_only=True)
    if op.memo:
        kept = tuple(left[i] for i in op.identity) or left
        columns = tuple(dict.fromkeys((*kept, *names.columns(op.id))))
        bound = "unbounded: keeps what every left row met that is not deleted"
        yield Arrangement(op.id, (), kept, columns, bound, append_only=False)
    elif op.waits:
        bound = "unbounded: keeps every left row that has met nothing yet"
        yield Arrangement(op.id, (), tuple(left[k] for k in op.left_keys), left, bound, append_only=False)


def _arrange_bound(op: Arrange, circuit: Circuit, names: Names) -> str:
    if op.order:
        return f"unbounded: the best {op.depth} rows of every key"
    if op.newest:
        return _newest_bound("row" if op.depth == 1 else f"{op.depth} rows")
    if op.time is not None:
        time = names.columns(op.id)[op.time]
        return f"bounded: keeps rows with {time} >= {names.watermark(op.retain)}"
    joins = [j for i in circuit.consumers[op.id] if isinstance(j := circuit.by_id[i], Join)]
    if not op.keys and joins and all(j.inputs[1] == op.id for j in joins):
        return "bounded: a single row or a small input, copied to every bucket"
    return _kept_bound(op)


def _newest_bound(what: str) -> str:
    return f"bounded by watermarks: the newest {what} of every key below, and all from there on"


def _kept_bound(op: Operator) -> str:
    return f"unbounded: keeps every row of the input{'' if op.append_only else ' that is not deleted'}"


def _best_bound(op: TopN, circuit: Circuit, names: Names) -> str:
    source = circuit.by_id[op.inputs[0]]
    if op.time is not None:
        return f"bounded: keeps rows with {names.columns(op.id)[op.time]} >= {names.watermark(op.retain)}"
    if not source.append_only or op.limit is None:
        return f"unbounded: keeps every row of the input{'' if source.append_only else ' that is not deleted'}"
    most = f"{op.limit + op.offset} rows{' and their ties' if op.with_ties else ''}"
    return f"unbounded: the best {most} of every key" if op.keys else f"bounded: the best {most}"


def _group_bound(op: Aggregate, circuit: Circuit, names: Names) -> str:
    source = circuit.by_id[op.inputs[0]]
    while isinstance(source, Exchange):
        source = circuit.by_id[source.inputs[0]]
    constant = isinstance(source, Map) and not any(columns_of(source.exprs[k]) for k in op.keys)
    single = constant or not op.keys
    groups = "bounded: one entry" if single else "unbounded: one entry for every group"
    if op.time is not None:
        groups = (
            f"bounded: one entry for every group with {names.columns(op.id)[op.time]} >= {names.watermark(op.retain)}"
        )
    collected = sorted({c.function for c in op.calls} & COLLECTED)
    kept = (
        ["the values of min, max and DISTINCT"]
        if any(c.function in ("min", "max") or (c.distinct and c.function not in COLLECTED) for c in op.calls)
        else []
    )
    kept += [f"all arguments of {', '.join(collected)}"] if collected else []
    return f"{groups}, and {' and '.join(kept)}" + (" (unbounded)" if single else "") if kept else groups


def _time_bound(op: TimeFilter, circuit: Circuit, names: Names) -> str:  # noqa: ARG001 - as its neighbors
    time = names.columns(op.inputs[0])[op.column]
    return f"bounded: keeps rows with {time} {_WAITS[op.comparison]} {names.watermark(op.bound)}"


#: By the operators that keep rows by a key, what bounds the number of these rows.
_BOUNDS: Final[dict[type[Operator], Callable[[Any, Circuit, Names], str]]] = {
    Aggregate: _group_bound,
    Arrange: _arrange_bound,
    DynamicFilter: lambda op, circuit, _: _kept_bound(circuit.by_id[op.inputs[0]]),
    TimeFilter: _time_bound,
    TopN: _best_bound,
    Upsert: lambda *_: "unbounded: keeps the last row of every key",
    Versions: lambda op, *_: _newest_bound("version") if op.retain else "unbounded: keeps every version of every row",
}
