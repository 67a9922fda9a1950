"""The names of operators' columns, derived from the operators: `t.col`, `sum(t.x)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from watersmeet.algebra.nodes import AggregateCall, WindowCall
from watersmeet.algebra.nodes import SortKey as Key
from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.circuit.operators import (
    Aggregate,
    AggregateSpec,
    AsofJoin,
    ChangeLog,
    Constant,
    GroupJoin,
    InputColumn,
    Join,
    LateRowFilter,
    Map,
    MultiJoin,
    Operator,
    PairJoin,
    Records,
    Scan,
    SortKey,
    TemporalJoin,
    TopN,
    Union,
    Unnest,
    Upsert,
    Versions,
    Window,
    WindowSpec,
)
from watersmeet.planner.display import constant_text, display, interval_text, parsed, watermark_text
from watersmeet.values.watermarks import Watermark

ROW_ID: Final = "_row_id"


class Names:
    """The column names and stream keys of operators.

    leaves: operators that are the content of a relation, shown as its scan.
    """

    def __init__(self, operators: Mapping[str, Operator], catalog: Catalog, leaves: Mapping[str, Relation]) -> None:
        self._operators = operators
        self._catalog = catalog
        self.leaves = leaves
        self._columns: dict[str, tuple[str, ...]] = {}
        self._keys: dict[str, tuple[str, ...]] = {}

    def columns(self, operator_id: str) -> tuple[str, ...]:
        """The names of the operator's columns."""
        if operator_id not in self._columns:
            self._columns[operator_id] = self._derive(self._operators[operator_id])
        return self._columns[operator_id]

    def keys(self, operator_id: str) -> tuple[str, ...]:
        """The names of the columns that identify a row in RisingWave's plans; `t._row_id` for a table without primary
        key.
        """
        if operator_id not in self._keys:
            self._keys[operator_id] = tuple(dict.fromkeys(self._derive_keys(self._operators[operator_id])))
        return self._keys[operator_id]

    def shown(self, operator_id: str) -> list[str]:
        """The names of the columns and of hidden row ids."""
        visible = self.columns(operator_id)
        return [*visible, *[k for k in self.keys(operator_id) if k.endswith(f".{ROW_ID}") and k not in visible]]

    def relation(self, op: Operator) -> Relation | None:
        """The relation that the operator shows as a leaf of the plan."""
        if op.id in self.leaves:
            return self.leaves[op.id]
        return self._catalog.relations.get(op.relation_id) if isinstance(op, Scan) else None

    def watermark(self, bound: Watermark) -> str:
        """A watermark with the names of its sources: `watermark(t.ts)`."""
        relations = self._catalog.relations
        clocks = {
            o.clock: _clock_text(o, relations[o.relation_id])
            for o in self._operators.values()
            if isinstance(o, LateRowFilter) and o.relation_id in relations
        }
        return watermark_text(
            bound, {i: f"{r.shown}.{r.event_time.column}" for i, r in relations.items() if r.event_time} | clocks
        )

    def by_position(self, operator_id: str, side: str = "c") -> dict[str, str]:
        """Maps positional names such as `c0` to the names shown."""
        return {f"{side}{i}": n for i, n in enumerate(self.columns(operator_id))}

    def by_number(self, op: MultiJoin) -> dict[str, str]:
        """Maps `t0_0` and so on to the names of the inputs' columns."""
        return {
            InputColumn(side, i).numbered_name: n
            for side, below in enumerate(op.inputs)
            for i, n in enumerate(self.columns(below))
        }

    def _derive(self, op: Operator) -> tuple[str, ...]:
        relation = self.relation(op)
        if op.id in self.leaves and relation is not None:
            return tuple(f"{relation.shown}.{c.name}" for c in relation.columns)
        if isinstance(op, Scan):
            name = relation.shown if relation is not None else op.relation_id
            return tuple(f"{name}.{c.name}" for c in op.schema)
        if isinstance(op, Constant):
            return tuple(f"values.column_{i}" for i in range(len(op.schema)))
        below = self.columns(op.inputs[0])
        if isinstance(op, Union):
            return tuple(_together(i, names) for i, names in enumerate(zip(*map(self.columns, op.inputs), strict=True)))
        if isinstance(op, Map):
            names = self.by_position(op.inputs[0])
            return tuple(display(parsed(e), names) for e in op.exprs)
        if isinstance(op, PairJoin | MultiJoin):
            sides = [self.columns(i) for i in op.inputs]
            return tuple(sides[o.input][o.column] for o in op.output)
        if isinstance(op, GroupJoin):
            return (*(below[k] for k in op.keys), *self.calls(op))
        if isinstance(op, Records):  # in a tombstone, copied columns may be NULL
            return (*below[: len(op.schema) - len(op.adds)], *op.adds)
        return (*(below[i] for i in op.passed if i is not None), *_made(op, below))

    def calls(self, op: GroupJoin) -> list[str]:
        """The texts of its calls."""
        sides = [self.columns(i) for i in op.inputs]
        shown = of_columns([sides[c.input][c.column] for c in op.arguments])
        return [call_text(c, shown) for c in op.calls]

    def _derive_keys(self, op: Operator) -> Sequence[str]:
        relation = self.relation(op)
        if relation is not None:
            if isinstance(relation, MaterializedView):  # in a multiset only the whole row identifies a row
                return self.columns(op.id)
            return [f"{relation.shown}.{k}" for k in relation.primary_key or (ROW_ID,)]
        if isinstance(op, Aggregate | GroupJoin):
            return self.columns(op.id)[: len(op.keys)]
        if isinstance(op, Upsert):
            return [self.columns(op.id)[k] for k in op.keys]
        if isinstance(op, ChangeLog):
            return self.columns(op.id)[-1:]
        if isinstance(op, AsofJoin):
            return self.keys(op.inputs[0])
        if (isinstance(op, Join) and op.join_kind not in ("semi", "anti")) or isinstance(op, TemporalJoin):
            keys = [self.columns(op.inputs[s])[k] for s, ks in ((0, op.left_keys), (1, op.right_keys)) for k in ks]
            return [*self.keys(op.inputs[0]), *self.keys(op.inputs[1]), *keys]
        if isinstance(op, MultiJoin):
            columns = [self.columns(i) for i in op.inputs]
            return [
                *(k for i in op.inputs for k in self.keys(i)),
                *(names[k] for names, keys in zip(columns, op.keys, strict=True) for k in keys),
            ]
        if isinstance(op, Unnest):
            return [*self.keys(op.inputs[0]), "projected_row_id"]
        if isinstance(op, (TopN, Window)):
            names = self.columns(op.inputs[0])
            keys = [names[k] for k in op.keys]
            one = isinstance(op, TopN) and op.limit == 1 and not op.with_ties
            return keys if one else [*self.keys(op.inputs[0]), *keys]
        if isinstance(op, Union):
            return [k for i in op.inputs for k in self.keys(i)]
        return self.keys(op.inputs[0]) if op.inputs else ()


