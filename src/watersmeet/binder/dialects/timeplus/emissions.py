"""Timeplus' clauses about a query's output: EMIT, the id of a query, `_tp_delta` and `emit_version()`.

They have Proton's syntax. Timeplus, "Streaming aggregations", "EMIT".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal, cast

from sqlglot import exp

from watersmeet.algebra.nodes import LateRowFilter, Node, Window
from watersmeet.algebra.trees import walk
from watersmeet.binder.clauses.timewindows import NAMES, window_call
from watersmeet.binder.context.binding import Bound, Environment, Fill
from watersmeet.binder.context.emissions import Closing, ComputedColumn, Emission, EmitMode
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.dialects.timeplus.substreams import with_numbered_rows
from watersmeet.catalog import DELTA_COLUMN, View
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.dialects.timeplus.nodes import Divided, EmitClause, StreamSelect
from watersmeet.dialects.tree.nodes import retyped
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context
from watersmeet.values.spans import set_span

#: The setting with the id of a running query.
_QUERY_ID: Final = "query_id"

_VERSION: Final = "emit_version"

#: A call of emit_version() in the form of the grammar.
_CALLED: Final = "$emit_version"


def with_emit(query: exp.Expression) -> tuple[exp.Expression, Emission | None]:
    """The query with its EMIT clause as a part of the SELECT whose windows it closes, and the output that it sets.

    A query without the clause that only filters or computes the rows of another one has the clause of that query.
    """
    clause: EmitClause | None = query.args.get("emit")
    if clause is not None and clause.mode in ("key expire", "per event"):  # part of the binding of its SELECT
        return query, None
    query = query.copy()
    ended = _closing_select(query, {})
    if clause is None:
        clause = None if ended is None else ended.args.get("emit")
        if clause is None or clause.mode in ("key expire", "per event"):
            return query, None
    else:
        query.set("emit", None)
    if isinstance(query, exp.SetOperation):
        arms = list(_arms(query)) if clause.mode in _FINAL else []
        places = [n for n in arms if groups_by_window(n, {})] or arms
    else:
        places = [] if ended is None else [ended]
    for place in places:
        query = _with_clause(query, place, clause)
    mode = cast("EmitMode", "stream" if clause.mode in _FINAL else clause.mode)
    repeats = bool(clause.args.get("repeat"))
    return query, Emission(mode, clause.length("length_us") or 0, node_span(clause), repeats=repeats)


#: The modes of clauses that change the output of windows only.
_FINAL: Final = ("stream", "window close")


def _arms(query: exp.Expression) -> Iterator[exp.Select]:
    """The SELECTs of a set operation."""
    if isinstance(query, exp.Select):
        yield query
    elif isinstance(query, (exp.Subquery, exp.Paren)):
        yield from _arms(query.this)
    elif isinstance(query, exp.SetOperation):
        yield from _arms(query.this)
        yield from _arms(query.expression)


def _with_clause(query: exp.Expression, node: exp.Select, clause: EmitClause) -> exp.Expression:
    """The query with the clause of the whole query in one of its SELECTs, unless that has its own."""
    own = node.args.get("emit")
    if own is not None and own is not clause:
        return query
    whole = clause.copy()
    whole.set("whole", value=True)
    set_span(whole, node_span(clause))
    made = retyped(node, StreamSelect, emit=whole)
    return made if node is query else query


def _closing_select(query: exp.Expression, ctes: Mapping[str, exp.Expression]) -> exp.Select | None:
    """The SELECT to which the EMIT clause of a query applies: itself, or the one whose rows it only filters or
    computes, if that is grouped by windows or has a clause.
    """
    if not isinstance(query, exp.Select):
        return None
    ctes = dict(ctes) | {c.alias: c.this for c in query.ctes}
    if query.args.get("group") is None and not any(_aggregates(e) for e in query.expressions):
        inner = _only_query(query, ctes)
        found = None if inner is None else _closing_select(inner, ctes)
        if found is not None and (found.args.get("emit") is not None or groups_by_window(found, ctes)):
            return found
    return query


def _aggregates(item: exp.Expression) -> bool:
    return has_aggregate(item, Context("", "EMIT"))


def groups_by_window(query: exp.Select, ctes: Mapping[str, exp.Expression]) -> bool:
    """Whether a SELECT is grouped by `window_start` or `window_end` of a stream, or of a query in FROM."""
    group = query.args.get("group")
    if group is None:
        return False
    chosen = {i.alias: i.unalias() for i in query.expressions if i.alias}
    keys = [chosen.get(k.name, k) if isinstance(k, exp.Column) else k for k in group.expressions]
    keys = [query.expressions[int(k.name) - 1].unalias() if _is_place(k, query) else k for k in keys]
    if not any(isinstance(k, exp.Column) and k.name in NAMES for k in keys):
        return False
    items = [i.this for i in [query.args.get("from_"), *query.args.get("joins", ())] if i is not None]
    return any(_has_windows(i, ctes) for i in items)


def _has_windows(item: exp.Expression, ctes: Mapping[str, exp.Expression]) -> bool:
    """Whether an item of FROM is a time window of a stream, or a query, which may have the columns of one."""
    if item.args.get("static"):
        return False
    called = is_session(item) or (isinstance(item, exp.Table) and window_call(item) is not None)
    return called or isinstance(item, exp.Subquery) or (isinstance(item, exp.Table) and item.name in ctes)


def _only_query(query: exp.Select, ctes: dict[str, exp.Expression]) -> exp.Expression | None:
    """The query in FROM or WITH that is the only relation that a SELECT reads; `ctes` loses it."""
    clause = query.args.get("from_")
    if clause is None or query.args.get("joins"):
        return None
    only = clause.this
    inner = ctes.pop(only.name, None) if isinstance(only, exp.Table) else only
    return None if inner is None else inner.unnest()


def closing_of(node: exp.Select, env: Environment, binding: Binding) -> tuple[Closing | None, bool]:
    """The end of the windows of a SELECT, and whether it is only the default, which has no effect where it is
    impossible.

    Timeplus, "Streaming aggregations", "EMIT": groups by a window of a stream are output after the window closes,
    unless the clause says PERIODIC, ON UPDATE or CHANGELOG. Raises FEATURE_NOT_SUPPORTED.
    """
    clause = node.args.get("emit")
    mode = "stream" if clause is None else clause.mode
    windowed = groups_by_window(node, {n: c.query for n, c in env.ctes.items()} | _views(node, env, binding))
    delay_us, idle_us = (None if clause is None else clause.length(n) for n in ("delay_us", "timeout_us"))
    if delay_us is not None and not windowed and mode != "window close":
        raise env.not_supported(
            "WITH DELAY in a query without time windows",
            clause,
            hint="Group by window_start of tumble(…), hop(…), or leave the delay out.",
        )
    if mode == "window close" or (windowed and mode == "stream"):
        return Closing(delay_us or 0, idle_us), mode == "stream" and delay_us is None
    divided = isinstance(node, StreamSelect) and bool(node.listed("partition_by"))
    if windowed and mode in ("periodic", "updates") and not divided:
        return Closing(delay_us or 0, idle_us, final=False), False
    plain = node.args.get("group") is None and not any(map(_aggregates, node.expressions))
    around = binding.closing if plain else None
    return None if around is None else replace(around, final=False), False


def _views(node: exp.Select, env: Environment, binding: Binding) -> dict[str, exp.Expression]:
    """The views that a SELECT reads by name."""
    items = [i.this for i in [node.args.get("from_"), *node.args.get("joins", ())] if i is not None]
    tables = [i for i in items if isinstance(i, exp.Table) and isinstance(i.this, exp.Identifier)]
    tables = [t for t in tables if t.name not in env.ctes]
    return {t.name: t for t in tables if isinstance(relation_in_from(t, binding.catalog), View)}


def emitted(
    node: exp.Select, env: Environment, binding: Binding, plain: Callable[[exp.Select, Binding], Bound]
) -> Bound:
    """Binds a SELECT of any depth, with its own end of windows. Raises EMIT_NOT_POSSIBLE at its clause."""
    node = with_numbered_rows(node, env, ends=False)
    clause = node.args.get("emit")
    if clause is not None and not isinstance(node, StreamSelect):
        node = retyped(node.copy(), StreamSelect)
    ended, is_default = closing_of(node, env, binding)
    collected, fills = binding.collected, list[Fill]()
    around, own = collected.delayed, ended is None or ended.final
    if own:
        collected.delayed = False
    try:
        bound = plain(node, replace(binding, closing=ended, fills=fills))
    except Error as err:
        if err.condition != "EMIT_NOT_POSSIBLE" or ended is None:
            raise
        if not is_default:
            err.sql, err.span = env.text, err.span or node_span(clause)
            raise
        fills.clear()
        bound = plain(node, replace(binding, closing=None, fills=fills))
    finally:
        collected.delayed = around if own else collected.delayed
    binding.fills.extend(fills)
    if (
        ended is not None
        and ended.idle_us is not None
        and clause
        and not any(map(_closes_if_idle, walk(bound.relation)))
    ):
        binding.notice(_NOT_IDLE)
    return bound


def _closes_if_idle(node: Node) -> bool:
    return (isinstance(node, LateRowFilter) and node.idle is not None) or (
        isinstance(node, Window) and node.idle_us > 0
    )


_NOT_IDLE: Final = "TIMEOUT: without effect: the time of the windows has a watermark, or a view writes its stream."


def is_session(node: exp.Expression) -> bool:
    """Whether an item of FROM is a call of session()."""
    divides = node.args.get("divides")
    return isinstance(divides, Divided) and divides.name == "session"


def _is_place(key: exp.Expression, query: exp.Select) -> bool:
    """Whether a key of GROUP BY is the number of an item of the select list."""
    return isinstance(key, exp.Literal) and key.name.isdecimal() and 1 <= int(key.name) <= len(query.expressions)


def with_id(query: exp.Expression) -> tuple[exp.Expression, str | None]:
    """The query without the setting for its id, and the id."""
    settings = query.args.get("settings") or []
    found = [n for n in settings if _names_query(n)]
    if not found:
        return query, None
    query = query.copy()
    query.set("settings", [n for n in query.args["settings"] if not _names_query(n)] or None)
    return query, found[-1].expression.name


def _names_query(setting: exp.Expression) -> bool:
    value = setting.args.get("expression")
    named = isinstance(setting, exp.EQ) and isinstance(setting.this, exp.Column) and setting.this.name == _QUERY_ID
    return named and isinstance(value, exp.Literal) and bool(value.name)


def with_computed(query: exp.Expression, text: str) -> tuple[exp.Expression, tuple[ComputedColumn, ...]]:
    """The query without the output columns that are not columns of a relation, and these columns.

    Raises FEATURE_NOT_SUPPORTED if the select list has no other columns.
    """
    if not isinstance(query, exp.Select) or not any(_kind(i) for i in query.expressions):
        return query, ()
    items = query.expressions
    if all(_kind(i) for i in items):
        raise not_supported(
            "a select list without a column of a stream",
            text,
            node_span(items[0]),
            hint="Select a column of a stream, too.",
        )
    places = []
    for i, item in enumerate(items):
        kind = _kind(item)
        if kind is not None:
            stars = any(n.is_star for n in items[:i])
            places.append(
                ComputedColumn(
                    kind,
                    item.alias or (DELTA_COLUMN if kind == "delta" else f"{_VERSION}()"),
                    len(items) - 1 - i if stars else i,
                    stars,
                    node_span(item),
                )
            )
    query = query.copy()
    query.set("expressions", [item for item in query.expressions if _kind(item) is None])
    return query, tuple(places)


def without_delta(query: exp.Expression) -> tuple[exp.Expression, exp.Expression | None]:
    """The query without the item `_tp_delta` of its select list, and this item or None."""
    items = query.expressions if isinstance(query, exp.Select) else []
    signs = [item for item in items if _kind(item) == "delta" and item.alias in ("", DELTA_COLUMN)]
    if not signs or len(signs) == len(items):
        return query, None
    query = query.copy()
    query.set("expressions", [i for i in query.expressions if i not in signs])
    return query, signs[0]


def _kind(item: exp.Expression) -> Literal["delta", "version"] | None:
    node = item.unalias()
    if isinstance(node, exp.Column) and node.name == DELTA_COLUMN and not node.args.get("table"):
        return "delta"
    called = isinstance(node, exp.Anonymous) and not node.expressions
    return "version" if called and node.this == _CALLED else None
