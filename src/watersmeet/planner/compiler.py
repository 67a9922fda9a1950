"""Compiles views and connector tables, and assembles the circuit of a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.rewrites import JoinOrder, rewrite
from watersmeet.catalog import ROWTIME, Catalog, Pump, Relation, SinkQuery
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import KEPT, Map, Operator, Scan, Sink, Sort, SortKey, Upsert
from watersmeet.planner.builder import Builder, Sharing
from watersmeet.planner.distribution import Placement, key_columns
from watersmeet.planner.lowering import Lowering, Producer
from watersmeet.types import BIGINT, Field

#: For each materialized view and connector table in the circuit: its operators, the Sink last.
Producers = Mapping[str, Sequence[Operator]]


def compile_view(
    tree: Node,
    sink: Relation,
    producers: Producers,
    join_order: JoinOrder = "bushy",
    *,
    catalog: Catalog | None = None,
    share: bool = True,
    multiway: bool = True,
    late: Mapping[str, int] | None = None,
    left_out: frozenset[str] = frozenset(),
) -> tuple[Operator, ...]:
    """The operators that keep `sink` equal to `tree`: inputs first, the Sink last.

    `tree` is as the binder returns it, and is rewritten here. Its columns are those of `sink`, in order; behind them
    may come those that order its rows by arrival (`BoundQuery.age`). A relation in
    `producers` is read from its own operators, which become part of the result (without their Sink). The Sink's
    `append_only` says whether the view never deletes a row.
    catalog: for keys, indexes and columns of relations, which decide what joins of several views share.
    share: False gives the view's joins arrangements of their own, except where equal ones exist.
    multiway: False makes inner joins by one key joins of two inputs each.
    late: how many rows of each relation were left out as late so far, if any.
    left_out: as in `Builder`.
    """
    builder, readable = builder_over(producers)
    builder.late, builder.left_out = late or {}, left_out
    age = tree.columns[len(sink.columns) :]
    wanted = (*sink.columns, *(Field(c.name, c.type, c.nullable) for c in age))
    columns = list(zip(tree.columns, wanted, strict=True))
    produced = {p.operator.id: (i, p.names) for i, p in reversed(readable.items())}
    sharing = Sharing(builder, produced, catalog or Catalog(), enabled=share)
    top = Lowering(builder, readable, sharing, sink.id, multiway=multiway).top(rewrite(tree, join_order), columns)
    required = _required(sink, catalog)
    if required and isinstance(top, Map):
        top = builder.add(replace(top, required=required))
    if isinstance(sink, Pump) and sink.merging is not None:
        top = _in_order(builder, top, sink, len(age))
    return builder.closure(_sink(builder, top, sink))


def _required(view: Relation, catalog: Catalog | None) -> tuple[int, ...]:
    """The columns of a view INTO a relation that takes no NULL in them, where NULL becomes a default.

    The default of a value that could not be computed would be a wrong value: such a row is not written.
    """
    target = None if catalog is None or isinstance(view, SinkQuery) else catalog.relations.get(view.feeds)
    if target is None:
        return ()
    whole = {c.name for c in target.columns if not c.nullable}
    return tuple(i for i, c in enumerate(view.columns) if c.name in whole)


def _in_order(builder: Builder, top: Operator, pump: Pump, age: int) -> Operator:
    """What a pump gives whose rows are merged by a key: those of one key in the order in which they came, or by ROWTIME
    where that is not known. age: how many columns behind those of the pump order the rows, the newest first.
    """
    assert pump.merging is not None
    names = [c.name for c in pump.columns]
    order = tuple(SortKey(len(names) + i, descending=True) for i in range(age))
    if not order and ROWTIME in names:
        order = (SortKey(names.index(ROWTIME)),)
    if not order:
        return top
    sent = builder.exchange(top, [names.index(k) for k in pump.merging.key])
    return builder.add(Sort((sent.id,), sent.schema[: len(names)], top.append_only, order))


def compile_connector_table(relation: Relation) -> tuple[Operator, ...]:
    """The operators of a table that a connector feeds: its raw rows, or the last row of each key if it has a key."""
    builder = Builder()
    names = tuple(c.name for c in relation.columns)
    if not relation.primary_key:
        grows = not relation.loses_rows
        top = builder.add(Scan((), relation.columns, append_only=grows, relation_id=relation.id, names=names))
    else:
        partial = relation.has_partial_changes
        schema = (*relation.columns, *([KEPT] if partial else []), Field("_seq", BIGINT, nullable=False))
        top = builder.add(
            Scan((), schema, append_only=True, relation_id=relation.id, names=names, ordered=True, partial=partial)
        )
        keys = tuple(names.index(k) for k in relation.primary_key)
        top = builder.exchange(top, keys, mode="partial" if partial else "hash")
        schema = top.schema[: len(names)]
        top = builder.add(Upsert((top.id,), schema, append_only=False, keys=keys, partial=partial))
    return builder.closure(_sink(builder, top, relation))


def _sink(builder: Builder, top: Operator, relation: Relation) -> Operator:
    distribution = builder.placement.distribution(top.id)
    # No operator relies on the place of rows that may be anywhere, or by a key that is no longer a column (`Lowering`).
    keys = key_columns(distribution) if distribution is not None and all(distribution) else None
    return builder.add(Sink((top.id,), relation.columns, top.append_only, relation.id, keys))


def assemble(views: Iterable[Sequence[Operator]], buckets: int) -> Circuit:
    """One circuit of all `views`, in which equal operators are one. With one bucket there is only stage 0."""
    operators = {op.id: op for view in views for op in view}
    placement = Placement(operators)
    stages = {i: placement.stage(i) if buckets > 1 else 0 for i in operators}
    circuit = Circuit(buckets, tuple(operators.values()), stages)
    circuit.check()
    return circuit


def builder_over(producers: Producers) -> tuple[Builder, dict[str, Producer]]:
    """A builder with the operators of `producers`, and what can be read from them."""
    builder = Builder()
    readable = {}
    for relation_id, ops in producers.items():
        for op in ops:
            builder.operators.setdefault(op.id, op)
        sink = ops[-1]
        assert isinstance(sink, Sink)
        assert sink.relation_id == relation_id
        names = tuple(f.name for f in sink.schema)
        readable[relation_id] = Producer(builder.operators[sink.inputs[0]], names)
    return builder, readable
