"""Binds joins of records: kinds of join by stream and table, ON, WITHIN, formats of keys, numbers of partitions.

Lenses, "Joins", "Table/Stream joins compatibility table".

**ON** ("Matching expression (ON)"; LS-12 to LS-16). AND splits a condition into parts; each part is an equality with
one source on each side, or reads a single source. The document allows `A = B AND c OR d`: if the usual precedence
leaves a part that reads both sources, OR takes precedence over AND.

**Keys** ("Key decoder types", "Co-partitioning", "ON expressions and key change"; LS-31 to LS-36). Both sources need
the same key format and the same number of partitions. Formats are also compared if ON equates values. A computed key
has no format.

**WITHIN** joins two streams of records within a time ("Windowing: stream to stream joins"; LS-18 to LS-21). The clock
of a stream is the greatest time of its records in earlier epochs. A record is late if, by the clock of its own stream,
its window ended more than the grace period ago. The state may no longer contain its partners, so it matches nothing; if
its side is preserved, it is output immediately with NULLs. The default grace period is 24 hours as in the Kafka Streams
version on which Lenses 4.0 is based (KIP-633, "Deprecate 24-hour Default Grace Period for Windowed Operations in
Streams"). With the default, records without a partner are output when their window ends; an explicit grace period
delays them (KAFKA-10847, ksqlDB).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Column,
    Join,
    JoinKind,
    LateRowFilter,
    Node,
    Project,
    Repartition,
    TemporalJoin,
    TimeFilter,
    Union,
)
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import duration_us
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import clocks
from watersmeet.algebra.watermarks import of_scalar as mark_of
from watersmeet.binder.clauses.joins import check_aliases, join
from watersmeet.binder.context.binding import Environment, condition_parts, value_of
from watersmeet.binder.context.rules import Binding, JoinClause, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.binder.dialects.lenses.records import (
    RecordKind,
    RecordLayout,
    RecordMetadata,
    check_decided,
    metadata_in,
    packed,
)
from watersmeet.catalog import KEY_COLUMN, RECORD_TIME
from watersmeet.dialects.lenses.grammar import WithinJoin, lengths_of
from watersmeet.dialects.tree.nodes import plain, text_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.errors import Error
from watersmeet.expressions.context import Value, columns_of, duckdb_cast, of_scalar
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.times import DAY_US
from watersmeet.values.watermarks import Watermark, both, shifted

#: The default grace period, the maximum lateness of a record.
GRACE_US: Final = DAY_US


def windowed(node: exp.Join, one: exp.Column, other: exp.Column) -> exp.Join:
    """The join with a condition on the times `one` and `other` instead of WITHIN; both ends are included (LS-19)."""
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
    """GRACE PERIOD in microseconds, or None. Raises TWO_WITHIN, INVALID_PARAMETER."""
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
    """WITHIN in microseconds. Raises INVALID_PARAMETER unless it is a duration above zero."""
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
    """The join of two streams. A stream has a clock if its records have an event time.

    length_us: the length of WITHIN. grace_us: the length of GRACE PERIOD, or None.
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
        """Both sides with a late-row filter if they have a clock."""
        left, right = (
            s if not clock else (self._split(i, late=False), s[1])
            for i, (s, clock) in enumerate(zip(self._sides, self._clocks, strict=True))
        )
        return left, right

    def result(self, made: Node, join: Join, node: exp.Join, env: Environment, binding: Binding) -> Node:
        """The output of the join `made` (its columns, key and time), including rows that are known to have no
        partner.
        """
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
        """Splits the late records of a side from the others."""
        time = self._times[number].column
        assert time is not None, "the time of a source is one of its columns"
        return LateRowFilter(self._sides[number][0], time, shifted(self._clocks[number], -self._accepted_us), late=late)

    def _awaiting(self, joined: Project, binding: Binding) -> Node:
        """Outputs pairs immediately, and records without a partner when both clocks have passed their window."""
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
        """Outputs the late records of a side immediately, with NULLs for the other side."""
        lacking = {c.id: duckdb_cast(exp.null(), c.type) for c in self._sides[1 - number][0].columns}
        late = self._split(number, late=True)
        exprs = [
            replace(
                e, expression=e.substitute(lacking).expression, nullable=e.nullable or bool(e.columns & lacking.keys())
            )
            for e in joined.exprs
        ]
        exprs[-1] = self._times[number]  # the greatest of its time and NULL, so that the clock still advances
        return Project(late, _renamed(joined.columns, exprs, binding), tuple(exprs))


