"""What a step function is given besides its operator, its inputs and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Counters
from watersmeet.kernel.runs.amplification import Amplification, TooManyRowsError
from watersmeet.kernel.runs.sliced import Slicing
from watersmeet.types import Schema


@dataclass(frozen=True)
class StepContext:
    """One step of one operator in one bucket.

    initial: the first step in the life of the operator's state. schemas: those of the operator's
    inputs, in order: expressions need the SQL types, because Arrow shows jsonb as a string.
    append_only: the inputs' flags, in order; none if nothing is known. epoch: its number.
    watermarks: the sources' numbers in microseconds, with this epoch's rows, and the epoch's time as "now()"; a source
    without number is not there. before: these numbers after the epoch before, by which a row of this one is late.
    filling: what the step reads is history: of a new view, or for state that is made anew.
    most_rows: how many rows a join may make; 0 for any number. slicing: above which size output is made in slices.
    """

    bucket: int
    initial: bool
    evaluator: Evaluator
    schemas: tuple[Schema, ...]
    counters: Counters = field(default_factory=Counters)
    append_only: tuple[bool, ...] = ()
    epoch: int = 0
    watermarks: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    filling: bool = False
    most_rows: int = 0
    slicing: Slicing = field(default_factory=Slicing)

    def expect(self, made: Amplification) -> None:
        """Takes note of the rows that a join is about to make. TooManyRowsError if it may not make that many."""
        counters = self.counters
        counters.made_rows += made.rows
        counters.busiest += made.busiest
        if made.hottest > counters.hottest_rows:
            counters.hottest_rows, counters.hottest_key = made.hottest, made.hottest_key
        if self.most_rows and counters.made_rows > self.most_rows:
            raise TooManyRowsError
