"""Timeplus' rules: EMIT and computed columns of output, `table()` and `changelog()`, SETTINGS; kinds of joins.

Timeplus, "Multi-JOINs and ASOF JOINs", "JOIN Category", "Direct JOIN" (TP-09, TP-16, TP-42, TP-56). The clauses about a
query's output have Proton's syntax: EMIT, the setting for the id of the query, and `_tp_delta` and `emit_version()` in
the select list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Join, Node, Scan
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.clauses.joins import join
from watersmeet.binder.clauses.lookups import is_looked_up, looking_up
from watersmeet.binder.clauses.substreams import closed
from watersmeet.binder.clauses.timewindows import newest
from watersmeet.binder.context.binding import Bound, Environment, Item, Part
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING, Emission, Request
from watersmeet.binder.context.rules import (
    Binding,
    BindQuery,
    DialectRules,
    JoinClause,
    NamedItem,
    Reading,
    SelectList,
    Sourced,
)
from watersmeet.binder.context.scope import Scope, ScopeColumn, qualified_items
from watersmeet.binder.dialects.timeplus.dictionaries import computed_once, is_looked_up_column, with_look_ups
from watersmeet.binder.dialects.timeplus.emissions import emitted, with_computed, with_emit, with_id, without_delta
from watersmeet.binder.dialects.timeplus.join_kinds import (
    check_kind,
    default_neighbor,
    of_nothing,
    strict_join,
    with_ranges,
    with_type_defaults,
)
from watersmeet.binder.dialects.timeplus.starred import with_items
from watersmeet.binder.dialects.timeplus.substreams import substream, with_clauses, with_divided, with_numbered_rows
from watersmeet.catalog import TIME_COLUMN, MaterializedView, Relation, View
from watersmeet.dialects.timeplus.nodes import DictionaryJoin, Divided, PlainUnion, StreamTable
from watersmeet.dialects.timeplus.storage import TUNING
from watersmeet.dialects.tree.queries import name_of, node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import did_you_mean, error
from watersmeet.expressions.context import Context, Value
from watersmeet.values.spans import own_span

#: Algorithms whose choice makes no difference to the result.
_HASHED: Final = ("hash", "parallel_hash", "hybrid", "full_sorting_merge", "auto")

#: The allowed values of settings. None: a whole number above 0.
_VALUES: Final[dict[str, tuple[str, ...] | None]] = {
    "join_algorithm": ("default", "direct", *_HASHED),
    "join_use_nulls": ("0", "1"),
    "join_restore_nulls": ("0", "1"),
    "join_date_diff": ("range", "scalar"),
    "keep_versions": None,
    "max_join_range": None,
    "join_max_buffered_bytes": None,
    JOIN_ROWS_SETTING: None,
    "aggregate_functions_null_for_empty": ("0", "1"),
    "seek_to": ("earliest", "latest"),
    "recovery_policy": ("best_effort", "strict"),
    "enable_dlq": ("1", "true"),
    "input_format_ignore_parsing_errors": ("1", "true"),
    "shards": ("0,2",),
    "union_default_mode": ("ALL", "DISTINCT"),
    "query_mode": ("streaming", "table"),
}

#: The settings with a position in topics: a time or offsets, and partitions.
_PLACES: Final = {
    "seek_to": re.compile(r"earliest|latest|-\d+(ms|s|m|h|d)|\d{4}-\d\d-\d\d([T ].+)?|\d+(\s*,\s*\d+)*"),
    "shards": re.compile(r"\d+(\s*,\s*\d+)*"),
}

_FORMS: Final = {
    "seek_to": "It is earliest, latest, a time such as 2024-01-31T12:00:00Z or -2h, or offsets such as 5,3,11.",
    "shards": "It is a list of partitions, such as 0,2.",
}

#: The settings that also allow 0.
_ZERO: Final = (JOIN_ROWS_SETTING,)


def with_settings(query: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
    """The query without its settings, and the settings. Raises UNDEFINED_OBJECT, INVALID_PARAMETER,
    FEATURE_NOT_SUPPORTED.
    """
    found = query.args.get("settings")
    if not found:
        return query, {}
    settings: dict[str, str] = {}
    for node in found:
        if (
            not isinstance(node, exp.EQ)
            or not isinstance(node.this, exp.Column)
            or not isinstance(node.expression, (exp.Literal, exp.Boolean))
        ):
            raise node_error(text, node, "SYNTAX_ERROR", "a setting is written name = value")
        said = node.expression
        name, value = name_of(node.this.this), str(said.this).lower() if isinstance(said, exp.Boolean) else said.name
        if name in TUNING:
            settings[name] = value
            continue
        if name not in _VALUES:
            raise node_error(
                text,
                node,
                "UNDEFINED_OBJECT",
                f'setting "{name}" of a query does not exist',
                hint=did_you_mean(name, [*_VALUES, *TUNING]),
            )
        wanted = _VALUES[name]
        if name in _PLACES:
            wrong = _PLACES[name].fullmatch(value) is None
        else:
            wrong = (
                value not in wanted if wanted is not None else not (value.isdecimal() and (int(value) or name in _ZERO))
            )
        if wrong:
            raise node_error(
                text,
                node,
                "INVALID_PARAMETER",
                f'setting {name} can\'t be "{value}"',
                hint=("It must be a whole number." if name in _ZERO else "Write a whole number above 0.")
                if wanted is None
                else _FORMS.get(name) or "Choose one of " + ", ".join(wanted) + ".",
            )
        settings[name] = value
    query = query.copy()
    query.set("settings", None)
    return query, settings


def check_place(settings: Mapping[str, str], node: exp.Expression, text: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for settings with a position in a topic if a stored stream is read."""
    for name in _PLACES:
        if settings.get(name, "earliest") not in ("earliest", "latest"):
            raise not_supported(
                f"setting {name} = '{settings[name]}' of a stream in the database",
                text,
                node_span(node),
                detail="Times, offsets and partitions are those of topics.",
                hint="Write WHERE _tp_time >= …, or seek_to = 'earliest'.",
            )


