"""Binds joins of Timeplus: kinds by the sides, defaults of types instead of NULL, ranges of times.

Timeplus, "Multi-JOINs and ASOF JOINs", "JOIN Category"; Proton. A join is bidirectional if rows are only inserted into
both sides, or if both change. If rows are only inserted into the left side and the right side changes or is constant,
the left side looks up the right one, whose later changes have no effect. Other combinations are not supported.

**Defaults of types instead of NULL**, as in Proton, are the values of columns that an outer join could not fill
(`SETTINGS join_use_nulls = 0`; Watersmeet's default is NULL, as in Timeplus' document), of aggregates of no rows (as in
ClickHouse, unless `SETTINGS aggregate_functions_null_for_empty = 1`), and of `lag` for rows without a neighbor. The
default of a nullable column is NULL.

**LEFT JOIN of keyed streams**: in Proton (`SETTINGS join_restore_nulls = 0`), when the last partner of a left row is
deleted, the pair is deleted without replacement. By default the row is output with NULLs again, as in the SQL standard.

**Ranges of times** ("Range Bidirectional JOIN", TP-30 to TP-35). `date_diff_within(2m)` in a join condition includes
the bound in both directions and may also follow its columns. The texts of errors are Proton's. In a join condition,
`date_diff('second', l.t, r.t) BETWEEN -10 AND 10` compares the first time minus the second one, in units of fixed
length; the scalar function counts boundaries of a unit instead. With both bounds it is a range join. `SETTINGS
join_date_diff = 'scalar'` selects the scalar function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    AsofJoin,
    Column,
    Cut,
    Filter,
    Join,
    KeyPair,
    Node,
    Project,
    Records,
    Scan,
    TemporalJoin,
    Union,
)
from watersmeet.algebra.scalars import Scalar, conjuncts, disjuncts, null_of
from watersmeet.algebra.timewindows import duration_us
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.timewindows import newest, without_late_rows
from watersmeet.binder.context.binding import Environment, condition_parts, value_of
from watersmeet.binder.context.emissions import change_kind
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeTable
from watersmeet.binder.dialects.timeplus.dictionaries import by_key, check_key, dictionary_of, look_up
from watersmeet.catalog import TIME_COLUMN, Index
from watersmeet.dialects.timeplus.nodes import RangeJoin
from watersmeet.dialects.tree.nodes import CommaJoin, retyped, sql_of
from watersmeet.dialects.tree.queries import node_error, node_span
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.context import Value, duckdb_cast, fill
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.times import SECOND_US, UNITS_US
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE

#: The aggregate functions that return NaN for no values.
_OF_NUMBERS: Final = (
    "avg", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "stddev", "variance", "percentile_cont",
)  # fmt: skip


def filled(value: Value) -> Value:
    """The value with the default of its type instead of NULL."""
    default = type_default(value.type)
    if default is None:
        return value
    given = duckdb_cast(fill(default), value.type)
    return Value(exp.Coalesce(this=value.expression, expressions=[given]), value.type, nullable=False)


def of_nothing(value: Value, function: str, argument: exp.Expression, scope: Scope) -> Value:
    """The value of an aggregate function, which for no input values is the default of its type: 0, NaN for an average,
    an empty array.

    If its argument reads a nullable column of the scope, it returns NULL instead; arrays omit NULLs.
    """
    if not value.nullable or (function != "array_agg" and _reads_null(argument, scope)):
        return value
    if function in _OF_NUMBERS and value.type == DOUBLE:
        return Value(exp.Coalesce(this=value.expression, expressions=[fill("'NaN'::DOUBLE")]), DOUBLE, nullable=False)
    return filled(value)


def default_neighbor(value: Value, scope: Scope) -> Sequence[Value]:
    """The result of `lag(value)` for a row without a neighbor: the default of the type, or empty if the type is
    nullable.
    """
    default = type_default(value.type)
    if default is None or (value.nullable and _reads_null(value.expression, scope)):
        return ()
    return (Value(duckdb_cast(fill(default), value.type), value.type, nullable=False),)


def _reads_null(argument: exp.Expression, scope: Scope) -> bool:
    """True if an expression has a nullable type in ClickHouse, because it reads a nullable column.

    ClickHouse has no functions that turn NULL into an error.
    """
    columns = [c for t in scope.tables for c in (*t.columns, *t.hidden)] + list(scope.visible)
    known = {_key(c): c.value.nullable for c in columns}
    return any(
        isinstance(n, (exp.Null, exp.Nullif, exp.Query, exp.JSONExtract, exp.JSONExtractScalar, exp.Bracket))
        or (isinstance(n, exp.Case) and n.args.get("default") is None)
        or (isinstance(n, exp.Column) and known.get(str(n.sql()), True))
        for n in argument.walk()
    )


def with_type_defaults(joined: tuple[Node, Scope], left: Scope, right: Scope, binding: Binding) -> tuple[Node, Scope]:
    """The join with defaults of types in columns of missing partners. left, right: the scopes of its sides."""
    relation, scope = joined
    never = {_key(c) for side in (left, right) for t in side.tables for c in t.columns if not c.value.nullable}
    columns = [c for t in scope.tables for c in t.columns] + list(scope.visible)
    made: dict[str, tuple[Column, Scalar]] = {}
    for column in columns:
        if _key(column) not in made:
            value = filled(column.value) if column.value.nullable and _key(column) in never else column.value
            made[_key(column)] = binding.new_column(column.name, value.type, value.nullable), value.finish()

    def update(column: ScopeColumn) -> ScopeColumn:
        return replace(column, value=value_of(made[_key(column)][0]))

    tables = tuple(ScopeTable(t.alias, tuple(update(c) for c in t.columns)) for t in scope.tables)
    whole = Project(relation, tuple(c for c, _ in made.values()), tuple(s for _, s in made.values()))
    return whole, Scope(tables, tuple(update(c) for c in scope.visible), scope.outer, scope.from_inside)


def _key(column: ScopeColumn) -> str:
    return str(column.value.expression.sql())


def without_restored_nulls(joined: Join, binding: Binding) -> Node:
    """The pairs of the LEFT JOIN `joined`, and with NULLs the left rows that were never in a pair.

    The state records as long as the view exists whether a row ever had a partner. A pair that is inserted and deleted
    within one epoch does not count.
    """
    pairs = replace(joined, kind="inner")
    marks = (
        binding.new_column("_deleted", BOOLEAN, nullable=False),
        binding.new_column("_offset", BIGINT, nullable=False),
    )
    left = joined.left.columns
    met = tuple(binding.new_column(c.name, c.type, c.nullable) for c in left)
    ever = Aggregate(Records(pairs, None, (), marks), tuple(read(c) for c in left), (), met)
    keys = tuple(KeyPair(read(c), read(m), null_safe=c.nullable) for c, m in zip(left, met, strict=True))
    alone = Join(joined.left, ever, "anti", keys, span=joined.span)
    ids = joined.left.ids
    exprs = tuple(read(c) if c.id in ids else null_of(c.type) for c in joined.columns)
    padded = Project(alone, tuple(binding.new_column(c.name, c.type, c.nullable) for c in joined.columns), exprs)
    return Union((pairs, padded), joined.columns)


#: The number of newest rows of a key that an ASOF join keeps.
_KEEP_VERSIONS: Final = 3

_MODES: Final = {
    "append": "Append",
    "changelog": "Changelog",
    "mutable": "Mutable",
    "versioned_kv": "VersionedKV",
    "changelog_kv": "ChangelogKV",
}


def check_kind(node: exp.Join, text: str) -> None:
    """Raises JOIN_KIND for a kind of join that the dialect lacks (TP-05)."""
    kind = "CROSS" if isinstance(node, CommaJoin) else node.side.upper() or node.kind.upper() or "INNER"
    if kind in ("RIGHT", "CROSS"):
        raise node_error(
            text,
            node.this,
            "JOIN_KIND",
            f"{kind} JOIN is not supported",
            detail="Stream join only supports inner/left join." if kind != "FULL" else None,
            hint="Exchange the sides and write LEFT JOIN." if kind == "RIGHT" else "Write JOIN … ON with a condition.",
        )


def strict_join(joined: Node, node: exp.Join, env: Environment, binding: Binding) -> Node:
    """The meaning of the regular or ASOF join `joined`, by its strictness and the kinds of its sides.

    Raises JOIN_KIND if it has no meaning, DIRECT_KEY, DIRECT_RIGHT_SIDE, JOIN_WITHOUT_EQUALITY.
    """
    if isinstance(joined, AsofJoin):
        return _asof(joined, node, env, binding)
    if not isinstance(joined, Join):
        return joined
    sides = change_kind(joined.left), change_kind(joined.right)
    if isinstance(node, RangeJoin) and (
        joined.kind not in ("inner", "left") or len(set(sides)) > 1 or "changelog" in sides
    ):
        raise env.error(
            "JOIN_KIND",
            "Only inner/left range join is supported and the left and right stream must be append-only streams "
            "in range join",
            node.this,
            hint="Compare the times themselves: ON a.k = b.k AND a.t >= b.t - 2m AND a.t <= b.t + 2m.",
        )
    if not joined.keys and joined.residual is not None:
        _check_disjunctions(joined.residual, node, env)
    if node.method.upper() == "LATEST":
        return _latest(joined, node, env, binding)
    direct = binding.settings.get("join_algorithm") == "direct"
    dictionary = dictionary_of(node, env, binding)
    if dictionary is not None and dictionary.dictionary is not None and dictionary.dictionary.by_address:
        raise env.not_supported(
            "a join with a dictionary of layout IP_TRIE", node.this, hint="dict_get looks up addresses."
        )
    if dictionary is not None and (direct or sides == ("append", "changelog")):
        keyed = check_key(joined, dictionary, node, env) if direct else by_key(joined, dictionary)
        if keyed is not None:
            return look_up(keyed, dictionary, _looked_up(joined, node, env, binding).kind, binding)
    if direct:
        _check_direct(joined, node, env, binding)
        return _looked_up(joined, node, env, binding)
    if sides in (("append", "changelog"), ("append", "static")):
        return _looked_up(joined, node, env, binding)
    if sides == ("append", "append") and not isinstance(node, RangeJoin):
        binding.notice(
            "A join of two append streams keeps all rows of both: it is for exploration. Add a range such as "
            "date_diff_within(2m), "
            "or join with a mutable stream."
        )
    if sides == ("append", "append") and isinstance(node, RangeJoin):
        return without_late_rows(joined, binding)
    if (
        sides == ("changelog", "changelog")
        and joined.kind == "left"
        and binding.settings.get("join_restore_nulls") == "0"
    ):
        return without_restored_nulls(joined, binding)
    if sides in (("append", "append"), ("changelog", "changelog"), ("static", "static")):
        return joined
    if sides == ("changelog", "static") and joined.kind in ("inner", "left"):
        return joined
    raise _unsupported(joined, node, env, binding)


def _check_disjunctions(condition: Scalar, node: exp.Join, env: Environment) -> None:
    """Raises Proton's error for an OR whose alternatives have no equality in common."""
    for part in conjuncts(condition):
        branches = [{s.expression.sql() for s in conjuncts(b)} for b in disjuncts(part)]
        if len(branches) > 1 and not set.intersection(*branches):
            raise error(
                "JOIN_WITHOUT_EQUALITY",
                "Stream to Stream join only supports only one disjunct join clause",
                sql=env.text,
                span=node_span(node.args["on"]),
                hint="Make a view of each alternative, and UNION them.",
                code=48,
            )


