"""Streams of Parquet files for tests of joins of DataFrames, and what their queries gave."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import watersmeet
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
    """What a query gives, from its first start on: `content` is the sum of all changes.

    The rows are in Parquet files, because a Connect server calls a function of `foreachBatch` in another process.
    """

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self._frame = frame
        self._folder = checkpoint.with_name(f"{checkpoint.name}-rows")
        writer = frame.writeStream.format("parquet").option("path", str(self._folder))
        self.query = writer.option("checkpointLocation", str(checkpoint)).start()

    @property
    def rows(self) -> list[tuple]:
        """All rows."""
        if not (self._folder / "_spark_metadata").exists():
            return []
        found = self._frame.sparkSession.read.schema(self._frame.schema).parquet(str(self._folder)).collect()
        return [tuple(tuple(v) if isinstance(v, tuple) else v for v in r) for r in found]

    @property
    def content(self) -> Counter[tuple]:
        """What the result is."""
        signed = "diff" in self._frame.columns
        found: Counter[tuple] = Counter()
        for row in self.rows:
            found[row[:-1] if signed else row] += row[-1] if signed else 1
        return Counter({r: n for r, n in found.items() if n})

    def drain(self) -> Counter:
        """What the result is once all input is read."""
        self.query.processAllAvailable()
        return self.content

    def figures(self) -> list[dict[str, int]]:
        """The figures of each micro-batch, the first first."""
        found = [watersmeet.join_metrics(p) for p in self.query.recentProgress]
        return [next(iter(figures.values())) for figures in found if figures]
