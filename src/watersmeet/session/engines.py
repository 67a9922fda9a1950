"""The engine for a runtime. Spark is imported only by who asks for it."""

from __future__ import annotations

import importlib
import os
from typing import Any

from watersmeet.runtime.database import Database
from watersmeet.runtime.engine import Engine
from watersmeet.runtime.inprocess import InProcessEngine


def default_parallelism(runtime: str) -> int:
    """The number of state buckets of a new database: the cores for Spark, one without."""
    return 1 if runtime == "inprocess" else os.cpu_count() or 1


def make_engine(runtime: str, database: Database, spark: Any) -> Engine:
    """The engine, not started. RUNTIME_UNAVAILABLE if Spark or Java is missing."""
    if runtime == "inprocess":
        return InProcessEngine(database)
    made: Engine = importlib.import_module("watersmeet.runtime.spark.engine").SparkEngine(database, spark=spark)
    return made
