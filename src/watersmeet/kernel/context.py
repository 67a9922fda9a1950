"""The context of an operator's step, the check of its output, and the operators in which an error was raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from watersmeet.circuit.operators import Operator
from watersmeet.errors import error
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Counters
from watersmeet.kernel.runs.delta import Delta, Sliced, Slicing
from watersmeet.kernel.runs.matching import Amplification, Arranged, TooManyRowsError
from watersmeet.values.types import Schema


@dataclass(frozen=True)
class StepContext:
    """One step of one operator in one bucket.

    initial: the first step in the life of the operator's state. schemas: those of the operator's inputs; expressions
    need their SQL types, because Arrow's type of jsonb is string. append_only: whether each input is append-only; empty
    if unknown. watermarks: those of the sources in microseconds, including this epoch's rows, and the epoch's time as
    "now()"; sources without a watermark are missing. before: the watermarks after the previous epoch, which decide
    whether a row is late. filling: the input is history, for a new view or for rebuilt state. most_rows: the maximum
    number of rows that a join may output; 0 for no limit. slicing: the size above which output is cut into slices.
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
        """Counts the rows that a join is about to output. Raises TooManyRowsError if they are too many."""
        counters = self.counters
        counters.made_rows += made.rows
        counters.busiest += made.busiest
        if made.hottest > counters.hottest_rows:
            counters.hottest_rows, counters.hottest_key = made.hottest, made.hottest_key
        if self.most_rows and counters.made_rows > self.most_rows:
            raise TooManyRowsError


_ATTRIBUTE: Final = "failing_operators"


def mark_failing(cause: BaseException, *operators: str) -> None:
    """Records in `cause` the ids of the operators that raised it. The first record stays."""
    cause.__dict__.setdefault(_ATTRIBUTE, operators)


def failing_operators(cause: BaseException) -> tuple[str, ...]:
    """The ids that `mark_failing` recorded; empty if no operator raised the error."""
    found: tuple[str, ...] = cause.__dict__.get(_ATTRIBUTE, ())
    return found


_NO_CHANGES: Final[dict[str, Delta]] = {}
_MOST_OPERATORS: Final = 1 << 14


def no_changes(operator: Operator) -> Delta:
    """`Delta.none` for the schema of an operator, by its id, whose hash is known."""
    found = _NO_CHANGES.get(operator.id)
    if found is None:
        if len(_NO_CHANGES) >= _MOST_OPERATORS:
            _NO_CHANGES.clear()
        found = _NO_CHANGES[operator.id] = Delta.none(operator.schema)
    return found


def check_output(operator: Operator, output: object) -> None:
    """Raises INTERNAL_ERROR if an output lacks columns of its operator, or a row has no diff. Slices are checked as
    they are made.
    """
    if output is no_changes(operator):
        return
    if isinstance(output, Delta):
        _check_columns(operator, output.columns.schema, output.columns.num_rows, len(output.diff))
    elif isinstance(output, Arranged):
        check_output(operator, output.null_keys)
        _check_columns(operator, *output.change.shape, len(output.change.hash))
    elif not isinstance(output, Sliced):
        raise error("INTERNAL_ERROR", f"an operator of kind {operator.kind} returned {type(output).__name__}")


def _check_columns(operator: Operator, schema: pa.Schema, count: int, rows: int) -> None:
    expected = no_changes(operator).columns.schema
    if schema != expected:
        raise error(
            "INTERNAL_ERROR",
            f"an operator of kind {operator.kind} returned columns of other types",
            detail=f"Returned: {_shown(schema)}. Expected: {_shown(expected)}.",
        )
    if len(schema) and count != rows:
        raise error(
            "INTERNAL_ERROR",
            f"an operator of kind {operator.kind} returned {count} rows with {rows} diffs",
        )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
