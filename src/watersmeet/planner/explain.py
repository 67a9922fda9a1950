"""EXPLAIN: the plan of a view in RisingWave's form, its stages, exchanges, arrangements and the limits of its state.

`Failures` names expressions that failed by the columns of the relations that a view reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.nodes import Scan as TreeScan
from watersmeet.algebra.rewrites import JoinOrder, rewrite, rewriting
from watersmeet.algebra.trees import walk
from watersmeet.catalog import MOST_JOIN_ROWS, Catalog, GeneratedColumn, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import (
    COLLECTED,
    FOREVER_US,
    Aggregate,
    Arrange,
    DynamicFilter,
    Exchange,
    GroupJoin,
    Join,
    Map,
    MultiJoin,
    Operator,
    PairJoin,
    Scan,
    SlidingWindow,
    TemporalJoin,
    TimeFilter,
    TopN,
    Upsert,
    Versions,
    Window,
)
from watersmeet.circuit.sessions import SessionWindow
from watersmeet.drawing import to_dot
from watersmeet.planner.display import PlanTree, columns_of, display, index_of, interval_text, parsed, plan_diagram
from watersmeet.planner.logical import logical_tree
from watersmeet.planner.lowering import Producers, assemble, compile_view
from watersmeet.planner.names import Names, of_columns, window_text
from watersmeet.planner.physical import PhysicalPrinter, distribution_text, listed

#: For each comparison of a time filter, how its waiting rows compare with its bound.
_WAITS: Final = {"<": ">=", "<=": ">", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class Arrangement:
    """Rows that an operator keeps, ordered by key.

    readers: the joins that read them. bound: the limit of their number.
    shared: the relations that already keep them.
    """

    operator: str
    readers: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    bound: str
    append_only: bool
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """An exchange: its stages, its mode, and the columns that it sends."""

    operator: str
    stages: tuple[int, int]
    distribution: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Footprint:
    """All costs of a circuit. stages: operator ids by stage number."""

    buckets: int
    stages: tuple[tuple[str, ...], ...]
    transfers: tuple[Transfer, ...]
    arrangements: tuple[Arrangement, ...]

    def lines(self) -> list[str]:
        """The lines of EXPLAIN after the tree."""
        found = [f"Stages: {len(self.stages)}, buckets: {self.buckets}"]
        found += [f"  stage {n}: {', '.join(ids)}" for n, ids in enumerate(self.stages)]
        found.append("Exchanges:" if self.transfers else "Exchanges: none")
        found += [
            f"  {t.operator}: stage {t.stages[0]} to {t.stages[1]}, {t.distribution}, columns {listed(t.columns)}"
            for t in self.transfers
        ]
        found.append("Arrangements:" if self.arrangements else "Arrangements: none, no state is kept")
        for a in self.arrangements:
            flag = ", append-only" if a.append_only else ""
            readers = f"; read by {', '.join(a.readers)}" if a.readers else ""
            shared = f"; shared with {', '.join(a.shared)}" if a.shared else ""
            found.append(
                f"  {a.operator}: key {listed(a.key)}, columns {listed(a.columns)}{flag}; {a.bound}{readers}{shared}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The costs as a JSON value, for programs; it always has all keys."""
        return asdict(self)


def footprint(circuit: Circuit, names: Names, keepers: Mapping[str, tuple[str, ...]]) -> Footprint:
    """The costs of a circuit. keepers: for each operator, the relations that already keep its state."""
    stages = tuple(tuple(o.id for o in circuit.in_stage(n)) for n in range(circuit.last_stage + 1))
    transfers = []
    for op in circuit.operators:
        if isinstance(op, Exchange) and circuit.buckets > 1:
            arrives = min((circuit.stages[c] for c in circuit.consumers[op.id]), default=circuit.stages[op.id] + 1)
            transfers.append(
                Transfer(op.id, (circuit.stages[op.id], arrives), distribution_text(op, names), names.columns(op.id))
            )
    arrangements = tuple(
        replace(a, shared=keepers.get(op.id, ())) for op in circuit.operators for a in _arrangements(op, circuit, names)
    )
    return Footprint(circuit.buckets, stages, tuple(transfers), arrangements)


