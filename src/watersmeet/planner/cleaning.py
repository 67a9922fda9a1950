"""How plans show which rows a join forgets: RisingWave's flags and conditions.

`window`: part of the key is a time by which both sides are cleaned. `interval`: comparisons of times clean both.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from watersmeet.algebra.base import Column
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.timebounds import bound_of
from watersmeet.circuit.operators import Arrange, Join, Operator
from watersmeet.planner.display import display
from watersmeet.planner.names import Names
from watersmeet.planner.texts import parsed
from watersmeet.types import BOOLEAN


def cleaning(
    op: Join, operators: Mapping[str, Operator], names: Names
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The flags and fields of a join that forgets some of its rows; else nothing."""
    sides = [operators[i] for i in op.inputs]
    left, right = ((s.time if isinstance(s, Arrange) else None) for s in sides)
    if left is None and right is None:
        return (), ()
    columns = [names.columns(i) for i in op.inputs]
    if left is not None and right is not None and (left, right) in list(zip(op.left_keys, op.right_keys, strict=True)):
        return ("window",), (
            ("conditions_to_clean_state_in_join_key", f"[({columns[0][left]} = {columns[1][right]})]"),
        )
    one, other = (
        {f"{n}{i}": Column(f"{n}{i}", f.name, f.type) for i, f in enumerate(s.schema)}
        for n, s in zip("lr", sides, strict=True)
    )
    shown = names.by_position(op.inputs[0], "l") | names.by_position(op.inputs[1], "r")
    cleans: dict[str, list[exp.Expression]] = {"left": [], "right": []}
    for part in [] if op.residual is None else conjuncts(Scalar(parsed(op.residual), BOOLEAN)):
        bound = bound_of(part.expression, one, other)
        if bound is not None and bound.lo_us is not None and bound.left.column == f"l{left}":
            cleans["left"].append(part.expression)
        if bound is not None and bound.hi_us is not None and bound.right.column == f"r{right}":
            cleans["right"].append(part.expression)
    fields = tuple(
        (f"conditions_to_clean_{side}_state_table", " AND ".join(display(p, shown) for p in parts))
        for side, parts in cleans.items()
        if parts
    )
    return (("interval",) if all(cleans.values()) else ()), fields
