"""A circuit: the operators of all views of a database, divided into stages; and keys that are split over all buckets.

Stage 0 runs where the source is read: scans, maps, unions, up to the first exchange. Stage n > 0 runs once per bucket
after exchange n, with the operators whose inputs all have arrived by then. Every edge from one stage to a later one is
an `Exchange`, which belongs to the sending stage. With one bucket all operators are in stage 0, and exchanges output
their input unchanged, so that the operators are the same for every number of buckets.

Split keys: the rows of a hot key are spread over all buckets, so that no bucket has more work than the others. In one
exchange, the spread side, the hash of the whole row determines the bucket; in all exchanges with which these rows are
joined, rows of the key are copied to every bucket. So each row of the spread side finds all its partners in its bucket,
and each pair is output once. This is correct for inner joins, and for joins that output each row of the spread side
with or without partners, but only if no other operator of the stage depends on the bucket of a key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from watersmeet.circuit.base import operator_of
from watersmeet.circuit.operators import (
    Arrange,
    Cut,
    Exchange,
    Join,
    LateRowFilter,
    Map,
    MultiJoin,
    Operator,
    Repeat,
    Scan,
    Sink,
    Union,
    Unnest,
)

#: The version of stored state, which changes with key hashes, bucket numbers or the form of the state.
STATE_FORMAT_VERSION: Final = 7


@dataclass(frozen=True)
class Circuit:
    """buckets: the number of state buckets. operators: in topological order. stages: the stage of each id, in the same
    order.
    """

    buckets: int
    operators: tuple[Operator, ...]
    stages: dict[str, int]

    @cached_property
    def by_id(self) -> dict[str, Operator]:
        """The operators by id."""
        return {o.id: o for o in self.operators}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """For each id, the ids of the operators that read it, in topological order."""
        found: dict[str, list[str]] = {o.id: [] for o in self.operators}
        for o in self.operators:
            for i in o.inputs:
                if o.id not in found[i]:
                    found[i].append(o.id)
        return {i: tuple(c) for i, c in found.items()}

    @cached_property
    def last_stage(self) -> int:
        """The number of the last stage; 0 if nothing is exchanged."""
        return max(self.stages.values(), default=0)

    def in_stage(self, stage: int) -> Sequence[Operator]:
        """The operators of `stage`, in topological order."""
        return self._by_stage.get(stage, ())

    @cached_property
    def _by_stage(self) -> dict[int, list[Operator]]:
        found: dict[int, list[Operator]] = {}
        for o in self.operators:
            found.setdefault(self.stages[o.id], []).append(o)
        return found

    @cached_property
    def scans(self) -> tuple[Scan, ...]:
        """The scans."""
        return tuple(o for o in self.operators if isinstance(o, Scan))

    @cached_property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks."""
        return tuple(o for o in self.operators if isinstance(o, Sink))

    @cached_property
    def dropping(self) -> tuple[Sink, ...]:
        """The sinks of relations whose operators drop late rows."""
        return tuple(s for s in self.sinks if s.late)

    @cached_property
    def sink_of(self) -> dict[str, Sink]:
        """The sink of each relation."""
        return {s.relation_id: s for s in self.sinks}

    @cached_property
    def order(self) -> dict[str, int]:
        """The index of each id in topological order."""
        return {o.id: i for i, o in enumerate(self.operators)}

    @property
    def is_timed(self) -> bool:
        """True if time alone can change the output or the state of an operator: then every bucket runs in every
        epoch.
        """
        return bool(self.timed)

    @cached_property
    def timed(self) -> frozenset[str]:
        """The operators whose output or state time alone can change."""
        return frozenset(o.id for o in self.operators if o.is_timed)

    @cached_property
    def idle_filters(self) -> list[LateRowFilter]:
        """The filters whose clock rises while its relation is idle."""
        return [o for o in self.operators if isinstance(o, LateRowFilter) and o.idle is not None]

    def upstream(self, ids: set[str], ends: Container[str] = frozenset()) -> set[str]:
        """`ids` and all operators that they read, directly or indirectly, but not through those in `ends`."""
        reached = set(ids)
        pending = [i for i in reached if i not in ends and i in self.by_id]
        while pending:
            below = [i for i in self.by_id[pending.pop()].inputs if i not in reached]
            reached.update(below)
            pending += [i for i in below if i not in ends]
        return reached

    @cached_property
    def below_sinks(self) -> dict[str, frozenset[str]]:
        """The sink of each relation with all operators that it reads, directly or indirectly."""
        below: dict[str, frozenset[str]] = {}
        for o in self.operators:
            below[o.id] = frozenset((o.id,)).union(*(below[i] for i in o.inputs))
        return {s.relation_id: below[s.id] for s in self.sinks}

    def without(self, relation_ids: Container[str]) -> Circuit:
        """The circuit without the sinks of some relations, and without the operators that only these read; the circuit
        itself if it has none of them.
        """
        kept = {s.id for s in self.sinks if s.relation_id not in relation_ids}
        if len(kept) == len(self.sinks):
            return self
        reached = self.upstream(kept)
        operators = tuple(o for o in self.operators if o.id in reached)
        return Circuit(self.buckets, operators, {o.id: self.stages[o.id] for o in operators})

    @cached_property
    def fingerprint(self) -> str:
        """A hash that identifies the whole compiled plan; the plan file contains it."""
        text = f"[{STATE_FORMAT_VERSION},{self._text(dict(sorted(self.stages.items())))}]"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """Its JSON form as compact text, composed of the texts of its operators."""
        return self._text(self.stages)

    def _text(self, stages: dict[str, int]) -> str:
        operators = ",".join([o.text for o in self.operators])
        placed = json.dumps(stages, separators=(",", ":"))
        return f'{{"buckets":{self.buckets},"operators":[{operators}],"stages":{placed}}}'

    def to_json(self) -> Any:
        """A JSON value from which `from_json` restores the circuit."""
        return json.loads(self.text)

    @staticmethod
    def from_json(value: Any) -> Circuit:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError if `value` is not the form of a
        circuit.
        """
        # both are in the same order, in which every circuit is stored
        operators = (operator_of(i, o) for i, o in zip(value["stages"], value["operators"], strict=True))
        return Circuit(value["buckets"], tuple(operators), value["stages"])

    def check(self) -> None:
        """Raises AssertionError if the circuit violates the rules of the module's docstring."""
        seen: set[str] = set()
        for o in self.operators:
            assert seen.issuperset(o.inputs), f"{o.id} comes before its inputs"
            seen.add(o.id)
            for i in o.inputs:
                crosses = self.stages[i] < self.stages[o.id]
                assert self.stages[i] <= self.stages[o.id], f"{o.id} runs before its input"
                sent = self.buckets > 1 and isinstance(self.by_id[i], Exchange)
                assert crosses == sent, f"{i} -> {o.id} crosses stages wrongly"
        assert self.buckets > 1 or self.last_stage == 0


