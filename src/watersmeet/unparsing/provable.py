"""What can be proven of a view: its query, without the parts that depend on the arrival of rows, as a query that ends.

A query that is a function of the content of its inputs, of the watermarks and of the time of the epoch is computed as a
whole. Of others, the part that does not depend on the rows that were looked up may be computable. Rows that a view
lacks because they were late are kept, and are subtracted where they were dropped: from an input, or within the query.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import sqlglot
from sqlglot import exp

from watersmeet.algebra import nodes
from watersmeet.algebra.base import Column
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.conditions import as_predicate
from watersmeet.algebra.scalars import AggregateCall, Scalar, SortKey, column_ref, conjuncts, null_of
from watersmeet.algebra.timewindows import mentions_time, term_of
from watersmeet.algebra.trees import exactly, filtered, read, transform_up, walk
from watersmeet.catalog import Catalog, LateRows, MaterializedView, Relation
from watersmeet.circuit import operators
from watersmeet.circuit.operators import Operator
from watersmeet.unparsing.relations import Writer
from watersmeet.unparsing.texts import quoted
from watersmeet.values import watermarks
from watersmeet.values.calledfunctions import called_in
from watersmeet.values.types import BIGINT, BOOLEAN, Schema
from watersmeet.values.watermarks import LateSide

#: The nodes whose rows depend on the content of their inputs alone.
_PLAIN: Final = (nodes.Values, nodes.Filter, nodes.Project, nodes.Union, nodes.Repeat, nodes.Expand, nodes.Unnest)

#: Aggregates whose value does not depend on the order of rows.
_AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")

#: Window functions whose value is the same for rows that are equal in the order.
_OF_PEERS: Final = ("rank", "dense_rank", "percent_rank", "cume_dist")

TIME_OF_EPOCHS: Final = "it depends on the time of epochs"

_REASONS: Final[dict[type[nodes.Node], str]] = {
    nodes.TemporalJoin: "it looks rows up when others arrive",
    nodes.Clock: TIME_OF_EPOCHS,
    nodes.Arrivals: "it depends on the order in which rows arrived",
    nodes.Cut: "it depends on when the query was started",
    nodes.LateRowFilter: "it drops rows that are late",
    nodes.Records: "its records are numbered by epochs",
}


#: The names of inputs in queries: their content, and their content without late rows.
INPUT: Final = "_watersmeet_input_"
_ONTIME: Final = "_watersmeet_ontime_"


class Begun(NamedTuple):
    """What a view lacks of the content of its inputs.

    late: for each input, the relation that keeps its late rows, and the number of its newest ones, which the view
    lacks. dropped: for each operator of the view that drops late rows, the relation that keeps them, and their number.
    empty: the inputs without rows when the query began, from which it reads later rows. marks: the watermarks of the
    newest epoch, and its time.
    """

    late: Mapping[str, tuple[LateRows, int]]
    dropped: Sequence[tuple[LateSide, LateRows, int]]
    empty: Collection[str]
    marks: Mapping[str, int]


def begun_with(
    view: MaterializedView,
    tree: nodes.Node,
    plan: Iterable[Operator],
    catalog: Catalog,
    late: Mapping[str, int],
    numbers: Mapping[str, int],
    time_us: int,
) -> Begun | str:
    """What a view lacks of the content of its inputs; or why that is not known.

    tree, plan: its query and its operators. late, numbers, time_us: the late rows, the watermarks and the time of the
    newest epoch. A scan has the number of rows that were late before it: these are history for the view, which lacks
    all later ones. The tree begins with commit 0, and the clocks of the plan with a later one.
    """
    kept = {(r.owner, r.number): r for r in catalog.relations.values() if isinstance(r, LateRows)}
    scans, cuts, clocks = defaultdict[str, set[int]](set), set[int](), set[str]()
    for op in plan:
        if isinstance(op, operators.Scan):
            scans[op.relation_id].add(op.late)
        elif isinstance(op, operators.Cut):
            cuts.add(op.moment)
        elif isinstance(op, operators.LateRowFilter):
            clocks.add(op.clock)
    lacking: dict[str, tuple[LateRows, int]] = {}
    for relation_id in sorted({n.relation_id for n in walk(tree) if isinstance(n, nodes.Scan)} & late.keys()):
        known, before = kept.get((relation_id, 0)), scans[relation_id]
        if known is None or len(before) != 1:
            return unknown_late_rows(catalog.relations[relation_id], late[relation_id])
        if lacks := late[relation_id] - before.pop():
            lacking[relation_id] = known, lacks
    sides = ((side, kept.get((view.id, number))) for number, side in enumerate(view.late, 1))
    dropped = [(side, found, late.get(found.id, 0)) for side, found in sides if found is not None]
    own = {re.sub(r"@\d+", "@0", name): numbers[name] for name in clocks & numbers.keys()}
    empty = {i for i, moment in view.empty.items() if moment in cuts}
    return Begun(lacking, dropped, empty, {**numbers, **own, watermarks.NOW: time_us})


def unknown_late_rows(relation: Relation, count: int) -> str:
    """Why late rows of a relation leave it open which rows a view has."""
    return f"it is not known which of the late rows of {relation.title} it has: {count:,}"


_LANGUAGES: Final = "it calls functions in other languages, which may return something else each time"


class Computation(NamedTuple):
    """A query whose result a view must have.

    positions: those of the view's columns that are compared, in the order of the tree's columns. subset: whether the
    view may lack rows. late: as in `Begun`, for inputs of which the view lacks rows. kept: the number of rows that each
    relation with late rows must have. caveat: why something else is not compared.
    """

    tree: nodes.Node
    positions: Sequence[int]
    late: Mapping[str, tuple[LateRows, int]]
    kept: Mapping[str, int]
    subset: bool = False
    caveat: str = ""

    @property
    def inputs(self) -> list[str]:
        """The ids of the relations that it reads."""
        read = {n.relation_id for n in walk(self.tree) if isinstance(n, nodes.Scan)}
        return sorted(read | {late.id for late, _ in self.late.values()})

    @property
    def sql(self) -> str:
        """The query for DuckDB, of views named `INPUT` and the id of an input."""
        writer = Writer(lambda i: f"{_ONTIME if i in self.late else INPUT}{i}")
        for relation_id, (late, rows) in self.late.items():
            columns = ", ".join(quoted(c.name) for c in late.columns[2:])
            every, kept = quoted(f"{INPUT}{relation_id}"), quoted(f"{INPUT}{late.id}")
            newest = f"FROM {kept} ORDER BY {quoted(late.columns[0].name)} DESC LIMIT {rows}"
            writer.named[f"{_ONTIME}{relation_id}"] = (
                f"SELECT {columns} FROM {every} EXCEPT ALL (SELECT {columns} {newest})"
            )
        return writer.query(self.tree, [f"v{i}" for i in range(len(self.tree.columns))])


def computation(tree: nodes.Node, catalog: Catalog, begun: Begun) -> Computation | str:
    """The computation that proves as much as possible of the view of a query, or why there is none."""
    if begun.dropped and not any(isinstance(n, nodes.OfScan) for n in walk(tree)):
        # Operators drop rows after conditions that apply first.
        tree = transform_up(rewrite(tree, "written"), partial(_with_all_columns, catalog))
    tree = transform_up(tree, partial(_as_begun, begun))
    positions, caveat, subset = list(range(len(tree.columns))), "", False
    if (found := obstacle(tree, catalog)) is not None:
        left = left_sides(tree)
        if left is None or obstacle(left.tree, catalog) is not None:
            return found
        positions = [i for i in positions if left.tree.columns[i].id not in left.unknown]
        if not positions:
            return found
        names = ", ".join(tree.columns[i].name for i in positions)
        caveat = f"{found}; proven: {names}" + (" of all rows, not that none is missing" if left.subset else "")
        tree, subset = exactly(left.tree, [left.tree.columns[i] for i in positions]), left.subset
    read = {n.relation_id for n in walk(tree) if isinstance(n, nodes.Scan)}
    late = {i: kept for i, kept in begun.late.items() if i in read}
    kept = {r.id: rows for r, rows in late.values()} | {r.id: rows for _, r, rows in begun.dropped}
    made = Computation(transform_up(tree, partial(_computable, begun.marks)), positions, late, kept, subset, caveat)
    sql = made.sql
    if "epoch_time(" in sql.lower():
        return TIME_OF_EPOCHS
    return _LANGUAGES if any(called_in(sql)) else made


def _as_begun(begun: Begun, node: nodes.Node) -> nodes.Node:
    """The node over the inputs of the view since it began, without the late rows that it dropped."""
    if isinstance(node, nodes.Cut) and node.keeps == "after":
        read = {n.relation_id for n in walk(node) if isinstance(n, nodes.Scan)}
        return node.input if read and read <= set(begun.empty) else node
    if isinstance(node, nodes.LateRowFilter):
        for side, late, _ in begun.dropped:
            for time, *ids in side.nodes:
                if time == node.column and _has_columns(node, ids, side.columns):
                    return _late_rows(node, ids, late) if node.late else _ontime_rows(node, ids, late)
    return node


def _with_all_columns(catalog: Catalog, node: nodes.Node) -> nodes.Node:
    """A scan that reads all columns of its relation, as queries of DuckDB do, below a projection to its columns."""
    if not isinstance(node, nodes.Scan):
        return node
    known = dict(zip(node.source_names, node.outputs, strict=True))
    columns = catalog.relations[node.relation_id].columns
    if [c.name for c in columns] == list(known):
        return node
    unread = {c.name: Column(f"{node.outputs[0].id}~{c.name}", c.name, c.type, c.nullable) for c in columns}
    every = tuple(known.get(c.name, unread[c.name]) for c in columns)
    scan = replace(node, outputs=every, source_names=tuple(c.name for c in columns))
    return nodes.Project(scan, node.outputs, tuple(map(read, node.outputs)))


def _has_columns(node: nodes.Node, ids: Sequence[str], columns: Schema) -> bool:
    """Whether a node has the columns of an operator, as they were when the view was defined."""
    found = {c.id: (c.name.lstrip("_"), c.type) for c in node.columns}
    wanted = zip(ids, columns, strict=True)
    return all(found.get(i) == (column.name.lstrip("_"), column.type) for i, column in wanted)


def _late_rows(node: nodes.LateRowFilter, ids: Sequence[str], late: LateRows) -> nodes.Node:
    """The late rows of a filter, with the columns of the node; NULL in those that no operator reads."""
    new = tuple(Column(f"{node.column}~{late.id}~{i}", c.name, c.type) for i, c in enumerate(late.columns))
    kept = nodes.Scan(late.id, late.shown, new, tuple(c.name for c in late.columns), append_only=False)
    values = {i: read(c) for i, c in zip(ids, new[2:], strict=True)}
    return nodes.Project(kept, node.columns, tuple(values.get(c.id, null_of(c.type)) for c in node.columns))


def _ontime_rows(node: nodes.LateRowFilter, ids: Sequence[str], late: LateRows) -> nodes.Node:
    """The rows of a filter: its input, less the late rows."""
    by_id = {c.id: c for c in node.columns}
    columns = [by_id[i] for i in ids]

    def new(part: str, count: int = len(columns)) -> tuple[Column, ...]:
        """The columns, and a last one that counts."""
        made = [Column(f"{node.column}~{late.id}~{part}{i}", c.name, c.type) for i, c in enumerate(columns)]
        return (*made, Column(f"{node.column}~{late.id}~{part}{count}", "late", BOOLEAN))

    dropped = _late_rows(replace(node, late=True), ids, late)
    parts = tuple(
        nodes.Project(
            rows, new(part), (*map(read, columns), Scalar(exp.Boolean(this=is_late), BOOLEAN, nullable=False))
        )
        for part, rows, is_late in (("a", node.input, False), ("b", dropped, True))
    )
    *both, flag = new("c")
    counted = AggregateCall("count", None, None, distinct=False, type=BIGINT)
    calls = (counted, replace(counted, filter=read(flag)))
    *grouped, _ = new("d")
    every, gone = (Column(f"{node.column}~{late.id}~{part}", part, BIGINT, nullable=False) for part in ("n", "m"))
    union = nodes.Union(parts, (*both, flag))
    groups = nodes.Aggregate(union, tuple(map(read, both)), calls, (*grouped, every, gone))
    left = exp.Sub(
        this=column_ref(every.id), expression=exp.Mul(this=exp.Literal.number(2), expression=column_ref(gone.id))
    )
    rest = nodes.Repeat(groups, Scalar(left, BIGINT, nullable=False))
    values = {c.id: read(g) for c, g in zip(columns, grouped, strict=True)}
    return nodes.Project(rest, node.columns, tuple(values.get(c.id, null_of(c.type)) for c in node.columns))


def obstacle(tree: nodes.Node, catalog: Catalog) -> str | None:
    """Why a query can't be computed again; None if its result is a function of the content of its inputs and of the
    watermarks and the time of the epoch.
    """
    return next(_obstacles(tree, catalog), None)


def _obstacles(tree: nodes.Node, catalog: Catalog) -> Iterator[str]:
    for node in walk(tree):
        if isinstance(node, nodes.Scan):
            relation = catalog.relations[node.relation_id]
            if not relation.is_stored:
                yield f"{relation.title} stores no rows; a table with the same connector does"
        elif isinstance(node, nodes.TimeFilter):
            if node.stays:
                yield "its rows stay when their input is deleted"
        elif isinstance(node, (nodes.Join, nodes.Apply, nodes.AsofJoin)) and node.arrival:
            if not _has_all_pairs(node):
                yield "partners are determined when rows arrive"
        elif isinstance(node, nodes.Join):
            if node.partners is not None:
                yield "its outer join outputs rows without partners in addition to their pairs"
        elif isinstance(node, nodes.AsofJoin):
            if not _is_ordered(node.right, [*(k.right for k in node.keys), node.right_value, *_tied(node)]):
                yield "rows may be equally near in its ASOF join, and no key orders these"
        elif isinstance(node, nodes.Aggregate):
            yield from _of_aggregate(node)
        elif isinstance(node, nodes.Window):
            yield from _of_window(node)
        elif isinstance(node, nodes.TopN):
            if not node.with_ties and not _is_ordered(node.input, (*node.partition, *(k.value for k in node.order))):
                yield "its first rows may be equal in ORDER BY, and no key of the query orders these"
        elif not isinstance(node, (*_PLAIN, nodes.Apply)):
            found = next((why for kind, why in _REASONS.items() if isinstance(node, kind)), None)
            yield found or f"DuckDB has no equivalent of its {type(node).__name__}"


def _has_all_pairs(node: nodes.Node) -> bool:
    """Whether a join EMIT ON ARRIVAL is the same as without it: its inputs keep their rows, and each pair is output."""
    return isinstance(node, nodes.Join) and node.kind == "inner"


def _tied(node: nodes.AsofJoin) -> list[Scalar]:
    return [read(c) for c in node.right.columns if c.id in node.ties]


def _computable(marks: Mapping[str, int], node: nodes.Node) -> nodes.Node:
    """The node as DuckDB can compute it. marks: the watermarks of the epoch, and its time."""
    if isinstance(node, nodes.Filter):
        return node.changed(partial(_at_epoch, marks)) if mentions_time(node.predicate) else node
    if isinstance(node, nodes.TimeFilter):
        return nodes.Filter(node.input, _passes(node, watermarks.value(node.bound, marks)))
    if isinstance(node, nodes.Join) and node.arrival:
        return replace(node, arrival=False)
    if isinstance(node, nodes.AsofJoin):
        near = exp.maybe_parse(f"a {node.comparison} b").transform(
            lambda e: (
                {"a": node.left_value, "b": node.right_value}[e.name].expression.copy()
                if isinstance(e, exp.Column)
                else e
            )
        )
        parts = [*(as_predicate(k) for k in node.keys), Scalar(near, BOOLEAN)]
        order = [SortKey(node.right_value, descending=node.comparison[0] == ">"), *map(SortKey, _tied(node))]
        nearest: nodes.Node = nodes.TopN(filtered(node.right, parts), (), tuple(order), 1)
        if node.residual is not None:
            nearest = nodes.Filter(nearest, node.residual)
        return nodes.Apply(node.left, nearest, node.kind)
    return node


def _at_epoch(marks: Mapping[str, int], scalar: Scalar) -> Scalar:
    """The expression with the time of the epoch as a constant."""

    def constant(node: exp.Expression) -> exp.Expression:
        if (found := term_of(node)) is None:
            return node
        term, kind = found
        time = exp.Anonymous(this="make_timestamp", expressions=[exp.Literal.number(term.value(marks) or 0)])
        return exp.cast(time, kind.duckdb, dialect="duckdb")

    return replace(scalar, expression=scalar.expression.transform(constant))


_COMPARE: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
#: The times for which DuckDB's epoch_us returns NULL.
_INFINITE: Final = {"infinity": (1 << 63) - 1, "-infinity": -((1 << 63) - 1)}


def _passes(node: nodes.TimeFilter, bound_us: int | None) -> Scalar:
    """Whether a row passes a filter whose bound has that value."""
    column = column_ref(node.column).sql(dialect="duckdb")
    if bound_us is None:
        text = f"{column} IS NOT NULL" if node.comparison[0] == ">" else "FALSE"
    else:
        parts = [f"epoch_us({column}) {node.comparison} {bound_us}"]
        passes = _COMPARE[node.comparison]
        parts += [f"{column} = '{name}'" for name, time_us in _INFINITE.items() if passes(time_us, bound_us)]
        text = " OR ".join(parts)
    if node.untimed:
        text = f"({text}) OR {column} IS NULL"
    return Scalar(sqlglot.parse_one(text, dialect="duckdb"), BOOLEAN)


class LeftSides(NamedTuple):
    """A query whose look-ups output their left rows with NULLs, or all rows that they may output; and whose windows and
    records have NULL for values that depend on the order of arrival.

    unknown: the ids of columns that depend on the rows that were looked up, or on that order. subset: whether the query
    has rows that the original one may lack.
    """

    tree: nodes.Node
    unknown: frozenset[str]
    subset: bool


def left_sides(node: nodes.Node) -> LeftSides | None:
    """The part of a query that does not depend on which rows its look-ups found; None if a look-up may find several, or
    if other nodes than Filter, Project and Union read its result.
    """
    if not any(_looks_up(n) or _numbers(n) for n in walk(node)):
        return LeftSides(node, frozenset(), subset=False)
    if _numbers(node):
        return _numbered(node)
    if isinstance(node, (nodes.TemporalJoin, nodes.AsofJoin)) and _looks_up(node):
        below = left_sides(node.left)
        waits = isinstance(node, nodes.TemporalJoin) and node.waits
        several = isinstance(node, nodes.TemporalJoin) and not _is_ordered(node.right, [k.right for k in node.keys])
        if below is None or waits or several:
            return None
        values = (*map(read, node.left.columns), *(null_of(c.type) for c in node.right.columns))
        columns = (*node.left.columns, *(replace(c, nullable=True) for c in node.right.columns))
        subset = below.subset or (node.kind == "inner" and not isinstance(node.right, nodes.Clock))
        return LeftSides(nodes.Project(below.tree, columns, values), below.unknown | node.right.ids, subset)
    if isinstance(node, (nodes.Join, nodes.Apply)) and _looks_up(node):
        if isinstance(node, nodes.Join) and node.gives_right:
            return _pairs_and_rows(node)
        if node.kind not in ("semi", "anti", "mark") or (below := left_sides(node.left)) is None:
            return None
        if not isinstance(node, nodes.Apply) or node.mark is None:
            return below._replace(subset=True)
        values = (*map(read, node.left.columns), null_of(node.mark.type))
        tree = nodes.Project(below.tree, (*node.left.columns, replace(node.mark, nullable=True)), values)
        return LeftSides(tree, below.unknown | {node.mark.id}, below.subset)
    if isinstance(node, nodes.Union):
        known = [found for p in node.parts if (found := left_sides(p)) is not None]
        if len(known) < len(node.parts):
            return None
        places = {i for p in known for i, c in enumerate(p.tree.columns) if c.id in p.unknown}
        unknown = frozenset(node.outputs[i].id for i in places)
        return LeftSides(node.over([p.tree for p in known]), unknown, any(p.subset for p in known))
    if isinstance(node, nodes.TimeFilter) and not node.stays:
        below = left_sides(node.input)
        return None if below is None else below._replace(subset=True)
    if not isinstance(node, (nodes.Filter, nodes.Project)) or (below := left_sides(node.input)) is None:
        return None
    if isinstance(node, nodes.Filter):
        parts = [p for p in conjuncts(node.predicate) if not p.columns & below.unknown]
        lost = len(parts) < len(conjuncts(node.predicate))
        return LeftSides(filtered(below.tree, parts), below.unknown, below.subset or lost)
    unknown = frozenset(c.id for c, e in zip(node.outputs, node.exprs, strict=True) if e.columns & below.unknown)
    return LeftSides(node.over([below.tree]), unknown, below.subset)


def _numbered(node: nodes.Node) -> LeftSides | None:
    """The rows of a node that `_numbers`."""
    if isinstance(node, nodes.Arrivals):
        below: LeftSides | None = LeftSides(node.scan, frozenset(), subset=False)
        unknown: tuple[Column, ...] = node.age
        values = [null_of(c.type) for c in unknown]
    elif isinstance(node, nodes.Window):
        below, values, unknown = left_sides(node.input), [null_of(c.type) for c in node.outputs], node.outputs
    else:
        assert isinstance(node, nodes.Records)
        below, unknown = left_sides(node.input), node.made[1:]
        values = [Scalar(exp.false(), BOOLEAN, nullable=False), null_of(node.made[1].type)]
    if below is None:
        return None
    added = node.columns[len(node.columns) - len(values) :]
    inner = node.columns[: len(node.columns) - len(values)]
    columns = (*inner, *(replace(c, nullable=True) for c in added))
    tree = nodes.Project(below.tree, columns, (*map(read, inner), *values))
    return LeftSides(tree, below.unknown | {c.id for c in unknown}, below.subset)


def _numbers(node: nodes.Node) -> bool:
    """Whether a node outputs each input row once, with values that depend on the order of rows."""
    if isinstance(node, nodes.Records):
        return node.key is None
    if isinstance(node, nodes.Window):
        return not (node.delays or node.gaps or node.idle_us) and any(True for _ in _of_window(node))
    return isinstance(node, nodes.Arrivals) and node.scan.append_only


def _pairs_and_rows(node: nodes.Join) -> LeftSides | None:
    """All pairs of an outer join EMIT ON ARRIVAL, and the rows that may have been output without a partner; or of a
    join that outputs these in addition.
    """
    if any(_looks_up(n) or _numbers(n) for side in node.inputs for n in walk(side)):
        return None
    parts: list[nodes.Node] = [replace(node, kind="inner", arrival=False, partners=None)]
    for side, kinds in ((node.left, ("left", "full")), (node.right, ("right", "full"))):
        if node.kind in kinds:
            values = tuple(read(c) if c.id in side.ids else null_of(c.type) for c in node.columns)
            parts.append(nodes.Project(side, node.columns, values))
    return LeftSides(nodes.Union(tuple(parts), node.columns), frozenset(), subset=True)


def _looks_up(node: nodes.Node) -> bool:
    """Whether a node determines partners when rows arrive."""
    if isinstance(node, nodes.Join) and node.partners is not None:
        return True
    return isinstance(node, nodes.TemporalJoin) or (
        isinstance(node, (nodes.AsofJoin, nodes.Join, nodes.Apply)) and node.arrival and not _has_all_pairs(node)
    )


def _of_aggregate(node: nodes.Aggregate) -> Iterator[str]:
    for call in node.calls:
        if call.function not in _AGGREGATES or call.order:
            yield f"{call.function} depends on the order of rows"
        elif call.function in ("sum", "avg") and call.argument is not None and _is_float(call.argument):
            yield f"{call.function} of floating-point numbers depends on the order of rows"


def _of_window(node: nodes.Window) -> Iterator[str]:
    if node.in_order or node.delays or node.gaps:
        yield "its windows depend on the order in which rows arrived"
        return
    for call in node.calls:
        if call.function in ("sum", "avg") and any(map(_is_float, call.arguments)):
            yield f"{call.function} of floating-point numbers depends on the order of rows"
        elif call.function not in _OF_PEERS and not _is_ordered(
            node.input, (*node.partition, *(k.value for k in call.order))
        ):
            yield f"rows may be equal in the order of {call.function}, and no key of the query orders these"


def _is_float(scalar: Scalar) -> bool:
    return scalar.type.name in ("real", "double precision")


def _is_ordered(node: nodes.Node, values: Sequence[Scalar]) -> bool:
    """Whether no two rows are equal in all of the values."""
    return is_single_row(node, frozenset(v.column for v in values if v.column is not None))
