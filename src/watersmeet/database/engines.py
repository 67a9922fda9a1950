"""The engine for a runtime. Spark is imported only by who asks for it."""

from __future__ import annotations

import importlib
from typing import Any

from watersmeet.errors import error
from watersmeet.machine import cores
from watersmeet.runtime.database import Database
from watersmeet.runtime.engine import Engine
from watersmeet.runtime.inprocess import InProcessEngine


def default_parallelism(runtime: str) -> int:
    """The number of state buckets of a new database: the cores for Spark, one without."""
    return 1 if runtime == "inprocess" else cores()


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