#: The hashes of split keys, by spread side.
Split = Mapping[str, Sequence[int]]

_Where = Literal["split", "copied"]

#: The operators that process each row separately.
_ROW_BY_ROW: Final = (Cut, LateRowFilter, Map, Repeat, Unnest)


@dataclass(frozen=True)
class Meeting:
    """Exchanges by key whose rows are joined in one stage, and the joins in that stage.

    spread_sides: the exchanges whose keys can be split.
    """

    exchanges: tuple[str, ...]
    spread_sides: tuple[str, ...]
    joins: tuple[str, ...]


@dataclass(frozen=True)
class Roles:
    """The treatment of split keys' rows in an exchange: the hashes of keys that are spread, and of those that are
    copied.
    """

    split: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()

    @property
    def keys(self) -> frozenset[int]:
        """All split keys."""
        return frozenset(self.split + self.copied)


def meetings(circuit: Circuit) -> list[Meeting]:
    """The meetings in the circuit, where keys can be split."""
    if circuit.buckets == 1:
        return []
    found = []
    for operators in _connected(circuit):
        exchanges = [o for o in operators if isinstance(o, Exchange)]
        sides = tuple(e.id for e in exchanges if _can_spread(e.id, operators, circuit))
        if sides:
            joins = tuple(o.id for o in operators if isinstance(o, (Join, MultiJoin)))
            found.append(Meeting(tuple(e.id for e in exchanges if e.mode == "hash"), sides, joins))
    return found


