"""The ROWTIME of a SELECT over a stream: expressions that become it, and rows sorted by time.

s-Server, "ROWTIME", "Late Rows", "T-sorting Stream Input".

**Promotion.** `SELECT STREAM expression AS ROWTIME, …`, or a pump that inserts into ROWTIME, makes the expression the
time of the rows. The rowtimes of a stream never decrease, so in the order of arrival a row is dropped and counted if
its time is NULL or below the greatest time of the earlier rows that pass WHERE.

**Sorting.** `ORDER BY expression WITHIN INTERVAL …` of the same expression accepts rows that are late by at most the
interval: only rows further below the greatest time are dropped. A row is output when no accepted row can be earlier,
which is when the greatest time has reached its own plus the interval. The output is in the order of ROWTIME. Rows that
already arrive in this order (those of streams, joins, groups, UNION ALL) are only delayed.

The greatest time is read where the rows enter: a clock of the expression over the columns of the source, which is NULL
for rows that a condition drops. Expressions over joins, groups and windows have no such clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Cut, Filter, LateRowFilter, Node, Project, Scan, TimeFilter
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.timewindows import duration_us, mentions_time
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.ordering import ordered_items
from watersmeet.binder.clauses.timewindows import arrivals
from watersmeet.binder.context.binding import Environment, Item, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.tree.nodes import text_of
from watersmeet.dialects.tree.queries import node_error
from watersmeet.errors import Error
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import TIMESTAMP, Field
from watersmeet.values.watermarks import Term, shifted

#: The notice about items of ORDER BY after the time.
TIES: Final = "rows of a stream with equal ROWTIMEs are in no order; further items of ORDER BY have no effect"

#: The column of a computed ROWTIME, which no text can name.
_COMPUTED: Final = "$rowtime"


def is_rowtime(node: exp.Expression) -> bool:
    """Whether the expression is the unqualified ROWTIME, that of the rows that a SELECT outputs."""
    return isinstance(node, exp.Column) and node.name.upper() == ROWTIME and node.args.get("table") is None


def check_sorting(node: exp.Select, scope: Scope, env: Environment) -> None:
    """Raises FEATURE_NOT_SUPPORTED for ORDER BY … WITHIN in a SELECT that does something else with several rows."""
    sort = _sorting(node)
    if sort is None:
        return
    ctx = ScopeContext(env.text, scope, "SELECT")
    own = next((node.args[part] for part in ("group", "having", "distinct") if node.args.get(part)), None)
    own = own or next((e for e in node.expressions if e.find(exp.Window) or has_aggregate(e, ctx)), None)
    if own is not None:
        raise env.not_supported(
            "ORDER BY … WITHIN beside groups or window functions",
            own,
            hint="Sort in a subquery: … FROM (SELECT STREAM … ORDER BY … WITHIN …) AS s.",
        )
    if sort.args.get("desc"):
        raise env.not_supported("DESC with WITHIN", sort, detail="A stream is in ascending order of ROWTIME.")


def _sorting(node: exp.Select) -> Any:
    """The item of ORDER BY with WITHIN, or None."""
    return next((o for o in ordered_items(node) if o.args.get("within") is not None), None)


def with_own_rowtime(
    node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
) -> tuple[exp.Select, Node, Scope]:
    """A SELECT over a stream whose rowtime never decreases: its input without late rows, sorted if it has ORDER BY …
    WITHIN. The item that computes the rowtime reads it from the input.

    Raises DATATYPE_MISMATCH for ORDER BY … WITHIN of another expression than the rowtime. An item named ROWTIME that
    can't be one stays as it is; see `with_rowtime`.
    """
    assert scope.stream is not None
    ctx = ScopeContext(env.text, scope, "SELECT")
    place = next((i for i, e in enumerate(node.expressions) if _is_named(e)), None)
    sort = _sorting(node)
    if place is None and sort is None:
        return node, relation, scope
    item = None if place is None else node.expressions[place]
    if item is not None and not _may_be_promoted(item.this, node, ctx):
        return node, relation, scope
    time = scope.stream.rowtime.value.finish() if item is None else bind_value(item.this, ctx).finish()
    within_us = None if sort is None else _sorted_within_us(sort, time, ctx)
    mark = of_scalar(time, watermarks(relation))
    if mark and sort is None:
        return node, relation, scope
    late = (
        None
        if mark and _is_in_order(relation, time, binding)
        else _without_late_rows(relation, time, within_us or 0, binding)
    )
    if late is None and (not mark or time.type != TIMESTAMP):
        if sort is not None and item is not None:
            raise _must_rise(env.text, item)
        return node, relation, scope
    if late is not None:
        relation, column = late
        bound = late[0].bound
    else:
        relation, column = _with_column(relation, time, binding)
        bound = shifted(mark, -(within_us or 0))
    if sort is not None:
        if len(ordered_items(node)) > 1:
            binding.notice(TIES)
        relation = TimeFilter(relation, column.id, "<=", bound, final=True)
    made: exp.Select = node.copy()
    if sort is not None:
        made.set("order", None)
    if place is not None and time.column is None:
        made.expressions[place].set("this", exp.column(exp.to_identifier(_COMPUTED, quoted=True)))
        computed = ScopeColumn(_COMPUTED, value_of(column), unlisted=True)
        scope = replace(scope, visible=(*scope.visible, computed))
    return made, relation, scope


def _is_named(node: exp.Expression) -> bool:
    return isinstance(node, exp.Alias) and node.alias.upper() == ROWTIME


def _may_be_promoted(time: exp.Expression, node: exp.Select, ctx: ScopeContext) -> bool:
    """Whether an expression of the select list is computed from single rows of the input. Of a grouped query, only
    columns are.
    """
    if isinstance(time, exp.Column):
        return True
    return not (node.args.get("group") or node.args.get("distinct") or time.find(exp.Window, exp.Query)) and not any(
        has_aggregate(e, ctx) for e in node.expressions
    )


def _sorted_within_us(sort: exp.Expression, time: Scalar, ctx: ScopeContext) -> int:
    """The interval of ORDER BY … WITHIN. time: the ROWTIME of the query."""
    found = duration_us(bind_value(sort.args["within"], ctx).finish().expression)
    if found is None or found < 0:
        raise ctx.error("DATATYPE_MISMATCH", "WITHIN takes a constant interval of days or less", sort.args["within"])
    if not is_rowtime(sort.this) and bind_value(sort.this, ctx).finish() != time:
        raise ctx.error(
            "DATATYPE_MISMATCH",
            "ORDER BY … WITHIN sorts by the ROWTIME of its query",
            sort.this,
            hint=f"Write SELECT STREAM {text_of(sort.this)} AS ROWTIME, ….",
        )
    for further in ordered_items(sort.parent.parent)[1:] if sort.parent is not None else ():
        bind_value(further.this, ctx)
    return found


def _is_in_order(relation: Node, time: Scalar, binding: Binding) -> bool:
    """Whether the rows of a relation, whose `time` has a watermark, arrive in the order of their times."""
    found = _at_source(relation, time)
    event_time = None if found is None else binding.catalog.relations[found[0].relation_id].event_time
    return event_time is None or event_time.ordered


def _without_late_rows(
    node: Node, time: Scalar, within_us: int, binding: Binding
) -> tuple[LateRowFilter, Column] | None:
    """The rows of `node` without those that are late by more than `within_us`, and the column with their time; None
    if the order of the rows or their clock is unknown.
    """
    found, known = _at_source(node, time), arrivals(node, binding)
    if found is None or known is None or time.type != TIMESTAMP:
        return None
    scan, value = found
    relation = binding.catalog.relations[scan.relation_id]
    if not relation.append_only or relation.is_fed_by_circuit:
        return None
    fields = {c.id: Field(n, c.type, c.nullable) for c, n in zip(scan.outputs, scan.source_names, strict=True)}
    used = [] if value.column is not None else sorted(value.columns)
    reads = tuple(fields[i] for i in used)
    if value.column is not None:
        clock = name = fields[value.column].name
    else:
        name = value.substitute({i: column_ref(f"c{n}") for n, i in enumerate(used)}).sql()
        clock = blake2b(f"{name} {[field.name for field in reads]}".encode(), digest_size=8).hexdigest()
    clock = f"{relation.id}.{clock}@{binding.moment}"
    rows, age = known
    rows, column = _with_column(rows, time, binding)
    bound = shifted((Term(clock),), -within_us)
    ids = tuple(c.id for c in age)
    return LateRowFilter(rows, column.id, bound, relation.id, name, clock, age=ids, clock_reads=reads), column


def _with_column(relation: Node, time: Scalar, binding: Binding) -> tuple[Node, Column]:
    """The relation with a column that is the given time, and that column."""
    found = next((c for c in relation.columns if c.id == time.column), None)
    if found is not None:
        return relation, found
    made = binding.new_column("_rowtime", TIMESTAMP, time.nullable)
    return Project(relation, (*relation.columns, made), (*map(read, relation.columns), time)), made


def _at_source(node: Node, value: Scalar) -> tuple[Scan, Scalar] | None:
    """The scan of which `node` has single rows, and the value over the scan's columns, NULL for rows that a condition
    drops; None for other nodes, and for conditions about the time of the epoch.
    """
    while not isinstance(node, Scan):
        if isinstance(node, Project):
            value = value.substitute({c.id: e.expression for c, e in zip(node.outputs, node.exprs, strict=True)})
        elif isinstance(node, Filter) and not mentions_time(node.predicate):
            passed = exp.Case(ifs=[exp.If(this=node.predicate.expression.copy(), true=value.expression)])
            value = Scalar(passed, value.type)
        elif not isinstance(node, Cut):
            return None
        node = node.inputs[0]
    return node, value


def with_rowtime(
    items: Sequence[Item], relation: Node, scope: Scope, text: str, *, fronted: bool
) -> tuple[list[Item], bool]:
    """The select list of a query over streams with its rowtime, and whether the rowtime was added in front.

    fronted: whether it is always added.

    An item named ROWTIME is the rowtime if it increases with the stream's (`FLOOR(s.ROWTIME TO HOUR) AS ROWTIME`).
    """
    assert scope.stream is not None
    marks = watermarks(relation)
    value = scope.stream.rowtime.value
    for own, name, node in items:
        if name is None or name.upper() != ROWTIME:
            continue
        if of_scalar(own.finish(), marks):
            if not fronted:
                return list(items), False
            value = own
            break
        if isinstance(node, exp.Alias):
            raise _must_rise(text, node)
    return [(value, ROWTIME, exp.Column(this=exp.to_identifier(ROWTIME, quoted=True))), *items], True


def _must_rise(text: str, node: exp.Expression) -> Error:
    return node_error(
        text,
        node,
        "DATATYPE_MISMATCH",
        "a ROWTIME must rise",
        detail="Later rows may have lower values in this column.",
        hint="Use a TIMESTAMP computed from the columns of a stream, or the rowtime of the query, also rounded down by "
        "FLOOR(… TO HOUR). Write results of joins, groups and windows into a column of a stream first, by a pump.",
    )
