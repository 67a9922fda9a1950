"""The physical plan as a tree in RisingWave's form, made from the operators of a view.

Joins that delete old rows have RisingWave's flags: `window` if a part of the key is a time by which both sides are
cleaned, `interval` if both are cleaned by comparisons of times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.base import Column
from watersmeet.algebra.nodes import TemporalJoin as TemporalJoinNode
from watersmeet.algebra.nodes import TopN as TopNNode
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.watermarks import bound_of
from watersmeet.catalog import Source, Table
from watersmeet.circuit.operators import (
    FOREVER_US,
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
    LateRowFilter,
    Map,
    MultiJoin,
    Operator,
    PairJoin,
    Records,
    Repeat,
    Scan,
    Sink,
    SlidingWindow,
    Sort,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Upsert,
    Versions,
    Window,
)
from watersmeet.circuit.sessions import SessionWindow
from watersmeet.planner.display import PlanTree, display, interval_text, parsed
from watersmeet.planner.names import ROW_ID, Names, call_text, of_columns, order_text, window_text
from watersmeet.values.types import BOOLEAN
from watersmeet.values.watermarks import NOW


def cleaning(
    op: Join, operators: Mapping[str, Operator], names: Names
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The flags and fields of a join that deletes old rows from its state; else empty."""
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


JOIN_TYPES: Final = {
    "inner": "Inner",
    "left": "LeftOuter",
    "right": "RightOuter",
    "full": "FullOuter",
    "semi": "LeftSemi",
    "anti": "LeftAnti",
}

ASOF_TYPES: Final = {"inner": "AsofInner", "left": "AsofLeftOuter"}
Fields = tuple[tuple[str, str], ...]


def listed(names: list[str] | tuple[str, ...]) -> str:
    """The text of a list: `[a, b]`."""
    return f"[{', '.join(names)}]"


def predicate_text(text: str, names: Mapping[str, str]) -> str:
    """The text of a predicate, conjunct by conjunct."""
    return " AND ".join(display(p.expression, names) for p in conjuncts(Scalar(parsed(text), BOOLEAN)))


def limit_fields(top: TopN | TopNNode, order: str) -> Fields:
    """The fields with the order and the limit of a top-N."""
    fields: Fields = (
        ("order", f"[{order}]"),
        ("limit", "ALL" if top.limit is None else str(top.limit)),
        ("offset", str(top.offset)),
    )
    return (*fields, ("with_ties", "true")) if top.with_ties else fields


def look_up_fields(join: TemporalJoin | TemporalJoinNode) -> Fields:
    """The fields of a look-up join whose rows wait, or whose answers are reused for a set time."""
    waits: Fields = (("waits_for_first_match", "true"),) if join.waits else ()
    if join.ttl_us is None:
        return waits
    return (*waits, ("answers_serve", "forever" if join.ttl_us >= FOREVER_US else interval_text(join.ttl_us)))


def distribution_text(op: Exchange, names: Names) -> str:
    """The target of an exchange: `HashShard(t.a)`, `Single`, `Broadcast`."""
    if op.mode == "broadcast":
        return "Broadcast"
    columns = names.columns(op.inputs[0])
    return f"HashShard({', '.join(columns[k] for k in op.keys)})" if op.keys else "Single"


def _emission(op: Operator) -> Fields:
    """The field that marks a join that is never revised."""
    return (("emit", "on arrival"),) if isinstance(op, (ArrivalAsofJoin, ArrivalJoin)) else ()


