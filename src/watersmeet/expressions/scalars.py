"""Binds scalar expressions: turns a parsed tree into a typed DuckDB tree.

`bind_value` selects a small reader by the class of a node. A node without a reader raises an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import isfinite
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import Adapted, kind_of, own_parts, sql_of
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.sqltypes import declared_of_tree
from watersmeet.errors import Span
from watersmeet.expressions import arrayfunctions, calls, functions, jsonfunctions, nestedfunctions, operators
from watersmeet.expressions.calls import FunctionCall
from watersmeet.expressions.casts import cast, condition, narrowed, unify
from watersmeet.expressions.clock import time_comparison
from watersmeet.expressions.context import (
    Context,
    Value,
    boolean,
    call,
    decimal_literal,
    duckdb_cast,
    integer_literal,
    null,
    wrap,
)
from watersmeet.expressions.functions import IF_HINT, check_function, function, is_aggregate, variadic
from watersmeet.expressions.operators import (
    arithmetic,
    bitwise,
    comparable,
    compare,
    concatenate,
    logical,
    negate,
    no_operator,
    power,
    quantified,
)
from watersmeet.values.declaredtypes import BYTE_COLLATIONS
from watersmeet.values.types import BOOLEAN, VARCHAR, SqlType

#: SQL's names of the parts of a query, an item of FROM, a join or an expression.
_WORDS: Final = {
    "alias": "an alias", "all": "ALL", "by_name": "BY NAME", "catalog": "a name of three parts",
    "changelog": "changelog()", "cluster": "CLUSTER BY", "connect": "CONNECT BY", "cube": "CUBE",
    "distinct": "DISTINCT", "distribute": "DISTRIBUTE BY", "emit": "EMIT", "except_": "EXCEPT", "except": "EXCEPT",
    "fetch": "FETCH", "for_": "FOR", "format": "FORMAT", "from_": "FROM", "grouping_sets": "GROUPING SETS",
    "having": "HAVING", "hint": "a hint", "hints": "a hint", "into": "INTO", "joins": "a join",
    "kind": "AS behind SELECT", "laterals": "LATERAL", "limit": "LIMIT", "locks": "FOR UPDATE or FOR SHARE",
    "match": "MATCH_RECOGNIZE", "offset": "OFFSET", "only": "ONLY", "order": "ORDER BY",
    "ordinality": "WITH ORDINALITY", "over": "OVER", "partition": "PARTITION", "pivots": "PIVOT",
    "prewhere": "PREWHERE", "qualify": "QUALIFY", "rename": "RENAME", "replace": "REPLACE", "rollup": "ROLLUP",
    "sample": "TABLESAMPLE", "settings": "SETTINGS", "sort": "SORT BY", "static": "table()",
    "stream": "SELECT STREAM", "totals": "WITH TOTALS", "using": "USING", "version": "FOR SYSTEM_TIME AS OF",
    "when": "a time", "where": "WHERE", "windows": "WINDOW", "with_": "WITH", "within": "WITHIN",
    "grace": "GRACE PERIOD",
}  # fmt: skip


def words_of(part: str) -> str | None:
    """SQL's name of a part, given its name in the grammar; or None."""
    return _WORDS.get(part)


def bind_value(node: exp.Expression, ctx: Context) -> Value:
    """The value of the expression `node`. Errors have its span."""
    found = ctx.special(node)
    if found is not None:
        return found
    reader = _READERS.get(type(node)) or _READERS.get(kind_of(node))
    if reader is not None:
        _check_arguments(node, ctx)
        return reader(node, ctx)
    raise ctx.not_supported(f"the expression {sql_of(node, 'postgres')}", node)


