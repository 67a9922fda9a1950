"""Conditions of joins of records: ON and WITHIN.

ON in dialects that join two sources by equalities with one source on each side, and filter each source alone (Lenses).

Lenses, "Joins", "Matching expression (ON)"; LS-12 to LS-16, D-004-07. AND splits a condition into parts; each part is
an equality with one source on each side, or reads a single source. `A = B AND c OR d` is listed as allowed: if AND
binding tighter than OR leaves a part over both sources, OR is taken to bind tighter.

WITHIN: joins of two streams of records within a time.

Lenses, "Joins", "Windowing: stream to stream joins"; LS-18 to LS-21, D-004-08.

The clock of a stream is the greatest time of its records in the epochs before. A record is late if, by the clock of
its own stream, its window ended more than the grace period ago. What it could match may have been forgotten; so it
matches nothing, and is output alone at once if its side is preserved.

The default grace period is 24 hours, that of the Kafka Streams version for which Lenses 4.0 was made (KIP-633,
"Deprecate 24-hour Default Grace Period for Windowed Operations in Streams"). With the default, records without a
partner are output when their window ends, as nobody waits a day for them. An explicit grace period is waited for
(KAFKA-10847, ksqlDB).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Join, LateRowFilter, Node, Project, TimeFilter, Union
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import duration_us
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import clocks
from watersmeet.algebra.watermarks import of_scalar as mark_of
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.binder.dialects.lenses.records import RecordMetadata, metadata_in
from watersmeet.catalog import RECORD_TIME
from watersmeet.dialects.lenses.grammar import WithinJoin, lengths_of
from watersmeet.dialects.tree.nodes import plain, text_of
from watersmeet.errors import Error
from watersmeet.expressions.context import Value, columns_of, duckdb_cast
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.times import DAY_US
from watersmeet.values.watermarks import Watermark, both, shifted

#: The default grace period: how late a record may be.
GRACE_US: Final = DAY_US


def windowed(node: exp.Join, one: exp.Column, other: exp.Column) -> exp.Join:
    """The join with its window in its condition; both ends are included (LS-19). one, other: the times."""
    within = lengths_of(node)
    if not within:
        return node
    made = plain(node.copy())
    length = within[0]
    window = exp.and_(
        exp.GTE(this=one, expression=exp.Sub(this=other, expression=length.copy())),
        exp.LTE(this=one.copy(), expression=exp.Add(this=other.copy(), expression=length.copy())),
        copy=False,
    )
    made.set("on", exp.and_(exp.Paren(this=made.args["on"]), window, copy=False))
    return made


def grace_of(node: exp.Join, env: Environment) -> int | None:
    """GRACE PERIOD in microseconds, None without one. TWO_WITHIN, INVALID_PARAMETER."""
    periods = node.grace_periods if isinstance(node, WithinJoin) else []
    lengths = {duration_us(p) for p in periods}
    if len(lengths) > 1:
        raise env.error(
            "TWO_WITHIN",
            "a join has two different grace periods",
            periods[-1],
            hint="Write GRACE PERIOD once, after WITHIN.",
        )
    if None in lengths:
        raise env.error("INVALID_PARAMETER", "GRACE PERIOD is too long", periods[0])
    return next(iter(lengths), None)


def length_of(node: exp.Join, env: Environment) -> int | None:
    """WITHIN in microseconds. INVALID_PARAMETER for zero and for anything that is no duration."""
    within = lengths_of(node)
    if not within:
        return None
    found = duration_us(within[0])
    if not found:
        raise env.error(
            "INVALID_PARAMETER", "WITHIN is too long" if found is None else "WITHIN needs a time above 0", within[0]
        )
    return found


class Within:
    """The join of two streams, each with a clock if its records have an event time.

    length_us, grace_us: of WITHIN and GRACE PERIOD; grace_us is None without one.
    """

    def __init__(self, left: Sourced, right: Sourced, length_us: int, grace_us: int | None) -> None:
        self._sides = (left, right)
        self._accepted_us = length_us + (GRACE_US if grace_us is None else grace_us)
        self._awaited_us = length_us + (grace_us or 0)
        self._times = [metadata_of(s).time.finish() for _, s in self._sides]
        self._clocks: list[Watermark] = [
            mark_of(t, clocks(r)) for t, (r, _) in zip(self._times, self._sides, strict=True)
        ]

    def without_late_rows(self) -> tuple[Sourced, Sourced]:
        """Both sides under a late-row filter, where their times are followed."""
        left, right = (
            s if not clock else (self._split(i, late=False), s[1])
            for i, (s, clock) in enumerate(zip(self._sides, self._clocks, strict=True))
        )
        return left, right

    def result(self, made: Node, join: Join, node: exp.Join, env: Environment, binding: Binding) -> Node:
        """The output of the join `made` (its columns, key and time), including rows known to have no partner."""
        kept = [i for i, kinds in enumerate((("left", "full"), ("right", "full"))) if join.kind in kinds]
        if not kept:
            return made
        if not all(self._clocks):
            shown = "OUTER" if join.kind == "full" else join.kind.upper()
            raise env.not_supported(
                f"{shown} JOIN of streams without event times",
                node,
                hint="Topics have one; another relation needs WATERMARK FOR.",
            )
        assert isinstance(made, Project)
        return Union((self._awaiting(made, binding), *(self._alone(i, made, binding) for i in kept)), made.columns)

    def _split(self, number: int, *, late: bool) -> Node:
        """The late records of a side, or the others."""
        time = self._times[number].column
        assert time is not None, "the time of a source is one of its columns"
        return LateRowFilter(self._sides[number][0], time, shifted(self._clocks[number], -self._accepted_us), late=late)

    def _awaiting(self, joined: Project, binding: Binding) -> Node:
        """Pairs are output at once. A record without a partner is output, for good, when both clocks have passed its
        window and the time to wait (D-004-08).
        """
        time = joined.columns[-1]
        due = binding.new_column("due", time.type, nullable=True)
        left, right = (t.expression for t in self._times)
        alone = exp.Case(
            ifs=[
                exp.If(this=exp.Is(this=left.copy(), expression=exp.null()), true=right.copy()),
                exp.If(this=exp.Is(this=right.copy(), expression=exp.null()), true=left.copy()),
            ]
        )
        timed = Project(joined, (*joined.columns, due), (*map(read, joined.columns), Scalar(alone, due.type)))
        held = TimeFilter(
            timed,
            due.id,
            "<",
            shifted(both(*self._clocks), -self._awaited_us),
            stays=True,
            untimed=True,
            same=(time.id,),
        )
        return Project(held, joined.columns, tuple(map(read, joined.columns)))

    def _alone(self, number: int, joined: Project, binding: Binding) -> Node:
        """The late records of a side, at once, with NULLs for the other side."""
        lacking = {c.id: duckdb_cast(exp.null(), c.type) for c in self._sides[1 - number][0].columns}
        late = self._split(number, late=True)
        exprs = [
            replace(
                e, expression=e.substitute(lacking).expression, nullable=e.nullable or bool(e.columns & lacking.keys())
            )
            for e in joined.exprs
        ]
        exprs[-1] = self._times[number]  # the later one of its time and none, and so that the clock goes on with it
        return Project(late, _renamed(joined.columns, exprs, binding), tuple(exprs))


def _renamed(columns: Sequence[Column], exprs: Sequence[Scalar], binding: Binding) -> tuple[Column, ...]:
    return tuple(binding.new_column(c.name, c.type, e.nullable) for c, e in zip(columns, exprs, strict=True))


def time_of(scope: Scope) -> exp.Column:
    """The time of the records of a source, as a condition names it."""
    return exp.column(
        exp.to_identifier(RECORD_TIME, quoted=True), exp.to_identifier(scope.tables[-1].alias, quoted=True)
    )


def metadata_of(scope: Scope) -> RecordMetadata:
    """The metadata of a side of a join, which is a source of records."""
    metadata = metadata_in(scope)
    assert metadata is not None, "only sources of records are joined"
    return metadata


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
