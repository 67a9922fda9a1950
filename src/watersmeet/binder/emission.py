"""EMIT: the time at which a view outputs its rows.

RisingWave, "Emit on window close": each row is output once, when the watermark has passed its time, and never changes.
EMIT CHANGES is the default of views. EMIT ON ARRIVAL is an extension: a row affects the output only when it arrives,
and output is never revised.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sqlglot import exp

from watersmeet.algebra.nodes import (
    AsofJoin,
    Join,
    KeyedJoin,
    LateRowFilter,
    Node,
    TimeFilter,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.trees import walk, with_inputs
from watersmeet.binder.clauses.closing import once_final
from watersmeet.binder.context.binding import BoundQuery
from watersmeet.binder.context.emissions import Emission, Request, change_kind
from watersmeet.binder.dialects import rules_of
from watersmeet.binder.query import bind_query
from watersmeet.catalog import DELTA_COLUMN, Catalog, Period, Relation
from watersmeet.dialects.tree.definitions import CreateMaterializedView, CreateMergingPump
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, Span, error


def bind_view(statement: CreateMaterializedView, catalog: Catalog, dialect: str, moment: int = 0) -> BoundQuery:
    """Binds a materialized view: its query, whose rows are output as EMIT specifies.

    Raises the errors of `bind_query`, and EMIT_NOT_POSSIBLE at the clause.
    """
    rules = rules_of(dialect)
    asked, said = rules.emission(statement.query, statement.text)
    asked, sign = rules.without_sign(asked)
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
    query = bind()
    into = statement.into
    target = None if into is None else catalog.by_name(into.name, into.schema, folded=into.folded)
    if sign is not None:
        always = said is not None and said.mode == "changelog"
        query = _signed(query, node_span(sign), statement.text, target, always=always)
    if said is not None:
        return _noted(query, said, statement.text, target)
    emit = statement.emit
    if emit is None or emit.mode == "changes":
        return query
    try:
        if emit.mode != "window close":
            return _on_arrival(query)
        tree, notices = once_final(query.tree)
        return replace(query, tree=tree, notices=(*query.notices, *notices))
    except Error as err:
        err.sql, err.span = statement.text, err.span or emit.span
        raise


def request_of(query: exp.Expression, text: str, dialect: str) -> Request:
    """A query of a dialect, and its clauses about its output. Raises the errors of `DialectRules.request`."""
    return rules_of(dialect).request(query, text)


def _noted(query: BoundQuery, said: Emission, text: str, target: Relation | None) -> BoundQuery:
    """A view whose query has an EMIT clause, with a notice if the clause has no effect: a view always follows its
    inputs, and its readers choose the form of its changes.

    target: the stream that the view writes: with each new row as soon as its inputs change, or at the end of each
    period. Raises FEATURE_NOT_SUPPORTED.
    """
    if said.mode not in ("periodic", "updates", "changelog") or (target is not None and not said.length_us):
        return query
    words = {"periodic": "EMIT PERIODIC", "updates": "EMIT ON UPDATE", "changelog": "EMIT CHANGELOG"}[said.mode]
    if said.mode == "changelog" and not said.length_us:
        return query
    if target is None:
        notice = f"{words}: without effect in a view, which always shows changes of its inputs at once."
        return replace(query, notices=(*query.notices, notice))
    if said.repeats and target.primary_key:
        notice = f"{words} … REPEAT: a period without a change writes nothing, because each row replaces an equal one."
        query, said = replace(query, notices=(*query.notices, notice)), replace(said, repeats=False)
    if said.repeats or target.is_written_externally:
        what = f"{words} … REPEAT" if said.repeats else f"{words} with a period"
        where = "a stream" if said.repeats else f"{target.title}"
        raise not_supported(
            f"{what} in a materialized view INTO {where}",
            text,
            said.span,
            hint="Leave REPEAT out." if said.repeats else "Write EMIT ON UPDATE, or a stream of the database.",
        )
    windowed = any(isinstance(n, LateRowFilter) for n in walk(query.tree))
    keyed = target.takes_signs or bool(target.primary_key)  # rows that have not changed are already in the stream
    whole = said.mode == "periodic" and not windowed and not keyed and change_kind(query.tree) != "append"
    return replace(query, period=Period(said.length_us, whole))


def _signed(query: BoundQuery, span: Span | None, text: str, target: Relation | None, *, always: bool) -> BoundQuery:
    """A view whose select list has the sign of its rows, which the target reads. always: whether a query has the column
    even if it never deletes a row. Raises UNDEFINED_COLUMN.
    """
    if not always:
        check_delta(query.tree, span, text)
    if target is None:
        notice = f"{DELTA_COLUMN}: not a column of the view; a query that follows the view has it."
        return replace(query, notices=(*query.notices, notice))
    if not target.takes_signs:
        raise error(
            "UNDEFINED_COLUMN",
            f'{target.title} has no column "{DELTA_COLUMN}"',
            sql=text,
            span=span,
            hint="Leave the column out, or write a stream of mode changelog or changelog_kv.",
        )
    return replace(query, signs=True)


def check_delta(tree: Node, span: Span | None, text: str) -> None:
    """Raises UNDEFINED_COLUMN for `_tp_delta` of a query that never deletes a row."""
    if change_kind(tree) == "append":
        raise error(
            "UNDEFINED_COLUMN",
            f'column "{DELTA_COLUMN}" does not exist',
            sql=text,
            span=span,
            detail="The query never deletes a row.",
            hint=f"EMIT CHANGELOG adds it. A stream's own column is read by {DELTA_COLUMN} + 0 AS {DELTA_COLUMN}.",
        )


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
        check_delta(tree, computed.span, text)


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