def _looked_up(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> TemporalJoin:
    """A join in which each left row is matched with the right side when the left row arrives."""
    if joined.kind not in ("inner", "left") or change_kind(joined.left) == "static":
        raise _unsupported(joined, node, env, binding)
    kind: Literal["inner", "left"] = "left" if joined.kind == "left" else "inner"
    return TemporalJoin(joined.left, joined.right, kind, joined.keys, joined.residual, None, span=joined.span)


def _latest(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> TemporalJoin:
    """The LATEST join with, for each join key, the right row that arrived last (TP-08, TP-57 to TP-59)."""
    _check_appended(joined, node, env, binding)
    span = node_span(node.this)
    if not joined.keys:
        raise error(
            "JOIN_WITHOUT_EQUALITY", "LATEST join needs at least one equal-join column", sql=env.text, span=span
        )
    if joined.residual is not None:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "Streaming join doesn't support predicates in JOIN ON clause. Use WHERE predicate instead",
            detail="A LATEST JOIN compares with = only.",
            sql=env.text,
            span=span,
            hint="In WHERE, it filters the row that arrived last.",
        )
    found = newest(joined.right, [k.right for k in joined.keys], binding)
    if found is None:
        raise _unsupported(joined, node, env, binding)
    return _looked_up(replace(joined, right=found[0]), node, env, binding)


def _asof(joined: AsofJoin, node: exp.Join, env: Environment, binding: Binding) -> AsofJoin:
    """The ASOF join with the nearest of the key's newest versions at the arrival of the left row (TP-07, TP-55,
    TP-56).
    """
    _check_appended(joined, node, env, binding)
    kind = joined.right_value.type
    if not kind.is_numeric and kind.name not in ("date", "timestamp", "timestamptz"):
        raise error(
            "DATATYPE_MISMATCH",
            f"ASOF join not supported for type: {'string' if kind.name == 'varchar' else kind.sql}",
            sql=env.text,
            span=node_span(node.this),
            hint="Compare numbers, dates or times.",
            code=169,
        )
    versions = int(binding.settings.get("keep_versions", _KEEP_VERSIONS))
    found = newest(joined.right, [k.right for k in joined.keys], binding, limit=versions, value=joined.right_value)
    if found is None:
        raise _unsupported(joined, node, env, binding)
    right, age = found
    return replace(joined, right=right, ties=tuple(c.id for c in age), arrival=True)


def _check_appended(joined: Join | AsofJoin, node: exp.Join, env: Environment, binding: Binding) -> None:
    """Raises Proton's error for sides that delete rows, except for keyed streams on the right, where every version
    counts.
    """
    kind = f"{joined.kind} {node.method.lower()}"
    for side, shown in ((joined.left, "left"), (joined.right, "right")):
        kept = isinstance(side, Scan) and binding.catalog.relations[side.relation_id].mode in (
            "mutable",
            "versioned_kv",
        )
        if change_kind(side) == "changelog" and not (shown == "right" and kept):
            raise env.error(
                "JOIN_KIND",
                f"The {shown} data stream semantic of {kind} JOIN is expected to be 'Append', but got 'Changelog'",
                node.this,
            )
    if (
        joined.kind not in ("inner", "left")
        or change_kind(joined.left) == "static"
        or change_kind(joined.right) == "static"
    ):
        raise _unsupported(joined, node, env, binding)


def _check_direct(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> None:
    """Checks that a direct join compares a prefix of the primary key or of an index of a mutable stream (TP-50 to
    TP-54).
    """
    span = node_span(node.this)
    right = joined.right
    relation = binding.catalog.relations[right.relation_id] if isinstance(right, Scan) else None
    if relation is None or relation.mode != "mutable":
        raise error(
            "DIRECT_RIGHT_SIDE",
            f"'{_shown(right, binding)}' can't be looked up by a direct join",
            sql=env.text,
            span=span,
            hint="A mutable stream or a dictionary can.",
        )
    assert isinstance(right, Scan)
    names = {c.id: n for c, n in zip(right.outputs, right.source_names, strict=True)}
    covered = {names[c] for k in joined.keys if (c := _column(k.right)) in names}
    keys = [
        relation.primary_key,
        *(
            r.index_columns
            for r in binding.catalog.relations.values()
            if isinstance(r, Index) and r.depends_on == (relation.id,)
        ),
    ]
    if not any(key and key[0] in covered for key in keys):
        raise error(
            "DIRECT_KEY",
            f'the condition has no key by which "{relation.name}" can be looked up',
            sql=env.text,
            span=span,
            detail="Its keys are " + ", ".join("(" + ", ".join(k) + ")" for k in keys if k) + ".",
            hint="Compare the first column of its primary key or of an index, or leave join_algorithm out.",
        )


def _column(scalar: Scalar) -> str | None:
    """The column that a join key reads, without casts."""
    node = scalar.expression.unnest()
    while isinstance(node, exp.Cast):
        node = node.this.unnest()
    return node.name if isinstance(node, exp.Column) else None


def _unsupported(joined: Join | AsofJoin, node: exp.Join, env: Environment, binding: Binding) -> Error:
    """Proton's error for an unsupported join."""
    left, right = (_shown(side, binding) for side in (joined.left, joined.right))
    return env.error(
        "JOIN_KIND",
        f"'{left}' {joined.kind.upper()} {node.method.upper() or 'ALL'} JOIN '{right}' is not supported",
        node.this,
        hint="An append stream can stand left of all others; on its right only another append stream meets it in "
        "both directions.",
    )


def _shown(node: Node, binding: Binding) -> str:
    if isinstance(node, Cut) and node.keeps == "before":
        return "Static table"
    if isinstance(node, (Cut, Filter, Project)):
        return _shown(node.input, binding)
    mode = binding.catalog.relations[node.relation_id].mode if isinstance(node, Scan) else None
    return (
        f"{_MODES[mode]} stream"
        if mode is not None
        else {"append": "Append stream", "static": "Static table"}.get(change_kind(node), "Changelog stream")
    )


_SECONDS: Final = {unit: UNITS_US[unit] // SECOND_US for unit in ("second", "minute", "hour", "day", "week")}

_TURNED: Final[dict[type[exp.Expression], type[exp.Binary]]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True)
class _Bound:
    """A comparison of the difference `one - other` with a number of seconds."""

    kind: type[exp.Binary]
    one: exp.Expression
    other: exp.Expression
    seconds: int


def with_differences(node: exp.Join, text: str, settings: Mapping[str, str]) -> exp.Join:
    """The join with comparisons of its times instead of comparisons of `date_diff` with whole numbers.

    Raises SYNTAX_ERROR for a range without 0.
    """
    parts = condition_parts(node.args["on"])
    found = {i: bounds for i, p in enumerate(parts) if (bounds := _bounds(p))}
    if not found:
        return node
    is_range = _is_range([b for bounds in found.values() for b in bounds], parts[min(found)], text, settings)
    made: exp.Join = retyped(node.copy(), RangeJoin) if is_range else node.copy()
    whole = [
        exp.Paren(this=exp.and_(*[_comparison(b, p) for b in found[i]], copy=False)) if i in found else p.copy()
        for i, p in enumerate(parts)
    ]
    made.set("on", exp.and_(*whole, copy=False))
    return made


def _bounds(part: exp.Expression) -> list[_Bound]:
    part = part.unnest()
    if isinstance(part, exp.Between):
        low, high = (_one(exp.GTE, part.this, part.args["low"]), _one(exp.LTE, part.this, part.args["high"]))
        return [low, high] if low is not None and high is not None else []
    kind: Any = type(part)
    if not isinstance(part, exp.Binary) or kind not in _TURNED:
        return []
    found = _one(kind, part.this, part.expression) or _one(_TURNED[kind], part.expression, part.this)
    return [] if found is None else [found]


def _one(kind: type[exp.Binary], call: exp.Expression, number: exp.Expression) -> _Bound | None:
    call = call.unnest()
    if not isinstance(call, exp.Anonymous) or str(call.this).lower() != "$date_diff" or len(call.expressions) != 3:
        return None
    negative = isinstance(number, exp.Neg)
    literal = number.this if negative else number
    unit = _SECONDS.get(call.expressions[0].name.lower())
    if unit is None or not isinstance(literal, exp.Literal) or not literal.name.isdecimal():
        return None
    return _Bound(kind, call.expressions[1], call.expressions[2], int(literal.name) * unit * (-1 if negative else 1))


def _comparison(bound: _Bound, part: exp.Expression) -> exp.Expression:
    length = exp.cast(exp.Literal.string(f"{bound.seconds} seconds"), exp.DType.INTERVAL)
    made = bound.kind(this=bound.one.copy(), expression=exp.Add(this=bound.other.copy(), expression=length))
    set_span(made, node_span(part))
    return made


def _is_range(bounds: list[_Bound], part: exp.Expression, text: str, settings: Mapping[str, str]) -> bool:
    """Whether the bounds limit one difference on both sides. Raises SYNTAX_ERROR if this range does not contain 0."""
    if len({(sql_of(b.one), sql_of(b.other)) for b in bounds}) > 1:
        return False
    lower = [b.seconds for b in bounds if b.kind in (exp.GT, exp.GTE)]
    upper = [b.seconds for b in bounds if b.kind in (exp.LT, exp.LTE)]
    if not lower or not upper:
        return False
    check_lengths(max(lower), min(upper), node_span(part), text, settings)
    return True


def check_lengths(
    least: float, greatest: float, span: Span | None, text: str, settings: Mapping[str, str], *, both_ways: bool = False
) -> None:
    """Raises SYNTAX_ERROR for a range (in seconds) that doesn't contain 0 or is longer than `max_join_range`.

    both_ways: whether it must be symmetric and longer than 0.
    """
    wrong = (
        f"left bound of the range is less than or equal to zero, but got lower_bound={_number(least)}"
        if least > 0 or (both_ways and least == 0)
        else (
            f"right bound of the range is greater than or equal to zero, but got upper_bound={_number(greatest)}"
            if greatest < 0
            else None
        )
    )
    if wrong is not None:
        raise error(
            "SYNTAX_ERROR",
            f"Range join requires {wrong}",
            sql=text,
            span=span,
            detail="The range must go as far back as ahead, and must not be empty." if both_ways else None,
        )
    most = settings.get("max_join_range")
    if most is not None and greatest - least > int(most):
        raise error(
            "SYNTAX_ERROR",
            f"The join range ({_number(least)}, {_number(greatest)}) is too big. If two streams have big "
            f"difference in timestamps, "
            "set max_join_range to a greater number of seconds",
            sql=text,
            span=span,
        )


def _number(seconds: float) -> str:
    return f"{seconds:g}" if seconds % 1 else f"{seconds:.0f}"


_NAME: Final = "date_diff_within"


def with_ranges(node: exp.Join, left: Scope, right: Scope, text: str, settings: Mapping[str, str]) -> exp.Join:
    """The join with `l - d <= r AND l + d >= r` instead of each `date_diff_within`, marked as a range join.

    settings: `max_join_range` is in seconds. Raises SYNTAX_ERROR, AMBIGUOUS_COLUMN, UNDEFINED_COLUMN.
    """
    condition = node.args.get("on")
    if condition is not None and settings.get("join_date_diff") != "scalar":
        node = with_differences(node, text, settings)
        condition = node.args["on"]
    if condition is None or not any(_is_call(n) for n in condition.find_all(exp.Anonymous)):
        return node
    made = retyped(node.copy(), RangeJoin)
    for call in list(made.args["on"].find_all(exp.Anonymous)):
        if _is_call(call):
            call.replace(_range(call, left, right, text, settings))
    return made


def _is_call(node: exp.Anonymous) -> bool:
    return str(node.this).lower() == _NAME


def _range(call: exp.Anonymous, left: Scope, right: Scope, text: str, settings: Mapping[str, str]) -> exp.Expression:
    arguments = list(call.expressions)
    bounds = [a for a in arguments if isinstance(a.this if isinstance(a, exp.Neg) else a, (exp.Interval, exp.Cast))]
    columns = [a for a in arguments if a not in bounds]
    if len(bounds) != 1 or len(columns) not in (0, 2):
        raise node_error(
            text,
            call,
            "SYNTAX_ERROR",
            f"wrong arguments of {_NAME}",
            hint=f"Write {_NAME}(2m) or {_NAME}(left_stream.time, right_stream.time, 2m).",
        )
    bound = bounds[0]
    length_us = duration_us(bound)
    if length_us is not None:
        seconds = length_us / 1_000_000
        check_lengths(0 - seconds, seconds, node_span(call), text, settings, both_ways=True)
    one, other = columns or (_time_column(left, call, text), _time_column(right, call, text))
    within = [
        exp.GTE(this=one.copy(), expression=exp.Sub(this=other.copy(), expression=bound.copy())),
        exp.LTE(this=one.copy(), expression=exp.Add(this=other.copy(), expression=bound.copy())),
    ]
    for part in within:
        set_span(part, own_span(call))
    return exp.Paren(this=exp.And(this=within[0], expression=within[1]))


def _time_column(scope: Scope, call: exp.Anonymous, text: str) -> exp.Expression:
    tables = [t for t in scope.tables if t.alias is not None and any(c.name == TIME_COLUMN for c in t.columns)]
    if len(tables) == 1:
        return exp.column(exp.to_identifier(TIME_COLUMN, quoted=True), exp.to_identifier(tables[0].alias, quoted=True))
    raise _no_one(bool(tables), call, text)


def _no_one(several: bool, call: exp.Anonymous, text: str) -> Error:
    return error(
        "AMBIGUOUS_COLUMN" if several else "UNDEFINED_COLUMN",
        f"{'more than one relation' if several else 'no relation'} of one side has a column {TIME_COLUMN}",
        sql=text,
        span=node_span(call),
        hint=f"Name the columns: {_NAME}(left_stream.time, right_stream.time, 2m).",
    )