def roles(circuit: Circuit, split: Split) -> dict[str, Roles]:
    """The treatment of rows with split keys, by exchange."""
    found: dict[str, Roles] = {}
    for meeting in meetings(circuit) if split else ():
        for exchange in meeting.exchanges:
            own = tuple(split.get(exchange, ()))
            others = tuple(k for side in meeting.spread_sides if side != exchange for k in split.get(side, ()))
            if own or others:
                found[exchange] = Roles(own, others)
    return found


def arrangements_of(exchange: str, circuit: Circuit) -> list[Arrange]:
    """The arrangements of the rows of an exchange."""
    readers = (circuit.by_id[i] for i in circuit.consumers[exchange])
    return [o for o in readers if isinstance(o, Arrange)]


def _connected(circuit: Circuit) -> Iterable[list[Operator]]:
    """The operators after stage 0 with the exchanges that they read, grouped by connected parts, in the order of the
    circuit.
    """
    leaders: dict[str, str] = {}

    def leader(operator_id: str) -> str:
        while (above := leaders.setdefault(operator_id, operator_id)) != operator_id:
            operator_id = above
        return operator_id

    for o in circuit.operators:
        if isinstance(o, Exchange) or circuit.stages[o.id] == 0:
            continue
        for i in o.inputs:
            leaders[leader(i)] = leader(o.id)
    groups: dict[str, list[Operator]] = {}
    for o in circuit.operators:
        if o.id in leaders:
            groups.setdefault(leader(o.id), []).append(o)
    return groups.values()


def _can_spread(side: str, operators: Sequence[Operator], circuit: Circuit) -> bool:
    """Whether keys of an exchange can be split without changing the output of the operators."""
    where: dict[str, _Where | None] = {}
    for o in operators:
        where[o.id] = _where(o, side, where, circuit)
        leaves = isinstance(o, Sink) or any(isinstance(circuit.by_id[c], Exchange) for c in circuit.consumers[o.id])
        if where[o.id] is None or (leaves and where[o.id] != "split"):
            return False
    return True


def _where(op: Operator, side: str, below: Mapping[str, _Where | None], circuit: Circuit) -> _Where | None:
    """The distribution of an operator's output; None if the output would be wrong."""
    if isinstance(op, Exchange):
        if op.id == side:
            return "split" if op.mode == "hash" and op.keys else None
        return "copied" if op.mode == "broadcast" or (op.mode == "hash" and op.keys) else None
    given = [below[i] for i in op.inputs]
    if isinstance(op, Arrange):
        # if a key is split, or no longer split, the moving rows determine their target themselves
        is_plain = isinstance(circuit.by_id[op.inputs[0]], Exchange) and not op.order and not op.newest
        return given[0] if is_plain else None
    if isinstance(op, (*_ROW_BY_ROW, Sink)):
        return given[0]
    if isinstance(op, Union):
        return given[0] if len(set(given)) == 1 else None
    if type(op) is Join:
        one, other = given
        if op.join_kind == "inner":
            return _of_many(given)
        if op.join_kind in ("left", "semi", "anti"):
            return one if other == "copied" else None
        if op.join_kind == "right":
            return other if one == "copied" else None
        return "copied" if one == other == "copied" else None
    return _of_many(given) if isinstance(op, MultiJoin) else None


def _of_many(given: Sequence[_Where | None]) -> _Where | None:
    spread = given.count("split")
    return None if spread > 1 or None in given else "split" if spread else "copied"
