"""The circuit of a join: two scans, their arrangements, the join. One stage, run once per bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from watersmeet.circuit import operators
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Arrange, Comparison, InputColumn, Operator, Scan, Sink
from watersmeet.frames.shapes import SIDES, JoinShape, Nearest, Newest, Side
from watersmeet.frames.tolerances import Horizon, horizons, tolerance_sql
from watersmeet.values.types import BIGINT, Field, Schema
from watersmeet.values.watermarks import Watermark

#: The relation that the circuit publishes.
JOINED: Final = "joined"


def compile_join(shape: JoinShape) -> Circuit:
    """The circuit of the streaming join `shape`; its one sink publishes the columns `shape.columns`."""
    made: list[Operator] = []
    last = _Compiler(shape, made).join()
    made.append(Sink((last.id,), last.schema, last.append_only, JOINED))
    circuit = Circuit(1, tuple(made), {o.id: 0 for o in made})
    circuit.check()
    return circuit


def appends(shape: JoinShape) -> bool:
    """Whether no row of the result is ever taken back."""
    if shape.emit != "changes" or shape.static is not None:
        return True
    return _grows(shape)


def _grows(shape: JoinShape) -> bool:
    """Whether no row that has come out is ever to be taken back."""
    return shape.match is None and shape.how in ("inner", "semi") and not any(s.signed for s in shape.sides)


def residual(shape: JoinShape) -> str | None:
    """The bounds of the two sides' times as DuckDB SQL."""
    if shape.within is None:
        return None
    left, right = f"epoch_us(l{shape.left.time})", f"epoch_us(r{shape.right.time})"
    low, high = shape.within.lower_us, shape.within.upper_us
    bounds = [
        f"{right} - {left} >= {low}" if low is not None else "",
        f"{right} - {left} <= {high}" if high is not None else "",
    ]
    return " AND ".join(b for b in bounds if b) or f"({left} IS NOT NULL AND {right} IS NOT NULL)"


def output_schema(shape: JoinShape, columns: Sequence[InputColumn]) -> Schema:
    """The types of `columns`."""
    return tuple(Field(f"c{i}", shape.sides[c.input].schema[c.column].type) for i, c in enumerate(columns))


def join_operator(
    shape: JoinShape, inputs: Sequence[str], columns: tuple[InputColumn, ...]
) -> operators.Join | operators.AsofJoin:
    """The join, of which `columns` come out."""
    arrives = shape.emit == "arrival"
    common: dict[str, Any] = {
        "schema": output_schema(shape, columns),
        "left_keys": shape.left.keys,
        "output": columns,
        "right_keys": shape.right.keys,
        "null_safe": (False,) * len(shape.left.keys),
    }
    match = shape.match
    if isinstance(match, Nearest):
        assert shape.how in ("inner", "left")
        kind = shape.left.schema[match.left].type
        nearest = operators.ArrivalAsofJoin if arrives else operators.AsofJoin
        return nearest(
            tuple(inputs),
            append_only=arrives,
            join_kind=shape.how,
            comparison=match.comparison,
            left_value=match.left,
            right_value=match.right,
            residual=tolerance_sql(match.tolerance, kind, f"l{match.left}", f"r{match.right}"),
            ties=tuple(range(len(shape.right.schema))),
            **common,
        )
    regular = operators.ArrivalJoin if arrives and shape.how != "inner" else operators.Join
    return regular(
        tuple(inputs), append_only=arrives or _grows(shape), join_kind=shape.how, residual=residual(shape), **common
    )


@dataclass(frozen=True)
class Waiting:
    """Rows of the result that may still be taken back: those with a `time` and without a `partner`.

    time, partner: columns of the join; partner None: whatever they met. They are final when `time
    comparison decided`; without `decided` they never are.
    """

    time: InputColumn
    partner: InputColumn | None
    comparison: Comparison
    decided: Watermark


