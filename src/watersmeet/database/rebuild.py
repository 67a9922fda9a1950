"""Compiles plans again from stored statements: for a rebuild, for sources that a query reopens, and for another number
of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlglot import exp

from watersmeet.algebra.base import Column
from watersmeet.algebra.nodes import Aggregate, Arrivals, Filter, LateRowFilter, Node, Reopened, Scan
from watersmeet.algebra.properties import identity, is_single_row
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.scalars import AggregateCall, Scalar, column_ref
from watersmeet.algebra.trees import exactly, transform_up, walk
from watersmeet.algebra.watermarks import Watermarks, clocks, watermarks
from watersmeet.binder import BoundQuery, bind_query, bind_view, check_request
from watersmeet.binder.context.emissions import Request
from watersmeet.binder.dialects import rules_of
from watersmeet.binder.emission import request_of
from watersmeet.catalog import (
    CacheFill,
    Catalog,
    MaterializedView,
    Processor,
    QuerySource,
    Relation,
    Sink,
    SinkConflicts,
    SinkQuery,
    Table,
    TopicWriter,
)
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import StateDistribution
from watersmeet.circuit.operators import Operator
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.definitions import CreateMaterializedView, CreateProcessor
from watersmeet.dialects.tree.statements import Subscribe
from watersmeet.errors import Error, error
from watersmeet.kernel.operators import STATEFUL
from watersmeet.planner import compile_connector_table, compile_view
from watersmeet.planner.distribution import StateDistributions
from watersmeet.values.types import BIGINT, BOOLEAN
from watersmeet.values.watermarks import Term, Watermark


def reopened_scans(tree: Node) -> list[Reopened]:
    """One scan for each source that a query reads separately. Scans of the same relation and offset share it."""
    found = {_place(n): n for n in walk(tree) if isinstance(n, Reopened)}
    return list(found.values())


def reading(tree: Node, sources: Iterable[QuerySource]) -> Node:
    """The tree of a query, reading its own copies of the sources that it names."""
    sources = list(sources)
    by_place = {(s.of, s.start, s.shards, s.strict): s.id for s in sources}
    ids = by_source(sources)

    def rule(node: Node) -> Node:
        if not isinstance(node, Reopened):
            return _with_clocks(node, ids)
        scan, source_id = scan_of(node), by_place[_place(node)]
        marks = tuple((column, moved(mark, {scan.relation_id: [source_id]})) for column, mark in scan.watermarks)
        own = replace(scan, relation_id=source_id, watermarks=marks)
        return replace(node.input, scan=own) if isinstance(node.input, Arrivals) else own

    return transform_up(tree, rule) if by_place else tree


def by_source(sources: Iterable[QuerySource]) -> dict[str, list[str]]:
    """The ids of the query's own sources that copy a source, by the id of that source."""
    found: dict[str, list[str]] = {}
    for source in sources:
        found.setdefault(source.of, []).append(source.id)
    return found


def _with_clocks(node: Node, ids: Mapping[str, Sequence[str]]) -> Node:
    """The node with watermarks of other sources."""
    if isinstance(node, Scan):
        return node
    whole: Any = node  # all nodes are dataclasses
    marks = {f.name: v for f in fields(whole) if _is_watermark(v := getattr(node, f.name))}
    changed = {name: moved(mark, ids) for name, mark in marks.items()}
    return replace(whole, **changed) if changed != marks else node


def _is_watermark(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(part, Term) for part in value)


def read_again(tree: Node, view: Relation, catalog: Catalog) -> Node:
    """The tree of an existing view that was bound again, with its existing sources."""
    own = [r for r in catalog.relations.values() if isinstance(r, QuerySource) and r.owner == (view.owner or view.id)]
    return reading(tree, own)


def moved(mark: Watermark, ids: Mapping[str, Sequence[str]]) -> Watermark:
    """The watermark with other sources. ids: the new sources by the old ones; of several, the slowest counts."""
    return tuple(replace(term, source=i) for term in mark for i in ids.get(term.source, (term.source,)))


def scan_of(node: Reopened) -> Scan:
    """The scan of a source, which may also return the order of its rows."""
    found = node.input.scan if isinstance(node.input, Arrivals) else node.input
    assert isinstance(found, Scan), "the binder makes them of scans"
    return found


