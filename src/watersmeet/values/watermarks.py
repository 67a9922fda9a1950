"""Watermarks: promises about time, as static functions of the sources' own.

A watermark on a column says: no later change, neither an insert nor a delete, has a value below it there. Each source
with WATERMARK FOR has one number, its greatest event time less its delay. What holds for any other operator follows
from the
plan: the least of some terms, each a source's number and what was done to it on the way. So tasks exchange the sources'
numbers only, and every bucket knows every operator's watermark in the same epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Final, Literal

import numpy as np

from watersmeet.values.times import DAY_US

#: The source whose number is the time of the epoch: what now() gives.
NOW: Final = "now()"

#: The least and the greatest time that 64 bits hold, as those of columns do: infinities, too, are moved no further.
_LEAST_US: Final = -(1 << 63)
_GREATEST_US: Final = (1 << 63) - 1


def within(time_us: int) -> int:
    """The time, or the nearest one that 64 bits hold."""
    return max(_LEAST_US, min(_GREATEST_US, time_us))


@dataclass(frozen=True, slots=True)
class Step:
    """`add`: `amount_us` more. `floor`: down to the next multiple of `amount_us` (above 0) counted from `origin_us`."""

    kind: Literal["add", "floor"]
    amount_us: int
    origin_us: int = 0

    def apply(self, time_us: int) -> int:
        """The time after the step."""
        if self.kind == "add":
            return within(time_us + self.amount_us)
        return within(time_us - (time_us - self.origin_us) % self.amount_us)


@dataclass(frozen=True, slots=True)
class MonthStep:
    """`add_months`: so many months more.

    `floor_months`: down to the beginning of a multiple of so many months counted from 1970.
    """

    kind: Literal["add_months", "floor_months"]
    months: int

    def apply(self, time_us: int) -> int:
        """The time after the step; no time that is not before `time_us` comes before it."""
        month = (
            int(np.datetime64(time_us, "us").astype("datetime64[M]").astype(np.int64)) if _is_finite(time_us) else None
        )
        if month is None:
            return time_us
        if self.kind == "floor_months":
            return _start_of(month - month % self.months)
        start_us, target_us = _start_of(month), _start_of(month + self.months)
        days, most = _start_of(month + 1) - start_us, _start_of(month + self.months + 1) - target_us
        passed_us = time_us - start_us
        # Of the days that the target month lacks each is its last one, whose midnight comes again for every one of
        # them.
        return within(target_us + (most - DAY_US if days > most and passed_us >= most - DAY_US else passed_us))


def _is_finite(time_us: int) -> bool:
    return abs(time_us) < _GREATEST_US


def _start_of(month: int) -> int:
    """The beginning of a month, counted from January 1970, in microseconds: also beyond what 64 bits hold."""
    return int(np.datetime64(month, "M").astype("datetime64[D]").astype(np.int64)) * DAY_US


@dataclass(frozen=True, slots=True)
class Term:
    """The number of `source` (a relation's id, or `NOW`) after `steps`."""

    source: str
    steps: tuple[Step | MonthStep, ...] = ()

    def value(self, sources: Mapping[str, int]) -> int | None:
        """In microseconds; None if the source has none yet."""
        time_us = sources.get(self.source)
        if time_us is None:
            return None
        for step in self.steps:
            time_us = step.apply(time_us)
        return time_us

    def after(self, step: Step | MonthStep) -> Term:
        """The term with one step more; two additions of a length are one."""
        before, last = self.steps, self.steps[-1] if self.steps else None
        if isinstance(step, Step) and isinstance(last, Step) and step.kind == last.kind == "add":
            step, before = Step("add", last.amount_us + step.amount_us), before[:-1]
        return Term(self.source, before if step == Step("add", 0) else (*before, step))


Watermark = tuple[Term, ...]
"""The least of its terms; no terms: no watermark."""


def value(watermark: Watermark, sources: Mapping[str, int]) -> int | None:
    """The watermark in microseconds, given the sources' numbers; None as long as one of them is unknown, or for
    none.
    """
    values = [t.value(sources) for t in watermark]
    known = [v for v in values if v is not None]
    return min(known) if known and len(known) == len(values) else None


def shifted(watermark: Watermark, amount_us: int) -> Watermark:
    """The watermark of a column to which `amount_us` is added."""
    return least(t.after(Step("add", amount_us)) for t in watermark)


def delayed(watermark: Watermark, delay_us: int) -> Watermark:
    """The watermark if the numbers of all sources were less by `delay_us`: a window is closed so much later."""
    return least(reduce(Term.after, t.steps, Term(t.source).after(Step("add", -delay_us))) for t in watermark)


def floored(watermark: Watermark, size_us: int, origin_us: int = 0) -> Watermark:
    """The watermark of the start of the window of `size_us` that a time is in; windows are aligned at `origin_us`."""
    return least(t.after(Step("floor", size_us, origin_us % size_us)) for t in watermark)


def by_months(watermark: Watermark, kind: Literal["add_months", "floor_months"], months: int) -> Watermark:
    """The watermark of a column to which months are added, or that is cut down to them."""
    return least(t.after(MonthStep(kind, months)) for t in watermark)


def least(terms: Iterable[Term]) -> Watermark:
    """The watermark that all the terms keep, in an order that doesn't depend on theirs."""
    return tuple(sorted(set(terms), key=lambda t: (t.source, [(s.kind, *asdict(s).values()) for s in t.steps])))


def both(*watermarks: Watermark) -> Watermark:
    """What is promised if all of them are kept: the least. None if one is none."""
    return least(t for w in watermarks for t in w) if all(watermarks) else ()