def waiting(shape: JoinShape) -> tuple[Waiting, ...]:
    """Which rows of the result wait with `emit="final"`; none in a join that never takes rows back."""
    left, right = horizons(shape)
    if isinstance(shape.match, Nearest):
        return (Waiting(InputColumn(0, shape.match.left), None, left.comparison, left.decided),)
    found = []
    if shape.how in ("left", "full", "anti"):
        partner = None if shape.how == "anti" else InputColumn(1, shape.right.keys[0])
        found.append(Waiting(InputColumn(0, left.time or 0), partner, left.comparison, left.decided))
    if shape.how in ("right", "full"):
        found.append(
            Waiting(
                InputColumn(1, right.time or 0), InputColumn(0, shape.left.keys[0]), right.comparison, right.decided
            )
        )
    return tuple(found)


class _Compiler:
    """Appends the operators of a shape to `made`, inputs first."""

    def __init__(self, shape: JoinShape, made: list[Operator]) -> None:
        self._shape = shape
        self._made = made

    def join(self) -> Operator:
        """The operator whose output is the result."""
        shape = self._shape
        left, right = (self._scan(i, s) for i, s in enumerate(shape.sides))
        if isinstance(shape.match, Newest):
            return self._newest(left, right)
        waits = waiting(shape) if shape.emit == "final" else ()
        columns = tuple(
            dict.fromkeys([*shape.columns, *(c for w in waits for c in (w.time, w.partner) if c is not None)])
        )
        kept = horizons(shape)
        if not (shape.emit == "arrival" and (shape.how in ("semi", "anti") or isinstance(shape.match, Nearest))):
            left = self._arrange(left, shape.left, kept[0])  # otherwise left rows are decided when they come
        joined = self._add(join_operator(shape, [left.id, self._arrange(right, shape.right, kept[1]).id], columns))
        return self._final(joined, columns, waits) if waits else joined

    def _add(self, op: Operator) -> Operator:
        if op.id not in {o.id for o in self._made}:
            self._made.append(op)
        return op

    def _scan(self, index: int, side: Side) -> Operator:
        ordered = index == 1 and isinstance(self._shape.match, Newest)
        names = tuple(f.name for f in side.schema)
        schema = (*side.schema, Field("_seq", BIGINT)) if ordered else side.schema
        return self._add(Scan((), schema, not side.signed, SIDES[index], names, ordered))

    def _arrange(self, op: Operator, side: Side, horizon: Horizon) -> Operator:
        time = horizon.time if horizon.retain else None
        return self._add(
            Arrange(
                (op.id,),
                op.schema,
                op.append_only,
                side.keys,
                (False,) * len(side.keys),
                0,
                time,
                horizon.retain,
                horizon.newest,
            )
        )

    def _newest(self, left: Operator, right: Operator) -> Operator:
        shape = self._shape
        current = self._add(operators.Upsert((right.id,), shape.right.schema, False, shape.right.keys))
        arranged = self._arrange(current, shape.right, Horizon())
        assert shape.how in ("inner", "left")
        return self._add(
            operators.TemporalJoin(
                (left.id, arranged.id),
                output_schema(shape, shape.columns),
                True,
                join_kind=shape.how,
                left_keys=shape.left.keys,
                right_keys=shape.right.keys,
                null_safe=(False,) * len(shape.left.keys),
                residual=None,
                memo=False,
                owner="",
                output=shape.columns,
            )
        )

    def _final(self, joined: Operator, columns: tuple[InputColumn, ...], waits: Sequence[Waiting]) -> Operator:
        """Rows that may be taken back wait until they are decided; all others come out at once."""
        count = len(self._shape.columns)
        keep, names = tuple(range(count)), tuple(f"c{i}" for i in range(len(columns)))
        schema = joined.schema[:count]
        tests = []
        for w in waits:
            test = f"c{columns.index(w.time)} IS NOT NULL"
            if w.partner is not None:
                test += f" AND c{columns.index(w.partner)} IS NULL"
            tests.append(test)
        parts = [
            self._add(
                operators.Map((joined.id,), schema, True, names[:count], " AND ".join(f"NOT ({t})" for t in tests))
            )
        ]
        for w, test in zip(waits, tests, strict=True):
            held = self._add(operators.Map((joined.id,), joined.schema, False, names, test))
            column = columns.index(w.time)
            parts.append(
                self._add(operators.TimeFilter((held.id,), schema, True, column, w.comparison, w.decided, keep))
            )
        return self._add(operators.Union(tuple(p.id for p in parts), schema, True))
