"""Streams of Parquet files for tests of joins of DataFrames, and what their queries gave."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from watersmeet.values.types import Schema, arrow_schema


class Stream:
    """A directory of Parquet files that a query reads one after the other."""

    def __init__(self, spark: SparkSession, folder: Path, schema: Schema, ddl: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._schema = arrow_schema(schema, positional=False)
        self.frame = spark.readStream.schema(ddl).parquet(str(folder))
        self._files = 0

    def add(self, rows: list[tuple]) -> None:
        """One more file, whole at once."""
        arrays = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(self._schema)]
        part = self.folder / f".{self._files}"
        pq.write_table(pa.Table.from_arrays(arrays, schema=self._schema), part)
        part.rename(self.folder / f"{self._files:04}.parquet")
        self._files += 1


class Result:
    """What a query gives: `content` is the sum of all changes, `batches` the rows of each micro-batch."""

    def __init__(self, frame: DataFrame, checkpoint: Path, content: Counter | None = None) -> None:
        self._signed = "diff" in frame.columns
        self.content: Counter[tuple] = Counter(content or {})
        self.batches: list[list[tuple]] = []
        self.query = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._take).start()

    def _take(self, batch: DataFrame, _: int) -> None:
        rows = [tuple(tuple(v) if isinstance(v, tuple) else v for v in r) for r in batch.collect()]
        self.batches.append(rows)
        for row in rows:
            self.content[row[:-1] if self._signed else row] += row[-1] if self._signed else 1
        self.content = Counter({r: n for r, n in self.content.items() if n})

    def drain(self) -> Counter:
        """What the result is once all input is read."""
        self.query.processAllAvailable()
        return self.content

    def figures(self) -> dict[str, int]:
        """The figures of the last micro-batch."""
        found = [p.observedMetrics for p in self.query.recentProgress if p.observedMetrics]
        return next(iter(found[-1].values())).asDict()
