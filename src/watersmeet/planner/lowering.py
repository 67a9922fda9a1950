"""Lowers views and connector tables to operators, node by node, and assembles the circuit of a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    Arrivals,
    AsofJoin,
    ChangeLog,
    Changes,
    Clock,
    Column,
    Cut,
    Expand,
    Filter,
    Join,
    LateRowFilter,
    Node,
    PassThrough,
    Project,
    Records,
    Repartition,
    Repeat,
    Scan,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Values,
    Window,
)
from watersmeet.algebra.properties import arrivals_below
from watersmeet.algebra.rewrites import JoinOrder, rewrite
from watersmeet.algebra.rewrites.pushdown import can_merge
from watersmeet.algebra.scalars import Scalar, conjuncts, null_of
from watersmeet.algebra.trees import cast
from watersmeet.catalog import ROWTIME, Catalog, Conflict, Pump, Relation, SinkQuery
from watersmeet.circuit import operators
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import KEPT, Operator, SortKey
from watersmeet.planner.asof import AsofLowering, TemporalLowering, is_last_written
from watersmeet.planner.builder import (
    Builder,
    Sharing,
    Stream,
    at,
    emit,
    emit_exactly,
    identity,
    of_operator,
    positional,
    settled,
)
from watersmeet.planner.display import position, sql
from watersmeet.planner.distribution import Placement, key_columns, matching, plain_keys, shows_place
from watersmeet.planner.groups import AggregateLowering
from watersmeet.planner.joins import JoinLowering, MultiwayLowering, PartneredLowering, cluster_of
from watersmeet.planner.windows import WindowLowering
from watersmeet.values.types import BIGINT, INTEGER, Field, SqlType

_Ids = frozenset[str]


@dataclass(frozen=True)
class Producer:
    """A relation that the circuit computes: the operator that outputs its content, and the names of its columns."""

    operator: Operator
    names: tuple[str, ...]


class Lowering:
    """Lowers one view into `builder`.

    producers: by id, the relations that are read from operators. sharing: finds arrangements for joins. view: the
    view's id. multiway: whether inner joins by one key become one operator.
    """

    def __init__(
        self, builder: Builder, producers: Mapping[str, Producer], sharing: Sharing, view: str, *, multiway: bool = True
    ) -> None:
        self.builder = builder
        self.view = view
        self.sharing = sharing
        self.multiway = multiway
        self.producers = producers

    @singledispatchmethod
    def lower(self, node: Node, needed: _Ids) -> Stream:  # noqa: ARG002 - the default is for no known node
        """The stream of `node` with at least the columns `needed`."""
        raise AssertionError(type(node).__name__)

    @lower.register
    def _(self, node: Scan, needed: _Ids) -> Stream:
        columns = [(c, n) for c, n in zip(node.outputs, node.source_names, strict=True) if c.id in needed]
        columns = columns or [(node.outputs[0], node.source_names[0])]
        producer = self.producers.get(node.relation_id)
        if producer is not None and not self._only_copies(producer.operator):
            return of_operator(
                self._spread_by_row(producer.operator), [(c, producer.names.index(n)) for c, n in columns]
            )
        relation_id, append_only = node.relation_id, node.append_only
        fields = {n: Field(n, c.type, c.nullable) for c, n in columns}
        if producer is not None:
            # A view that only copies a relation: its reader scans the relation, and only the columns that it needs.
            source = producer.operator
            assert isinstance(source, operators.Scan)
            relation_id, append_only = source.relation_id, source.append_only
            columns = [(c, source.names[producer.names.index(n)]) for c, n in columns]
            fields = {n: source.schema[source.names.index(n)] for _, n in columns}
        names = tuple(fields)
        op = self.builder.add(operators.Scan((), tuple(fields.values()), append_only, relation_id, names))
        return of_operator(op, [(c, names.index(n)) for c, n in columns])

    def _only_copies(self, op: Operator) -> bool:
        """Whether a view is a copy of its relation: it is not if late rows were dropped after its creation."""
        return isinstance(op, operators.Scan) and op.late == self.builder.late.get(op.relation_id, 0)

    def _spread_by_row(self, op: Operator) -> Operator:
        """A view's operator, spread so that a row's columns determine its bucket, because the view's content may fill
        its reader.
        """
        return op if shows_place(self.builder.placement.distribution(op.id)) else self.builder.spread(op)

    @lower.register
    def _(self, node: Values, needed: _Ids) -> Stream:
        kept = [i for i, c in enumerate(node.outputs) if c.id in needed] or [0]
        columns = [node.outputs[i] for i in kept]
        rows = tuple(tuple(sql(cast(row[i], node.outputs[i].type).expression) for i in kept) for row in node.rows)
        schema = positional((c.type, c.nullable) for c in columns)
        op = self.builder.add(operators.Constant((), schema, append_only=True, rows_sql=rows))
        return of_operator(op, [(c, i) for i, c in enumerate(columns)])

    @lower.register
    def _(self, node: Clock, needed: _Ids) -> Stream:
        return self.lower(Values((tuple(null_of(c.type) for c in node.outputs),), node.outputs), needed)

    @lower.register
    def _(self, node: Filter, needed: _Ids) -> Stream:
        return self.lower(node.input, needed | node.predicate.columns).filtered(conjuncts(node.predicate))

    @lower.register
    def _(self, node: Project, needed: _Ids) -> Stream:
        kept = [(c, e) for c, e in zip(node.outputs, node.exprs, strict=True) if c.id in needed]
        kept = kept or [(node.outputs[0], node.exprs[0])]
        exprs = tuple(e for _, e in kept)
        below = self.lower(node.input, _Ids().union(*[e.columns for e in exprs]))
        if not can_merge(tuple(below.values.values()), list(below.values), exprs):
            below = settled(self.builder, below)
        values = {c.id: Scalar(below.resolve(e).expression, c.type, e.nullable) for c, e in kept}
        return Stream(below.operator, values, below.pending)

    @lower.register
    def _(self, node: Expand, needed: _Ids) -> Stream:
        passed = [c for c in node.input.columns if c.id in needed]
        below = self.lower(node.input, frozenset(c.id for c in passed).union(*[k.columns for k in node.keys]))
        below = settled(self.builder, below)
        values = [below.values[c.id] for c in passed]
        keys = [below.resolve(k) for k in node.keys]
        nulls = [null_of(k.type) for k in keys]
        parts = []
        for number, chosen in enumerate(node.sets):
            own = [key if i in chosen else nulls[i] for i, key in enumerate(keys)]
            parts.append(emit_exactly(self.builder, below, [*values, *own, cast(_number(number), node.made[-1].type)]))
        columns = (*passed, *node.made)
        schema = positional((c.type, any(p.schema[i].nullable for p in parts)) for i, c in enumerate(columns))
        append_only = all(p.append_only for p in parts)
        op = self.builder.add(operators.Union(tuple(p.id for p in parts), schema, append_only))
        return of_operator(op, [(c, i) for i, c in enumerate(columns)])

    @lower.register
    def _(self, node: Repeat, needed: _Ids) -> Stream:
        columns = [c for c in node.columns if c.id in needed]
        below = self.lower(node.input, needed | node.times.columns)
        op = emit_exactly(self.builder, below, [*(below.values[c.id] for c in columns), below.resolve(node.times)])
        made = self.builder.add(operators.Repeat((op.id,), op.schema[:-1], append_only=False))
        return of_operator(made, [(c, i) for i, c in enumerate(columns)])

    @lower.register
    def _(self, node: Arrivals, needed: _Ids) -> Stream:
        columns = [(c, n) for c, n in zip(node.scan.outputs, node.scan.source_names, strict=True) if c.id in needed]
        fields = tuple(Field(n, c.type, c.nullable) for c, n in columns)
        names = tuple(n for _, n in columns)
        scan = self.builder.add(
            operators.Scan(
                (),
                (*fields, Field("_seq", BIGINT, nullable=False)),
                node.scan.append_only,
                node.scan.relation_id,
                names,
                ordered=True,
            )
        )
        made = self.builder.add(
            operators.Arrivals(
                (scan.id,),
                positional([*((f.type, f.nullable) for f in fields), (BIGINT, False), (BIGINT, False)]),
                append_only=True,
                moment=node.moment,
            )
        )
        return of_operator(
            made,
            [*((c, i) for i, (c, _) in enumerate(columns)), *((c, len(columns) + i) for i, c in enumerate(node.age))],
        )

    def _passed(self, node: PassThrough, needed: _Ids) -> tuple[Operator, list[tuple[Column, int]]]:
        """The input of `node` with the columns that it reads or that are needed downstream, and their positions."""
        columns = [c for c in node.columns if c.id in needed | node.reads] or [node.columns[0]]
        below = self.lower(node.input, frozenset(c.id for c in columns))
        op, positions = emit(self.builder, below, [below.values[c.id] for c in columns])
        return op, [(c, positions[identity(below.values[c.id])]) for c in columns]

    @lower.register
    def _(self, node: Repartition, needed: _Ids) -> Stream:
        op, columns = self._passed(node, needed)
        if not isinstance(op, operators.Map):
            schema = positional((f.type, f.nullable) for f in op.schema)
            op = operators.Map((op.id,), schema, op.append_only, tuple(f.name for f in schema), None)
        return of_operator(self.builder.add(replace(op, partitions=node.partitions)), columns)

    @lower.register
    def _(self, node: Cut, needed: _Ids) -> Stream:
        op, columns = self._passed(node, needed)
        made = operators.Cut((op.id,), op.schema, op.append_only, node.keeps, node.moment)
        return of_operator(self.builder.add(made), columns)

    @lower.register
    def _(self, node: LateRowFilter, needed: _Ids) -> Stream:
        op, columns = self._passed(node, needed)
        places = {c.id: i for c, i in columns}
        op = self._grouped(op, (), []) if node.age else op
        made = self.builder.add(
            operators.LateRowFilter(
                (op.id,),
                op.schema,
                op.append_only,
                places[node.column],
                node.bound,
                node.relation_id,
                node.name,
                node.clock,
                node.late,
                tuple(places[i] for i in node.age),
                clock_reads=node.clock_reads,
                idle=node.idle,
            )
        )
        if not node.late:
            self.builder.drops_late(made, node.input, columns, node.column, node.age)
        return of_operator(made, columns)

    @lower.register
    def _(self, node: Records, needed: _Ids) -> Stream:  # noqa: ARG002 - whether a record is a change depends on all of it
        below = self.lower(node.input, node.input.ids)
        op = emit_exactly(self.builder, below, [below.values[c.id] for c in node.input.columns])
        places = {c.id: i for i, c in enumerate(node.own)}
        keys = None if node.key is None else tuple(places[i] for i in node.key)
        schema = positional((c.type, c.nullable) for c in node.columns)
        made: Operator
        if isinstance(node, ChangeLog):
            op = self._grouped(op, keys or tuple(places.values()), [])
            made = operators.ChangeLog((op.id,), schema, append_only=True, keys=keys or ())
        else:
            op = op if keys is None else self._grouped(op, keys, [])
            time = None if node.time is None else places[node.time]
            kept = tuple(places[i] for i in node.kept)
            made = operators.Records((op.id,), schema, append_only=True, keys=keys, kept=kept, time=time)
        self.builder.add(made)
        return of_operator(made, [(c, i) for i, c in enumerate(node.columns)])

    @lower.register
    def _(self, node: Changes, needed: _Ids) -> Stream:
        columns = [c for c in node.input.columns if node.whole or c.id in needed | node.reads]
        below = self.lower(node.input, frozenset(c.id for c in columns))
        op = emit_exactly(self.builder, below, [below.values[c.id] for c in columns])
        places = {c.id: i for i, c in enumerate(columns)}
        width = len(node.matched)
        sides: list[tuple[Operator, Sequence[int]]] = [(op, [places[i] for i in node.matched])]
        for cause in node.causes:
            if cause.changes is not None:
                changes = self._cause(cause.changes, [op.schema[places[i]].type for i in cause.match])
                sides.append((changes, range(width)))
        specs = tuple(
            operators.CauseSpec(
                tuple(places[i] for i in c.match), None if c.time is None else places[c.time], c.partners
            )
            for c in node.causes
        )
        inputs = tuple(o.id for o in self._together(sides))
        fields = [*((f.type, f.nullable) for f in op.schema), *((c.type, c.nullable) for c in node.made)]
        made = self.builder.add(operators.Changes(inputs, positional(fields), append_only=True, causes=specs))
        return of_operator(
            made,
            [
                *zip(columns, range(len(columns)), strict=True),
                (node.made[0], len(columns)),
                (node.made[1], len(columns) + 1),
            ],
        )

    def _cause(self, node: Node, types: Sequence[SqlType]) -> Operator:
        """An operator with all columns of `node`, of which the first ones are converted to `types`."""
        below = self.lower(node, node.ids)
        kinds = [*types, *(c.type for c in node.columns[len(types) :])]
        return emit_exactly(
            self.builder, below, [cast(below.values[c.id], k) for c, k in zip(node.columns, kinds, strict=True)]
        )

    def _together(self, sides: Sequence[tuple[Operator, Sequence[int]]]) -> list[Operator]:
        """The operators, exchanged so that rows with equal values of the given columns are in one bucket and stage."""
        placement = self.builder.placement
        found = [
            op
            if matching(placement.distribution(op.id), keys) == list(range(len(keys)))
            else self.builder.exchange(op, keys)
            for op, keys in sides
        ]
        stage = max(placement.arrival(op.id) for op in found)
        return [
            op
            if isinstance(op, operators.Exchange) or placement.stage(op.id) == stage
            else self.builder.exchange(op, keys)
            for op, (_, keys) in zip(found, sides, strict=True)
        ]

    @lower.register
    def _(self, node: TimeFilter, needed: _Ids) -> Stream:
        columns = [c for c in node.columns if c.id in needed]
        below = self.lower(node.input, (needed | {node.column}).union(*[s.columns for s in node.scatter]))
        time = below.values[node.column]
        moves = not self.builder.placement.stage(below.operator.id)
        scatter = [below.resolve(s) for s in node.scatter] if moves else []
        final = (node.final or node.stays) and not below.operator.append_only
        wanted = [*(below.values[c.id] for c in columns), time, *scatter]
        op, positions = emit(self.builder, below, wanted)
        distribution = self.builder.placement.distribution
        if final and not shows_place(distribution(op.id), exact=True):
            keys = key_columns(distribution(below.operator.id), exact=True) or ()
            op, positions = emit(self.builder, below, [*wanted, *(at(below.operator, c) for key in keys for c in key)])
        if moves and not self.builder.placement.arrival(op.id):  # stages that read sources keep no state
            op = (
                self.builder.exchange(op, [positions[identity(s)] for s in scatter])
                if scatter
                else self.builder.spread(op)
            )
        elif final and not shows_place(distribution(op.id), exact=True):
            op = self.builder.spread(op)
        places = {c.id: positions[identity(below.values[c.id])] for c in columns}
        keep = tuple(sorted(set(places.values()))) or (positions[identity(time)],)
        schema = positional((op.schema[k].type, op.schema[k].nullable) for k in keep)
        append_only = node.final or node.stays or (op.append_only and node.comparison[0] == "<")
        made = self.builder.add(
            operators.TimeFilter(
                (op.id,),
                schema,
                append_only,
                positions[identity(time)],
                node.comparison,
                node.bound,
                keep,
                node.stays,
                node.untimed,
            )
        )
        return of_operator(made, [(c, keep.index(places[c.id])) for c in columns])

    @lower.register
    def _(self, node: AsofJoin, needed: _Ids) -> Stream:
        return AsofLowering(self.builder, self.sharing, self.lower, self.view).lower(node, needed)

    @lower.register
    def _(self, node: Window, needed: _Ids) -> Stream:
        return WindowLowering(self.builder, self.lower, lambda op, keys: self._grouped(op, keys, [])).window(
            node, needed
        )

    @lower.register
    def _(self, node: TopN, needed: _Ids) -> Stream:
        if is_last_written(node, needed):
            return self._last_written(node, needed)
        return WindowLowering(self.builder, self.lower, lambda op, keys: self._grouped(op, keys, [])).topn(node, needed)

    def _last_written(self, node: TopN, needed: _Ids) -> Stream:
        """The last row of each key. Only the stored row of the key is looked up and replaced."""
        partition = [k.column for k in node.partition if k.column is not None]
        columns = [c for c in node.input.columns if c.id in needed.union(partition)]
        op = self._written(node.input, columns)
        places = {c.id: i for i, c in enumerate(columns)}
        keys = tuple(dict.fromkeys(places[i] for i in partition))
        op = self._grouped(op, keys, [])
        schema = positional((f.type, f.nullable) for f in op.schema[:-1])
        made = self.builder.add(operators.Upsert((op.id,), schema, append_only=False, keys=keys))
        return of_operator(made, [(c, i) for i, c in enumerate(columns)])

    def _written(self, node: Node, columns: Sequence[Column]) -> Operator:
        """The given columns of the written rows, followed by a number that is greater for later rows of an epoch."""
        if isinstance(node, Arrivals):
            names = dict(zip((c.id for c in node.scan.outputs), node.scan.source_names, strict=True))
            fields = tuple(Field(names[c.id], c.type, c.nullable) for c in columns)
            return self.builder.add(
                operators.Scan(
                    (),
                    (*fields, Field("_seq", BIGINT, nullable=False)),
                    node.scan.append_only,
                    node.scan.relation_id,
                    tuple(f.name for f in fields),
                    ordered=True,
                )
            )
        arrivals = arrivals_below(node)
        assert arrivals is not None
        newest_first = arrivals.age[1].id
        below = self.lower(node, frozenset((*(c.id for c in columns), newest_first)))
        newest_last = Scalar(exp.Neg(this=below.values[newest_first].expression), BIGINT, nullable=False)
        return emit_exactly(self.builder, below, [*(below.values[c.id] for c in columns), newest_last])

    @lower.register
    def _(self, node: TemporalJoin, needed: _Ids) -> Stream:
        return TemporalLowering(self.builder, self.sharing, self.lower, self.view).lower(node, needed)

    @lower.register
    def _(self, node: Join, needed: _Ids) -> Stream:
        if node.partners is not None:
            return PartneredLowering(self.builder, self.sharing, self.lower).lower(node, needed)
        cluster = cluster_of(node) if self.multiway else None
        if cluster is not None and len(cluster.inputs) > 2:
            return MultiwayLowering(self.builder, self.sharing, self.lower).lower_cluster(cluster, needed)
        return JoinLowering(self.builder, self.sharing, self.lower).lower(node, needed)

    @lower.register
    def _(self, node: Unnest, needed: _Ids) -> Stream:
        condition = node.condition
        reads = (condition.columns if condition is not None else _Ids()) & node.input.ids
        wanted = [c.id for c in node.input.columns if c.id in needed | reads]
        below = self.lower(node.input, _Ids(wanted).union(*[a.columns for a in node.arrays]))
        resolved = [below.resolve(a) for a in node.arrays]
        op, positions = emit(self.builder, below, [below.values[i] for i in wanted] + resolved)
        at_id = {i: positions[identity(below.values[i])] for i in wanted}
        keep = tuple(dict.fromkeys(at_id[i] for i in wanted if i in needed))
        text = None
        if condition is not None:
            places = {i: position(p, "l") for i, p in at_id.items()}
            places |= {c.id: position(j, "r") for j, c in enumerate(node.made)}
            text = sql(condition.substitute(places).expression)
        kept = [op.schema[k] for k in keep]
        schema = positional([*((f.type, f.nullable) for f in kept), *((c.type, c.nullable) for c in node.made)])
        made = self.builder.add(
            operators.Unnest(
                (op.id,),
                schema,
                op.append_only,
                tuple(positions[identity(a)] for a in resolved),
                keep,
                node.ordinality is not None,
                node.outer,
                text,
            )
        )
        columns = [(c, keep.index(at_id[c.id])) for c in node.input.columns if c.id in at_id and c.id in needed]
        return of_operator(made, columns + [(c, len(keep) + j) for j, c in enumerate(node.made)])

    @lower.register
    def _(self, node: Union, needed: _Ids) -> Stream:
        kept = [i for i, c in enumerate(node.outputs) if c.id in needed] or [0]
        columns = [node.outputs[i] for i in kept]
        parts = []
        for part in node.parts:
            own = [part.columns[i] for i in kept]
            stream = self.lower(part, frozenset(c.id for c in own))
            wanted = [cast(stream.values[c.id], out.type) for c, out in zip(own, columns, strict=True)]
            parts.append(emit_exactly(self.builder, stream, wanted))
        parts = self._in_one_stage(parts)
        nullable = [any(p.schema[i].nullable for p in parts) for i in range(len(kept))]
        schema = positional((c.type, n) for c, n in zip(columns, nullable, strict=True))
        append_only = all(p.append_only for p in parts)
        op = self.builder.add(operators.Union(tuple(p.id for p in parts), schema, append_only))
        return of_operator(op, [(c, i) for i, c in enumerate(columns)])

    def _in_one_stage(self, parts: list[Operator]) -> list[Operator]:
        """Sends inputs of earlier stages to the stage of the latest one, by the keys of each input, if it has any."""
        placement = self.builder.placement
        last = max(parts, key=lambda p: placement.stage(p.id))
        target = placement.stage(last.id)
        keys = plain_keys(placement.distribution(last.id))
        sent = []
        for part in parts:
            if placement.stage(part.id) == target:
                sent.append(part)
            else:
                sent.append(self.builder.exchange(part, keys) if keys else self.builder.spread(part))
        return sent

    @lower.register
    def _(self, node: Aggregate, needed: _Ids) -> Stream:
        return AggregateLowering(self.builder, self.lower, self._grouped, self._in_one_stage).lower(node, needed)

    def _grouped(self, op: Operator, keys: tuple[int, ...], spread: list[int]) -> Operator:
        """`op`, with all rows of a group in one bucket, which the columns `spread` or all `keys` determine."""
        distribution = self.builder.placement.distribution(op.id)
        here = distribution == () if not keys else matching(distribution, keys) is not None
        return op if here else self.builder.exchange(op, spread or keys)

    def top(self, tree: Node, columns: Iterable[tuple[Column, Field]]) -> Operator:
        """The operator with exactly `columns`, each in the type of its field."""
        wanted = list(columns)
        stream = self.lower(tree, frozenset(c.id for c, _ in wanted))
        return emit_exactly(self.builder, stream, [cast(stream.values[c.id], f.type) for c, f in wanted])


def _number(value: int) -> Scalar:
    return Scalar(exp.Literal.number(value), INTEGER, nullable=False)


#: The operators of each materialized view and connector table in the circuit, with the Sink last.
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

    The binder creates `tree`; this function rewrites it. Its columns are those of `sink`, in order, possibly followed
    by those that order its rows by arrival (`BoundQuery.age`). A relation in `producers` is read from its own
    operators, which become part of the result (without their Sink). The Sink's `append_only` means that the view never
    deletes a row. catalog: keys, indexes and columns of relations, which determine the arrangements that joins of
    several views share. share: if False, the view's joins have separate arrangements, except where equal ones exist.
    multiway: if False, inner joins by one key become joins of two inputs each. late: for each relation, the number of
    late rows dropped so far. left_out: as in `Builder`.
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
    if required and isinstance(top, operators.Map):
        top = builder.add(replace(top, required=required))
    if isinstance(sink, Pump) and sink.merging is not None:
        top = _in_order(builder, top, sink, len(age))
    return builder.closure(builder.sink(top, sink))


def _required(view: Relation, catalog: Catalog | None) -> tuple[int, ...]:
    """The columns of a view INTO a relation that are NOT NULL there, so that NULL would become a default.

    A value that could not be computed must not become the default, so such a row is not written.
    """
    target = None if catalog is None or isinstance(view, SinkQuery) else catalog.relations.get(view.feeds)
    if target is None:
        return ()
    whole = {c.name for c in target.columns if not c.nullable}
    return tuple(i for i, c in enumerate(view.columns) if c.name in whole)


def _in_order(builder: Builder, top: Operator, pump: Pump, age: int) -> Operator:
    """The rows of a pump that merges by a key; those of one key are in the order of arrival, or by ROWTIME if that is
    unknown.

    age: the number of columns, after those of the pump, that order the rows, the newest first.
    """
    assert pump.merging is not None
    names = [c.name for c in pump.columns]
    order = tuple(SortKey(len(names) + i, descending=True) for i in range(age))
    if not order and ROWTIME in names:
        order = (SortKey(names.index(ROWTIME)),)
    if not order:
        return top
    sent = builder.exchange(top, [names.index(k) for k in pump.merging.key])
    return builder.add(operators.Sort((sent.id,), sent.schema[: len(names)], top.append_only, order))


def compile_connector_table(relation: Relation) -> tuple[Operator, ...]:
    """The operators of a table that a connector feeds: they output its raw rows, or the last row of each key if it has
    a key.
    """
    builder = Builder()
    names = tuple(c.name for c in relation.columns)
    if not relation.primary_key:
        grows = not relation.loses_rows
        top = builder.add(operators.Scan((), relation.columns, append_only=grows, relation_id=relation.id, names=names))
    else:
        partial = relation.has_partial_changes
        schema = (*relation.columns, *([KEPT] if partial else []), Field("_seq", BIGINT, nullable=False))
        top = builder.add(
            operators.Scan(
                (), schema, append_only=True, relation_id=relation.id, names=names, ordered=True, partial=partial
            )
        )
        keys = tuple(names.index(k) for k in relation.primary_key)
        top = builder.exchange(top, keys, mode="partial" if partial else "hash")
        schema = top.schema[: len(names)]
        rule = relation.conflict or Conflict()
        top = builder.add(
            operators.Upsert(
                (top.id,),
                schema,
                append_only=relation.append_only,
                keys=keys,
                partial=partial,
                action=rule.action,
                versions=tuple(names.index(v) for v in rule.versions),
            )
        )
    return builder.closure(builder.sink(top, relation))


def assemble(views: Iterable[Sequence[Operator]], buckets: int) -> Circuit:
    """One circuit of all `views`, in which equal operators are one. With one bucket there is only stage 0."""
    operators = {op.id: op for view in views for op in view}
    placement = Placement(operators)
    stages = {i: placement.stage(i) if buckets > 1 else 0 for i in operators}
    circuit = Circuit(buckets, tuple(operators.values()), stages)
    circuit.check()
    return circuit


def builder_over(producers: Producers) -> tuple[Builder, dict[str, Producer]]:
    """A builder with the operators of `producers`, and the relations that can be read from these."""
    builder = Builder()
    builder.operators.update({op.id: op for ops in producers.values() for op in ops})
    readable = {}
    for relation_id, ops in producers.items():
        sink = ops[-1]
        assert isinstance(sink, operators.Sink)
        assert sink.relation_id == relation_id
        names = tuple(f.name for f in sink.schema)
        readable[relation_id] = Producer(builder.operators[sink.inputs[0]], names)
    return builder, readable
