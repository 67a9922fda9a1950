"""Collects the operators of one view while it is lowered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from watersmeet.circuit.operators import Arrange, Exchange, LateRowFilter, Operator, Scan, SortKey
from watersmeet.planner.distribution import Placement
from watersmeet.types import Field, Schema, SqlType
from watersmeet.watermarks import Watermark


def positional(fields: Iterable[tuple[SqlType, bool]]) -> Schema:
    """A schema with the names c0, c1, …, so that equal operators are equal whatever their columns are called."""
    return tuple(Field(f"c{i}", kind, nullable) for i, (kind, nullable) in enumerate(fields))


class Builder:
    """Operators by id, and what is known about their placement.

    late: by relation, as in `Scan`, for scans that are added from then on.
    left_out: the late-row filters that have left rows out or passed them as late. Those added from then on are
    different operators.
    """

    def __init__(self) -> None:
        self.operators: dict[str, Operator] = {}
        self.late: Mapping[str, int] = {}
        self.left_out: frozenset[str] = frozenset()
        self.placement = Placement(self.operators)

    def add(self, op: Operator) -> Operator:
        """Adds the operator, and returns it or the equal one that exists."""
        if isinstance(op, Scan) and op.relation_id in self.late:
            op = replace(op, late=self.late[op.relation_id])
        while isinstance(op, LateRowFilter) and op.id in self.left_out:
            op = replace(op, apart=op.apart + 1)
        return self.operators.setdefault(op.id, op)

    def exchange(self, op: Operator, keys: Sequence[int], mode: Literal["hash", "partial"] = "hash") -> Operator:
        """`op` sent to the buckets of columns `keys`; no keys: all to bucket 0. mode: see `Exchange`."""
        return self.add(Exchange((op.id,), _canonical(op), op.append_only, tuple(keys), mode))

    def broadcast(self, op: Operator) -> Operator:
        """`op` copied to every bucket."""
        return self.add(Exchange((op.id,), _canonical(op), op.append_only, (), "broadcast"))

    def spread(self, op: Operator) -> Operator:
        """`op` spread evenly over the buckets, where nothing asks for a key."""
        return self.exchange(op, range(len(op.schema)))

    def arrange(
        self,
        op: Operator,
        keys: tuple[int, ...],
        null_safe: tuple[bool, ...],
        stage: int,
        *,
        time: int | None = None,
        retain: Watermark = (),
        newest: bool = False,
        depth: int = 1,
        order: tuple[SortKey, ...] = (),
    ) -> Operator:
        """The arrangement of `op` by `keys` in `stage`.

        time, retain, newest, depth, order: see `Arrange`. The first three have no effect without `retain`.
        """
        return self.add(
            Arrange(
                (op.id,),
                _canonical(op),
                op.append_only,
                keys,
                null_safe,
                stage,
                time if retain else None,
                retain,
                newest and bool(retain),
                depth if retain or order else 1,
                order,
            )
        )

    def closure(self, top: Operator) -> tuple[Operator, ...]:
        """`top` and all that it reads, inputs first."""
        found: dict[str, Operator] = {}

        def visit(op: Operator) -> None:
            if op.id not in found:
                for i in op.inputs:
                    visit(self.operators[i])
                found[op.id] = op

        visit(top)
        return tuple(found.values())


def _canonical(op: Operator) -> Schema:
    return positional((f.type, f.nullable) for f in op.schema)