def _clock_text(op: LateRowFilter, relation: Relation) -> str:
    """The time that moves the clock of a late-row filter, as in `o.ts`, or as an expression over columns."""
    if not op.clock_reads:
        return f"{relation.shown}.{op.name}"
    return re.sub(r'"c(\d+)"', lambda m: f"{relation.shown}.{op.clock_reads[int(m[1])].name}", op.name)


def _together(index: int, names: Sequence[str]) -> str:
    """The name of a column of a union: that of the first input, unless it is a literal that the others do not share."""
    return f"$expr{index + 1}" if ":" in names[0] and len(set(names)) > 1 else names[0]


def _made(op: Operator, below: Sequence[str]) -> Sequence[str]:
    """The names of the columns that the operator adds to those of its input, `below`."""
    if isinstance(op, Aggregate):
        return [call_text(c, of_columns(below)) for c in op.calls]
    if isinstance(op, Unnest):
        return [*(f"Unnest({below[i]})" for i in op.arrays), *(["ordinality"] if op.ordinality else [])]
    if isinstance(op, Window):
        return [f.function for f in op.functions]
    if isinstance(op, Versions):
        return [f"{below[op.time].rsplit('.', 1)[0]}.{n}" for n in op.adds]
    return op.adds


Shown = Callable[[Any], str]
"""A function for the text of a part of a call: of a column or sort key of an operator, or of an expression or sort key
of a node.
"""