def _arrangements(op: Operator, circuit: Circuit, names: Names) -> Iterator[Arrangement]:
    if isinstance(op, TemporalJoin):
        yield from _remembered(op, names)
    if type(op) not in _BOUNDS:
        return
    is_content = isinstance(
        op, (Arrange, Versions, Upsert)
    )  # the state of this operator is its output; that of others is their input
    columns = names.columns(op.id if is_content else op.inputs[0])
    keys = (op.column,) if isinstance(op, (DynamicFilter, TimeFilter)) else op.keys  # type: ignore[attr-defined]
    yield Arrangement(
        op.id,
        circuit.consumers[op.id] if isinstance(op, (Arrange, Versions)) else (),
        tuple(columns[k] for k in keys),
        columns,
        _BOUNDS[type(op)](op, circuit, names),
        append_only=op.append_only
        if isinstance(op, Arrange)
        else not is_content and circuit.by_id[op.inputs[0]].append_only,
    )


def _remembered(op: TemporalJoin, names: Names) -> Iterator[Arrangement]:
    """The state of a look-up join in addition to the arrangement of its right side."""
    left, right = (names.columns(i) for i in op.inputs)
    if op.ttl_us is not None:
        ends = op.ttl_us < FOREVER_US
        bound = f"bounded: keeps what keys were answered with for {interval_text(op.ttl_us)}"
        bound = bound if ends else "unbounded: keeps what each key was answered with"
        yield Arrangement(op.id, (), tuple(right[k] for k in op.right_keys), right, bound, append_only=True)
    if op.memo:
        kept = tuple(left[i] for i in op.identity) or left
        columns = tuple(dict.fromkeys((*kept, *names.columns(op.id))))
        bound = "unbounded: keeps what every left row met that is not deleted"
        yield Arrangement(op.id, (), kept, columns, bound, append_only=False)
    elif op.waits:
        bound = "unbounded: keeps every left row that has met nothing yet"
        yield Arrangement(op.id, (), tuple(left[k] for k in op.left_keys), left, bound, append_only=False)


def _arrange_bound(op: Arrange, circuit: Circuit, names: Names) -> str:
    if op.order:
        return f"unbounded: the best {op.depth} rows of every key"
    if op.newest:
        return _newest_bound("row" if op.depth == 1 else f"{op.depth} rows")
    if op.time is not None:
        time = names.columns(op.id)[op.time]
        return f"bounded: keeps rows with {time} >= {names.watermark(op.retain)}"
    joins = [j for i in circuit.consumers[op.id] if isinstance(j := circuit.by_id[i], Join)]
    if not op.keys and joins and all(j.inputs[1] == op.id for j in joins):
        return "bounded: a single row or a small input, copied to every bucket"
    return _kept_bound(op)


def _newest_bound(what: str) -> str:
    return f"bounded by watermarks: the newest {what} of every key below, and all from there on"


def _kept_bound(op: Operator) -> str:
    return f"unbounded: keeps every row of the input{'' if op.append_only else ' that is not deleted'}"


def _sliding_bound(op: SlidingWindow, circuit: Circuit, names: Names) -> str:
    if op.time is not None:
        return f"bounded: keeps rows with {names.columns(op.id)[op.time]} >= {names.watermark(op.retain)}"
    if op.depth is None:
        return _kept_bound(circuit.by_id[op.inputs[0]])
    return f"unbounded: the newest {op.depth} rows of every key" if op.keys else f"bounded: the newest {op.depth} rows"


def _best_bound(op: TopN, circuit: Circuit, names: Names) -> str:
    source = circuit.by_id[op.inputs[0]]
    if op.time is not None:
        return f"bounded: keeps rows with {names.columns(op.id)[op.time]} >= {names.watermark(op.retain)}"
    if not source.append_only or op.limit is None:
        return f"unbounded: keeps every row of the input{'' if source.append_only else ' that is not deleted'}"
    most = f"{op.limit + op.offset} rows{' and their ties' if op.with_ties else ''}"
    return f"unbounded: the best {most} of every key" if op.keys else f"bounded: the best {most}"


