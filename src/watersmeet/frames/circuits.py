"""The circuit of a join: two scans, their arrangements, the join. One stage, run once per bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from watersmeet.circuit import operators
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Arrange, Operator, Scan, Sink
from watersmeet.frames.shapes import SIDES, JoinShape, Nearest, Newest, Side
from watersmeet.types import BIGINT, Field, Schema

#: The relation that the circuit publishes.
JOINED: Final = "joined"


def compile_join(shape: JoinShape) -> Circuit:
    """The circuit of the streaming join `shape`; its one sink publishes the columns `shape.tokens`."""
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
    return shape.match is None and shape.how in ("inner", "semi")


def residual(shape: JoinShape) -> str | None:
    """The bounds of the two sides' times as DuckDB SQL."""
    if shape.within is None:
        return None
    left, right = f"epoch_us(l{shape.left.time})", f"epoch_us(r{shape.right.time})"
    low, high = shape.within.lower_us, shape.within.upper_us
    bounds = [f"{right} - {left} >= {low}" if low is not None else "", f"{right} - {left} <= {high}" if high is not None else ""]
    return " AND ".join(b for b in bounds if b) or f"({left} IS NOT NULL AND {right} IS NOT NULL)"


def output_schema(shape: JoinShape) -> Schema:
    """The types of `shape.tokens`."""
    sides = {"l": shape.left, "r": shape.right}
    return tuple(Field(f"c{i}", sides[t[0]].schema[int(t[1:])].type) for i, t in enumerate(shape.tokens))


def join_operator(shape: JoinShape, inputs: Sequence[str]) -> operators.Join | operators.AsofJoin:
    """The join of two arrangements that reads every row of both sides."""
    common: dict[str, Any] = {"schema": output_schema(shape), "append_only": appends(shape), "left_keys": shape.left.keys,
              "right_keys": shape.right.keys, "null_safe": (False,) * len(shape.left.keys), "output": shape.tokens}
    if isinstance(shape.match, Nearest):
        assert shape.how in ("inner", "left")
        return operators.AsofJoin(tuple(inputs), **common, join_kind=shape.how, comparison=shape.match.comparison,
                                  left_value=shape.match.left, right_value=shape.match.right,
                                  ties=tuple(range(len(shape.right.schema))))
    return operators.Join(tuple(inputs), **common, join_kind=shape.how, residual=residual(shape))


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
        arranged = [self._arrange(o, s) for o, s in zip((left, right), shape.sides, strict=True)]
        joined = self._add(join_operator(shape, [a.id for a in arranged]))
        return self._tolerant(joined) if isinstance(shape.match, Nearest) else joined

    def _add(self, op: Operator) -> Operator:
        if op.id not in {o.id for o in self._made}:
            self._made.append(op)
        return op

    def _scan(self, index: int, side: Side) -> Operator:
        ordered = index == 1 and isinstance(self._shape.match, Newest)
        names = tuple(f.name for f in side.schema)
        schema = (*side.schema, Field("_seq", BIGINT)) if ordered else side.schema
        return self._add(Scan((), schema, True, SIDES[index], names, ordered))

    def _arrange(self, op: Operator, side: Side) -> Operator:
        return self._add(Arrange((op.id,), op.schema, op.append_only, side.keys, (False,) * len(side.keys), 0))

    def _newest(self, left: Operator, right: Operator) -> Operator:
        shape = self._shape
        current = self._add(operators.Upsert((right.id,), shape.right.schema, False, shape.right.keys))
        arranged = self._arrange(current, shape.right)
        assert shape.how in ("inner", "left")
        return self._add(operators.TemporalJoin(
            (left.id, arranged.id), output_schema(shape), True, join_kind=shape.how, left_keys=shape.left.keys,
            right_keys=shape.right.keys, null_safe=(False,) * len(shape.left.keys), residual=None, memo=False, owner="",
            output=shape.tokens))

    def _tolerant(self, joined: Operator) -> Operator:
        """Partners that are too far away are none: the nearest one is, so all others are."""
        match = self._shape.match
        assert isinstance(match, Nearest)
        if match.tolerance_us is None:
            return joined
        places = {t: f"c{i}" for i, t in enumerate(self._shape.tokens)}
        left, right = places[f"l{match.left}"], places[f"r{match.right}"]
        near = f"abs(epoch_us({left}) - epoch_us({right})) <= {match.tolerance_us}"
        if self._shape.how == "inner":
            return self._add(operators.Map((joined.id,), joined.schema, joined.append_only, tuple(places.values()), near))
        exprs = tuple(c if t[0] == "l" else f"CASE WHEN {near} THEN {c} END" for t, c in places.items())
        return self._add(operators.Map((joined.id,), joined.schema, joined.append_only, exprs, None))