def _place(node: Reopened) -> tuple[str, str, str, bool]:
    return scan_of(node).relation_id, node.start, node.shards, node.strict


def plans_made_anew(catalog: Catalog, moment: int = 0) -> dict[str, Sequence[Operator]]:
    """The operators of all relations that the circuit feeds, by relation id in order of creation. moment: the newest
    commit, for views that are not filled yet.
    """
    producers: dict[str, Sequence[Operator]] = {}
    for relation in catalog.relations.values():
        if relation.has_plan:
            begins = 0 if relation.ready else moment
            producers[relation.id] = plan_made_anew(relation, producers, catalog, moment=begins)
    return producers


def plan_made_anew(
    relation: Relation,
    producers: Mapping[str, Sequence[Operator]],
    catalog: Catalog,
    *,
    moment: int = 0,
    late: Mapping[str, int] | None = None,
    left_out: frozenset[str] = frozenset(),
) -> Sequence[Operator]:
    """The operators of a relation that the circuit feeds. producers: the operators of relations that were created
    before it.

    moment: the newest commit, for a view that begins when it is filled. late, left_out: see `compile_view`.
    """
    if isinstance(relation, Table):
        return compile_connector_table(relation)
    assert isinstance(relation, MaterializedView), f"{relation.title} is fed by the circuit"
    tree = read_again(tree_of(relation, catalog, moment), relation, catalog)
    return compile_view(tree, relation, producers, catalog=catalog.as_stored, late=late, left_out=left_out)


def tree_of(relation: Relation, catalog: Catalog, moment: int) -> Node:
    """The tree of a relation that the circuit feeds."""
    if isinstance(relation, CacheFill):
        work = [r.id for r in catalog.relations.values() if isinstance(r, CacheFill) and r.owner == relation.owner]
        owner = stored_query(catalog.relations[relation.owner], catalog, moment)
        assert owner is not None
        return owner.fills[work.index(relation.id)].tree
    if isinstance(relation, SinkConflicts):
        sink = catalog.relations[relation.owner]
        assert isinstance(sink, Sink), "a sink owns the view of its conflicts"
        return conflicts_of(sink, catalog.relations[sink.delivers])
    query = stored_query(relation, catalog, moment)
    assert query is not None, f"{relation.name} is stored as {relation.sql}"
    if not isinstance(relation, Processor | TopicWriter):
        return query.tree
    records = rules_of(relation.dialect).records_of(query)
    by_name = {c.name: c for c in records.columns}
    return exactly(records, [by_name[c.name] for c in relation.columns])


def conflicts_of(sink: Sink, delivered: Relation) -> Node:
    """The keys of a sink that several rows of the delivered relation share, with the number of these rows."""
    columns = tuple(Column(f"d{i}", c.name, c.type, c.nullable) for i, c in enumerate(delivered.columns))
    names = tuple(c.name for c in delivered.as_stored.columns)
    rows = Scan(delivered.id, delivered.shown, columns, names, delivered.append_only)
    places = [[c.name for c in sink.columns].index(name) for name in sink.primary_key]
    keys = tuple(Scalar(column_ref(columns[i].id), columns[i].type) for i in places)
    outputs = tuple(Column(f"k{i}", columns[i].name, columns[i].type, columns[i].nullable) for i in places)
    count = AggregateCall("count", None, None, distinct=False, type=BIGINT)
    groups = Aggregate(rows, keys, (count,), (*outputs, Column("n", "rows", BIGINT, nullable=False)))
    several = exp.GT(this=column_ref("n"), expression=exp.Literal.number(1))
    return Filter(groups, Scalar(several, BOOLEAN))


def proves_key(relation: Relation, key: Sequence[str], catalog: Catalog) -> bool:
    """Whether no two rows of a relation can share the values of the columns `key`, for any content of its inputs."""
    if isinstance(relation, Table):
        return bool(relation.primary_key) and set(relation.primary_key) <= set(key)
    if not isinstance(relation, MaterializedView) or isinstance(relation, Processor | TopicWriter):
        return False
    tree = tree_of(relation, catalog, 0)
    names = dict(zip([c.name for c in relation.columns], [c.id for c in tree.columns], strict=False))
    fixed = frozenset(names[name] for name in key)
    return is_single_row(tree, fixed) or is_single_row(rewrite(tree), fixed)