class PhysicalPrinter:
    """Makes plan trees of operators.

    verbose: adds the operators' ids and how relations are read. timed: the columns of the view that have a watermark.
    arranged: also shows arrangements.
    """

    def __init__(
        self,
        operators: Mapping[str, Operator],
        names: Names,
        *,
        verbose: bool,
        timed: Collection[str] = (),
        arranged: bool = False,
    ) -> None:
        self._operators = operators
        self._timed = timed
        self._names = names
        self._verbose = verbose
        self._arranged = arranged

    def tree(self, op: Operator) -> PlanTree:
        """The plan of `op` and of all operators below it."""
        if op.id in self._names.leaves or isinstance(op, Scan):
            return self._scan(op)
        # RisingWave shows an arrangement as a part of the join; the list of costs contains it.
        if isinstance(op, Arrange) and not self._arranged:
            return self.tree(self._operators[op.inputs[0]])
        inputs = tuple(self.tree(self._operators[i]) for i in op.inputs)
        if isinstance(op, Map):
            return self._map(op, inputs)
        if isinstance(op, MultiJoin):
            return self._multi_join(op, inputs)
        flags: tuple[str, ...] = cleaning(op, self._operators, self._names)[0] if isinstance(op, Join) else ()
        if (isinstance(op, Join) and op.append_only and op.join_kind == "inner") or (
            isinstance(op, (Aggregate, TopN)) and self._operators[op.inputs[0]].append_only
        ):
            flags = (*flags, "append_only")
        name, fields = self._described(op)
        node = self._node(op, name, fields, inputs, flags)
        return (
            self._filtered(op, self._residual(op), node) if isinstance(op, Join) and self._filters_above(op) else node
        )

    def _filters_above(self, op: Join) -> bool:
        """Whether the residual is shown as a filter above the join, as in RisingWave: for inner joins that keep all
        rows.
        """
        return (
            op.join_kind == "inner"
            and bool(op.left_keys)
            and op.residual is not None
            and not cleaning(op, self._operators, self._names)[1]
        )

    def _filtered(self, op: Operator, parts: Sequence[str], node: PlanTree) -> PlanTree:
        return self._node(op, "StreamFilter", (("predicate", " AND ".join(parts)),), (node,)) if parts else node

    def _node(
        self, op: Operator, name: str, fields: Fields, inputs: tuple[PlanTree, ...], flags: tuple[str, ...] = ()
    ) -> PlanTree:
        return PlanTree(name, (*fields, ("id", op.id)) if self._verbose else fields, inputs, flags)

    def _described(self, op: Operator) -> tuple[str, Fields]:
        described = next((_SHOWN[kind] for kind in type(op).__mro__ if kind in _SHOWN), None)
        return (f"Stream{type(op).__name__}", ()) if described is None else described(self, op)

    def _below(self, op: Operator, columns: Iterable[int]) -> str:
        """The text of some columns of the input: `[t.a, t.b]`."""
        names = self._names.columns(op.inputs[0])
        return listed([names[i] for i in columns])

    def _aggregate(self, op: Aggregate) -> tuple[str, Fields]:
        below = self._names.columns(op.inputs[0])
        aggs = ("aggs", listed([call_text(c, of_columns(below)) for c in op.calls]))
        if not op.keys:
            return "StreamSimpleAgg", (aggs,)
        return "StreamHashAgg", (("group_key", self._below(op, op.keys)), aggs)

    def _window(self, op: Window) -> tuple[str, Fields]:
        below = self._names.columns(op.inputs[0])
        partition = [below[k] for k in op.keys]
        functions = [window_text(f, partition, of_columns(below)) for f in op.functions]
        title = "StreamSlidingWindow" if isinstance(op, SlidingWindow) else "StreamOverWindow"
        title = "StreamSessionWindow" if isinstance(op, SessionWindow) else title
        return title, (("window_functions", listed(functions)),)

    def _late_rows(self, op: LateRowFilter) -> tuple[str, Fields]:
        time, bound = self._names.columns(op.inputs[0])[op.column], self._names.watermark(op.bound)
        return "StreamLateRowFilter", (("time", time), ("before" if op.late else "not_before", bound))

    def _sort(self, op: Sort) -> tuple[str, Fields]:
        below = self._names.columns(op.inputs[0])
        order = [f"{below[k.column]}{' DESC' if k.descending else ''}" for k in op.order]
        return "StreamSort", (("order", listed(order)),)

    def _versions(self, op: Versions) -> tuple[str, Fields]:
        time = self._names.columns(op.id)[op.time]
        return "StreamVersions", (("key", self._below(op, op.keys)), ("time", time))

    def _scan(self, op: Operator) -> PlanTree:
        relation = self._names.relation(op)
        columns = [n.rsplit(".", 1)[1] for n in self._names.columns(op.id)]
        name = relation.shown if relation is not None else getattr(op, "relation_id", "")
        is_source = isinstance(relation, Source)
        keyless = isinstance(relation, Table) and not relation.primary_key
        if keyless and not is_source:
            columns.append(ROW_ID)
        fields: list[tuple[str, str]] = [("source" if is_source else "table", name), ("columns", listed(columns))]
        if self._verbose and relation is not None and not is_source:
            key = list(relation.primary_key) or ([ROW_ID] if keyless else [])
            fields += [("pk", listed(key)), ("append_only", str(op.append_only).lower())]
        return self._node(op, "StreamSourceScan" if is_source else "StreamTableScan", tuple(fields), ())

    def _map(self, op: Map, inputs: tuple[PlanTree, ...]) -> PlanTree:
        names = self._names.by_position(op.inputs[0])
        node = inputs[0]
        if op.predicate is not None:
            node = self._node(op, "StreamFilter", (("predicate", predicate_text(op.predicate, names)),), (node,))
        if op.exprs != tuple(f"c{i}" for i in range(len(self._operators[op.inputs[0]].schema))):
            exprs = listed([display(parsed(e), names) for e in op.exprs])
            node = self._node(op, "StreamProject", (("exprs", exprs),), (node,))
        if op.partitions is not None:
            node = self._node(op, "StreamRepartition", (("partitions", str(op.partitions)),), (node,))
        return node

    def _topn(self, op: TopN) -> tuple[str, Fields]:
        below = self._names.columns(op.inputs[0])
        fields = limit_fields(op, order_text(op.order, of_columns(below)))
        if not op.keys:
            return "StreamTopN", fields
        return "StreamGroupTopN", (*fields, ("group_key", listed([below[k] for k in op.keys])))

    def _group_join(self, op: GroupJoin) -> tuple[str, Fields]:
        return "StreamGroupJoin", (
            ("type", JOIN_TYPES[op.join_kind]),
            ("predicate", " AND ".join(self._equalities(op))),
            ("group_key", self._below(op, op.keys)),
            ("aggs", listed(self._names.calls(op))),
        )

    def _equalities(self, op: PairJoin | GroupJoin) -> list[str]:
        left, right = (self._names.columns(i) for i in op.inputs)
        pairs = zip(op.left_keys, op.right_keys, op.null_safe, strict=True)
        return [f"{left[a]} {'IS NOT DISTINCT FROM' if safe else '='} {right[b]}" for a, b, safe in pairs]

    def _temporal(self, op: TemporalJoin) -> tuple[str, Fields]:
        parts = [*self._equalities(op), *self._residual(op)]
        return "StreamTemporalJoin", (
            ("type", JOIN_TYPES[op.join_kind]),
            ("append_only", str(not op.memo).lower()),
            *look_up_fields(op),
            ("predicate", " AND ".join(parts) or "true"),
            ("nested_loop", str(not op.left_keys).lower()),
            ("output", listed(self._names.shown(op.id))),
        )

    def _residual(self, op: PairJoin) -> list[str]:
        if op.residual is None:
            return []
        both = self._names.by_position(op.inputs[0], "l") | self._names.by_position(op.inputs[1], "r")
        return [predicate_text(op.residual, both)]

    def _asof(self, op: AsofJoin) -> tuple[str, Fields]:
        left, right = (self._names.columns(i) for i in op.inputs)
        nearest = f"({left[op.left_value]} {op.comparison} {right[op.right_value]})"
        depth: Fields = (
            (("versions", str(op.depth)),) if isinstance(op, ArrivalAsofJoin) and op.depth is not None else ()
        )
        return "StreamAsOfJoin", (
            ("type", ASOF_TYPES[op.join_kind]),
            ("predicate", " AND ".join([*self._equalities(op), nearest, *self._residual(op)])),
            *_emission(op),
            *depth,
            ("output", listed(self._names.shown(op.id))),
        )

    def _join(self, op: Join) -> tuple[str, Fields]:
        parts = [*self._equalities(op), *([] if self._filters_above(op) else self._residual(op))]
        fields: Fields = (
            ("type", JOIN_TYPES[op.join_kind]),
            ("predicate", " AND ".join(parts) or "true"),
            *_emission(op),
        )
        fields += cleaning(op, self._operators, self._names)[1]
        output = ("output", listed(self._names.shown(op.id)))
        if op.left_keys:
            return "StreamHashJoin", (*fields, output)
        return "StreamBroadcastJoin", (*fields, output)

    def _dynamic_filter(self, op: DynamicFilter) -> tuple[str, Fields]:
        left, right = (self._names.columns(i) for i in op.inputs)
        predicate = f"({left[op.column]} {op.comparison} {right[0]})"
        return "StreamDynamicFilter", (("predicate", predicate), ("output", listed(self._names.shown(op.id))))

    def _time_filter(self, op: TimeFilter) -> tuple[str, Fields]:
        """RisingWave's sort of EMIT ON WINDOW CLOSE, or its dynamic filter with the clock as the other side."""
        time = self._names.columns(op.inputs[0])[op.column]
        by_clock = {t.source for t in op.bound} == {NOW} and self._operators[op.inputs[0]].append_only
        if op.comparison == "<" and op.append_only and not by_clock:
            return "StreamEowcSort", (("sort_column", time), ("watermark", self._names.watermark(op.bound)))
        return "StreamDynamicFilter", (
            ("predicate", f"({time} {op.comparison} {self._names.watermark(op.bound)})"),
            ("output", listed(self._names.shown(op.id))),
            ("cleaned_by_watermark", "true"),
        )

    def _multi_join(self, op: MultiJoin, inputs: tuple[PlanTree, ...]) -> PlanTree:
        """The lowest equivalent tree of two-way joins. They are one operator without intermediate results."""
        names = [self._names.columns(i) for i in op.inputs]

        def part(first: int, end: int) -> PlanTree:
            if end - first == 1:
                return inputs[first]
            middle = (first + end + 1) // 2
            pairs = zip(op.keys[first], op.keys[middle], strict=True)
            parts = [f"{names[first][a]} = {names[middle][b]}" for a, b in pairs]
            fields: Fields = (("type", "Inner"), ("predicate", " AND ".join(parts)))
            if end - first == len(inputs):
                fields = (*fields, ("output", listed(self._names.shown(op.id))))
            flags = ("append_only", "multi_way") if op.append_only else ("multi_way",)
            return self._node(op, "StreamHashJoin", fields, (part(first, middle), part(middle, end)), flags)

        return self._filtered(
            op,
            [] if op.residual is None else [predicate_text(op.residual, self._names.by_number(op))],
            part(0, len(inputs)),
        )

    def _unnest(self, op: Unnest) -> tuple[str, Fields]:
        """RisingWave's ProjectSet, which walks several functions in parallel. LEFT JOIN LATERAL is marked `outer`."""
        fields: list[tuple[str, str]] = [("select_list", listed(self._names.columns(op.id)))]
        if op.outer:
            fields.append(("outer", "true"))
        if op.condition is not None:
            both = self._names.by_position(op.inputs[0], "l")
            both |= {f"r{j}": n for j, n in enumerate(self._names.columns(op.id)[len(op.keep) :])}
            fields.append(("condition", predicate_text(op.condition, both)))
        return "StreamProjectSet", tuple(fields)

    def _materialize(self, op: Sink) -> tuple[str, Fields]:
        names = self._names.columns(op.inputs[0])
        own = {n: f.name for n, f in reversed(list(zip(names, op.schema, strict=True)))}
        keys = [own.get(k, k) for k in self._names.keys(op.inputs[0])]
        columns = [f.name for f in op.schema]
        columns += [f"{k}(hidden)" for k in keys if k not in columns]
        timed = [f.name for f in op.schema if f.name in self._timed]
        return "StreamMaterialize", (
            ("columns", listed(columns)),
            ("stream_key", listed(keys)),
            ("pk_columns", listed(keys)),
            ("pk_conflict", "NoCheck"),
            *((("watermark_columns", listed(timed)),) if timed else ()),
        )


