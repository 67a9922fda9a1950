"""EMIT: the time at which a view outputs its rows.

RisingWave, "Emit on window close": each row is output once, when the watermark has passed its time, and never changes.
EMIT CHANGES is the default of views. EMIT ON ARRIVAL is an extension: a row affects the output only when it arrives,
and output is never revised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    AsofJoin,
    Binary,
    Column,
    Filter,
    Join,
    KeyedJoin,
    LateRowFilter,
    Node,
    Project,
    Scan,
    TimeFilter,
    Union,
    Unnest,
    Window,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import read, walk, with_inputs
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.context.binding import BoundQuery
from watersmeet.binder.context.emissions import Closing, Emission, Request, change_kind
from watersmeet.binder.dialects import rules_of
from watersmeet.binder.query import bind_query
from watersmeet.catalog import DELTA_COLUMN, Catalog, Relation
from watersmeet.dialects.tree.definitions import CreateMaterializedView, CreateMergingPump
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, error
from watersmeet.values.watermarks import NOW, Watermark, delayed

_NONE = frozenset[str]()

#: Sets of column ids; a row without a partner has NULL in all columns of one set.
Paddings = frozenset[frozenset[str]]


def paddings(node: Node) -> Paddings:
    """The sets of columns of `node` that are NULL together in rows without a partner.

    Only the largest sets are needed: a column that is NULL without one partner is also NULL if more are missing.

        Join full, a, b           ->  {columns of a}, {columns of b}
        Join left, a, b           ->  {columns of b}
    """
    if isinstance(node, Project):
        return _greatest(_made(node.outputs, node.exprs, p) for p in paddings(node.input))
    if isinstance(node, Aggregate):
        return _greatest(_made(node.outputs[: len(node.keys)], node.keys, p) for p in paddings(node.input))
    if isinstance(node, Union):
        return _greatest(
            frozenset(o.id for c, o in zip(part.columns, node.outputs, strict=True) if c.id in p)
            for part in node.parts
            for p in paddings(part)
        )
    if isinstance(node, Unnest) and node.outer:
        made = frozenset(c.id for c in node.elements)
        return _greatest(p | made for p in paddings(node.input))
    if isinstance(node, Binary) and node.gives_right:
        return _joined(node)
    return paddings(node.inputs[0]) if node.inputs else frozenset([_NONE])


def _joined(node: Binary) -> Paddings:
    left, right = paddings(node.left), paddings(node.right)
    found = [] if node.keeps_right else [p | node.right.ids for p in left]
    if not node.keeps_left:
        found += [p | node.left.ids for p in right]
    return _greatest(found or [a | b for a in left for b in right])


def _made(outputs: Iterable[Column], exprs: Iterable[Scalar], padding: frozenset[str]) -> frozenset[str]:
    """The outputs that read only columns of `padding`, and so are NULL with them."""
    return frozenset(c.id for c, e in zip(outputs, exprs, strict=True) if e.columns and e.columns <= padding)


def _greatest(found: Iterable[frozenset[str]]) -> Paddings:
    distinct = set(found)
    return frozenset(p for p in distinct if not any(p < q for q in distinct))


def bind_view(statement: CreateMaterializedView, catalog: Catalog, dialect: str, moment: int = 0) -> BoundQuery:
    """Binds a materialized view: its query, whose rows are output as EMIT specifies.

    Raises the errors of `bind_query`, and EMIT_NOT_POSSIBLE at the clause.
    """
    asked, said = rules_of(dialect).emission(statement.query, statement.text)
    bind = partial(
        bind_query,
        asked,
        catalog,
        statement.text,
        dialect,
        column_names=statement.column_names,
        moment=moment,
        arriving=isinstance(statement, CreateMergingPump),
    )
    if said is not None:
        query = as_emitted(lambda closing: bind(closing=closing), said, statement.text)
        into = statement.into
        target = None if into is None else catalog.by_name(into.name, into.schema, folded=into.folded)
        return _noted(query, said, statement.text, target)
    query = bind()
    emit = statement.emit
    if emit is None or emit.mode == "changes":
        return query
    try:
        return on_window_close(query) if emit.mode == "window close" else _on_arrival(query)
    except Error as err:
        err.sql, err.span = statement.text, err.span or emit.span
        raise


def request_of(query: exp.Expression, text: str, dialect: str) -> Request:
    """A query of a dialect, and its clauses about its output. Raises the errors of `DialectRules.request`."""
    return rules_of(dialect).request(query, text)


def _noted(query: BoundQuery, said: Emission, text: str, target: Relation | None) -> BoundQuery:
    """A view whose query has an EMIT clause, with a notice if the clause has no effect: a view always follows its
    inputs, and its readers choose the form of its changes.

    target: the stream that the view writes, with each new row as soon as its inputs change. Raises
    FEATURE_NOT_SUPPORTED for periods if the stream keeps all of these rows.
    """
    if said.mode not in ("periodic", "updates", "changelog") or (target is not None and not said.length_us):
        return query
    words = {"periodic": "EMIT PERIODIC", "updates": "EMIT ON UPDATE", "changelog": "EMIT CHANGELOG"}[said.mode]
    if said.mode == "changelog" and not said.length_us:
        return query
    if target is not None and not target.primary_key:
        raise not_supported(
            f"{words} with a period in a materialized view INTO a stream without a key",
            text,
            said.span,
            detail="A view writes its rows as soon as its inputs change, and such a stream keeps all of them.",
            hint="Write EMIT ON UPDATE, or write INTO a stream with a primary key.",
        )
    notice = f"{words}: without effect in a view, which always shows changes of its inputs at once."
    return replace(query, notices=(*query.notices, notice))


def check_request(request: Request, tree: Node, text: str) -> None:
    """Rejects EMIT CHANGELOG and `_tp_delta` where a query that never deletes a row can't have them.

    Raises UNDEFINED_COLUMN, FEATURE_NOT_SUPPORTED.
    """
    if change_kind(tree) != "append":
        return
    if request.emission.mode == "changelog" and any(isinstance(n, KeyedJoin) for n in walk(tree)):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "Not implemented for emit changelog from non-changelog join results",
            sql=text,
            span=request.emission.span,
            hint="The join never deletes rows: leave EMIT CHANGELOG out.",
        )
    computed = next((c for c in request.computed if c.kind == "delta"), None)
    if computed is not None and request.emission.mode != "changelog":
        raise error(
            "UNDEFINED_COLUMN",
            f'column "{DELTA_COLUMN}" does not exist',
            sql=text,
            span=computed.span,
            detail="The query never deletes a row.",
            hint="With EMIT CHANGELOG every query has the column.",
        )


def as_emitted(bind: Callable[[Closing | None], BoundQuery], said: Emission, text: str) -> BoundQuery:
    """The query that `bind` returns. If `said` requires it, rows are only output once they are final.

    bind: its argument is the end of windows; None if they accept all rows. An impossible default has no effect. Raises
    EMIT_NOT_POSSIBLE at the clause.
    """
    if said.mode != "window close":
        return bind(said.closing)
    closing = said.closing or Closing()
    query = bind(closing)
    if closing.idle_us is not None and not any(map(_closes_if_idle, walk(query.tree))):
        query = replace(query, notices=(*query.notices, _NOT_IDLE))
    if query.closed:  # its windows close by themselves
        return query
    try:
        return on_window_close(query, 0 if query.delayed else closing.delay_us)
    except Error as err:
        if said.is_default:
            return bind(None)
        err.sql, err.span = text, err.span or said.span
        raise


def _closes_if_idle(node: Node) -> bool:
    return (isinstance(node, LateRowFilter) and node.idle is not None) or (
        isinstance(node, Window) and node.idle_us > 0
    )


_NOT_IDLE: Final = "TIMEOUT: without effect: the time of the windows has a watermark, or a view writes its stream."


def on_window_close(query: BoundQuery, delay_us: int = 0) -> BoundQuery:
    """The query that outputs each row once the watermark minus the delay has passed the row's time.

    The time of a row is its first column with a watermark.
    """
    tree: Node
    groups = _groups(query.tree)
    if groups is not None:
        _check_groups(groups)
    rewritten = rewrite(query.tree)
    shown = watermarks(rewritten)
    timed = [c for c in query.tree.columns if c.id in shown]
    if timed and {t.source for t in shown[timed[0].id]} == {NOW}:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "EMIT ON WINDOW CLOSE is not possible: rows go as time passes, before they are final",
            detail=f'The comparison with now() bounds the column "{timed[0].name}".',
            hint="Make a view without that condition, and another one over it that compares with now().",
        )
    notices = query.notices
    if any(not _related(shown[timed[0].id], shown[c.id]) for c in timed):
        notices += (
            f"There are multiple unrelated watermark columns in the query, the first one `{timed[0].name}` is used.",
        )
    if timed:
        tree = _once_past(query.tree, timed, rewritten, delay_us)
    elif groups is not None:  # the output lacks the time of the groups
        tree = _below(query.tree, groups, delay_us)
    else:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "The query cannot be executed in Emit-On-Window-Close mode.",
            hint="Try define a watermark column in the source, or avoid aggregation without GROUP BY",
            detail="None of the output columns has a watermark." + _read_times(query.tree),
        )
    return replace(query, tree=tree, notices=notices)


def _read_times(tree: Node) -> str:
    """A sentence about the watermarks that the query reads but does not output; empty if there are none."""
    times = {
        f'"{s.relation_name}.{c.name}"': None
        for s in walk(tree)
        if isinstance(s, Scan)
        for c in s.outputs
        if c.id in dict(s.watermarks)
    }
    if not times:
        return ""
    read_too = "has one, but is" if len(times) == 1 else "have one, but are"
    return (
        f" {' and '.join(times)} {read_too} not selected, or may still change: a join keeps the watermarks "
        f"of its sides "
        "only where its conditions bound their times by each other."
    )


def _once_past(tree: Node, timed: Sequence[Column], rewritten: Node, delay_us: int) -> Node:
    """The rows of `tree`, output once the first of the columns `timed` is below its watermark. rewritten: the rewritten
    form of `tree`.

    If that column may be NULL because of an outer join, the first column without such NULLs counts. If all columns may
    (FULL JOIN), the first one that is not NULL counts, so that a row without a partner also has a time. Raises
    EMIT_NOT_POSSIBLE if all columns may be NULL in a row without a partner, because that row would never be output.
    """
    shown, padded = watermarks(rewritten), paddings(rewritten)
    ids = {c.id for c in timed}
    if any(ids <= p for p in padded):
        raise _without_time(tree, timed)
    whole = [c for c in timed if not any(c.id in p for p in padded)]
    if whole or len(timed) == 1:
        time = (whole or timed)[0]
        return TimeFilter(tree, time.id, "<", delayed(shown[time.id], delay_us), final=True)
    first, *others = timed
    cast = [
        exp.cast(column_ref(c.id), first.type.duckdb, dialect="duckdb") if c.type != first.type else column_ref(c.id)
        for c in others
    ]
    value = Scalar(exp.Coalesce(this=column_ref(first.id), expressions=cast), first.type)
    time = Column("$time", "time", first.type)
    with_time = Project(tree, (*tree.columns, time), (*(read(c) for c in tree.columns), value))
    past = TimeFilter(with_time, time.id, "<", delayed(of_scalar(value, shown), delay_us), final=True)
    return Project(past, tree.columns, tuple(read(c) for c in tree.columns))


def _without_time(tree: Node, timed: Sequence[Column]) -> Error:
    """The error for a query whose rows without a partner have no time. Its hint names columns to use."""
    word, node = "Select", tree
    while isinstance(node, (Aggregate, Filter, Project)):
        word = "GROUP BY" if isinstance(node, Aggregate) else word
        node = node.input
    rewritten = rewrite(node)
    shown = watermarks(rewritten)
    whole = [next((c.id for c in node.columns if c.id in shown and c.id not in p), None) for p in paddings(rewritten)]
    names = [f'"{c.name}" of "{_origin(node, c.id)}"' for c in node.columns if c.id in whole]
    columns = f"column {_listed(timed)} is" if len(timed) == 1 else f"columns {_listed(timed)} are"
    return error(
        "EMIT_NOT_POSSIBLE",
        "EMIT ON WINDOW CLOSE is not possible: rows without a partner have no time",
        detail=f"In rows to which an outer join adds NULLs the {columns} NULL, so these rows would never be output.",
        hint="Write JOIN: only rows with partners have a time here."
        if None in whole
        else f"{word} {' and '.join(names)}, too.",
    )


def _listed(columns: Sequence[Column]) -> str:
    return " and ".join(f'"{c.name}"' for c in columns)


def _origin(node: Node, column: str) -> str:
    """The name of the relation from which a column of `node` is read, or the name of the column."""
    while node.inputs:
        if isinstance(node, Project):
            made = next((e for c, e in zip(node.outputs, node.exprs, strict=True) if c.id == column), None)
            column = column if made is None else min(made.columns, default=column)
        node = next((i for i in node.inputs if column in i.ids), node.inputs[0])
    return node.relation_name if isinstance(node, Scan) else column


def _on_arrival(query: BoundQuery) -> BoundQuery:
    """The query with the results of every join fixed when rows arrive. No part of it may revise a row."""
    tree = _on_arrival_below(unnest(query.tree))
    why = revision(tree) or revision(rewrite(tree))  # only the rewriter turns comparisons with the clock into nodes
    if why is not None:
        raise error(
            "EMIT_NOT_POSSIBLE",
            f"EMIT ON ARRIVAL is not possible: {why}",
            detail="Rows that are output on arrival are never revised.",
            hint="Make one view of the joins with EMIT ON ARRIVAL and another one over it, which follows it.",
        )
    return replace(query, tree=tree)


def _on_arrival_below(node: Node) -> Node:
    """The tree with the results of its joins fixed on arrival, except for joins whose rows are final once the clock
    outputs them.
    """
    if isinstance(node, TimeFilter) and node.final:
        return node
    return _decided(with_inputs(node, [_on_arrival_below(i) for i in node.inputs]))


def _decided(node: Node) -> Node:
    """A join that determines on arrival which rows have no partner. An inner join stays unchanged: its pairs are never
    deleted.
    """
    if not isinstance(node, (AsofJoin, Join)):
        return node
    if isinstance(node, AsofJoin) or node.kind != "inner":
        node = replace(node, arrival=True)
    for side in node.grows_with or ():
        why = revision(side)
        if why is not None:
            raise error(
                "EMIT_NOT_POSSIBLE",
                f"a join can't be decided on arrival: {why}",
                span=node.span,
                detail=("EMIT ON ARRIVAL needs append-only inputs: sources, APPEND ONLY tables, and views over them."),
                hint="Use EMIT CHANGES, or FOR SYSTEM_TIME AS OF PROCTIME() for a table that is only looked up.",
            )
    return node


def _groups(node: Node) -> Aggregate | None:
    """The aggregate whose groups are the rows of `node`."""
    while isinstance(node, (Project, Filter)):
        node = node.input
    return node if isinstance(node, Aggregate) else None


def _check_groups(groups: Aggregate) -> None:
    if not groups.keys:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "The query cannot be executed in Emit-On-Window-Close mode.",
            hint="Try define a watermark column in the source, or avoid aggregation without GROUP BY",
            detail="An aggregate without GROUP BY is never final.",
        )
    marks = watermarks(rewrite(groups))
    timed = _timed(groups.outputs[: len(groups.keys)], marks)
    if not timed:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "Emit-On-Window-Close mode requires a watermark column in GROUP BY.",
            hint="Please try to GROUP BY a watermark column",
        )
    if any(not _related(marks[timed[0].id], marks[c.id]) for c in timed):
        raise error(
            "EMIT_NOT_POSSIBLE",
            "Emit-On-Window-Close mode requires that watermark columns in GROUP BY are derived from "
            "the same upstream column.",
            hint="Please try to remove undesired columns from GROUP BY",
        )


def _below(node: Node, groups: Aggregate, delay_us: int) -> Node:
    """`node` over only those of its `groups` that are final."""
    if node is groups:
        rewritten = rewrite(groups)
        return _once_past(groups, _timed(groups.outputs, watermarks(rewritten)), rewritten, delay_us)
    return with_inputs(node, [_below(i, groups, delay_us) for i in node.inputs])


def _timed(columns: Sequence[Column], marks: Mapping[str, Watermark]) -> list[Column]:
    return [c for c in columns if c.id in marks]


def _related(one: Watermark, other: Watermark) -> bool:
    """True if two watermarks are derived from the same sources."""
    return {t.source for t in one} == {t.source for t in other}