def _group_bound(op: Aggregate, circuit: Circuit, names: Names) -> str:
    source = circuit.by_id[op.inputs[0]]
    while isinstance(source, Exchange):
        source = circuit.by_id[source.inputs[0]]
    constant = isinstance(source, Map) and not any(columns_of(source.exprs[k]) for k in op.keys)
    single = constant or not op.keys
    if op.append_only and op.calls:
        return "bounded: nothing is kept, because each group has all its rows in one epoch"
    groups = "bounded: one entry" if single else "unbounded: one entry for every group"
    if op.time is not None:
        groups = (
            f"bounded: one entry for every group with {names.columns(op.id)[op.time]} >= {names.watermark(op.retain)}"
        )
    collected = sorted({c.function for c in op.calls} & COLLECTED)
    kept = (
        ["the values of min, max and DISTINCT"]
        if any(c.function in ("min", "max") or (c.distinct and c.function not in COLLECTED) for c in op.calls)
        else []
    )
    kept += [f"all arguments of {', '.join(collected)}"] if collected else []
    return f"{groups}, and {' and '.join(kept)}" + (" (unbounded)" if single else "") if kept else groups


def _time_bound(op: TimeFilter, circuit: Circuit, names: Names) -> str:  # noqa: ARG001 - as its neighbors
    time = names.columns(op.inputs[0])[op.column]
    return f"bounded: keeps rows with {time} {_WAITS[op.comparison]} {names.watermark(op.bound)}"


#: The limit of the number of rows, for each class of operators that keep rows by a key.
_BOUNDS: Final[dict[type[Operator], Callable[[Any, Circuit, Names], str]]] = {
    Aggregate: _group_bound,
    Arrange: _arrange_bound,
    GroupJoin: lambda *_: "unbounded: the sums of keys with many rows on a side",
    DynamicFilter: lambda op, circuit, _: _kept_bound(circuit.by_id[op.inputs[0]]),
    SessionWindow: lambda *_: "bounded by time: keeps the rows of open windows of every key",
    SlidingWindow: _sliding_bound,
    TimeFilter: _time_bound,
    TopN: _best_bound,
    Upsert: lambda *_: "unbounded: keeps the last row of every key",
    Versions: lambda op, *_: _newest_bound("version") if op.retain else "unbounded: keeps every version of every row",
}

#: The version of the JSON form, raised when a field is removed or changes its meaning.
JSON_VERSION: Final = 1


@dataclass(frozen=True)
class ExplainOptions:
    """Options of EXPLAIN. level: the rewritten algebra, the operators as a tree, or the operators by stage.

    trace: also show the algebra before and after each rewrite. format: `dot` has only the tree.
    """

    verbose: bool = False
    level: Literal["logical", "physical", "distsql"] = "physical"
    format: Literal["text", "json", "dot"] = "text"
    trace: bool = False
    join_order: JoinOrder = "bushy"
    share: bool = True
    multiway: bool = True


def explain(
    tree: Node,
    sink: Relation,
    catalog: Catalog,
    producers: Producers,
    buckets: int,
    options: ExplainOptions | None = None,
) -> list[str]:
    """The lines of EXPLAIN for a view: the tree, an empty line, the stages and the state.

    The tree always has the exchanges of several buckets; the lines after it are for `buckets`. Raises the errors of
    `compile_view`.
    """
    options = options or ExplainOptions()
    plan = (
        logical_plan(tree, options.join_order)
        if options.level == "logical"
        else physical_plan(
            tree,
            sink,
            catalog,
            producers,
            options.join_order,
            verbose=options.verbose,
            share=options.share,
            multiway=options.multiway,
        )
    )
    if options.format == "dot":
        return to_dot(plan_diagram(plan)).removesuffix("\n").split("\n")
    steps = trace(tree, options.join_order) if options.trace else []
    costs: dict[str, Any] = {}
    below: list[str] = []
    if options.level != "logical":
        ops = compile_view(
            tree,
            sink,
            producers,
            options.join_order,
            catalog=catalog,
            share=options.share,
            multiway=options.multiway,
        )
        circuit = assemble([ops], buckets)
        names = Names(circuit.by_id, catalog, leaves(circuit.by_id, catalog, _named(tree, producers)))
        found = footprint(circuit, names, _keepers(catalog, producers))
        costs, below = found.to_json(), found.lines()
        if sink.most_join_rows != MOST_JOIN_ROWS:
            costs["max_join_amplification_rows"] = sink.most_join_rows
            below.append(f"Rows that each join may make in one epoch: {sink.most_join_rows or 'any number'}")
        if options.level == "distsql":
            printer = PhysicalPrinter(circuit.by_id, names, verbose=True)
            operators = [{"stage": circuit.stages[o.id], "operator": printer.tree(o).text} for o in circuit.operators]
            costs["operators"] = operators
            below = ["Operators:", *[f"  stage {o['stage']}: {o['operator']}" for o in operators], *below]
    if options.format == "json":
        value = {"version": JSON_VERSION, "level": options.level, "plan": plan.to_json(), **costs}
        if options.trace:
            value["trace"] = [{"step": name, "plan": step.to_json()} for name, step in steps]
        return json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    traced = [line for name, step in steps for line in (f"{name}:", "", *step.lines(), "")]
    return traced + plan.lines() + (["", *below] if below else [])