def within(own: Mapping[str, str], binding: Binding) -> Binding:
    """The binding inside a query with these settings."""
    if (warning := unheeded(own)) is not None:
        binding.notice(warning)
    found = binding.collected
    if "join_max_buffered_bytes" in own:
        found.limits.append(int(own["join_max_buffered_bytes"]))
    if JOIN_ROWS_SETTING in own and found.most_join_rows is None:  # the outermost query that sets it takes precedence
        found.most_join_rows = int(own[JOIN_ROWS_SETTING])
    part = binding.part
    if part in ("all", "new") and "seek_to" in own:
        part = "all" if own["seek_to"] == "earliest" else "new"
    return replace(binding, settings={**binding.settings, **own}, part=part)


def stops_at_bad_messages(settings: Mapping[str, str]) -> bool:
    """Whether an undecodable message stops a query with these settings."""
    return settings.get("recovery_policy") == "strict" and "input_format_ignore_parsing_errors" not in settings


def unheeded(settings: Mapping[str, str]) -> str | None:
    """The notice about settings without effect, or None."""
    names = sorted(n for n, v in settings.items() if n in TUNING or (n == "join_algorithm" and v in _HASHED))
    if not names:
        return None
    return f"{', '.join(names)}: accepted without effect: no result depends on it."


def fills_aggregates(settings: Mapping[str, str]) -> bool:
    """True if aggregate functions of no values return the default of their type."""
    return settings.get("aggregate_functions_null_for_empty") != "1"


def check_functions(node: exp.Expression, env: Environment) -> None:
    """Raises JOIN_KIND for both functions on one stream, FEATURE_NOT_SUPPORTED for a function on a name of WITH."""
    if not isinstance(node, StreamTable) or not isinstance(node.this, exp.Identifier):
        return
    if node.is_stored and node.keys is not None:
        raise env.error(
            "JOIN_KIND",
            "The filled join data doesn't support changelog processing",
            node,
            hint="table(stream) of a keyed stream has the last row of each key.",
        )
    if node.is_stored and _is_named_query(node, env):
        raise env.not_supported("table() of a query of WITH", node, hint="Write it inside the query of WITH.")


def _is_named_query(node: StreamTable, env: Environment) -> bool:
    return node.args.get("db") is None and name_of(node.this) in env.ctes


