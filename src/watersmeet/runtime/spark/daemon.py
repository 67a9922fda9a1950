"""The daemon that forks Spark's Python workers with loaded libraries, and spares them repeated work."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

from pyspark import daemon

from watersmeet.runtime.spark.shipping import ENGINE, spare_repeated_work

#: Spark starts one daemon for each kind of worker. This kind runs tasks.
_TASKS: Final = "pyspark.worker"
#: PyArrow imports pandas with its first array, which takes 0.4 s in every worker forked without it.
_LOADED: Final = (
    "duckdb",
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "watersmeet.frames.tasks",
    "watersmeet.runtime.memory",
)
#: What tasks of the engine need besides.
_OF_ENGINE: Final = ("pyarrow.parquet", "watersmeet.runtime.spark.worker")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == _TASKS:
        for module in _LOADED:
            importlib.import_module(module)
        sys.modules["watersmeet.runtime.memory"].keep_freed()
        if ENGINE in os.environ:
            for module in _OF_ENGINE:
                importlib.import_module(module)
            sys.modules["watersmeet.runtime.tasks"].prepare()  # 17 ms for every worker forked without it
    spare_repeated_work()
    daemon.manager()