def trace(tree: Node, join_order: JoinOrder) -> list[tuple[str, PlanTree]]:
    """The bound tree, and the tree after each rewrite that changes its plan."""
    found = [("Begin", logical_tree(tree))]
    for name, changed in rewriting(tree, join_order):
        plan = logical_tree(changed)
        if plan != found[-1][1]:
            found.append((name.replace("_", " ").title(), plan))
    return found


def logical_plan(tree: Node, join_order: JoinOrder = "bushy") -> PlanTree:
    """The rewritten tree of a query."""
    return logical_tree(rewrite(tree, join_order))


def physical_plan(
    tree: Node,
    sink: Relation,
    catalog: Catalog,
    producers: Producers,
    join_order: JoinOrder = "bushy",
    *,
    verbose: bool = False,
    share: bool = True,
    multiway: bool = True,
) -> PlanTree:
    """The operators of a view as a tree whose leaves are the relations that it reads."""
    ops = compile_view(tree, sink, producers, join_order, catalog=catalog, share=share, multiway=multiway)
    by_id = {op.id: op for op in ops}
    names = Names(by_id, catalog, leaves(by_id, catalog, _named(tree, producers)))
    return PhysicalPrinter(by_id, names, verbose=verbose, timed=sink.watermarks).tree(ops[-1])


def stored_plan(view: Relation, catalog: Catalog, producers: Producers) -> PlanTree:
    """The running operators of a view, including arrangements, each with its id; the leaves are the relations that it
    reads.
    """
    by_id = {op.id: op for op in producers[view.id]}
    below = catalog.upstream(view.depends_on)
    names = Names(by_id, catalog, leaves(by_id, catalog, {i: ops for i, ops in producers.items() if i in below}))
    printer = PhysicalPrinter(by_id, names, verbose=True, timed=view.watermarks, arranged=True)
    return printer.tree(producers[view.id][-1])


def _named(tree: Node, producers: Producers) -> Producers:
    """The producers of the relations that the tree reads directly. Views that only have the same plan are not among
    these.
    """
    read = {n.relation_id for n in walk(tree) if isinstance(n, TreeScan)}
    return {i: ops for i, ops in producers.items() if i in read}


def _keepers(catalog: Catalog, producers: Producers) -> dict[str, tuple[str, ...]]:
    """For each operator, the names of the relations that already store its state."""
    found: dict[str, tuple[str, ...]] = {}
    for relation_id, ops in producers.items():
        if relation_id in catalog.relations:
            for op in ops:
                found[op.id] = (*found.get(op.id, ()), catalog.relations[relation_id].shown)
    return found


def leaves(operators: Mapping[str, Operator], catalog: Catalog, producers: Producers) -> dict[str, Relation]:
    """The operators that are the content of a relation, by id. A Scan is shown as the relation that it scans."""
    found = {}
    for relation_id, ops in producers.items():
        top = ops[-1].inputs[0]
        if top in operators and not isinstance(operators[top], Scan) and relation_id in catalog.relations:
            found[top] = catalog.relations[relation_id]
    return found


