"""The logical plan as a tree in RisingWave's form."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Final

from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Arrivals,
    AsofJoin,
    ChangeLog,
    Changes,
    Clock,
    Cut,
    Expand,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Records,
    Repartition,
    Repeat,
    Scan,
    SortKey,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Values,
    Versions,
    Window,
)
from watersmeet.algebra.rewrites.conditions import as_predicate
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.planner.display import PlanTree, display, watermark_text
from watersmeet.planner.names import Shown, call_text, order_text, window_text
from watersmeet.planner.physical import ASOF_TYPES, JOIN_TYPES, limit_fields, listed, look_up_fields

_Names = dict[str, str]
_APPLY_TYPES: Final = {
    "inner": "Inner",
    "left": "LeftOuter",
    "semi": "LeftSemi",
    "anti": "LeftAnti",
    "mark": "LeftMark",
}


def logical_tree(tree: Node) -> PlanTree:
    """The plan of a tree of the algebra."""
    return _print(tree, {})


def _shown(parts: list[Scalar], names: _Names) -> str:
    return " AND ".join(display(p.expression, names) for p in parts) or "true"


def _shown_in(names: _Names) -> Shown:
    return lambda part: display((part.value if isinstance(part, SortKey) else part).expression, names)


def _emission(node: AsofJoin | Join) -> tuple[tuple[str, str], ...]:
    """The field that marks a join that is never revised."""
    return (("emit", "on arrival"),) if node.arrival else ()


@singledispatch
def _print(node: Node, names: _Names) -> PlanTree:  # noqa: ARG001 - the default is for no known node
    """The plan of `node`. Adds the names of its columns to `names`."""
    raise AssertionError(type(node).__name__)


@_print.register
def _(node: Scan, names: _Names) -> PlanTree:
    for column, source in zip(node.outputs, node.source_names, strict=True):
        names[column.id] = f"{node.relation_name}.{source}"
    columns = listed([names[c.id] for c in node.outputs])
    return PlanTree("LogicalScan", (("table", node.relation_name), ("columns", columns)))


@_print.register
def _(node: Values, names: _Names) -> PlanTree:
    for i, column in enumerate(node.outputs):
        names[column.id] = f"values.column_{i}"
    rows = [listed([display(s.expression, {}) for s in row]) for row in node.rows]
    return PlanTree("LogicalValues", (("rows", listed(rows)),))


@_print.register
def _(node: Clock, names: _Names) -> PlanTree:
    names.update({c.id: "now()" for c in node.outputs})
    return PlanTree("LogicalClock", ())


@_print.register
def _(node: Filter, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    return PlanTree("LogicalFilter", (("predicate", _shown(conjuncts(node.predicate), names)),), (below,))


@_print.register
def _(node: Arrivals, names: _Names) -> PlanTree:
    below = _print(node.scan, names)
    names.update({c.id: c.name for c in node.age})
    return PlanTree("LogicalArrivals", (), (below,))


@_print.register
def _(node: Repartition, names: _Names) -> PlanTree:
    return PlanTree("LogicalRepartition", (("partitions", str(node.partitions)),), (_print(node.input, names),))


@_print.register
def _records(node: Records, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    names.update({c.id: c.name for c in node.made})
    key = () if node.key is None else (("key", listed([names[i] for i in node.key])),)
    return PlanTree("LogicalRecords", key, (below,))


@_print.register
def _(node: ChangeLog, names: _Names) -> PlanTree:
    return replace(_records(node, names), name="LogicalChangeLog")


@_print.register
def _(node: Changes, names: _Names) -> PlanTree:
    changes = [_print(i, dict(names)) for i in node.inputs[1:]]
    below = _print(node.input, names)
    names.update({c.id: c.name for c in node.made})
    causes = listed([listed([names[i] for i in c.match]) for c in node.causes])
    return PlanTree("LogicalChanges", (("causes", causes),), (below, *changes))


@_print.register
def _(node: LateRowFilter, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    return PlanTree(
        "LogicalLateRowFilter",
        (("time", names[node.column]), ("before" if node.late else "not_before", watermark_text(node.bound, {}))),
        (below,),
    )


@_print.register
def _(node: Cut, names: _Names) -> PlanTree:
    return PlanTree("LogicalCut", (("keeps", node.keeps),), (_print(node.input, names),))


@_print.register
def _(node: TimeFilter, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    if node.final:
        return PlanTree("LogicalEowcSort", (("sort_column", names[node.column]),), (below,))
    predicate = f"({names[node.column]} {node.comparison} {watermark_text(node.bound, {})})"
    return PlanTree("LogicalFilter", (("predicate", predicate),), (below,))


@_print.register
def _(node: Project, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    texts = [display(e.expression, names) for e in node.exprs]
    names.update(zip([c.id for c in node.outputs], texts, strict=True))
    return PlanTree("LogicalProject", (("exprs", listed(texts)),), (below,))


@_print.register
def _(node: AsofJoin, names: _Names) -> PlanTree:
    inputs = (_print(node.left, names), _print(node.right, names))
    values = [display(s.expression, names) for s in (node.left_value, node.right_value)]
    on = f"{_shown([as_predicate(k) for k in node.keys], names)} AND ({values[0]} {node.comparison} {values[1]})"
    on += f" AND {_shown(conjuncts(node.residual), names)}" if node.residual is not None else ""
    output = listed([names[c.id] for c in node.columns])
    return PlanTree(
        "LogicalJoin", (("type", ASOF_TYPES[node.kind]), ("on", on), *_emission(node), ("output", output)), inputs
    )


@_print.register
def _(node: Versions, names: _Names) -> PlanTree:
    below = _print(node.scan, names)
    names.update((c.id, f"{node.scan.relation_name}.{c.name}") for c in node.made)
    return PlanTree("LogicalVersions", (("time", names[node.time]),), (below,))


@_print.register
def _(node: TemporalJoin, names: _Names) -> PlanTree:
    inputs = (_print(node.left, names), _print(node.right, names))
    on = _shown([as_predicate(k) for k in node.keys] + conjuncts(node.residual), names)
    output = listed([names[c.id] for c in node.columns])
    fields = (("type", JOIN_TYPES[node.kind]), ("on", on), *look_up_fields(node), ("output", output))
    return PlanTree("LogicalTemporalJoin", fields, inputs)


@_print.register
def _(node: Join, names: _Names) -> PlanTree:
    inputs = (_print(node.left, names), _print(node.right, names))
    on = [as_predicate(k) for k in node.keys] + conjuncts(node.residual)
    output = listed([names[c.id] for c in node.columns])
    chosen = () if node.partners is None else (("partners", listed([_shown([p], names) for p in node.partners])),)
    return PlanTree(
        "LogicalJoin",
        (("type", JOIN_TYPES[node.kind]), ("on", _shown(on, names)), *chosen, *_emission(node), ("output", output)),
        inputs,
    )


@_print.register
def _(node: Apply, names: _Names) -> PlanTree:
    inputs = (_print(node.left, names), _print(node.right, names))
    on = _shown([as_predicate(k) for k in node.pairs], names)
    reads = sorted((node.right.free | frozenset[str]().union(*[k.right.columns for k in node.pairs])) & node.left.ids)
    fields = [("type", _APPLY_TYPES[node.kind]), ("on", on)]
    if node.mark is not None:
        names[node.mark.id] = "$mark"
    return PlanTree("LogicalApply", (*fields, ("correlated", listed([names[c] for c in reads]))), inputs)


@_print.register
def _(node: Aggregate, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    keys = [display(k.expression, names) for k in node.keys]
    calls = [call_text(c, _shown_in(names)) for c in node.calls]
    names.update(zip([c.id for c in node.outputs], keys + calls, strict=True))
    group = (("group_key", listed(keys)),) if keys else ()
    return PlanTree("LogicalAgg", (*group, ("aggs", listed(calls))), (below,))


@_print.register
def _(node: Expand, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    keys = [display(k.expression, names) for k in node.keys]
    names.update(zip([c.id for c in node.made], [*keys, "flag"], strict=True))
    subsets = listed([listed([keys[i] for i in chosen]) for chosen in node.sets])
    return PlanTree("LogicalExpand", (("column_subsets", subsets),), (below,))


@_print.register
def _(node: Repeat, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    return PlanTree("LogicalRepeat", (("times", display(node.times.expression, names)),), (below,))


@_print.register
def _(node: Unnest, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    texts = [f"Unnest({display(a.expression, names)})" for a in node.arrays] + ["ordinality"] * (
        node.ordinality is not None
    )
    names.update(zip([c.id for c in node.made], texts, strict=True))
    fields = [("select_list", listed([names[c.id] for c in node.columns]))]
    if node.outer:
        fields.append(("outer", "true"))
    if node.condition is not None:
        fields.append(("condition", _shown(conjuncts(node.condition), names)))
    return PlanTree("LogicalProjectSet", tuple(fields), (below,))


@_print.register
def _(node: Union, names: _Names) -> PlanTree:
    inputs = tuple(_print(p, names) for p in node.parts)
    for own, column in zip(node.parts[0].columns, node.outputs, strict=True):
        names[column.id] = names[own.id]
    return PlanTree("LogicalUnion", (("all", "true"),), inputs)


@_print.register
def _(node: Window, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    partition = [display(k.expression, names) for k in node.partition]
    texts = [window_text(c, partition, _shown_in(names)) for c in node.calls]
    names.update(zip([c.id for c in node.outputs], [c.function for c in node.calls], strict=True))
    return PlanTree("LogicalOverWindow", (("window_functions", listed(texts)),), (below,))


@_print.register
def _(node: TopN, names: _Names) -> PlanTree:
    below = _print(node.input, names)
    fields = limit_fields(node, order_text(node.order, _shown_in(names)))
    keys = [display(k.expression, names) for k in node.partition]
    return PlanTree("LogicalTopN", (*fields, ("group_key", listed(keys))) if keys else fields, (below,))