def changelog(tree: Node, node: exp.Expression, relation: Relation | None, env: Environment, binding: Binding) -> Node:
    """The last row of each key; a stream that already deletes rows by its own key stays unchanged.

    node: the item of FROM, or the call over a query. relation: the stream in the call; None for a query or view. Raises
    UNDEFINED_COLUMN, FEATURE_NOT_SUPPORTED.
    """
    if isinstance(node, StreamTable):
        places, drops = list(node.keys or ()), node.args.get("drops_late")
    else:
        places = [e.this for e in node.expressions if isinstance(e, exp.Column)]
        drops = next((bool(e.this) for e in node.expressions if isinstance(e, exp.Boolean)), None)
    by_name = {c.name: c for c in tree.columns}
    for place in places:
        if name_of(place) not in by_name:
            raise env.error(
                "UNDEFINED_COLUMN",
                f'column "{name_of(place)}" does not exist',
                place,
                hint=did_you_mean(name_of(place), by_name),
            )
    names = [name_of(p) for p in places]
    own = () if relation is None else relation.primary_key
    version = None
    if drops is not None:
        last = names[-1] if names else TIME_COLUMN
        is_version = (bool(names) and last not in own) if own else len(names) > 1
        version = names.pop() if is_version else (relation.version if relation is not None else "") or TIME_COLUMN
    keys = names or list(own)
    version = version if drops else None
    if own and set(keys) == set(own) and relation is not None and version in (None, relation.version):
        return tree
    if isinstance(tree, Scan) and not tree.append_only and not drops:
        view = binding.catalog.relations.get(tree.relation_id)
        row_key = view.row_key if isinstance(view, MaterializedView) else ()
        if not places or (row_key and set(row_key) <= set(keys)):
            return tree
    if version is not None and (version not in by_name or (own and relation and relation.mode != "versioned_kv")):
        raise env.not_supported(
            "changelog() of this relation that drops late rows",
            node,
            hint="Write changelog(stream, key, version, true) with an append stream or one of mode versioned_kv.",
        )
    value = None if version is None else read(by_name[version])
    found = newest(tree, [read(by_name[k]) for k in keys], binding, value=value)
    if not keys or found is None:
        raise env.not_supported(
            "changelog() of this relation",
            node,
            hint="Write changelog(stream, key) of an append stream, or changelog((SELECT …), key) of a view's query.",
        )
    return exactly(found[0], tree.columns)


def check_said(node: exp.SetOperation, env: Environment) -> None:
    """Raises SYNTAX_ERROR with Proton's text for a UNION that needs ALL or DISTINCT."""
    union = node.find(PlainUnion)
    if union is not None:
        raise error(
            "SYNTAX_ERROR",
            "Expected ALL or DISTINCT in SelectWithUnion query; because setting (union_default_mode) is empty",
            sql=env.text,
            span=own_span(union),
            hint="Write UNION ALL or UNION DISTINCT, or SETTINGS union_default_mode = 'ALL' after the query.",
            code=558,
        )