def statement_of(processor: Relation) -> CreateProcessor:
    """The statement that created a processor with its topic."""
    found = parse(processor.sql, processor.dialect)[-1]
    assert isinstance(found, CreateProcessor)
    return replace(found, name=processor.name, schema=processor.schema)


def stored_query(relation: Relation, catalog: Catalog, moment: int = 0) -> BoundQuery | None:
    """The query of a relation from its stored text, with the names valid at that time; None if it is not a query.

    moment: see `bound`. Raises errors of the binder.
    """
    statement = parse(relation.sql, relation.dialect)[-1] if relation.sql else None
    if not isinstance(statement, CreateMaterializedView | CreateProcessor | Subscribe):
        return None
    if isinstance(relation, SinkQuery) and isinstance(statement, CreateMaterializedView):
        statement = replace(statement, column_names=tuple(c.name for c in relation.columns))  # those of its table
    return bound(statement, catalog.seen_by(relation), relation.dialect, moment)


def bound(
    statement: CreateMaterializedView | CreateProcessor | Subscribe, catalog: Catalog, dialect: str, moment: int = 0
) -> BoundQuery:
    """The bound query of a statement that the circuit runs. Raises errors of the binder.

    moment: the newest commit at the start of the query, for a query that reads only later rows.
    """
    if isinstance(statement, CreateProcessor):
        return bind_query(statement.query, catalog, statement.text, dialect, moment=moment)
    if isinstance(statement, CreateMaterializedView):
        return bind_view(statement, catalog, dialect, moment)
    request = request_of(statement.query, statement.text, dialect)
    return requested(request, catalog, statement.text, dialect, moment)


def requested(request: Request, catalog: Catalog, text: str, dialect: str, moment: int) -> BoundQuery:
    """Like `bound`, for a running query."""
    found = bind_query(request.query, catalog, text, dialect, moment=moment)
    check_request(request, found.tree, text)
    return found


def distributions_of(circuit: Circuit, catalog: Catalog) -> dict[str, dict[str, StateDistribution]]:
    """The distribution of rows by stateful operator and trace. circuit: the circuit for the new number of buckets.

    Raises PARALLELISM_MISMATCH if the distribution is unknown, or if a plan is for one bucket only.
    """
    every = StateDistributions(circuit.by_id)
    found: dict[str, dict[str, StateDistribution]] = {}
    for op in circuit.operators:
        if op.kind not in STATEFUL:
            continue
        placed = {name: distribution for name, distribution in every.of(op).items() if distribution is not None}
        if len(placed) < len(every.of(op)) or (circuit.buckets > 1 and circuit.stages[op.id] == 0):
            raise _unplaced(op, circuit, catalog)
        found[op.id] = placed
    return found


def _unplaced(op: Operator, circuit: Circuit, catalog: Catalog) -> Error:
    reading = [s.relation_id for s in circuit.sinks if op.id in circuit.upstream({s.id})]
    names = [catalog.relations[i].title for i in reading if i in catalog.relations]
    return error(
        "PARALLELISM_MISMATCH",
        f"the state of {' and '.join(names)} can't be split into other buckets",
        detail=f"The rows that {op.id} keeps don't show in which bucket they belong.",
        hint="Drop it and create it again; or close the database and open it with rebuild = True (watersmeet run "
        "--rebuild --parallelism N), which computes all state anew.",
    )


def watermarks_of(tree: Node) -> dict[str, Watermark]:
    """The watermarks of the columns by name, in the form of the plan."""
    return _by_name(tree, watermarks)


def row_key_of(tree: Node) -> tuple[str, ...]:
    """The names of the columns that identify the rows of a view; empty if none are known."""
    key = identity(tree) or frozenset()
    return tuple(c.name for c in tree.columns if c.id in key)


def clocks_of(tree: Node) -> dict[str, Watermark]:
    """The greatest time so far of each column by name, in the form of the plan."""
    return _by_name(tree, clocks)


def _by_name(tree: Node, of: Callable[[Node], Watermarks]) -> dict[str, Watermark]:
    if not any((isinstance(n, Scan) and n.watermarks) or isinstance(n, LateRowFilter) for n in walk(tree)):
        return {}
    found = of(rewrite(tree))
    return {c.name: found[c.id] for c in tree.columns if c.id in found}