def of_columns(columns: Sequence[str]) -> Shown:
    """The function for the texts of an operator's parts, given the names of its input's columns."""
    return lambda part: columns[part.column if isinstance(part, SortKey) else part]


def call_text(call: AggregateSpec | AggregateCall, shown: Shown) -> str:
    """An aggregate as RisingWave shows it: `sum(t.x)`, `count`, `count(distinct t.x) filter(…)`."""
    condition = _filter_text(call, shown)
    if call.argument is None:
        return call.function + condition
    arguments = [*map(shown, (call.argument, *call.extra)), *constant_text(call.constant)]
    order = f" order_by({order_text(call.order, shown)})" if call.order else ""
    return f"{call.function}({'distinct ' if call.distinct else ''}{', '.join(arguments)}{order}){condition}"


def _filter_text(call: AggregateSpec | AggregateCall | WindowSpec | WindowCall, shown: Shown) -> str:
    return "" if call.filter is None else f" filter({shown(call.filter)})"


def order_text(order: Sequence[SortKey | Key], shown: Shown) -> str:
    """`t.a ASC, t.b DESC NULLS LAST`; the position of NULLs is shown if it isn't PostgreSQL's default."""
    return ", ".join(f"{shown(key)} {_direction(key)}" for key in order)


def _direction(key: SortKey | Key) -> str:
    odd = "" if key.nulls_first == key.descending else " NULLS FIRST" if key.nulls_first else " NULLS LAST"
    return ("DESC" if key.descending else "ASC") + odd


def window_text(call: WindowSpec | WindowCall, partition: Sequence[str], shown: Shown) -> str:
    """A window function as RisingWave shows it: `sum(t.x) OVER(PARTITION BY t.k ORDER BY t.y ASC ROWS BETWEEN …)`."""
    arguments = [shown(a) for a in call.arguments]
    if call.function in ("lag", "lead", "nth_value", "ntile"):
        arguments[1:1] = [f"{call.number}"]
    inner = [f"PARTITION BY {', '.join(partition)}"] if partition else []
    inner += [f"ORDER BY {order_text(call.order, shown)}"] if call.order else []
    if call.function not in ("ntile", "lag", "lead"):
        frame = call.frame
        low = _bound_text(frame.start, "PRECEDING", frame.mode) if frame.low is None else shown(frame.low)
        high = _bound_text(frame.end, "FOLLOWING", frame.mode) if frame.high is None else shown(frame.high)
        left_out = "" if frame.exclude == "none" else f" EXCLUDE {frame.exclude.upper()}"
        inner.append(f"{frame.mode.upper()} BETWEEN {low} AND {high}{left_out}")
    options = _filter_text(call, shown) + (" IGNORE NULLS" if call.skips_nulls else "")
    return f"{call.function}({', '.join(arguments)}){options} OVER({' '.join(inner)})"


def _bound_text(distance: int | None, unbounded: str, mode: str) -> str:
    """`UNBOUNDED PRECEDING`, `2 FOLLOWING`, `CURRENT ROW`; of a sliding window also `'00:01:00':Interval PRECEDING`."""
    if distance is None:
        return f"UNBOUNDED {unbounded}"
    if distance and mode == "range":
        return f"{interval_text(abs(distance))} PRECEDING"
    return f"{abs(distance)} {'PRECEDING' if distance < 0 else 'FOLLOWING'}" if distance else "CURRENT ROW"