#: For classes of operators, the name in plans and the fields. Others are shown by the name of their class.
_SHOWN: Final[dict[type[Operator], Callable[[PhysicalPrinter, Any], tuple[str, Fields]]]] = {
    Aggregate: PhysicalPrinter._aggregate,
    Arrange: lambda p, op: ("StreamArrange", (("key", p._below(op, op.keys)),)),
    AsofJoin: PhysicalPrinter._asof,
    ChangeLog: lambda p, op: ("StreamChangeLog", (("key", p._below(op, op.keys)),) if op.keys else ()),
    Changes: lambda p, op: ("StreamChanges", (("causes", listed([p._below(op, c.match) for c in op.causes])),)),
    Constant: lambda _, op: (
        "StreamValues",
        (("rows", listed([listed([display(parsed(e), {}) for e in row]) for row in op.rows_sql])),),
    ),
    Cut: lambda _, op: ("StreamCut", (("keeps", op.keeps),)),
    DynamicFilter: PhysicalPrinter._dynamic_filter,
    Exchange: lambda p, op: ("StreamExchange", (("dist", distribution_text(op, p._names)),)),
    GroupJoin: PhysicalPrinter._group_join,
    Join: PhysicalPrinter._join,
    LateRowFilter: PhysicalPrinter._late_rows,
    Records: lambda p, op: ("StreamRecords", () if op.keys is None else (("key", p._below(op, op.keys)),)),
    Repeat: lambda p, op: ("StreamRepeat", (("times", p._names.columns(op.inputs[0])[-1]),)),
    Sink: PhysicalPrinter._materialize,
    Sort: PhysicalPrinter._sort,
    TemporalJoin: PhysicalPrinter._temporal,
    TimeFilter: PhysicalPrinter._time_filter,
    TopN: PhysicalPrinter._topn,
    Union: lambda *_: ("StreamUnion", (("all", "true"),)),
    Unnest: PhysicalPrinter._unnest,
    Upsert: lambda p, op: ("StreamUpsert", (("key", listed([p._names.columns(op.id)[k] for k in op.keys])),)),
    Versions: PhysicalPrinter._versions,
    SessionWindow: PhysicalPrinter._window,
    Window: PhysicalPrinter._window,
}
