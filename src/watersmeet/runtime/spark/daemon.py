"""The daemon that forks Spark's Python workers: with loaded libraries, and without needless re-reading.

Every task of PySpark calls `importlib.invalidate_caches()`, which makes zipimport read the directory of pyspark.zip
again: 85 ms a task (measured). Here this happens only after changes of the search path. PySpark also collects garbage
after every task: 60 ms, mostly among objects of libraries, which are excluded here.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

from pyspark import daemon

#: Spark starts one daemon for each kind of worker; this kind runs tasks.
_TASKS: Final = "pyspark.worker"
#: PyArrow imports pandas with its first array: 0.4 s for every worker forked without it.
_LOADED: Final = (
    "duckdb",
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.parquet",
    "watersmeet.runtime.spark.worker",
)

_invalidate = importlib.invalidate_caches
_seen_path: list[tuple[str, ...]] = []


def _invalidate_if_needed() -> None:
    path = tuple(sys.path)
    if _seen_path != [path]:
        _seen_path[:] = [path]
        _invalidate()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == _TASKS:
        for module in _LOADED:
            importlib.import_module(module)
        sys.modules["watersmeet.runtime.memory"].keep_freed()
        sys.modules["watersmeet.runtime.tasks"].prepare()  # 17 ms for every worker forked without it
        gc.collect()
        gc.freeze()
    importlib.invalidate_caches = _invalidate_if_needed
    daemon.manager()