_Cell = tuple[str, int]


def generated_text(column: GeneratedColumn, sql: str) -> str:
    """The text of a part of a generated column's expression."""
    return display(parsed(sql), {f"c{i}": f.name for i, f in enumerate(column.reads)})


class Failures:
    """Names the operators' expressions by the columns of the relations that a view reads."""

    def __init__(self, view: Relation, catalog: Catalog, producers: Producers) -> None:
        self._view = view
        self._operators = {op.id: op for op in producers[view.id]}
        self._sink = producers[view.id][-1]
        below = catalog.upstream(view.depends_on)
        others = {i: ops for i, ops in producers.items() if i in below}
        self._names = Names(self._operators, catalog, leaves(self._operators, catalog, others))

    @property
    def operators(self) -> list[str]:
        """The ids of the operators that compute the view, without those of views that it reads."""
        found: dict[str, None] = {}
        pending = [self._sink.id]
        while pending:
            operator_id = pending.pop()
            if operator_id not in found and operator_id not in self._names.leaves:
                found[operator_id] = None
                pending += self._operators[operator_id].inputs
        return sorted(found)

    def columns(self, operator_id: str, column: int | None) -> list[str]:
        """The columns of the view that are computed from a column of an operator."""
        if column is None:
            return []
        shown = [c.name for c in self._view.columns]
        return [shown[i] for i, cells in enumerate(self._reached[: len(shown)]) if (operator_id, column) in cells]

    def text(self, operator_id: str, column: int | None, sql: str) -> str:
        """The text of a part of an operator's expression, or of an aggregate."""
        op = self._operators[operator_id]
        if sql:
            return display(parsed(sql), self._by_name(op))
        assert column is not None
        if isinstance(op, Window):
            made = len(op.schema) - len(op.functions)
            below = self._names.columns(op.inputs[0])
            return window_text(op.functions[column - made], [below[k] for k in op.keys], of_columns(below))
        return self._names.columns(operator_id)[column]

    def _by_name(self, op: Operator) -> dict[str, str]:
        if isinstance(op, MultiJoin):
            return self._names.by_number(op)
        if isinstance(op, PairJoin):
            left, right = op.inputs[:2]
            return self._names.by_position(left, "l") | self._names.by_position(right, "r")
        return self._names.by_position(op.inputs[0]) if op.inputs else {}

    @cached_property
    def _reached(self) -> list[set[_Cell]]:
        """For each column of the view, the columns of operators from which it is computed."""
        found = []
        for i in range(len(self._sink.schema)):
            cells: set[_Cell] = set()
            pending = [(self._sink.id, i)]
            while pending:
                cell = pending.pop()
                if cell not in cells and cell[0] not in self._names.leaves:
                    cells.add(cell)
                    pending += self._read(*cell)
            found.append(cells)
        return found

    def _read(self, operator_id: str, column: int) -> list[_Cell]:
        """The columns of its inputs from which an operator computes a column."""
        op = self._operators[operator_id]
        if isinstance(op, (PairJoin, MultiJoin)):
            found = op.output[column]
            return [(op.inputs[found.input], found.column)]
        if not op.inputs:
            return []
        if isinstance(op, Map):
            read = [index_of(name) for name in columns_of(op.exprs[column])]
        elif isinstance(op, GroupJoin):
            if column >= len(op.keys):
                argument = op.calls[column - len(op.keys)].argument
                place = None if argument is None else op.arguments[argument]
                return [] if place is None else [(op.inputs[place.input], place.column)]
            read = [op.keys[column]]
        elif isinstance(op, Aggregate):
            call = op.calls[column - len(op.keys)] if column >= len(op.keys) else None
            argument = None if call is None else call.argument
            read = [op.keys[column]] if call is None else [] if argument is None else [argument, *call.extra]
        elif isinstance(op, Window) and column >= len(op.schema) - len(op.functions):
            read = list(op.functions[column - len(op.schema) + len(op.functions)].arguments)
        else:
            passed = op.passed[column]
            read = [] if passed is None else [passed]
        return [(op.inputs[0], i) for i in read]
