"""Watermarks and durations as EXPLAIN shows them."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.algebra.timewindows import clock_text
from watersmeet.units import DAY_US
from watersmeet.watermarks import NOW, MonthStep, Term, Watermark


def watermark_text(bound: Watermark, names: Mapping[str, str]) -> str:
    """`watermark(t.ts)`, `(now - '01:00:00':Interval)`, `least(…, …)`.

    names: of the columns that the sources' watermarks are on.
    """
    texts = [_term(t, names) for t in bound]
    return texts[0] if len(texts) == 1 else f"least({', '.join(texts)})"


def _term(term: Term, names: Mapping[str, str]) -> str:
    text = "now" if term.source == NOW else f"watermark({names.get(term.source, term.source)})"
    for step in term.steps:
        amount = step.months if isinstance(step, MonthStep) else step.amount_us
        length = _months_text(abs(amount)) if isinstance(step, MonthStep) else interval_text(abs(amount))
        text = (
            f"({text} {'-' if amount < 0 else '+'} {length})"
            if step.kind in ("add", "add_months")
            else f"floor({text}, {length})"
        )
    return text


def _months_text(months: int) -> str:
    """A constant interval of months: `'1 year 2 months':Interval`."""
    parts = [
        f"{n} {word}{'s' if n != 1 else ''}" for n, word in zip(divmod(months, 12), ("year", "month"), strict=True) if n
    ]
    return f"'{' '.join(parts)}':Interval"


def interval_text(length_us: int) -> str:
    """A constant interval: `'2 days 01:00:00':Interval`."""
    days, rest = divmod(length_us, DAY_US)
    time = clock_text(rest)
    parts = [f"{days} day{'s' if days != 1 else ''}"] * bool(days) + [time] * bool(rest or not days)
    return f"'{' '.join(parts)}':Interval"