def _renamed(columns: Sequence[Column], exprs: Sequence[Scalar], binding: Binding) -> tuple[Column, ...]:
    return tuple(binding.new_column(c.name, c.type, e.nullable) for c, e in zip(columns, exprs, strict=True))


def time_of(scope: Scope) -> exp.Column:
    """The time of the records of a source, in the form in which a condition names it."""
    return exp.column(
        exp.to_identifier(RECORD_TIME, quoted=True), exp.to_identifier(scope.tables[-1].alias, quoted=True)
    )


def metadata_of(scope: Scope) -> RecordMetadata:
    """The metadata of a side of a join, which must be a source of records."""
    metadata = metadata_in(scope)
    assert metadata is not None, "only sources of records are joined"
    return metadata


def check_on(
    condition: exp.Expression, left: Scope, right: Scope, env: Environment, binding: Binding
) -> tuple[exp.Expression, bool]:
    """The condition with its AND and OR resolved, and whether it equates the sources. Raises ON_ONE_SIDE,
    ON_NOT_SPLIT.
    """
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
    """Checks the sources that a part of a condition reads."""

    def __init__(self, left: Scope, right: Scope, env: Environment) -> None:
        self._left = left
        self._right = right
        self._ctx = ScopeContext(
            env.text, Scope(left.tables + right.tables, left.visible + right.visible, env.outer), "JOIN/ON"
        )

    def check(self, part: exp.Expression) -> None:
        """Raises ON_ONE_SIDE or ON_NOT_SPLIT for a part that violates the rules.

        Raises FEATURE_NOT_SUPPORTED for a field that is compared with itself, which must be a mistake.
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
        """Whether a valid part is an equality of the two sources."""
        return len(self._reads(part)) > 1

    def regrouped(self, part: exp.Expression) -> list[exp.Expression] | None:
        """The operands of a condition that mixes AND and OR, read as if OR had precedence over AND.

        The result is None unless the condition violates the rules with the usual precedence and obeys them if OR has
        precedence.
        """
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
    """The conjuncts in order."""
    inner = node.unnest()
    if isinstance(inner, exp.And):
        yield from _conjuncts(inner.this)
        yield from _conjuncts(inner.expression)
    else:
        yield node


def _words(node: exp.Expression) -> Iterator[exp.Expression]:
    """The operands of a condition and the AND or OR between them, as written. A condition in parentheses is one
    operand.
    """
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


def check_keys(left: Scope, right: Scope, node: exp.Join, env: Environment) -> RecordLayout:
    """The formats of the joined records if their keys are joined. Raises KEY_FORMATS."""
    one, other = metadata_of(left), metadata_of(right)
    formats = one.layout.key_format, other.layout.key_format
    if None not in formats:
        types = [f.key.type.sql for f in (one, other) if f.key is not None]
        shown = (
            [f"{f} ({t})" for f, t in zip(formats, types, strict=True)] if formats[0] == formats[1] else list(formats)
        )
        if shown[0] != shown[1]:
            names = [s.tables[-1].alias for s in (left, right)]
            raise env.error(
                "KEY_FORMATS",
                f"key formats differ: {names[0]} has {shown[0]}, {names[1]} has {shown[1]}",
                node.this,
                detail="Sources are joined by keys in one format, even if ON compares values.",
                hint=f"Write one of them again: INSERT INTO topic STORE KEY AS {formats[0]} VALUE AS AVRO SELECT TABLE "
                f"CAST(_key AS {types[0]}) AS _key, … FROM {names[1]}.",
            )
    counts = [f.layout.partitions for f in (one, other) if f.layout.partitions is not None]
    value_format = one.layout.value_format or other.layout.value_format
    return RecordLayout(formats[0] if formats[0] == formats[1] else None, max(counts, default=None), value_format)


def copartitioned(left: Sourced, right: Sourced) -> tuple[Sourced, Sourced]:
    """Both sources with the greater of their numbers of partitions, and with each record in the partition of its
    key.
    """
    layouts = metadata_of(left[1]).layout, metadata_of(right[1]).layout
    counts = [layout.partitions for layout in layouts]
    if counts[0] is None or counts[1] is None:
        return left, right
    wanted = max(counts[0], counts[1])
    one, other = (
        sourced if layout.partitions == wanted and layout.by_hash else (Repartition(sourced[0], wanted), sourced[1])
        for sourced, layout in zip((left, right), layouts, strict=True)
    )
    return one, other


#: For the kinds of the left and right side: the allowed joins, whether they need WITHIN, and the kind of the result.
_MATRIX: Final[dict[tuple[RecordKind, RecordKind], tuple[tuple[str, ...], bool, RecordKind]]] = {
    ("stream", "stream"): (("INNER", "LEFT", "RIGHT", "FULL"), True, "stream"),
    ("table", "table"): (("INNER", "LEFT", "RIGHT", "FULL"), False, "table"),
    ("table", "stream"): (("RIGHT",), False, "stream"),
    ("stream", "table"): (("INNER", "LEFT"), False, "stream"),
}  # fmt: skip


def record_join(clause: JoinClause) -> Sourced:
    """Binds `left JOIN right` and determines the key, time and kind of its records.

    Raises the error conditions of the compatibility table, with their spans.
    """
    left, right, node, env, binding = clause.left, clause.right, clause.node, clause.env, clause.binding
    check_aliases(left[1], right[1], node, env)
    one, other = metadata_in(left[1]), metadata_in(right[1])
    if one is None or other is None:
        raise env.not_supported("a join with this item of FROM", node, hint="Topics and queries of WITH can be joined.")
    nature = _checked(node, one.nature, other.nature, env)
    if nature == "stream":
        both = Scope(left[1].tables + right[1].tables, left[1].visible + right[1].visible, env.outer)
        check_decided(condition_parts(node.args["on"]), ScopeContext(env.text, both, "JOIN/ON"))
    layout = check_keys(left[1], right[1], node, env)
    length_us, grace_us = length_of(node, env), grace_of(node, env)
    node = windowed(_conditioned(node, left[1], right[1], env, binding), time_of(left[1]), time_of(right[1]))
    sides = copartitioned(left, right)
    within = None if length_us is None else Within(*sides, length_us, grace_us)
    left, right = sides if within is None else within.without_late_rows()
    relation, scope = join(replace(clause, left=left, right=right, node=node))
    assert isinstance(relation, Join)
    joined: Node = relation
    if one.nature != other.nature:
        joined = _looked_up(relation, turned=one.nature == "table")
    key, time = _key(relation, one, other), _time(relation, one, other)
    key_column = binding.new_column(KEY_COLUMN, key.type, key.nullable)
    time_column = binding.new_column(RECORD_TIME, time.type, time.nullable)
    made: Node = Project(
        joined, (*relation.columns, key_column, time_column), (*map(read, relation.columns), key, time)
    )
    if within is not None:
        made = within.result(made, relation, node, env, binding)
    shown = _once(scope, len(left[1].visible), node, relation.kind)
    layout = layout if _by_key(relation, one, other) else replace(layout, key_format=None)
    return made, replace(
        scope, visible=shown, extension=RecordMetadata(nature, value_of(key_column), value_of(time_column), layout)
    )


def _checked(node: exp.Join, left: RecordKind, right: RecordKind, env: Environment) -> RecordKind:
    """The nature of the result. Raises STREAM_JOIN_WITHOUT_WITHIN, WITHIN_NOT_ALLOWED, TWO_WITHIN, RECORD_JOIN_KIND."""
    kinds, windowed, nature = _MATRIX[left, right]
    kind = node.side.upper() or "INNER"
    within = lengths_of(node)
    if len({duration_us(w) for w in within}) > 1:
        raise _refused(
            "TWO_WITHIN", "a join has two different WITHIN", within[-1], env, "Write it once, before or after ON."
        )
    if within and not windowed:
        raise _refused(
            "WITHIN_NOT_ALLOWED",
            f"WITHIN is not allowed in a join of a {left} with a {right}",
            within[0],
            env,
            "Only two streams are joined within a time; leave WITHIN out.",
        )
    if kind not in kinds:
        shown = "OUTER" if kind == "FULL" else kind
        names = " or ".join(f"{k} JOIN" for k in kinds)
        raise _refused(
            "RECORD_JOIN_KIND",
            f"{shown} JOIN of a {left} with a {right} is not allowed",
            node,
            env,
            f"A {left} and a {right} can be joined by {names}.",
        )
    if windowed and not within:
        raise _refused(
            "STREAM_JOIN_WITHOUT_WITHIN",
            "a join of two streams needs WITHIN",
            node,
            env,
            "Add WITHIN and a duration, such as WITHIN 5s.",
        )
    return nature


def _refused(condition: str, message: str, node: exp.Expression, env: Environment, hint: str) -> Error:
    return env.error(condition, message, node, hint=hint)


def _conditioned(node: exp.Join, left: Scope, right: Scope, env: Environment, binding: Binding) -> exp.Join:
    """The join with its condition resolved. Without an equality it joins the sources by their keys."""
    made: exp.Join = node.copy()
    condition, equates = check_on(node.args["on"], left, right, env, binding)
    if not equates:
        by_key = exp.EQ(this=_named(left, KEY_COLUMN), expression=_named(right, KEY_COLUMN))
        condition = exp.and_(by_key, exp.Paren(this=condition), copy=False)
    made.set("on", condition)
    return made


def _named(scope: Scope, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(scope.tables[-1].alias, quoted=True))


def _once(scope: Scope, width: int, node: exp.Join, kind: JoinKind) -> tuple[ScopeColumn, ...]:
    """The columns for unqualified names. A field that ON equates with a field of the same name appears once.

    width: the number of columns of the left side.
    """
    pairs = [(p.this, p.expression) for p in condition_parts(node.args["on"]) if isinstance(p, exp.EQ)]
    equated = {
        name_of(a.this)
        for a, b in pairs
        if _is_field(a, scope) and _is_field(b, scope) and name_of(a.this) == name_of(b.this) != KEY_COLUMN
    }
    others = {c.name: c.value for c in scope.visible[width:]}
    merged = [
        replace(c, value=of_scalar(_merged(kind, c.value.finish(), others[c.name].finish())))
        if c.name in equated and c.name in others
        else c
        for c in scope.visible[:width]
    ]
    return (*merged, *(c for c in scope.visible[width:] if c.name not in equated))


def _is_field(node: exp.Expression, scope: Scope) -> bool:
    """True for a field of a source, but not for a field of a field."""
    return isinstance(node, exp.Column) and (
        node.args.get("table") is None or scope.table(*scope.qualifier(node)) is not None
    )


def _looked_up(joined: Join, *, turned: bool) -> Node:
    """Joins a stream whose records look up a table. Records without a match wait for later records of the table (LS-24,
    LS-26).
    """
    sides = (joined.right, joined.left) if turned else (joined.left, joined.right)
    keys = tuple(replace(k, left=k.right, right=k.left) for k in joined.keys) if turned else joined.keys
    outer = joined.kind != "inner"
    return TemporalJoin(
        *sides, "left" if outer else "inner", keys, joined.residual, None, span=joined.span, waits=outer
    )


def _key(joined: Join, one: RecordMetadata, other: RecordMetadata) -> Scalar:
    """The key of the result. A join that compares only `_key` keeps the common key; others have an object of the values
    that ON equates (LS-35).

    A join of two tables has both keys, so that each pair has its own result. So has a join by `_key` if an OUTER JOIN
    may output several records of a key without a partner.
    """
    equated = [_merged(joined.kind, k.left, k.right) for k in joined.keys]
    if _by_key(joined, one, other):
        return equated[0]
    fields = [
        (_field(k.left, joined.left.columns, i), of_scalar(v))
        for i, (k, v) in enumerate(zip(joined.keys, equated, strict=True))
    ]
    if one.nature == other.nature == "table":
        fields += [(n, _extended(v, joined)) for n, v in (("left", one.key), ("right", other.key)) if v is not None]
    return packed(fields, always=True)


def _by_key(joined: Join, one: RecordMetadata, other: RecordMetadata) -> bool:
    """Whether the join compares only the keys of its sources, which then are the keys of the result."""
    if one.nature == other.nature == "table" and joined.kind == "full" and joined.residual is not None:
        return False
    keys = [v.finish().column for v in (one.key, other.key) if v is not None]
    return len(joined.keys) == 1 and [joined.keys[0].left.column, joined.keys[0].right.column] == keys


def _extended(value: Value, joined: Join) -> Value:
    nullable = {c.id for c in joined.columns if c.nullable}
    return replace(value, nullable=value.nullable or bool(value.finish().columns & nullable))


def _field(scalar: Scalar, columns: tuple[Column, ...], position: int) -> str:
    names = {c.id: c.name for c in columns}
    return names.get(scalar.column or "", f"key{position + 1}")


def _merged(kind: JoinKind, left: Scalar, right: Scalar) -> Scalar:
    if kind == "full":
        return Scalar(
            exp.Coalesce(this=left.expression, expressions=[right.expression]),
            left.type,
            left.nullable or right.nullable,
        )
    return right if kind == "right" else left


def _time(joined: Join, one: RecordMetadata, other: RecordMetadata) -> Scalar:
    """The time of the result: the time of a stream that looks up a table, else the later of both times, as in Kafka
    Streams.
    """
    if one.nature != other.nature:
        return (one if one.nature == "stream" else other).time.finish()
    left, right = one.time.finish(), other.time.finish()
    later: exp.Expression = exp.Greatest(this=left.expression.copy(), expressions=[right.expression.copy()])
    if joined.kind != "inner":  # the time is NULL if there is no partner
        later = exp.Coalesce(this=later, expressions=[left.expression.copy(), right.expression.copy()])
    return Scalar(later, left.type, left.nullable or right.nullable)
