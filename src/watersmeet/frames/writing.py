"""Writes of micro-batches in `foreachBatch`, each batch once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from watersmeet.errors import error


def once_per_batch(
    write: Callable[[DataFrame, int], object], last_batch: Callable[[], int | None] | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that computes each micro-batch once, in full, and calls `write(batch, number)`.

    last_batch: returns the number of the last micro-batch in the target, None if it has none. A micro-batch that Spark
    repeats is not written again. This is exact if `write` stores the number in the transaction of the rows.
    INVALID_PARAMETER if an argument can't be called.
    """
    for argument, function in (("write", write), ("last_batch", last_batch)):
        if not callable(function) and (argument == "write" or function is not None):
            raise error(
                "INVALID_PARAMETER", f"{argument} of once_per_batch is a {type(function).__name__}, not a function"
            )
    return _OncePerBatch(write, last_batch)


@dataclass(frozen=True)
class _OncePerBatch:
    write: Callable[[DataFrame, int], object]
    last_batch: Callable[[], int | None] | None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """See `DataStreamWriter.foreachBatch`.

        A batch of which a partition is not computed leaves the state of the join without that partition's next version,
        and Spark ends the query.
        """
        last = None if self.last_batch is None else self.last_batch()
        if last is not None and number <= last:
            batch.write.format("noop").mode("overwrite").save()
            return
        batch.persist()
        try:
            batch.count()
            self.write(batch, number)
        finally:
            batch.unpersist()
