"""WITHIN: joins of two streams of records within a time.

Lenses, "Joins", "Windowing: stream to stream joins"; LS-18 to LS-21, D-004-08.

The clock of a stream is the greatest time of its records in the epochs before. A record is late if, by the clock of its
own stream, its window ended more than the grace period ago. What it could match may have been forgotten; so it matches
nothing, and is output alone at once if its side is preserved.

The default grace period is 24 hours, that of the Kafka Streams version for which Lenses 4.0 was made (KIP-633,
"Deprecate 24-hour Default Grace Period for Windowed Operations in Streams"). With the default, records without a
partner are output when their window ends, as nobody waits a day for them. An explicit grace period is waited for
(KAFKA-10847, ksqlDB).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.durations import duration_us
from watersmeet.algebra.nodes import Column, Join, LateRowFilter, Node, Project, TimeFilter, Union
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.watermarks import clocks
from watersmeet.algebra.watermarks import of_scalar as mark_of
from watersmeet.binder.context.binding import Environment, read
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope
from watersmeet.binder.dialects.lenses.extensions import RecordMetadata, metadata_in
from watersmeet.catalog import RECORD_TIME
from watersmeet.dialects.lenses.grammar import WithinJoin, lengths_of
from watersmeet.dialects.tree.nodes import plain
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import error
from watersmeet.expressions.values import duckdb_cast
from watersmeet.units import DAY_US
from watersmeet.watermarks import Watermark, both, shifted

Sourced = tuple[Node, Scope]

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
        raise error(
            "TWO_WITHIN",
            "a join has two different grace periods",
            sql=env.text,
            span=place_of(periods[-1]),
            hint="Write GRACE PERIOD once, after WITHIN.",
        )
    if None in lengths:
        raise error("INVALID_PARAMETER", "GRACE PERIOD is too long", sql=env.text, span=place_of(periods[0]))
    return next(iter(lengths), None)


def length_of(node: exp.Join, env: Environment) -> int | None:
    """WITHIN in microseconds. INVALID_PARAMETER for zero and for anything that is no duration."""
    within = lengths_of(node)
    if not within:
        return None
    found = duration_us(within[0])
    if not found:
        raise error(
            "INVALID_PARAMETER",
            "WITHIN is too long" if found is None else "WITHIN needs a time above 0",
            sql=env.text,
            span=place_of(within[0]),
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
        self._times = [_metadata(s).time.finish() for _, s in self._sides]
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
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"{shown} JOIN of streams without event times is not supported",
                sql=env.text,
                span=place_of(node),
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


def _metadata(scope: Scope) -> RecordMetadata:
    metadata = metadata_in(scope)
    assert metadata is not None, "only sources of records are joined"
    return metadata