def _check_arguments(node: exp.Expression, ctx: Context) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a part of a node that its reader does not read, so that nothing is ignored
    silently.
    """
    if isinstance(node, _UNREAD):
        return
    for name, part in node.args.items():
        if part and name not in _PARTS | own_parts(node) and name not in _OTHER_PARTS.get(kind_of(node), ()):
            word = words_of(name)
            raise ctx.not_supported(
                f"{'' if word is None else f'{word} in '}the expression {sql_of(node, 'postgres')}", node
            )


def bind_condition(node: exp.Expression, ctx: Context, where: str) -> Value:
    """The value of an expression that must be boolean."""
    return condition(bind_value(node, ctx), ctx, node, where)


def _column(node: Any, ctx: Context) -> Value:
    return ctx.column(node)


def _variable(node: Any, ctx: Context) -> Value:
    """A variable of a lambda."""
    found = ctx.variables.get(node.name)
    if found is None:
        raise ctx.error("UNDEFINED_COLUMN", f'column "{node.name}" does not exist', node)
    return found


def _adapted(node: Any, ctx: Context) -> Value:
    return bind_value(node.this, ctx)


def _literal(node: Any, ctx: Context) -> Value:
    if node.is_string:
        return Value(exp.Literal.string(node.this), VARCHAR, nullable=False, unknown=True)
    text = node.this.replace("_", "")
    found = integer_literal(int(text)) if text.isdecimal() else decimal_literal(text)
    if found is None:
        fits = isfinite(float(text))
        hint = f"Write a number of this size as double precision: '{text}'::double precision." if fits else None
        raise ctx.error("INVALID_VALUE", f"number {text} is out of range", node, hint=hint)
    return found


def _text(node: Any, ctx: Context) -> Value:
    if "\0" in node.this:  # from an escape, because the statement itself can't contain the character
        raise ctx.error("CHARACTER_NOT_IN_REPERTOIRE", "text can't contain U+0000, the null character", node)
    return Value(exp.Literal.string(node.this), VARCHAR, nullable=False, unknown=True)


def _null(node: Any, _ctx: Context) -> Value:
    return replace(null(), expression=node.copy())  # it may be an open parameter


def _boolean(node: Any, _ctx: Context) -> Value:
    return Value(exp.Boolean(this=node.this), BOOLEAN, nullable=False)


def _paren(node: Any, ctx: Context) -> Value:
    value = bind_value(node.this, ctx)
    if isinstance(value.expression, (exp.Column, exp.Literal, exp.Null, exp.Paren, exp.Cast, exp.Func)):
        return value
    return Value(exp.Paren(this=value.expression), value.type, value.nullable, value.unknown, value.exact)


def _not(node: Any, ctx: Context) -> Value:
    if (found := _not_null_row(node, ctx)) is not None:
        return found
    value = bind_condition(node.this, ctx, "NOT")
    return boolean(exp.Not(this=wrap(value.expression)), value)


def _connector(node: Any, ctx: Context) -> Value:
    parts = list(node.flatten(unnest=False))
    values = [bind_condition(p, ctx, "AND" if isinstance(node, exp.And) else "OR") for p in parts]
    pairs = zip(values, parts, strict=True)

    def joined(left: tuple[Value, exp.Expression], right: tuple[Value, exp.Expression]) -> tuple[Value, exp.Expression]:
        return logical(node, [left[0], right[0]], [left[1], right[1]], ctx), node

    return reduce(joined, pairs)[0]


def _comparison(node: Any, ctx: Context) -> Value:
    left, right = node.this, node.expression
    if fields := _row_fields(left):
        if (others := _row_fields(right)) is not None:
            return _row_comparison(node, fields, others, ctx)
        if isinstance(right, exp.Subquery):
            return _row_of_subquery(node, fields, right, ctx)
    if isinstance(right, exp.Anonymous) and str(right.this).lower() in ("all", "some") and len(right.expressions) == 1:
        node = node.copy()  # sqlglot reads ALL (…) as a function
        right = node.expression
        right.replace((exp.All if right.this.lower() == "all" else exp.Any)(this=right.expressions[0].copy()))
        right = node.expression
    if isinstance(right, (exp.Any, exp.All)):
        return _quantified(node, ctx)
    timed = time_comparison(node, ctx, bind_value)
    return timed if timed is not None else compare(node, bind_value(left, ctx), bind_value(right, ctx), ctx)


def _row_fields(node: exp.Expression) -> list[exp.Expression] | None:
    """The fields of a row constructor, `(a, b)` or `ROW(a, b)`; None for other expressions."""
    is_row = isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() == "row"
    if not (is_row or isinstance(node, exp.Tuple)) or any(e.is_star for e in node.expressions):
        return None
    return list(node.expressions)


def _row_of_subquery(node: Any, fields: list[exp.Expression], query: exp.Subquery, ctx: Context) -> Value:
    """`(a, b) = (SELECT c, d …)`: NULL if the query has no row (PostgreSQL 17, 9.24.6)."""
    wanted = len(fields)
    columns = [f"c{i}" for i in range(wanted)]
    select = query.this
    while isinstance(select, exp.SetOperation):
        select = select.left
    listed = select.expressions if isinstance(select, exp.Select) else []
    if any(e.is_star for e in listed):
        raise ctx.not_supported("* in a subquery that is compared with a row", node, hint="List its columns.")
    if listed and len(listed) != wanted:
        raise ctx.error("SYNTAX_ERROR", f"subquery has too {'many' if len(listed) > wanted else 'few'} columns", node)
    alias = exp.TableAlias(this=exp.to_identifier("_row"), columns=[exp.to_identifier(c) for c in columns])
    row = exp.Anonymous(this="row", expressions=[exp.column(c, "_row") for c in columns])
    whole = exp.Select(expressions=[row]).from_(exp.Subquery(this=query.this.copy(), alias=alias), copy=False)
    found = bind_value(exp.Subquery(this=whole), ctx)
    value = found.finish().expression
    rights = [Value(call("struct_extract", value, exp.Literal.string(name)), kind) for name, kind in found.type.fields]
    lefts = [bind_value(f, ctx) for f in fields]
    pairs = list(zip(lefts, rights, strict=True))

    def compared(kind: type[exp.Expression], a: Value, b: Value) -> Value:
        return compare(kind(this=node.this.copy(), expression=node.expression.copy()), a, b, ctx)

    def joined(kind: type[exp.Expression], a: Value, b: Value) -> Value:
        return boolean(exp.Paren(this=kind(this=a.expression, expression=b.expression)), a, b)

    if isinstance(node, (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)):
        equal = exp.EQ if isinstance(node, (exp.EQ, exp.NEQ)) else exp.NullSafeEQ
        made = reduce(lambda a, b: joined(exp.And, a, b), [compared(equal, a, b) for a, b in pairs])
        if isinstance(node, (exp.NEQ, exp.NullSafeNEQ)):
            made = boolean(exp.Not(this=wrap(made.expression)), made)
        return made
    strict = exp.LT if isinstance(node, (exp.LT, exp.LTE)) else exp.GT
    made = compared(type(node), *pairs[-1])
    for a, b in reversed(pairs[:-1]):
        made = joined(exp.Or, compared(strict, a, b), joined(exp.And, compared(exp.EQ, a, b), made))
    return made


def _row_comparison(node: Any, lefts: list[exp.Expression], rights: list[exp.Expression], ctx: Context) -> Value:
    """`(a, b) < (c, d)`, determined by the first pair that differs (PostgreSQL 17, 9.25.5)."""
    if len(lefts) != len(rights):
        raise ctx.error("SYNTAX_ERROR", "unequal number of entries in row expressions", node)
    pairs = list(zip(lefts, rights, strict=True))
    if isinstance(node, (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)):
        equal = exp.EQ if isinstance(node, (exp.EQ, exp.NEQ)) else exp.NullSafeEQ
        tree: exp.Expression = reduce(_and, [_pair(equal, a, b) for a, b in pairs])
        if isinstance(node, (exp.NEQ, exp.NullSafeNEQ)):
            tree = exp.Not(this=exp.Paren(this=tree))
        return bind_value(tree, ctx)
    strict = exp.LT if isinstance(node, (exp.LT, exp.LTE)) else exp.GT
    tree = _pair(type(node), *pairs[-1])
    for a, b in reversed(pairs[:-1]):
        tree = exp.Paren(
            this=exp.Or(this=_pair(strict, a, b), expression=exp.Paren(this=_and(_pair(exp.EQ, a, b), tree)))
        )
    return bind_value(tree, ctx)


def _pair(kind: type[exp.Expression], a: exp.Expression, b: exp.Expression) -> exp.Expression:
    return kind(this=a.copy(), expression=b.copy())


def _and(a: exp.Expression, b: exp.Expression) -> exp.Expression:
    return exp.And(this=a, expression=b)


def _quantified(node: Any, ctx: Context) -> Value:
    """`x = ANY (array)`, `x > ALL (array)`."""
    quantifier = node.expression
    inner = quantifier.this
    if isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, (exp.Query, exp.Subquery)):
        return _subquery(inner, ctx)
    item, array = bind_value(node.this, ctx), bind_value(inner, ctx)
    if array.unknown and not item.unknown:
        array = cast(array, SqlType("array", element=item.type), ctx, node)
    if array.type.name != "array" or array.type.element is None:
        raise ctx.error("DATATYPE_MISMATCH", "op ANY/ALL (array) requires array on right side", node)
    if not isinstance(node, exp.EQ) or isinstance(quantifier, exp.All):
        each = compare(node, item, Value(exp.to_identifier("_e"), array.type.element), ctx)
        return quantified(array, each.expression, every=isinstance(quantifier, exp.All))
    element = Value(exp.null(), array.type.element)
    item, _ = comparable(node, item, element, ctx)
    return Value(_contains(array.expression, item.expression), BOOLEAN)


def _contains(array: exp.Expression, item: exp.Expression) -> exp.Expression:
    """`item = ANY (array)`: true if it is an element, else NULL if a side contains NULL. DuckDB's own form would be a
    subquery.
    """

    def is_null(of: exp.Expression) -> exp.Expression:
        return exp.Is(this=wrap(of), expression=exp.null())

    has_null = exp.LT(this=call("list_count", array), expression=call("len", array))
    unknown = exp.or_(is_null(array), is_null(item), copy=False)
    return exp.Paren(
        this=exp.Case(
            ifs=[
                exp.If(this=unknown, true=exp.null()),
                exp.If(this=call("list_contains", array, item), true=exp.true()),
                exp.If(this=has_null, true=exp.null()),
            ],
            default=exp.false(),
        )
    )


def _between(node: Any, ctx: Context) -> Value:
    if node.args.get("symmetric"):
        return _between_symmetric(node, ctx)
    low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
    high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
    both = exp.And(this=low, expression=high)
    value = bind_value(both, ctx)
    return Value(exp.Paren(this=value.expression), BOOLEAN, value.nullable)


def _between_symmetric(node: Any, ctx: Context) -> Value:
    sides = [
        exp.Between(this=node.this.copy(), low=node.args[a].copy(), high=node.args[b].copy())
        for a, b in (("low", "high"), ("high", "low"))
    ]
    value = bind_value(exp.Or(this=sides[0], expression=sides[1]), ctx)
    return Value(exp.Paren(this=value.expression), BOOLEAN, value.nullable)


def _in(node: Any, ctx: Context) -> Value:
    if node.args.get("query") is not None:
        return _subquery(node, ctx)
    if isinstance(node.this, exp.Tuple):
        choices = [exp.EQ(this=node.this.copy(), expression=e.copy()) for e in node.expressions]
        return bind_value(exp.Paren(this=reduce(lambda a, b: exp.Or(this=a, expression=b), choices)), ctx)
    item = bind_value(node.this, ctx)
    values = [bind_value(e, ctx) for e in node.expressions]
    for value, place in zip(values, node.expressions, strict=True):
        if not (item.unknown or value.unknown):
            comparable(exp.EQ(this=node.this.copy(), expression=place.copy()), item, value, ctx)
    settled, _ = unify([item, *values], [node.this, *node.expressions], ctx, "IN")
    return boolean(exp.In(this=wrap(settled[0].expression), expressions=[v.expression for v in settled[1:]]), *settled)


def _not_null_row(node: Any, ctx: Context) -> Value | None:
    """`ROW(a, b) IS NOT NULL`: whether no field is NULL, which is not the opposite of IS NULL; None for other nodes."""
    test = node.this
    if not isinstance(test, exp.Is) or not isinstance(test.expression, exp.Null):
        return None
    fields, span = _row_fields(test.this), node_span(node)
    if not fields or span is None or ctx.text[span.start :][:3].upper() == "NOT":
        return None
    tests = [exp.Not(this=exp.Is(this=f.copy(), expression=exp.null())) for f in fields]
    return bind_value(exp.Paren(this=reduce(_and, tests)), ctx)


def _is(node: Any, ctx: Context) -> Value:
    target = node.expression
    fields = _row_fields(node.this)
    if fields and isinstance(target, exp.Null):  # whether every field is NULL
        tests: list[exp.Expression] = [exp.Is(this=f.copy(), expression=exp.null()) for f in fields]
        return bind_value(exp.Paren(this=reduce(_and, tests)), ctx)
    value = bind_value(node.this, ctx)
    if isinstance(target, exp.Null):
        expression = exp.null() if value.is_null else value.expression
        return Value(_sign(node, exp.Is(this=wrap(expression), expression=exp.null())), BOOLEAN, nullable=False)
    if isinstance(target, exp.Boolean):
        value = condition(value, ctx, node, "IS")
        test = exp.Is(this=wrap(value.expression), expression=exp.Boolean(this=target.this))
        return Value(_sign(node, test), BOOLEAN, nullable=False)
    if isinstance(target, exp.JSON) and not target.args.get("unique") and not target.args.get("with_"):
        text = cast(value, VARCHAR, ctx, node) if value.unknown or value.type != VARCHAR else value
        return boolean(_sign(node, jsonfunctions.is_json(text.expression, target.this or "VALUE")), text)
    raise ctx.not_supported("this form of IS", node)


def _sign(node: exp.Expression, test: exp.Expression) -> exp.Expression:
    return exp.Not(this=test) if node.args.get("negate") else test


def _case(node: Any, ctx: Context) -> Value:
    sets, ctx.sets, clause, ctx.clause = ctx.sets, None, ctx.clause, "CASE"
    try:
        return _cases(node, ctx)
    finally:
        ctx.sets, ctx.clause = sets, clause


def _cases(node: Any, ctx: Context) -> Value:
    conditions, results, places = [], [], []
    for branch in node.args["ifs"]:
        test = branch.this
        if node.this is not None:
            test = exp.EQ(this=node.this.copy(), expression=test.copy())
        conditions.append(bind_condition(test, ctx, "CASE/WHEN"))
        results.append(bind_value(branch.args["true"], ctx))
        places.append(branch.args["true"])
    default = node.args.get("default")
    if default is not None:
        results.append(bind_value(default, ctx))
        places.append(default)
    settled, kind = unify(results, places, ctx, "CASE")
    ifs = [exp.If(this=c.expression, true=r.expression) for c, r in zip(conditions, settled, strict=False)]
    otherwise = settled[-1].expression if default is not None else None
    nullable = default is None or any(v.nullable for v in settled)
    return Value(exp.Case(ifs=ifs, default=otherwise), kind, nullable)


def _cast(node: Any, ctx: Context) -> Value:
    target, declared = declared_of_tree(node.to, ctx.text, node_span(node) or Span(0, 0))
    if target.name == "array" and isinstance(node.this, exp.Array) and not node.this.expressions:
        return Value(duckdb_cast(exp.Array(expressions=[]), target), target, nullable=False)
    return replace(narrowed(cast(bind_value(node.this, ctx), target, ctx, node), declared, ctx, node), type=target)


def _binary(reader: Callable[[Any, Value, Value, Context], Value]) -> Callable[[Any, Context], Value]:
    return lambda node, ctx: reader(node, bind_value(node.this, ctx), bind_value(node.expression, ctx), ctx)


def _power(node: Any, ctx: Context) -> Value:
    return power(bind_value(node.this, ctx), bind_value(node.expression, ctx), ctx, node)


def _neg(node: Any, ctx: Context) -> Value:
    return negate(node, bind_value(node.this, ctx), ctx)


def _bitwise_not(node: Any, ctx: Context) -> Value:
    value = bind_value(node.this, ctx)
    if not value.type.is_integer:
        raise no_operator(ctx, node, "~", value.type)
    return Value(exp.BitwiseNot(this=wrap(value.expression)), value.type)


def _anonymous(node: Any, ctx: Context) -> Value:
    name = node.this if isinstance(node.this, str) else node.this.name
    name = name.lower()
    nodes = list(node.expressions)
    if is_aggregate(name, ctx):
        raise ctx.error("COLUMN_NOT_GROUPED", f"aggregate functions are not allowed in {ctx.clause}", node)
    for argument in nodes:
        if isinstance(argument, (exp.Distinct, exp.Order, exp.Star)):
            raise ctx.error("DATATYPE_MISMATCH", f"{name} is not an aggregate function", node)
    if name == "row":
        if not nodes:
            raise ctx.not_supported("row() without fields", node)
        return nestedfunctions.row(nodes, ctx, bind_value)
    if nodes and isinstance(nodes[-1], exp.Variadic):
        return variadic(name, node, ctx, bind_value)
    check_function(name, node, ctx)  # raised before the arguments are bound, which may be invalid
    return function(FunctionCall(name, [bind_value(a, ctx) for a in nodes], nodes, node, ctx))


def _row(node: Any, ctx: Context) -> Value:
    """`(a, b)`, which is `ROW(a, b)`."""
    if not node.expressions:
        raise ctx.not_supported("an empty row", node)
    return nestedfunctions.row(node.expressions, ctx, bind_value)


def _hexadecimal(node: Any, ctx: Context) -> Value:
    """`0x1F`, an integer; `X'1F'` would be a bit string."""
    span = node_span(node)
    if span is None or not ctx.text[span.start :].lower().startswith("0x"):
        raise ctx.not_supported("a bit string", node, hint="Write bytea: '\\x1F'::bytea.")
    return _literal(exp.Literal.number(str(int(node.name.replace("_", ""), 16))), ctx)


def _named(name: str) -> Callable[[Any, Context], Value]:
    return lambda node, ctx: function(FunctionCall(name, [], [], node, ctx))


def _if(node: Any, ctx: Context) -> Value:
    """The error for `if(…)`, which sqlglot reads as a CASE with invalid branches."""
    raise ctx.error("UNDEFINED_FUNCTION", "function if does not exist", node, hint=IF_HINT)


def _over(node: Any, ctx: Context) -> Value:
    return ctx.over(node)


def _refused(what: str) -> Callable[[Any, Context], Value]:
    def reader(node: Any, ctx: Context) -> Value:
        raise ctx.not_supported(what, node)

    return reader


def _collate(node: Any, ctx: Context) -> Value:
    """COLLATE, which only supports the order of the UTF-8 bytes."""
    if node.expression.name.lower() not in BYTE_COLLATIONS:
        raise ctx.not_supported(f"the collation {node.expression.name}", node, hint='Only "C" is supported.')
    return bind_value(node.this, ctx)


def _subquery(node: Any, ctx: Context) -> Value:
    """The error for a subquery where subqueries are not allowed."""
    raise ctx.not_supported(f"a subquery in {ctx.clause}", node)


def _star(node: Any, ctx: Context) -> Value:
    raise ctx.error("SYNTAX_ERROR", "* is only possible as an item of the select list", node)


def _map(node: Any, ctx: Context) -> Value:
    """`MAP {key: value, …}`."""
    pairs = [(pair.this, pair.expression) for pair in node.expressions]
    return nestedfunctions.map_literal(pairs, node, ctx, bind_value)


def _distance(node: Any, ctx: Context) -> Value:
    raise ctx.not_supported(
        "an operator of vectors (<->, <#>, <+>)", node, hint="Store vectors as real[]: list_distance takes two arrays."
    )


def _bound(
    read: Callable[[Any, Context, Callable[[exp.Expression, Context], Value]], Value],
) -> Callable[[Any, Context], Value]:
    """Adapts a reader of another module, which receives the function that binds its parts."""
    return lambda node, ctx: read(node, ctx, bind_value)


_PARTS: Final = frozenset({"this", "expression", "expressions"})

_OTHER_PARTS: Final[dict[type, tuple[str, ...]]] = {
    exp.Array: ("bracket_notation",), exp.AtTimeZone: ("zone",), exp.Between: ("low", "high", "symmetric"),
    exp.Bracket: ("offset",), exp.Case: ("ifs", "default"), exp.Cast: ("to",), exp.Ceil: ("to",),
    exp.Column: ("table", "db", "catalog"), exp.Div: ("typed",), exp.Floor: ("to",), exp.ILike: ("negate",),
    exp.If: ("true", "false"), exp.In: ("query",), exp.Interval: ("unit",), exp.JSONExtract: ("only_json_types",),
    exp.JSONExtractScalar: ("only_json_types",), exp.Like: ("negate",), exp.Literal: ("is_string",),
    exp.Null: ("infer",), exp.Overlay: ("from_", "for_"), exp.StrPosition: ("substr",), exp.Identifier: ("quoted",),
    exp.Substring: ("start", "length"), exp.Trim: ("position",), exp.DPipe: ("safe",), exp.Is: ("negate",),
}  # fmt: skip


#: Nodes that are always rejected, so their parts are not checked.
_UNREAD: Final = (exp.Window, exp.IgnoreNulls, exp.RespectNulls, exp.Filter, exp.Subquery, exp.Select, exp.Exists)

_READERS: Final[dict[type, Callable[[Any, Context], Value]]] = {
    exp.Column: _column, exp.Literal: _literal, exp.Null: _null, exp.Boolean: _boolean, exp.Paren: _paren,
    Adapted: _adapted, exp.Identifier: _variable,
    exp.ByteString: _text, exp.RawString: _text, exp.National: _text,
    exp.Not: _not, exp.And: _connector, exp.Or: _connector,
    exp.EQ: _comparison, exp.NEQ: _comparison, exp.LT: _comparison, exp.LTE: _comparison, exp.GT: _comparison,
    exp.GTE: _comparison, exp.NullSafeEQ: _comparison, exp.NullSafeNEQ: _comparison,
    exp.Between: _between, exp.In: _in, exp.Is: _is, exp.Case: _case, exp.Cast: _cast,
    exp.Add: _binary(arithmetic), exp.Sub: _binary(arithmetic), exp.Mul: _binary(arithmetic),
    exp.Div: _binary(arithmetic), exp.Mod: _binary(arithmetic), exp.Pow: _power, exp.Neg: _neg,
    exp.BitwiseAnd: _binary(bitwise), exp.BitwiseOr: _binary(bitwise), exp.BitwiseXor: _binary(bitwise),
    exp.BitwiseLeftShift: _binary(bitwise), exp.BitwiseRightShift: _binary(bitwise), exp.BitwiseNot: _bitwise_not,
    exp.DPipe: _binary(concatenate),
    exp.Anonymous: _anonymous,
    exp.CurrentDate: _named("current_date"), exp.CurrentTimestamp: _named("current_timestamp"),
    exp.Localtimestamp: _named("localtimestamp"), exp.CurrentTime: _named("current_time"),
    exp.CurrentUser: _named("current_user"), exp.SessionUser: _named("session_user"),
    exp.Localtime: _named("localtime"),
    exp.IgnoreNulls: _refused("IGNORE NULLS without OVER"), exp.RespectNulls: _refused("RESPECT NULLS without OVER"),
    exp.Tuple: _row, exp.HexString: _hexadecimal,
    exp.Star: _star, exp.If: _if, exp.Struct: _map, exp.Distance: _distance,
    exp.Exists: _subquery, exp.Subquery: _subquery, exp.Select: _refused("ARRAY (SELECT …)"),
    exp.Window: _over, exp.Filter: _refused("FILTER here"),
    exp.Collate: _collate, exp.Rollup: _refused("GROUP BY ROLLUP in a view"),
    exp.Cube: _refused("GROUP BY CUBE in a view"), exp.GroupingSets: _refused("GROUP BY GROUPING SETS in a view"),
    **{kind: _bound(read) for kind, read in {**functions.READERS, **nestedfunctions.READERS, **operators.READERS,
    **operators.ROUNDING, **calls.READERS, **arrayfunctions.READERS}.items()},
}  # fmt: skip