class TimeplusRules(DialectRules):
    """The rules for streams of several modes, and their joins."""

    keeps_clock = True

    def reading(self, query: exp.Expression) -> Reading:
        """A query reads the rows that arrive after its start, unless `seek_to` or a condition on `_tp_time` sets an
        earlier time.
        """
        return Reading("new")

    def settings(self, node: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
        return with_settings(node, text)

    def within(self, settings: Mapping[str, str], binding: Binding) -> Binding:
        return within(settings, binding)

    def stops_at_bad_messages(self, settings: Mapping[str, str]) -> bool:
        return stops_at_bad_messages(settings)

    def emission(self, query: exp.Expression, text: str) -> tuple[exp.Expression, Emission | None]:
        return with_emit(query)

    def without_sign(self, query: exp.Expression) -> tuple[exp.Expression, exp.Expression | None]:
        """The column is `_tp_delta`."""
        return without_delta(query)

    def request(self, query: exp.Expression, text: str) -> Request:
        """The request includes the query's id from the settings, and the output columns that no stream has."""
        query, query_id = with_id(query)
        found = super().request(query, text)
        query, computed = with_computed(found.query, text)
        return replace(found, query=query, computed=computed, query_id=query_id)

    def emitted(
        self, node: exp.Select, env: Environment, binding: Binding, plain: Callable[[exp.Select, Binding], Bound]
    ) -> Bound:
        """Groups by a window of a stream are output when the window closes, at any depth of a query."""
        return emitted(node, env, binding, plain)

    def query_of_view(self, query: exp.Expression, node: exp.Expression) -> exp.Expression:
        """Its EMIT clause applies to the SELECT whose windows it closes."""
        del node
        return with_emit(query)[0]

    def item(
        self, node: exp.Expression, select: exp.Select, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        check_functions(node, env)
        tree, scope = plain()
        if isinstance(node, StreamTable) and node.keys is not None and _is_named_query(node, env):
            tree = changelog(tree, node, None, env, binding)
        divided = node.args.get("divides")
        if isinstance(divided, Divided) and divided.name == "changelog":
            return changelog(tree, divided, None, env, binding), scope
        return with_divided((tree, scope), node, select, env, binding)

    def relation(
        self,
        relation: Relation,
        item: NamedItem,
        env: Environment,
        binding: Binding,
        plain: Callable[[Part | None], Sourced],
    ) -> Sourced:
        """`table(stream)` reads the stored rows, `changelog(stream, key)` the last row of each key.

        If WHERE has a lower bound of `_tp_time`, the stream is read from that time on.
        """
        node = item.node
        part: Part | None = None
        if not relation.reopened and not isinstance(relation, View):
            check_place(binding.settings, node, env.text)
        if not isinstance(node, StreamTable):
            return plain(part)
        bounded = relation.is_external
        if node.is_stored:
            part = "before"
        elif node.is_rewound and not bounded and binding.part == "new" and "seek_to" not in binding.settings:
            part = "all"
        tree, scope = plain(part)
        if node.keys is None:
            return tree, scope
        return changelog(tree, node, None if isinstance(relation, View) else relation, env, binding), scope

    def check_join(self, node: exp.Join, text: str) -> None:
        check_kind(node, text)

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        def strict(relation: Node, node: exp.Join) -> Node:
            relation = strict_join(relation, node, clause.env, clause.binding)
            if is_looked_up(node.this):
                relation = looking_up(relation, node, clause.left[1], clause.env, clause.binding)
            return relation

        return self._joined(clause, strict)

    def batch_join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        return self._joined(clause, lambda relation, _: relation)

    def _joined(self, clause: JoinClause, strict: Callable[[Node, exp.Join], Node]) -> Sourced:
        """The join with the ranges in ON, the meaning that `strict` gives it, and the defaults of `join_use_nulls`."""
        left, right, settings = clause.left[1], clause.right[1], clause.binding.settings
        clause = replace(clause, node=with_ranges(clause.node, left, right, clause.env.text, settings))
        relation, scope = join(clause)
        if clause.node.args.get("computes") and isinstance(relation, Join):
            relation = exactly(strict(computed_once(relation, clause.binding), clause.node), relation.columns)
        else:
            relation = strict(relation, clause.node)
        if settings.get("join_use_nulls") == "0" and not isinstance(clause.node, DictionaryJoin):
            return with_type_defaults((relation, scope), left, right, clause.binding)
        return relation, scope

    def written(self, node: exp.Select, env: Environment, binding: Binding) -> exp.Select:
        node = with_numbered_rows(node, env, ends=binding.rules.batch)
        return with_look_ups(node, env, binding)

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        return [c for c in columns if not is_looked_up_column(c.name)]

    def batch_select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        return with_clauses(with_items(node, scope, env, self), relation, scope, env, binding)

    def batch_item(
        self, node: exp.Expression, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        return with_divided(plain(), node, None, env, binding)

    def substream(self, node: exp.Table, scope: Scope, env: Environment) -> tuple[Scalar, ...] | None:
        return substream(node, scope, env)

    def closed(
        self,
        rows: Node,
        partition: tuple[Scalar, ...],
        times: tuple[Scalar, Scalar],
        node: exp.Table,
        env: Environment,
        binding: Binding,
    ) -> Node:
        return closed(rows, partition, times, node, env, binding)

    def select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        return with_clauses(with_items(node, scope, env, self), relation, scope, env, binding)

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        return SelectList(qualified_items(items, scope))

    def of_nothing(
        self, value: Value, function: str, argument: exp.Expression, scope: Scope, settings: Mapping[str, str]
    ) -> Value:
        return of_nothing(value, function, argument, scope) if fills_aggregates(settings) else value

    def missing_neighbor(self, value: Value, scope: Scope) -> Sequence[Value]:
        return default_neighbor(value, scope)

    def set_operation(
        self,
        node: exp.SetOperation,
        env: Environment,
        binding: Binding,
        bind: BindQuery,
        plain: Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound],
    ) -> Bound:
        check_said(node, env)
        return plain(node, env, binding, bind)
