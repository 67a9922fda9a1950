"""The daemon that forks Spark's Python workers with loaded libraries, and spares them repeated work.

Every task of PySpark calls `importlib.invalidate_caches()`, so that zipimport reads the directory of pyspark.zip again,
which takes 85 ms a task. Workers of this daemon only do so after changes of the search path. PySpark also collects
garbage after every task, which takes 60 ms, mostly for objects of libraries; this daemon excludes these.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

from pyspark import daemon

#: Spark starts one daemon for each kind of worker. This kind runs tasks.
_TASKS: Final = "pyspark.worker"
#: PyArrow imports pandas with its first array, which takes 0.4 s in every worker forked without it.
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
