"""Binds windowed aggregates over a stream: `SUM(x) OVER (PARTITION BY k RANGE INTERVAL '1' MINUTE PRECEDING)`.

s-Server, "WINDOW clause", "Analytic Functions", "Allowed and Disallowed Window Specifications", "EXP_AVG", "LAG",
"NTH_VALUE". Each row of the stream is output once, with its own ROWTIME and the values of its functions (`SW-01` to
`SW-14` of the rules).

**Windows.** RANGE windows include both ends, as in joins. A window ends with its own row: of the rows with the same
ROWTIME it contains those that arrived earlier, but not later ones, because a row is output when it arrives. A window
that ends an interval before its row contains all rows of its last moment. Functions of a SELECT with equal partitions
and kinds of windows are one node.

**When.** If rows arrive in the order of ROWTIME, as those of streams and promoted times do, a row is output when it
arrives. Rows of joins, of UNION ALL, of groups, and of streams that may be out of order wait until the clock has passed
their ROWTIME; equal ROWTIMEs are then in the order of arrival or, where it is unknown, of their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Apply,
    Arrivals,
    Column,
    Cut,
    Filter,
    LateRowFilter,
    Node,
    Project,
    TemporalJoin,
    TimeFilter,
    Unnest,
    Window,
    WindowCall,
    WindowFrame,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.scalars import Scalar, SortKey
from watersmeet.algebra.timewindows import duration_us
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.aggregates import Grouping
from watersmeet.binder.clauses.ordering import Definition, Windows
from watersmeet.binder.clauses.timewindows import StreamOrder
from watersmeet.binder.context.binding import Environment, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import ScopeContext
from watersmeet.binder.dialects.sqlstream.stream_joins import (
    RangeWindow,
    RowsWindow,
    StreamWindow,
    stream_window,
    timestamp,
)
from watersmeet.circuit.operators import COLLECTED
from watersmeet.dialects.sqlstream.grammar import FromLast
from watersmeet.dialects.tree.queries import node_span
from watersmeet.expressions.aggregatecalls import OF_WINDOWS, aggregate_name, bind_call, written
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.context import Context, Value
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.values.spans import set_span
from watersmeet.values.types import DOUBLE, TIMESTAMP, VARCHAR

_CALLED: Final = "a window of a stream"
_VALUES: Final = ("lag", "first_value", "last_value", "nth_value")
_UNBOUNDED: Final = (
    "A window without a first row keeps all rows of the stream. Write RANGE INTERVAL … PRECEDING or ROWS n PRECEDING, "
    "so that rows can leave."
)

#: The nodes that output rows as they arrive, with the input whose order the rows keep.
_PASSING: Final = (Cut, Filter, LateRowFilter, Project, Unnest, TemporalJoin, Apply)


class StreamWindows(Windows):
    """Collects the window functions of a SELECT over a stream. rows: the rows that pass WHERE."""

    def __init__(
        self,
        definitions: Sequence[exp.Window],
        ctx: ScopeContext,
        env: Environment,
        binding: Binding,
        rows: StreamOrder,
    ) -> None:
        super().__init__(definitions, ctx, binding)
        assert ctx.scope.stream is not None
        self._env = env
        self._rows = rows
        self._rowtime = timestamp(ctx.scope.stream.rowtime.value.finish())
        self._calls: dict[tuple[object, ...], dict[WindowCall, Column]] = {}

    def add(self, node: exp.Window, ctx: Context) -> Value:
        """The value of a window function."""
        if isinstance(ctx, Grouping):
            raise ctx.not_supported(
                "a window function over the groups of a stream",
                node,
                hint="Write the groups as a subquery: … OVER w FROM (SELECT STREAM … GROUP BY …) AS g.",
            )
        reason = revision(self._rows.relation)
        if reason is not None:
            raise ctx.not_supported(
                "a window function over rows that may be deleted",
                node,
                detail=f"{reason[0].upper()}{reason[1:]}; but a row of a stream is output once, with its values.",
            )
        return super().add(node, ctx)

    def placed(self, partition: tuple[Scalar, ...], call: WindowCall, *, ordered: bool) -> Value:  # noqa: ARG002 - all are
        if call.frame.start is None and call.frame.low is None and call.function != "lag":
            self.binding.notice(_UNBOUNDED)
        calls = self._calls.setdefault((partition, call.frame.mode, call.frame.value), {})
        if call not in calls:
            calls[call] = self.binding.new_column(call.function, call.type, call.function != "count")
        return value_of(calls[call])

    def tree(self, relation: Node) -> Node:
        """`relation` with the columns of all functions that were added."""
        if not self._calls:
            return relation
        if not _rises(relation, self._rowtime.column, self.binding):
            relation = self._waiting(relation)
        for key, calls in self._calls.items():
            partition = key[0]
            assert isinstance(partition, tuple)
            relation = Window(relation, partition, tuple(calls), tuple(calls.values()), in_order=True)
        return relation

    def _waiting(self, relation: Node) -> Node:
        """The rows whose ROWTIME the clock has passed, so that they are output in the order of ROWTIME."""
        time = self._rowtime
        if time.column is None:
            column = self.binding.new_column("_rowtime", TIMESTAMP, time.nullable)
            relation = Project(relation, (*relation.columns, column), (*map(read, relation.columns), time))
            time = read(column)
        assert time.column is not None
        return TimeFilter(relation, time.column, "<", of_scalar(time, watermarks(relation)), final=True)

    def _call(self, node: exp.Expression, definition: Definition, ctx: Context) -> WindowCall:
        skips, condition, backwards = False, None, False
        while isinstance(node, (exp.IgnoreNulls, exp.RespectNulls)):
            skips, node = isinstance(node, exp.IgnoreNulls), node.this
        if isinstance(node, FromLast):
            backwards, node = True, node.this
        if isinstance(node, exp.Filter):
            condition, node = bind_condition(node.expression.this, ctx, "FILTER").finish(), node.this
        frame = self._frame(node, definition, ctx)
        order = self._rows.known
        assert order is not None
        name = node.this.lower() if isinstance(node, exp.Anonymous) and isinstance(node.this, str) else ""
        if name == "exp_avg":
            return self._decayed(node, frame, order, ctx)
        if name in _VALUES:
            if condition is not None:
                raise ctx.not_supported("FILTER for a window function that is not an aggregate", node)
            found = self._picked(name, node, frame, order, ctx)
            return replace(found, number=-found.number if backwards else found.number, skips_nulls=skips)
        call = written(node)
        if call is None or aggregate_name(node, ctx) is None or name in OF_WINDOWS:
            raise ctx.not_supported(f"{name.upper() or 'this function'} over a stream", node)
        bound = bind_call(call, lambda _: ctx)
        if (
            bound.order
            or bound.extra
            or bound.constant is not None
            or bound.function in COLLECTED
            or (bound.distinct and bound.function != "count")
        ):
            raise ctx.not_supported(
                f"{'DISTINCT in ' * bound.distinct}{name} as a window function",
                node,
                hint="COUNT(DISTINCT x), and other aggregates without DISTINCT, can have a window.",
            )
        arguments = () if bound.argument is None else (bound.argument,)
        return WindowCall(
            bound.function, arguments, 0, condition, order, frame, bound.type, distinct=bool(bound.distinct)
        )

    def _picked(
        self, name: str, node: exp.Expression, frame: WindowFrame, order: tuple[SortKey, ...], ctx: Context
    ) -> WindowCall:
        """The value of LAG, FIRST_VALUE, LAST_VALUE or NTH_VALUE."""
        parts = list(node.expressions)
        wanted = {"lag": (1, 2, 3), "nth_value": (2,)}.get(name, (1,))
        if len(parts) not in wanted:
            counts = " or ".join(map(str, wanted))
            raise ctx.error("DATATYPE_MISMATCH", f"function {name} takes {counts} arguments, not {len(parts)}", node)
        number = 1
        if len(parts) > 1:
            given = parts[1]
            if not isinstance(given, exp.Literal) or not given.is_int or (name == "nth_value" and int(given.name) < 1):
                raise ctx.error("DATATYPE_MISMATCH", f"the number of {name} must be a whole number", given)
            number = int(given.name)
        values = [bind_value(p, ctx) for p in (parts[0], *parts[2:])]
        if len(values) == 1:
            value = cast(values[0], VARCHAR, ctx, node) if values[0].unknown else values[0]
            return WindowCall(name, (value.finish(),), number, None, order, frame, value.type)
        settled, kind = unify(values, [parts[0], *parts[2:]], ctx, name.upper())
        return WindowCall(name, tuple(v.finish() for v in settled), number, None, order, frame, kind)

    def _decayed(
        self, node: exp.Expression, frame: WindowFrame, order: tuple[SortKey, ...], ctx: Context
    ) -> WindowCall:
        """The value of EXP_AVG(value, half-life)."""
        if len(node.expressions) != 2:
            raise ctx.error("DATATYPE_MISMATCH", "EXP_AVG takes a value and an interval", node)
        value, half = (bind_value(p, ctx) for p in node.expressions)
        half_us = duration_us(half.finish().expression)
        if half_us is None or half_us <= 0:
            raise ctx.error(
                "DATATYPE_MISMATCH",
                "the half-life of EXP_AVG must be a constant interval above zero",
                node.expressions[1],
                hint="EXP_AVG(price, INTERVAL '10' SECOND) OVER w.",
            )
        if not value.type.is_numeric:
            raise ctx.error("DATATYPE_MISMATCH", f"function exp_avg({value.type.sql}, interval) does not exist", node)
        arguments = cast(value, DOUBLE, ctx, node).finish(), self._rowtime
        return WindowCall("exp_avg", arguments, half_us, None, order, frame, DOUBLE)

    # -- frames -----------------------------------------------------------------------------------------------------

    def _frame(self, node: exp.Expression, definition: Definition, ctx: Context) -> WindowFrame:
        spec = definition.spec
        value = self._ordering(definition, ctx)
        if spec is None:
            return WindowFrame("rows", None, 0)
        unbounded = spec.args.get("start") == "UNBOUNDED" and spec.args.get("start_side") == "PRECEDING"
        spec = spec.copy()
        if unbounded:
            spec.set("start", spec.args.get("end") or "CURRENT ROW")
            spec.set("start_side", spec.args.get("end_side"))
        window = exp.Window(this=exp.Var(this="window"), spec=spec)
        set_span(window, node_span(node))
        found = stream_window(window, self._env, _CALLED)
        if isinstance(found, RowsWindow):
            return WindowFrame("rows", None if unbounded else -found.start, -found.end)
        assert isinstance(found, RangeWindow)
        return _range(found, value, unbounded=unbounded)

    def _ordering(self, definition: Definition, ctx: Context) -> Scalar:
        """The time by which a window is ordered: ROWTIME unless it is rounded down."""
        if not definition.order:
            return self._rowtime
        (key, *further) = definition.order
        value = timestamp(bind_value(key.this, ctx).finish())
        rises = of_scalar(value, watermarks(self._rows.relation))
        if further or key.args.get("desc") or not rises:
            raise ctx.not_supported(
                f"this order of {_CALLED}",
                (further or [key])[0],
                detail="Rows of a stream are in the order of ROWTIME.",
                hint="Write ORDER BY ROWTIME, or FLOOR(ROWTIME TO HOUR), or leave it out.",
            )
        return value


def _range(window: StreamWindow, value: Scalar, *, unbounded: bool) -> WindowFrame:
    assert isinstance(window, RangeWindow)
    if unbounded:
        return WindowFrame("range", None, -window.end_us, value=value)
    if window.months is None:
        return WindowFrame("range", -window.start_us, -window.end_us, value=value)
    begins = exp.Sub(this=exp.paren(value.expression.copy()), expression=exp.paren(window.months))
    return WindowFrame("range", None, -window.end_us, value=value, low=Scalar(begins, TIMESTAMP, value.nullable))


def _rises(node: Node, column: str | None, binding: Binding) -> bool:
    """Whether rows arrive in the order of a column."""
    while isinstance(node, _PASSING) and column is not None:
        if isinstance(node, LateRowFilter) and node.age and node.column == column:
            return True
        if isinstance(node, Project):
            column = next((e.column for c, e in zip(node.outputs, node.exprs, strict=True) if c.id == column), None)
        below = node.inputs[0]
        column = column if column in below.ids else None
        if (isinstance(node, TemporalJoin) and node.waits) or (isinstance(node, Apply) and not node.arrival):
            return False
        node = below
    if not isinstance(node, Arrivals):
        return False
    scan = node.scan
    time = binding.catalog.relations[scan.relation_id].event_time
    if time is None or not time.ordered:
        return False
    return any(c.id == column and n == time.column for c, n in zip(scan.outputs, scan.source_names, strict=True))
