"""The daemon that forks Spark's Python workers with loaded libraries, and spares them repeated work."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from typing import Final


def _installed_first() -> None:
    """Puts PySpark's zips behind the installed package that they belong to.

    Spark puts them first, but they have no compiled modules: importing PySpark from them takes a second more.
    """
    spec = importlib.machinery.PathFinder.find_spec("pyspark", [p for p in sys.path if not p.endswith(".zip")])
    if spec is not None and spec.origin is not None:
        zips = os.path.join(os.path.dirname(os.path.realpath(spec.origin)), "python", "lib", "")
        sys.path.sort(key=lambda p: os.path.realpath(p).startswith(zips))


_installed_first()  # before the first import of PySpark

from pyspark import daemon  # noqa: E402

from watersmeet.runtime.spark.shipping import ENGINE, spare_repeated_work  # noqa: E402

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
_OF_ENGINE: Final = (
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "watersmeet.connectors.files.connectors",
    "watersmeet.connectors.registry",
    "watersmeet.runtime.spark.worker",
)

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
