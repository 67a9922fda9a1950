"""The daemon that forks Spark's Python workers: with the libraries loaded, and without needless re-reading.

Every task of PySpark calls `importlib.invalidate_caches()`, which makes zipimport read the directory of pyspark.zip again:
85 ms a task (measured). Here it happens only when the search path has changed.
"""

from __future__ import annotations

import importlib
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import daemon

import watersmeet.runtime.spark.worker

_invalidate = importlib.invalidate_caches
_seen_path: list[tuple[str, ...]] = []


def _invalidate_if_needed() -> None:
    path = tuple(sys.path)
    if _seen_path != [path]:
        _seen_path[:] = [path]
        _invalidate()


if __name__ == "__main__":
    loaded = (duckdb, np, pa, pc, pq, watersmeet.runtime.spark.worker)
    importlib.invalidate_caches = _invalidate_if_needed
    daemon.manager()
