"""What EXPLAIN ROW and EXPLAIN MISSING ROW answer: a tree of steps, drawn one line for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True)
class Step:
    """One step: an operator, a row of a relation, or what there is not.

    relation: whose row it is. row: as JSON. detail: in words.
    """

    what: str
    relation: str | None = None
    row: str | None = None
    detail: str | None = None
    below: Sequence[Step] = field(default=())

    def noted(self, note: str) -> Step:
        """The step with something more said of it; itself for nothing."""
        if not note:
            return self
        return replace(self, detail=f"{self.detail}; {note}" if self.detail else note)


class Line(NamedTuple):
    """A step as it is shown. step: drawn as a part of the tree."""

    step: str
    relation: str | None
    row: str | None
    detail: str | None


def drawn(steps: Sequence[Step]) -> list[Line]:
    """The steps as lines, each under what it belongs to."""
    return [line for step in steps for line in _lines(step)]


def _lines(step: Step) -> Iterator[Line]:
    yield Line(step.what, step.relation, step.row, step.detail)
    for number, below in enumerate(step.below, 1):
        last = number == len(step.below)
        for place, line in enumerate(_lines(below)):
            lead = ("└─ " if last else "├─ ") if place == 0 else ("   " if last else "│  ")
            yield line._replace(step=lead + line.step)
