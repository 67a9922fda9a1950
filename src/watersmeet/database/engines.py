"""The engine for a runtime. Spark is imported only by who asks for it."""

from __future__ import annotations

import importlib
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.runtime.database import Database
from watersmeet.runtime.engine import Engine
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import workers_here
from watersmeet.system.process import cores

#: So many buckets for each core if workers have little memory: then a task has little of an epoch at a time, and epochs
#: may be large, of which each may read most of the state.
_BUCKETS_OF_SMALL: Final = 4


def default_parallelism(runtime: str) -> int:
    """The number of state buckets of a new database: the cores for Spark, some for each if workers are small; one
    without.
    """
    if runtime == "inprocess":
        return 1
    return cores() * (_BUCKETS_OF_SMALL if workers_here(cores()).are_small else 1)


def make_engine(runtime: str, database: Database, buckets: int, spark: Any) -> Engine:
    """The engine, not started. RUNTIME_UNAVAILABLE if Spark is missing."""
    if runtime == "inprocess":
        return InProcessEngine(database)
    try:
        module = importlib.import_module("watersmeet.runtime.spark.engine")
    except ImportError as cause:
        raise error(
            "RUNTIME_UNAVAILABLE",
            "PySpark can't be imported",
            detail=f"{cause}.",
            hint='Install pyspark, or connect with runtime = "inprocess".',
        ) from cause
    made: Engine = module.SparkEngine(database, spark, parallelism=buckets)
    return made
