"""Split keys: hot keys whose rows are in all buckets, so that no bucket has more work than the others.

Of one exchange, the driver, the rows of a split key go to the buckets by the hash of the whole row; of all exchanges
whose rows meet these in a join, they are copied to every bucket. So each row of the driver finds all its partners where
it is, and each pair is made once. That is right for inner joins, and for those that show each row of the driver's side
with or without partners; and only if nothing else in the stage relies on where the rows of a key are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from watersmeet.circuit.circuit import Circuit
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
    Sink,
    Union,
    Unnest,
)

#: By driver, the hashes of its keys that are split.
Split = Mapping[str, Sequence[int]]

_Where = Literal["split", "copied"]
#: They work on each row alone.
_ROW_BY_ROW: Final = (Cut, LateRowFilter, Map, Repeat, Unnest)


@dataclass(frozen=True)
class Meeting:
    """Exchanges by key whose rows meet in one stage, and the joins there.

    drivers: those of which keys can be split.
    """

    exchanges: tuple[str, ...]
    drivers: tuple[str, ...]
    joins: tuple[str, ...]


@dataclass(frozen=True)
class Roles:
    """What an exchange does with the rows of split keys: by hash, those that are spread, and those that are copied."""

    split: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()

    @property
    def keys(self) -> frozenset[int]:
        """All of them."""
        return frozenset(self.split + self.copied)


def meetings(circuit: Circuit) -> list[Meeting]:
    """What meets in the circuit, where keys can be split."""
    if circuit.buckets == 1:
        return []
    found = []
    for operators in _connected(circuit):
        exchanges = [o for o in operators if isinstance(o, Exchange)]
        drivers = tuple(e.id for e in exchanges if _drives(e.id, operators, circuit))
        if drivers:
            joins = tuple(o.id for o in operators if isinstance(o, (Join, MultiJoin)))
            found.append(Meeting(tuple(e.id for e in exchanges if e.mode == "hash"), drivers, joins))
    return found


def roles(circuit: Circuit, split: Split) -> dict[str, Roles]:
    """By exchange, what becomes of the rows of split keys."""
    found: dict[str, Roles] = {}
    for meeting in meetings(circuit) if split else ():
        for exchange in meeting.exchanges:
            own = tuple(split.get(exchange, ()))
            others = tuple(k for driver in meeting.drivers if driver != exchange for k in split.get(driver, ()))
            if own or others:
                found[exchange] = Roles(own, others)
    return found


def arrangements_of(exchange: str, circuit: Circuit) -> list[Arrange]:
    """The arrangements of the rows of an exchange."""
    readers = (circuit.by_id[i] for i in circuit.consumers[exchange])
    return [o for o in readers if isinstance(o, Arrange)]


def _connected(circuit: Circuit) -> Iterable[list[Operator]]:
    """The operators above stage 0 with the exchanges that they read, those together that read each other; in the order
    of the circuit.
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


def _drives(driver: str, operators: Sequence[Operator], circuit: Circuit) -> bool:
    """Whether keys of an exchange can be split, so that what comes out of the operators comes out once."""
    where: dict[str, _Where | None] = {}
    for o in operators:
        where[o.id] = _where(o, driver, where, circuit)
        leaves = isinstance(o, Sink) or any(isinstance(circuit.by_id[c], Exchange) for c in circuit.consumers[o.id])
        if where[o.id] is None or (leaves and where[o.id] != "split"):
            return False
    return True


def _where(op: Operator, driver: str, below: Mapping[str, _Where | None], circuit: Circuit) -> _Where | None:
    """Where the output of an operator is; None if it would be wrong."""
    if isinstance(op, Exchange):
        if op.id == driver:
            return "split" if op.mode == "hash" and op.keys else None
        return "copied" if op.mode == "broadcast" or (op.mode == "hash" and op.keys) else None
    given = [below[i] for i in op.inputs]
    if isinstance(op, Arrange):
        # What moves when a key is split, or is no more, shows by itself where it goes.
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
