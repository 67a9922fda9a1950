"""Timeplus' clauses about a query's output: EMIT, the id of a query, `_tp_delta` and `emit_version()`.

They have Proton's syntax. Timeplus, "Streaming aggregations", "EMIT".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast

from sqlglot import exp

from watersmeet.binder.clauses.timewindows import NAMES, window_call
from watersmeet.binder.context.emissions import Closing, ComputedColumn, Emission, EmitMode
from watersmeet.catalog import DELTA_COLUMN
from watersmeet.dialects.timeplus.nodes import Divided, EmitClause, StreamSelect
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.tokens import not_supported

#: The setting with the id of a running query.
_QUERY_ID: Final = "query_id"

_VERSION: Final = "emit_version"

#: A call of emit_version() in the form of the grammar.
_CALLED: Final = "$emit_version"


def with_emit(query: exp.Expression, text: str) -> tuple[exp.Expression, Emission | None]:
    """The query without its EMIT clause, and the clause or its default.

    Timeplus, "Streaming aggregations", "EMIT": groups by a window of a stream are output after the window closes,
    unless the clause says PERIODIC, ON UPDATE or CHANGELOG. Other queries have no default. Raises
    FEATURE_NOT_SUPPORTED.
    """
    windowed = _groups_by_window(query)
    clause = _clause_of(query)
    if clause is None:
        return query, Emission("window close", is_default=True) if windowed else None
    if clause.mode in ("key expire", "per event"):  # part of the binding of its SELECT
        return query, None
    emission = _emission(clause, query, text, windowed=windowed)
    query = query.copy()
    for node in query.find_all(exp.Select, exp.SetOperation):
        if node.args.get("emit") == clause:
            node.set("emit", None)
    return query, emission


def _emission(clause: EmitClause, query: exp.Expression, text: str, *, windowed: bool) -> Emission:
    """The clause of a query. windowed: whether the query is grouped by windows."""
    span, mode, delay_us = node_span(clause), cast("EmitMode", clause.mode), clause.length("delay_us")
    is_default = windowed and clause.mode == "stream" and delay_us is None
    if windowed and clause.mode == "stream":
        mode = "window close"
    if delay_us is not None and not windowed and mode != "window close":
        raise not_supported(
            "WITH DELAY in a query without time windows",
            text,
            span,
            hint="Group by window_start of tumble(…), hop(…), or leave the delay out.",
        )
    divided = isinstance(query, StreamSelect) and bool(query.args.get("partition_by"))
    closes = mode == "window close" or (windowed and mode in ("periodic", "updates") and not divided)
    return Emission(
        mode,
        clause.length("length_us") or 0,
        span,
        is_default,
        closing=Closing(delay_us or 0, clause.length("timeout_us")) if closes else None,
        repeats=bool(clause.args.get("repeat")),
    )


def _clause_of(query: exp.Expression) -> EmitClause | None:
    """The EMIT clause of a query; without one, that of the single relation that it reads, if it waits for windows."""
    found: EmitClause | None = query.args.get("emit")
    if found is not None or not isinstance(query, exp.Select):
        return found
    inner = _only_query(query, {})
    found = None if inner is None else _clause_of(inner)
    return found if found is not None and found.mode == "window close" else None


def _groups_by_window(query: exp.Expression, ctes: Mapping[str, exp.Expression] | None = None) -> bool:
    """Whether a query, or the single relation that it reads, is grouped by `window_start` or `window_end` of a
    stream.
    """
    if not isinstance(query, exp.Select):
        return False
    ctes = dict(ctes or {}) | {c.alias: c.this for c in query.ctes}
    items = [i for i in [query.args.get("from_"), *query.args.get("joins", ())] if i is not None]
    group = query.args.get("group")
    if group is None:
        inner = _only_query(query, ctes)
        return inner is not None and _groups_by_window(inner, ctes)
    chosen = {i.alias: i.unalias() for i in query.expressions if i.alias}
    keys = [chosen.get(k.name, k) if isinstance(k, exp.Column) else k for k in group.expressions]
    keys = [query.expressions[int(k.name) - 1].unalias() if _is_place(k, query) else k for k in keys]
    return any(isinstance(k, exp.Column) and k.name in NAMES for k in keys) and any(
        (is_session(i.this) or (isinstance(i.this, exp.Table) and window_call(i.this) is not None))
        and not i.this.args.get("static")
        for i in items
    )


def _only_query(query: exp.Select, ctes: dict[str, exp.Expression]) -> exp.Expression | None:
    """The query in FROM or WITH that is the only relation that a SELECT reads; `ctes` loses it."""
    clause = query.args.get("from_")
    ctes |= {c.alias: c.this for c in query.ctes}
    if clause is None or query.args.get("joins"):
        return None
    only = clause.this
    inner = ctes.pop(only.name, None) if isinstance(only, exp.Table) else only
    return None if inner is None else inner.unnest()


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


def _kind(item: exp.Expression) -> Literal["delta", "version"] | None:
    node = item.unalias()
    if isinstance(node, exp.Column) and node.name == DELTA_COLUMN and not node.args.get("table"):
        return "delta"
    called = isinstance(node, exp.Anonymous) and not node.expressions
    return "version" if called and node.this == _CALLED else None
