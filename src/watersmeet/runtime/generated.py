"""The values of generated columns, which follow from other columns of their rows."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.catalog import GeneratedColumn
from watersmeet.kernel.evaluation.expressions import EVALUATOR
from watersmeet.kernel.metrics import Counters
from watersmeet.values.types import Field


def computed(rows: pa.Table, column: Field, made: GeneratedColumn, counters: Counters) -> pa.ChunkedArray:
    """The values of `column` in `rows`, which have the columns that it reads. A value whose computation raises an error
    is NULL, and counted.
    """
    read = rows.select([f.name for f in made.reads]).rename_columns([f"c{i}" for i in range(len(made.reads))])
    values, _ = EVALUATOR.project(read, made.reads, [made.sql], (column,), counters=counters, num_rows=rows.num_rows)
    return values.column(0)
