"""Binds JOIN and ASOF JOIN. Conditions become keys and a residual; USING and NATURAL merge columns.

The condition of an ASOF join consists of equalities between the sides, and exactly one comparison, which determines the
nearest row (RisingWave, "Joins", "ASOF joins"; RW-20 to RW-26).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Apply, AsofJoin, Join, JoinKind, KeyPair, Node, Scan
from watersmeet.algebra.scalars import MIRRORED_SIGNS, SIGNS, Comparison, Scalar, conjunction, conjuncts
from watersmeet.binder.clauses.subqueries import has_subquery
from watersmeet.binder.context.binding import Environment, condition_parts, equality_key, filtered, key_of
from watersmeet.binder.context.rules import JoinClause, JoinSubqueries, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, named
from watersmeet.dialects.tree.nodes import FirstName
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.errors import did_you_mean, error
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.clock import reads_clock
from watersmeet.expressions.context import Context, Value, columns_of, common_type
from watersmeet.expressions.operators import comparable, compare
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.values.spans import own_span, set_span

_UNORDERED: Final = ("array", "struct", "map", "jsonb")
_HINT: Final = "Write ON a.key = b.key AND a.time >= b.time."


def asof_join(
    left: Sourced,
    right: Sourced,
    node: exp.Join,
    scope: Scope,
    keys: Sequence[KeyPair],
    env: Environment,
    without_equality: str,
) -> AsofJoin:
    """`left ASOF [LEFT] JOIN right [MATCH_CONDITION (…)] [ON … | USING (…)]`. Raises ASOF_KIND, ASOF_WITHOUT_EQUALITY,
    ASOF_WITHOUT_INEQUALITY.

    A condition that reads only right rows selects the candidates; a condition that reads only left rows selects the
    left rows that can have a partner. scope: of ON. keys: those of USING. without_equality: the message for
    ASOF_WITHOUT_EQUALITY.
    """
    span = node_span(node.this) or node_span(node)
    side = node.side.upper()
    if side not in ("", "LEFT"):
        raise error(
            "ASOF_KIND",
            f"ASOF {side} JOIN does not exist",
            sql=env.text,
            span=span,
            detail="Expected LEFT after ASOF. RIGHT or FULL are not supported.",
            hint="Use ASOF JOIN or ASOF LEFT JOIN; exchange the sides if necessary.",
        )
    match, condition = node.args.get("match_condition"), node.args.get("on")
    if match is None and condition is None:
        raise error(
            "ASOF_WITHOUT_INEQUALITY",
            "AsOf join requires exactly 1 inequality condition",
            sql=env.text,
            span=span,
            hint=f"USING has equalities only. {_HINT}" if node.args.get("using") else _HINT,
        )
    sides = _Sides(left[0], right[0], ScopeContext(env.text, scope, "JOIN/ON"))
    sides.keys += keys
    for part in [p for whole in (match, condition) if whole is not None for p in condition_parts(whole)]:
        sides.add(part)
    if not sides.keys:
        raise env.error("ASOF_WITHOUT_EQUALITY", without_equality, condition or match, hint=_HINT)
    if sides.nearest is None:
        raise env.error(
            "ASOF_WITHOUT_INEQUALITY",
            "AsOf join requires exactly 1 inequality condition",
            match or condition,
            detail="It lacks a comparison (<, <=, > or >=) between the two sides.",
            hint=_HINT,
        )
    comparison, left_value, right_value = sides.nearest
    if side == "LEFT":
        kept, left_value = left[0], sides.only_if(left_value)
    else:
        kept = filtered(left[0], sides.left_only)
    found = filtered(right[0], sides.right_only)
    ties = right[0].key if isinstance(right[0], Scan) else ()
    return AsofJoin(
        kept,
        found,
        "left" if side == "LEFT" else "inner",
        tuple(sides.keys),
        comparison,
        left_value.finish(),
        right_value.finish(),
        ties,
        span=span,
    )


class _Sides:
    """The parts of an ASOF condition by their role."""

    def __init__(self, left: Node, right: Node, ctx: ScopeContext) -> None:
        self.left = left
        self.right = right
        self.ctx = ctx
        self.keys: list[KeyPair] = []
        self.nearest: tuple[Comparison, Value, Value] | None = None
        self.left_only: list[Scalar] = []
        self.right_only: list[Scalar] = []

    def add(self, part: exp.Expression) -> None:
        """Adds a part of the condition."""
        compares = (isinstance(part, (exp.EQ, exp.NullSafeEQ)) or type(part) in SIGNS) and not reads_clock(part)
        if isinstance(part, exp.Binary) and compares and not isinstance(part.expression, (exp.Any, exp.All)):
            a, b = bind_value(part.this, self.ctx), bind_value(part.expression, self.ctx)
            whole = compare(part, a, b, self.ctx)
            if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
                pair = equality_key(part, a, b, self.left, self.right, self.ctx)
                if pair is not None:
                    self.keys.append(pair)
                    return
            elif self._is_nearest(part, a, b):
                return
        else:
            whole = bind_condition(part, self.ctx, "JOIN/ON")
        reads = columns_of(whole)
        if reads <= self.right.ids:
            self.right_only.append(whole.finish())
        elif reads <= self.left.ids:
            self.left_only.append(whole.finish())
        else:
            raise self.ctx.error(
                "ASOF_WITHOUT_INEQUALITY",
                "AsOf join requires exactly 1 inequality condition",
                part,
                detail="Besides equalities and that comparison, a condition may read one side only.",
                hint=_HINT,
            )

    def _is_nearest(self, part: exp.Expression, a: Value, b: Value) -> bool:
        reads_a, reads_b = columns_of(a), columns_of(b)
        straight = bool(reads_a) and bool(reads_b) and reads_a <= self.left.ids and reads_b <= self.right.ids
        turned = bool(reads_a) and bool(reads_b) and reads_b <= self.left.ids and reads_a <= self.right.ids
        if not straight and not turned:
            return False
        if self.nearest is not None:
            raise self.ctx.error(
                "ASOF_WITHOUT_INEQUALITY",
                "AsOf join requires exactly 1 inequality condition",
                part,
                detail="This is a second one: the nearest row by both is undefined.",
                hint="Leave in ON the one that decides which row is nearest; compare the others in WHERE.",
            )
        kind = common_type([a.type, b.type])
        assert kind is not None, "compare() has checked it"
        if kind.name in _UNORDERED:
            raise self.ctx.error(
                "DATATYPE_MISMATCH",
                f"values of type {kind.sql} have no distance from each other",
                part,
                hint="Compare numbers, strings, dates or times.",
            )
        one, other = coerce(a, kind, self.ctx, part), coerce(b, kind, self.ctx, part)
        comparison = SIGNS[type(part)]
        self.nearest = (comparison, one, other) if straight else (MIRRORED_SIGNS[comparison], other, one)
        return True

    def only_if(self, value: Value) -> Value:
        """`value` if the conditions on left rows are true, else NULL, which has no partner."""
        for condition in self.left_only:
            case = exp.Case(ifs=[exp.If(this=condition.expression.copy(), true=value.expression)])
            value = Value(case, value.type)
        return value


_KINDS: Final[dict[str, JoinKind]] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


def join(clause: JoinClause) -> Sourced:
    """Binds `left JOIN right`; without a condition it is an inner join without keys."""
    left, right, node, env, subqueries = clause.left, clause.right, clause.node, clause.env, clause.subqueries
    check_aliases(left[1], right[1], node, env)
    if node.method.upper() == "ASOF":
        common = _Common(left[1], right[1], list(node.args.get("using") or []), node, env)
        scope = Scope(left[1].tables + right[1].tables, common.visible("inner"), env.outer)
        message = clause.binding.rules.semantics.asof_without_equality
        nearest = asof_join(left, right, node, _both(left[1], right[1], env.outer), common.keys, env, message)
        return nearest, _refreshed(scope, nearest)
    kind = _KINDS[node.side.upper()]
    dependent = bool(right[0].free & left[0].ids)
    if dependent and kind not in ("inner", "left"):
        raise env.error(
            "SYNTAX_ERROR", "The combining JOIN type must be INNER or LEFT for a LATERAL reference.", node.this
        )
    using = list(node.args.get("using") or [])
    if node.method.upper() == "NATURAL":
        names = {c.name for c in right[1].visible}
        using = [exp.to_identifier(c.name, quoted=True) for c in left[1].visible if c.name in names]
    if using:
        if dependent:
            raise env.not_supported("USING with a LATERAL reference", node, hint="Write ON.")
        return _using(left, right, kind, using, node, env)
    scope = _both(left[1], right[1], env.outer)
    condition = node.args.get("on")
    parts = [] if condition is None else condition_parts(condition)
    on = _On(left[0], right[0], kind, scope, node, env, subqueries)
    relation = on.dependent(parts) if dependent else on.joined(parts)
    return relation, _refreshed(scope, relation)


class _On:
    """A join and the parts of its condition."""

    def __init__(
        self,
        left: Node,
        right: Node,
        kind: JoinKind,
        scope: Scope,
        node: exp.Join,
        env: Environment,
        subqueries: Callable[[Scope], JoinSubqueries],
    ) -> None:
        self.left = left
        self.right = right
        self.kind = kind
        self.scope = scope
        self.env = env
        self.node = node
        self.subqueries = subqueries

    def _context(self) -> tuple[ScopeContext, JoinSubqueries]:
        subqueries = self.subqueries(self.scope)
        return ScopeContext(self.env.text, self.scope, "JOIN/ON", subqueries), subqueries

    def dependent(self, parts: Sequence[exp.Expression]) -> Node:
        """Binds a LATERAL join. Its condition may move into the right side, because the right side may read the left
        one.
        """
        ctx, subqueries = self._context()
        kind: Literal["inner", "left"] = "left" if self.kind == "left" else "inner"
        if kind == "inner":
            joined = Apply(self.left, self.right, kind, span=node_span(self.node))
            return subqueries.filtered(joined, parts, ctx, "JOIN/ON")
        right = subqueries.filtered(self.right, [p for p in parts if not _is_literal_true(p)], ctx, "JOIN/ON")
        return Apply(self.left, right, kind, span=node_span(self.node))

    def joined(self, parts: Sequence[exp.Expression]) -> Node:
        """Binds a join of independent sides. Subqueries are evaluated on the side that they read."""
        plain = [p for p in parts if not has_subquery(p)]
        others = [p for p in parts if has_subquery(p)]
        if others and self.kind == "inner":
            ctx, subqueries = self._context()
            return subqueries.filtered(self._plain(plain, []), others, ctx, "JOIN/ON")
        residual: list[Scalar] = []
        for part in others:
            ctx, subqueries = self._context()
            value = bind_condition(part, ctx, "JOIN/ON")
            reads = (columns_of(value) | subqueries.reads()) & (self.left.ids | self.right.ids)
            if reads <= self.left.ids:
                self.left = subqueries.applied(self.left)
            elif reads <= self.right.ids:
                self.right = subqueries.applied(self.right)
            else:
                return self._of_both_sides(parts, part)
            residual += conjuncts(value.finish())
        return self._plain(plain, residual)

    def _plain(self, parts: Sequence[exp.Expression], more: Sequence[Scalar]) -> Node:
        keys, residual = split(parts, self.left, self.right, self._context()[0])
        return Join(
            self.left, self.right, self.kind, tuple(keys), conjunction([*residual, *more]), span=node_span(self.node)
        )

    def _of_both_sides(self, parts: Sequence[exp.Expression], part: exp.Expression) -> Node:
        if self.kind == "full":
            raise self.env.not_supported("a subquery of both sides in ON of a FULL JOIN", part)
        kept, other = (self.left, self.right) if self.kind == "left" else (self.right, self.left)
        ctx, subqueries = self._context()
        return Apply(kept, subqueries.filtered(other, parts, ctx, "JOIN/ON"), "left", span=node_span(self.node))


def _is_literal_true(node: exp.Expression) -> bool:
    return isinstance(node, exp.Boolean) and bool(node.this)


def check_aliases(left: Scope, right: Scope, node: exp.Join, env: Environment) -> None:
    """Raises DUPLICATE_OBJECT if both sides have an item with the same name."""
    clash = left.clash(right)
    if clash is not None:
        raise env.error(
            "DUPLICATE_OBJECT",
            f'table name "{clash}" specified more than once',
            node.this,
            hint="Give one of them an alias.",
        )


def _both(left: Scope, right: Scope, outer: Scope | None) -> Scope:
    return Scope(left.tables + right.tables, left.visible + right.visible, outer)


def _refreshed(scope: Scope, relation: Node) -> Scope:
    """The scope with the nullability that an outer join gives its columns."""
    nullable = {c.id for c in relation.columns if c.nullable}

    def update(column: ScopeColumn) -> ScopeColumn:
        value = column.value
        if isinstance(value.expression, exp.Column):
            now = value.expression.name in nullable
        else:
            reads = {c.name for c in value.expression.find_all(exp.Column)}
            merged = isinstance(value.expression, exp.Coalesce)
            now = reads <= nullable if merged else value.nullable or bool(reads & nullable)
        return column if now == value.nullable else replace(column, value=replace(value, nullable=now))

    tables = tuple(
        replace(t, columns=tuple(map(update, t.columns)), hidden=tuple(map(update, t.hidden))) for t in scope.tables
    )
    return Scope(tables, tuple(update(c) for c in scope.visible), scope.outer)


class _Common:
    """The columns of USING and NATURAL, which the result has once.

    keys: their equalities.
    """

    def __init__(
        self, left: Scope, right: Scope, names: Sequence[exp.Expression], node: exp.Join, env: Environment
    ) -> None:
        self._ctx = Context(env.text, "USING")
        self._both = (*left.visible, *right.visible)
        self._pairs: list[tuple[str, ScopeColumn, ScopeColumn, exp.Expression]] = []
        self.keys: list[KeyPair] = []
        places = list(node.args.get("using") or []) or [node] * len(names)
        for identifier, place in zip(names, places, strict=True):
            name = name_of(identifier)
            one = _common_column(left, identifier, "left", place, self._ctx)
            other = _common_column(right, identifier, "right", place, self._ctx)
            equality = exp.EQ(this=exp.column(name), expression=exp.column(name))
            set_span(equality, own_span(place))
            comparable(equality, one.value, other.value, self._ctx)
            self.keys.append(key_of(place, one.value, other.value, self._ctx))
            self._pairs.append((name, one, other, place))

    def visible(self, kind: JoinKind) -> tuple[ScopeColumn, ...]:
        """The columns of the result, the common ones first."""
        merged = [
            ScopeColumn(name, _merged(kind, one.value, other.value, self._ctx, place))
            for name, one, other, place in self._pairs
        ]
        taken = [column for _, one, other, _ in self._pairs for column in (one, other)]
        return (*merged, *(c for c in self._both if c not in taken))


def _using(
    left: tuple[Node, Scope],
    right: tuple[Node, Scope],
    kind: JoinKind,
    names: Sequence[exp.Expression],
    node: exp.Join,
    env: Environment,
) -> tuple[Node, Scope]:
    common = _Common(left[1], right[1], names, node, env)
    relation = Join(left[0], right[0], kind, tuple(common.keys), None, span=node_span(node))
    scope = Scope(left[1].tables + right[1].tables, common.visible(kind), env.outer)
    return relation, _refreshed(scope, relation)


def _common_column(
    scope: Scope, identifier: exp.Expression, side: str, node: exp.Expression, ctx: Context
) -> ScopeColumn:
    found, name = named(scope.visible, identifier), name_of(identifier)
    if not found:
        raise ctx.error(
            "UNDEFINED_COLUMN",
            f'column "{name}" specified in USING clause does not exist in {side} table',
            node,
            hint=did_you_mean(name, [c.name for c in scope.visible]),
        )
    if len(found) > 1 and not isinstance(node, FirstName):
        raise ctx.error("AMBIGUOUS_COLUMN", f'common column name "{name}" appears more than once in {side} table', node)
    return found[0]


def _merged(kind: JoinKind, a: Value, b: Value, ctx: Context, node: exp.Expression) -> Value:
    """The value of a USING column: the right side's for RIGHT, the one that is not NULL for FULL, else the left
    side's.
    """
    if kind == "full":
        shared = common_type([a.type, b.type])
        assert shared is not None
        first, second = coerce(a, shared, ctx, node), coerce(b, shared, ctx, node)
        return Value(exp.Coalesce(this=first.expression, expressions=[second.expression]), shared)
    return b if kind == "right" else a


def split(parts: Sequence[exp.Expression], left: Node, right: Node, ctx: Context) -> tuple[list[KeyPair], list[Scalar]]:
    """Splits the parts of a join condition into keys (equalities between the sides) and the rest."""
    keys: list[KeyPair] = []
    residual: list[Scalar] = []
    for part in parts:
        if (
            isinstance(part, (exp.EQ, exp.NullSafeEQ))
            and not isinstance(part.expression, (exp.Any, exp.All))
            and (not reads_clock(part))
        ):
            a, b = bind_value(part.this, ctx), bind_value(part.expression, ctx)
            whole = compare(part, a, b, ctx)
            pair = equality_key(part, a, b, left, right, ctx)
            if pair is not None:
                keys.append(pair)
                continue
        else:
            whole = bind_condition(part, ctx, "JOIN/ON")
        residual += [s for s in conjuncts(whole.finish()) if not _is_true(s)]
    return keys, residual


def _is_true(scalar: Scalar) -> bool:
    return isinstance(scalar.expression, exp.Boolean) and bool(scalar.expression.this)
