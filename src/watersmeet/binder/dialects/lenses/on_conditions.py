"""ON in dialects that join two sources by equalities with one source on each side, and filter each source alone
(Lenses).

Lenses, "Joins", "Matching expression (ON)"; LS-12 to LS-16, D-004-07. AND splits a condition into parts; each part is
an equality with one source on each side, or reads a single source. `A = B AND c OR d` is listed as allowed: if AND
binding tighter than OR leaves a part over both sources, OR is taken to bind tighter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from sqlglot import exp

from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.dialects.tree.nodes import text_of
from watersmeet.errors import Error
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.values import Value, columns_of


def check_on(
    condition: exp.Expression, left: Scope, right: Scope, env: Environment, binding: Binding
) -> tuple[exp.Expression, bool]:
    """The condition with its AND and OR resolved, and whether it equates the sources. ON_ONE_SIDE, ON_NOT_SPLIT."""
    rules = _Rules(left, right, env)
    if (subquery := condition.find(exp.Select)) is not None:
        raise rules.lacking("a subquery in ON", subquery)
    parts: list[exp.Expression] = []
    for part in _conjuncts(condition):
        regrouped = rules.regrouped(part)
        if regrouped is not None:
            binding.notice(
                f"the condition of the join is read as {' AND '.join(map(_shown, regrouped))}: AND splits it before OR"
            )
            parts += [p for r in regrouped for p in _conjuncts(r)]
        else:
            parts.append(part)
    for part in parts:
        rules.check(part)
    equates = any(map(rules.equates, parts))
    if not equates:
        binding.notice("the join is by _key: nothing in ON equates both sources")
    return reduce(lambda a, b: exp.And(this=a, expression=b), [_closed(p) for p in parts]), equates


class _Rules:
    """What a part of a condition may read."""

    def __init__(self, left: Scope, right: Scope, env: Environment) -> None:
        self._left = left
        self._right = right
        self._ctx = ScopeContext(
            env.text, Scope(left.tables + right.tables, left.visible + right.visible, env.outer), "JOIN/ON"
        )

    def check(self, part: exp.Expression) -> None:
        """ON_ONE_SIDE or ON_NOT_SPLIT for a part that breaks the rules.

        FEATURE_NOT_SUPPORTED for a field compared with itself, which must be a mistake.
        """
        node = part.unnest()
        if len(self._reads(part)) < 2:
            if isinstance(node, exp.EQ) and self._reads(part) and self._is_same(node):
                raise self._ctx.not_supported(
                    f'"{text_of(part)}" in ON, which compares a field with itself,',
                    part,
                    hint="Write the sources in front of both fields.",
                )
            return
        if not isinstance(node, exp.EQ):
            raise self._error(
                "ON_NOT_SPLIT",
                "both sources in one condition not split by and",
                part,
                f'"{text_of(part)}" reads {self._names()}.',
            )
        for side in (node.this, node.expression):
            if len(self._reads(side)) > 1:
                raise self._error(
                    "ON_ONE_SIDE",
                    "both sources on one side of an equality",
                    side,
                    f'"{text_of(side)}" reads {self._names()}.',
                )

    def _value(self, node: exp.Expression) -> Value:
        return bind_value(node, self._ctx)

    def _is_same(self, node: exp.EQ) -> bool:
        return bool(self._value(node.this).expression == self._value(node.expression).expression)

    def lacking(self, what: str, place: exp.Expression) -> Error:
        """The error for something that ON can't contain."""
        return self._ctx.not_supported(what, place, hint="Join with it in a query of WITH.")

    def equates(self, part: exp.Expression) -> bool:
        """Whether a part that follows the rules is an equality of the two sources."""
        return len(self._reads(part)) > 1

    def regrouped(self, part: exp.Expression) -> list[exp.Expression] | None:
        """The parts of a part that mixes AND and OR, with OR binding tighter, if only that follows the rules."""
        node = part.unnest()
        if (
            not isinstance(node, exp.Or)
            or len(self._reads(node)) < 2
            or not any(isinstance(w, exp.And) for w in _words(node))
        ):
            return None
        groups: list[list[exp.Expression]] = [[]]
        for word in _words(node):
            if isinstance(word, exp.And):
                groups.append([])
            elif not isinstance(word, exp.Or):
                groups[-1].append(word)
        made = [reduce(lambda a, b: exp.Or(this=a, expression=b), [w.copy() for w in group]) for group in groups]
        try:
            for one in made:
                for inner in _conjuncts(one):
                    self.check(inner)
        except Error:
            return None
        return made

    def _reads(self, node: exp.Expression) -> set[str]:
        """The sources that an expression reads."""
        found = set()
        for column in node.find_all(exp.Column):
            ids = columns_of(self._ctx.column(column))
            found |= {name for name, scope in (("left", self._left), ("right", self._right)) if ids & scope.ids}
        return found

    def _names(self) -> str:
        return " and ".join(next((t.alias for t in s.tables if t.alias), "a source") for s in (self._left, self._right))

    def _error(self, condition: str, message: str, place: exp.Expression, detail: str) -> Error:
        return self._ctx.error(
            condition,
            message,
            place,
            detail=detail,
            hint=(
                "ON is made of equalities with one source on each side and of conditions on one source, "
                "combined by AND. "
                "Other comparisons of both sources belong in WHERE."
            ),
        )


def _conjuncts(node: exp.Expression) -> Iterator[exp.Expression]:
    """The conjuncts, in order."""
    inner = node.unnest()
    if isinstance(inner, exp.And):
        yield from _conjuncts(inner.this)
        yield from _conjuncts(inner.expression)
    else:
        yield node


def _words(node: exp.Expression) -> Iterator[exp.Expression]:
    """The conditions and, between them, the AND or OR as written. Parentheses are one condition."""
    if isinstance(node, (exp.And, exp.Or)):
        yield from _words(node.this)
        yield node
        yield from _words(node.expression)
    else:
        yield node


def _closed(node: exp.Expression) -> exp.Expression:
    """A copy of a part that keeps its meaning as an operand of AND."""
    return exp.paren(node.copy()) if isinstance(node, exp.Or) else node.copy()


def _shown(node: exp.Expression) -> str:
    return text_of(_closed(node))
