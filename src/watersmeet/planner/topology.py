"""The topology of a database: the views that each relation feeds, and the joins and groups between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from watersmeet.catalog import Catalog, MaterializedView, Relation, Sink, Source, Table, View
from watersmeet.circuit.operators import (
    Aggregate,
    Changes,
    DynamicFilter,
    GroupJoin,
    Join,
    Map,
    MultiJoin,
    Operator,
    PairJoin,
    TimeFilter,
)
from watersmeet.drawing import Arrow, Box, Diagram
from watersmeet.planner.explain import leaves
from watersmeet.planner.lowering import Producers
from watersmeet.planner.names import Names

#: The styles of boxes of relations.
_STYLES: Final = ((Table, "table"), (Source, "source"), (MaterializedView, "view"), (View, "virtual"), (Sink, "sink"))
_LONGEST: Final = 44


def topology(catalog: Catalog, producers: Producers, facts: Mapping[str, Sequence[str]], title: str) -> Diagram:
    """A graph of tables, sources, views, running queries and sinks. Arrows lead from a relation to each view that uses
    it, from a view to a stream that it writes (INTO), and to each sink.

    An arrow's label is the view's first operation on the relation: `left join on k`, `group by x`. A repartition is a
    separate box. facts: further lines for relations, by id.
    """
    made = [r for r in catalog.relations.values() if not r.staged]
    shown = [r for r in made if isinstance(r, Sink) or (r.has_rows and not r.owner) or _is_plain(r)]
    boxes = tuple(Box(r.id, r.shown, (*_kind(r), *facts.get(r.id, ())), _style(r)) for r in shown)
    ids = {r.id for r in shown}
    views = [r for r in shown if isinstance(r, MaterializedView) and r.id in producers]
    steps = {o.id: o.partitions for r in views for o in producers[r.id] if isinstance(o, Map) and o.partitions}
    boxes += tuple(Box(i, "Repartition", (f"{partitions} partitions",)) for i, partitions in steps.items())
    arrows = [Arrow(i, r.id) for r in shown if _is_plain(r) for i in r.depends_on if i in ids]
    arrows += [a for r in views for a in _uses(r, catalog, producers)]
    arrows += [Arrow(r.id, r.feeds, "into") for r in views if r.feeds in catalog.relations]
    for sink in shown:
        if isinstance(sink, Sink):
            arrows += _delivered(sink, catalog, producers)
    return Diagram(title, boxes, tuple(dict.fromkeys(arrows)))


def _style(relation: Relation) -> str:
    return next(style for kind, style in _STYLES if isinstance(relation, kind))


def _kind(relation: Relation) -> list[str]:
    kind = f"append-only {relation.what}" if relation.append_only and type(relation) is Table else relation.role
    connector = relation.connector.get("connector")
    return [f"{kind} ({connector})" if connector else kind]


def _delivered(sink: Sink, catalog: Catalog, producers: Producers) -> Iterator[Arrow]:
    """The arrows to a sink from the relation that it delivers, or from those that its query reads; and from it to a
    table that it writes.
    """
    query = catalog.relations.get(sink.delivers)
    if query is None or not query.owner:
        if sink.delivers:  # not yet in a transaction whose CREATE SINK failed
            yield Arrow(sink.delivers, sink.id)
        return
    if query.id in producers:
        yield from (
            Arrow(a.source, sink.id if a.target == query.id else a.target, a.label)
            for a in _uses(query, catalog, producers)
        )
    if query.feeds in catalog.relations:
        yield Arrow(sink.id, query.feeds, "into")


def _is_plain(relation: Relation) -> bool:
    """Whether a relation is a plain view, whose text is part of the views that read it."""
    return isinstance(relation, View) and relation.is_named


def _uses(view: Relation, catalog: Catalog, producers: Producers) -> Iterator[Arrow]:
    """The arrows to a view. For relations read through a plain view, the arrow leads to the plain view."""
    plain = {i: catalog.upstream([i]) for i in view.depends_on if _is_plain(catalog.relations[i])}
    read = set()
    for arrow in _arrows(view, catalog, producers):
        through = [] if arrow.source in view.depends_on else [i for i in plain if arrow.source in plain[i]]
        if arrow.target != view.id or not through:
            yield arrow
        else:
            read.update(through)
            yield from (Arrow(i, view.id, arrow.label) for i in through)
    yield from (Arrow(i, view.id) for i in plain if i not in read)


def _arrows(view: Relation, catalog: Catalog, producers: Producers) -> Iterator[Arrow]:
    below = catalog.upstream(view.depends_on)
    others = {i: ops for i, ops in producers.items() if i in below}
    operators = {op.id: op for op in producers[view.id]}
    names = Names(operators, catalog, leaves(operators, catalog, others))
    sink = producers[view.id][-1]
    pending: list[tuple[Operator, str, str]] = [(operators[sink.inputs[0]], "", view.id)]
    seen = set()
    while pending:
        op, use, target = pending.pop()
        relation = names.relation(op)
        if relation is not None:
            yield Arrow(relation.id, target, use)
            continue
        if (op.id, use, target) in seen:
            continue
        seen.add((op.id, use, target))
        if isinstance(op, Map) and op.partitions:
            yield Arrow(op.id, target, use)
            use, target = "", op.id
        content = op.inputs[:1] if isinstance(op, Changes) else op.inputs  # the other inputs determine times, not rows
        for side, i in reversed(list(enumerate(content))):
            pending.append((operators[i], _use(op, side, names) or use, target))


def _use(op: Operator, side: int, names: Names) -> str:
    """The label of an operation on input number `side`; empty if rows only pass through."""
    if isinstance(op, PairJoin):
        kind = op.join_kind if isinstance(op, Join) else f"{op.kind.removeprefix('arrival')} {op.join_kind}"
        keys = [names.columns(op.inputs[side])[k] for k in (op.left_keys, op.right_keys)[side]]
        return _short(f"{kind} join on {_listed(keys)}" if keys else f"{kind} join with every row")
    if isinstance(op, GroupJoin):
        keys = [names.columns(op.inputs[side])[k] for k in (op.left_keys, op.right_keys)[side]]
        return _short(f"{op.join_kind} join and group by {_listed(keys)}")
    if isinstance(op, DynamicFilter):
        column = _listed([names.columns(op.inputs[0])[op.column]])
        return _short(f"bound of {column}" if side else f"dynamic filter on {column}")
    if isinstance(op, TimeFilter):
        return _short(
            f"{op.comparison} {names.watermark(op.bound)} on {_listed([names.columns(op.inputs[0])[op.column]])}"
        )
    if isinstance(op, MultiJoin):
        return _short(f"inner join on {_listed([names.columns(op.inputs[side])[k] for k in op.keys[side]])}")
    if isinstance(op, Aggregate):
        keys = [names.columns(op.inputs[0])[k] for k in op.keys]
        return _short(f"group by {_listed(keys)}" if keys else "one group")
    return ""


def _listed(names: Sequence[str]) -> str:
    """Column names without their relations."""
    return ", ".join(n.rsplit(".", 1)[-1] if "(" not in n else n for n in names)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
