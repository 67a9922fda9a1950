"""The output of a query, in Proton's syntax: EMIT, `_tp_delta`, `emit_version()`; `table()` and `changelog()` (TP-16).

What a query says about its output, in Proton's syntax: EMIT, the setting for its id, `_tp_delta` and `emit_version()`
in its select list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

from sqlglot import exp

from watersmeet.algebra.nodes import Node, Scan
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.clauses.arrival import newest
from watersmeet.binder.clauses.timewindows import NAMES, window_call
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.emissions import Emission, EmitMode, Place
from watersmeet.binder.context.rules import Binding
from watersmeet.catalog import DELTA_COLUMN
from watersmeet.dialects.timeplus.nodes import EmitClause, PlainUnion, StreamTable
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import did_you_mean, error
from watersmeet.values.places import own_place

#: The setting with the id of a running query.
_QUERY_ID: Final = "query_id"

_VERSION: Final = "emit_version"

#: The form in which the grammar leaves a call of it.
_CALLED: Final = "$emit_version"


def with_emit(query: exp.Expression) -> tuple[exp.Expression, Emission | None]:
    """The query without its EMIT clause, and the clause, or its default.

    Timeplus, "Streaming windows": groups by a window of a stream are output after the window closes. Other queries have
    no default (None).
    """
    clause = query.args.get("emit")
    if not isinstance(clause, EmitClause):
        return query, Emission("window close", is_default=True) if _groups_by_window(query) else None
    query = query.copy()
    query.set("emit", None)
    return query, Emission(cast("EmitMode", clause.mode), clause.length_us, place_of(clause))


def _groups_by_window(query: exp.Expression, ctes: Mapping[str, exp.Expression] | None = None) -> bool:
    """Whether a query, or the only relation that it reads, is grouped by `window_start` or `window_end` of a stream."""
    if not isinstance(query, exp.Select):
        return False
    ctes = dict(ctes or {}) | {c.alias: c.this for c in query.ctes}
    items = [i for i in [query.args.get("from_"), *query.args.get("joins", ())] if i is not None]
    group = query.args.get("group")
    if group is None:
        only = items[0].this if len(items) == 1 else None
        inner = ctes.pop(only.name, None) if isinstance(only, exp.Table) else only
        return inner is not None and _groups_by_window(inner.unnest(), ctes)
    chosen = {i.alias: i.unalias() for i in query.expressions if i.alias}
    keys = [chosen.get(k.name, k) if isinstance(k, exp.Column) else k for k in group.expressions]
    keys = [query.expressions[int(k.name) - 1].unalias() if _is_place(k, query) else k for k in keys]
    return any(isinstance(k, exp.Column) and k.name in NAMES for k in keys) and any(
        isinstance(i.this, exp.Table) and window_call(i.this) is not None and not i.this.args.get("static")
        for i in items
    )


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


def with_places(query: exp.Expression, text: str) -> tuple[exp.Expression, tuple[Place, ...]]:
    """The query without output columns that no relation has, and these columns.

    FEATURE_NOT_SUPPORTED for a list that has no others.
    """
    if not isinstance(query, exp.Select) or not any(_kind(i) for i in query.expressions):
        return query, ()
    items = query.expressions
    if all(_kind(i) for i in items):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a select list without a column of a stream is not supported",
            sql=text,
            span=place_of(items[0]),
            hint="Select a column of a stream, too.",
        )
    places = []
    for i, item in enumerate(items):
        kind = _kind(item)
        if kind is not None:
            stars = any(n.is_star for n in items[:i])
            places.append(
                Place(
                    kind,
                    item.alias or (DELTA_COLUMN if kind == "delta" else f"{_VERSION}()"),
                    len(items) - 1 - i if stars else i,
                    stars,
                    place_of(item),
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


def check_functions(node: exp.Expression, env: Environment) -> None:
    """JOIN_KIND for both functions on one stream, FEATURE_NOT_SUPPORTED for one on a name of WITH."""
    if not isinstance(node, StreamTable) or not isinstance(node.this, exp.Identifier):
        return
    if node.is_stored and node.keys is not None:
        raise env.error(
            "JOIN_KIND",
            "The filled join data doesn't support changelog processing",
            node,
            hint="table(stream) of a keyed stream has the last row of each key.",
        )
    named = node.args.get("db") is None and name_of(node.this) in env.ctes
    if named and (node.is_stored or node.keys is not None):
        raise env.not_supported(
            "table() or changelog() of a query of WITH", node, hint="Write it inside the query of WITH."
        )


def changelog(
    tree: Node, node: exp.Expression, places: Sequence[exp.Expression], env: Environment, binding: Binding
) -> Node:
    """The last row of each key, whose columns are named at `places`; a stream that deletes rows itself stays as
    it is.
    """
    if isinstance(tree, Scan) and not tree.append_only and not places:
        return tree
    by_name = {c.name: c for c in tree.columns}
    for place in places:
        if name_of(place) not in by_name:
            raise env.error(
                "UNDEFINED_COLUMN",
                f'column "{name_of(place)}" does not exist',
                place,
                hint=did_you_mean(name_of(place), by_name),
            )
    found = newest(tree, [read(by_name[name_of(p)]) for p in places], binding)
    if not places or found is None:
        raise env.not_supported(
            "changelog() of this relation", node, hint="Write changelog(stream, key) with an append stream."
        )
    return exactly(found[0], tree.columns)


def check_said(node: exp.SetOperation, env: Environment) -> None:
    """SYNTAX_ERROR with Proton's text for a UNION without ALL or DISTINCT that needs one."""
    union = node.find(PlainUnion)
    if union is not None:
        raise error(
            "SYNTAX_ERROR",
            "Expected ALL or DISTINCT in SelectWithUnion query; because setting (union_default_mode) is empty",
            sql=env.text,
            span=own_place(union),
            hint="Write UNION ALL or UNION DISTINCT, or SETTINGS union_default_mode = 'ALL' after the query.",
            code=558,
        )
