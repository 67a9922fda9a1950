"""The operators in which an error was raised, and the contract that the output of every operator meets."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from watersmeet.circuit.operators import Operator
from watersmeet.errors import error
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.sliced import Sliced

_ATTRIBUTE: Final = "failing_operators"


def mark_failing(cause: BaseException, *operators: str) -> None:
    """Note the ids of the operators whose work raised `cause`. Those that were noted first stay."""
    cause.__dict__.setdefault(_ATTRIBUTE, operators)


def failing_operators(cause: BaseException) -> tuple[str, ...]:
    """The ids that `mark_failing` noted; empty for an error of no operator."""
    found: tuple[str, ...] = cause.__dict__.get(_ATTRIBUTE, ())
    return found


def check_output(operator: Operator, output: object) -> None:
    """INTERNAL_ERROR if an output lacks the columns of its operator, or the diff of a row.

    Of slices each is checked when it is made.
    """
    if isinstance(output, Delta):
        _check_columns(operator, output, len(output.diff))
    elif isinstance(output, Arranged):
        _check_columns(operator, output.null_keys, len(output.null_keys.diff))
        _check_columns(operator, output.change, len(output.change.hash))
    elif not isinstance(output, Sliced):
        raise error("INTERNAL_ERROR", f"an operator of kind {operator.kind} returned {type(output).__name__}")


def _check_columns(operator: Operator, output: Delta | Run, rows: int) -> None:
    columns, expected = output.columns, Delta.none(operator.schema).columns.schema
    if columns.schema != expected:
        raise error(
            "INTERNAL_ERROR",
            f"an operator of kind {operator.kind} returned columns of other types",
            detail=f"Returned: {_shown(columns.schema)}. Expected: {_shown(expected)}.",
        )
    if columns.num_columns and columns.num_rows != rows:
        raise error(
            "INTERNAL_ERROR",
            f"an operator of kind {operator.kind} returned {columns.num_rows} rows with {rows} diffs",
        )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
