"""ASOF JOIN: equalities between the sides, and exactly one comparison, which decides which record is nearest.

RisingWave, "Joins", "ASOF joins"; RW-20 to RW-26 and D-000-04.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.algebra.comparisons import MIRRORED_SIGNS, SIGNS, Comparison
from watersmeet.algebra.nodes import AsofJoin, KeyPair, Node, Scan
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.context.binding import Environment, filtered
from watersmeet.binder.context.keys import condition_parts, equality_key
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import error
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.clock import reads_clock
from watersmeet.expressions.operators import compare
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.expressions.values import Value, columns_of, common_type

Sourced = tuple[Node, Scope]

_UNORDERED: Final = ("array", "struct", "jsonb")
_HINT: Final = "Write ON a.key = b.key AND a.time >= b.time."


def asof_join(
    left: Sourced, right: Sourced, node: exp.Join, scope: Scope, env: Environment, without_equality: str
) -> AsofJoin:
    """`left ASOF [LEFT] JOIN right ON …`. ASOF_KIND, ASOF_WITHOUT_EQUALITY, ASOF_WITHOUT_INEQUALITY.

    without_equality: the message for ASOF_WITHOUT_EQUALITY. A condition on right rows alone selects the candidates; one
    on left rows alone decides which of these look for a partner.
    """
    place = place_of(node.this) or place_of(node)
    side = node.side.upper()
    if side not in ("", "LEFT"):
        raise error(
            "ASOF_KIND",
            f"ASOF {side} JOIN does not exist",
            sql=env.text,
            span=place,
            detail="Expected LEFT after ASOF. RIGHT or FULL are not supported.",
            hint="Use ASOF JOIN or ASOF LEFT JOIN; exchange the sides if necessary.",
        )
    condition = node.args.get("on")
    if condition is None:
        raise error(
            "ASOF_WITHOUT_INEQUALITY",
            "AsOf join requires exactly 1 inequality condition",
            sql=env.text,
            span=place,
            hint=f"USING has equalities only. {_HINT}" if node.args.get("using") else _HINT,
        )
    sides = _Sides(left[0], right[0], ScopeContext(env.text, scope, "JOIN/ON"))
    for part in condition_parts(condition):
        sides.add(part)
    if not sides.keys:
        raise error("ASOF_WITHOUT_EQUALITY", without_equality, sql=env.text, span=place_of(condition), hint=_HINT)
    if sides.nearest is None:
        raise error(
            "ASOF_WITHOUT_INEQUALITY",
            "AsOf join requires exactly 1 inequality condition",
            sql=env.text,
            span=place_of(condition),
            detail="There is none of <, <=, > and >= between the two sides.",
            hint=_HINT,
        )
    comparison, left_value, right_value = sides.nearest
    if side == "LEFT":
        kept, left_value = left[0], sides.only_if(left_value)
    else:
        kept = filtered(left[0], sides.left_only)
    found = filtered(right[0], sides.right_only)
    ties = right[0].key if isinstance(right[0], Scan) else ()
    return AsofJoin(
        kept,
        found,
        "left" if side == "LEFT" else "inner",
        tuple(sides.keys),
        comparison,
        left_value.finish(),
        right_value.finish(),
        ties,
        span=place,
    )


class _Sides:
    """The parts of the condition by their role."""

    def __init__(self, left: Node, right: Node, ctx: ScopeContext) -> None:
        self.left = left
        self.right = right
        self.ctx = ctx
        self.keys: list[KeyPair] = []
        self.nearest: tuple[Comparison, Value, Value] | None = None
        self.left_only: list[Scalar] = []
        self.right_only: list[Scalar] = []

    def add(self, part: exp.Expression) -> None:
        """Adds one part of the condition."""
        compares = (isinstance(part, (exp.EQ, exp.NullSafeEQ)) or type(part) in SIGNS) and not reads_clock(part)
        if isinstance(part, exp.Binary) and compares and not isinstance(part.expression, (exp.Any, exp.All)):
            a, b = bind_value(part.this, self.ctx), bind_value(part.expression, self.ctx)
            whole = compare(part, a, b, self.ctx)
            if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
                pair = equality_key(part, a, b, self.left, self.right, self.ctx)
                if pair is not None:
                    self.keys.append(pair)
                    return
            elif self._is_nearest(part, a, b):
                return
        else:
            whole = bind_condition(part, self.ctx, "JOIN/ON")
        reads = columns_of(whole)
        if reads <= self.right.ids:
            self.right_only.append(whole.finish())
        elif reads <= self.left.ids:
            self.left_only.append(whole.finish())
        else:
            raise self.ctx.error(
                "ASOF_WITHOUT_INEQUALITY",
                "AsOf join requires exactly 1 inequality condition",
                part,
                detail="Besides equalities and that comparison, a condition may read one side only.",
                hint=_HINT,
            )

    def _is_nearest(self, part: exp.Expression, a: Value, b: Value) -> bool:
        reads_a, reads_b = columns_of(a), columns_of(b)
        straight = bool(reads_a) and bool(reads_b) and reads_a <= self.left.ids and reads_b <= self.right.ids
        turned = bool(reads_a) and bool(reads_b) and reads_b <= self.left.ids and reads_a <= self.right.ids
        if not straight and not turned:
            return False
        if self.nearest is not None:
            raise self.ctx.error(
                "ASOF_WITHOUT_INEQUALITY",
                "AsOf join requires exactly 1 inequality condition",
                part,
                detail="This is a second one: the nearest row by both is undefined.",
                hint="Leave in ON the one that decides which row is nearest; compare the others in WHERE.",
            )
        kind = common_type([a.type, b.type])
        assert kind is not None, "compare() has checked it"
        if kind.name in _UNORDERED:
            raise self.ctx.error(
                "DATATYPE_MISMATCH",
                f"values of type {kind.sql} have no distance from each other",
                part,
                hint="Compare numbers, strings, dates or times.",
            )
        one, other = coerce(a, kind, self.ctx, part), coerce(b, kind, self.ctx, part)
        comparison = SIGNS[type(part)]
        self.nearest = (comparison, one, other) if straight else (MIRRORED_SIGNS[comparison], other, one)
        return True

    def only_if(self, value: Value) -> Value:
        """`value` if the conditions on left rows hold, else NULL, which has no partner."""
        for condition in self.left_only:
            case = exp.Case(ifs=[exp.If(this=condition.expression.copy(), true=value.expression)])
            value = Value(case, value.type)
        return value
