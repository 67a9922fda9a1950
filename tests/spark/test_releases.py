"""Spark 4.0; the other tests run on 4.1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.servers.packages import fetch_packages

ROOT = Path(__file__).resolve().parents[2]
SPARK = "4.0.1"
_HASH = "9d1f22d994f60369228397e3479003ffe2dd736ba79165003246ff7bd48e2c73"
#: Views with shuffles and with time, joins of DataFrames, a restart of both, and a table that Spark writes.
ON_SPARK = (
    "tests/spark/test_frames.py::test_left_join_follows_both_sides_through_a_restart",
    "tests/spark/test_frames.py::test_asof_join",
    "tests/spark/test_frames.py::test_keys_of_buckets_go_where_spark_puts_them",
    "tests/spark/test_spark_writes.py::test_a_stream_of_changes_with_a_repeated_micro_batch",
    "tests/spark/test_views.py::test_deep_views",
    "tests/spark/test_engine.py::test_views_follow_changes",
    "tests/spark/test_affinity.py::test_pinned_frames_have_their_places_and_the_same_rows",
)


def passes(python: str | Path, packages: Path, tests: tuple[str, ...]) -> None:
    """Runs tests with an interpreter that finds these packages before its own."""
    # The workers of pytest name themselves by PYTEST_…; Spark's Python is that of the tests which it runs.
    environment = {
        n: v for n, v in os.environ.items() if n != "SPARK_HOME" and not n.startswith(("PYTEST_", "PYSPARK_"))
    }
    environment |= {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT / 'src'}", "WATERSMEET_TIER": "fast"}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not kafka", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_spark_4_0():
    packages = fetch_packages(f"pyspark-{SPARK}", f"pyspark=={SPARK} --hash=sha256:{_HASH}\n", 430, built=True)
    version = "import pyspark; print(pyspark.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    environment.pop("SPARK_HOME", None)
    found = subprocess.run([sys.executable, "-c", version], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == SPARK
    passes(sys.executable, packages, ON_SPARK)
