"""Other releases of Spark and Python than those of the other tests: Spark 4.0, Python 3.12 and 3.13."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement
from scripts.servers.packages import fetch_packages

ROOT = Path(__file__).resolve().parents[2]
SPARK = "4.0.1"
_HASH = "9d1f22d994f60369228397e3479003ffe2dd736ba79165003246ff7bd48e2c73"
#: Views with shuffles and with time, joins of DataFrames, and a restart of both.
ON_SPARK = (
    "tests/spark/test_frames.py::test_left_join_follows_both_sides_through_a_restart",
    "tests/spark/test_frames.py::test_asof_join",
    "tests/spark/test_frames.py::test_keys_of_buckets_go_where_spark_puts_them",
    "tests/spark/test_views.py::test_deep_views",
    "tests/spark/test_engine.py::test_views_follow_changes",
    "tests/spark/test_affinity.py::test_pinned_frames_have_their_places_and_the_same_rows",
)
#: The same in short, and what depends on the interpreter: annotations, dataclasses, pickles, threads, the command line.
ON_PYTHON = (
    *ON_SPARK[:2],
    "tests/spark/test_engine.py::test_views_follow_changes",
    "tests/unit/cli/test_commands.py",
    "tests/unit/cli/test_signals.py",
    "tests/property/test_views.py",
    "tests/property/test_operators.py",
)


#: What the tests import besides the package's own requirements.
OF_TESTS = (
    *("pytest", "pytest-xdist", "hypothesis", "protobuf", "googleapis-common-protos", "psycopg", "psycopg-binary"),
    *("pymysql", "confluent-kafka", "fastavro", "obstore", "cryptography", "pyyaml", "selenium"),
)


def passes(python: str | Path, packages: Path, tests: tuple[str, ...], *chosen: str) -> None:
    """Runs tests with an interpreter that finds these packages before its own."""
    # The workers of pytest name themselves by PYTEST_…
    environment = {n: v for n, v in os.environ.items() if n != "SPARK_HOME" and not n.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT / 'src'}", "WATERSMEET_TIER": "fast"}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not kafka", *chosen, *tests],
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


def needed(name: str, found: set[str]) -> set[str]:
    """The names of the distributions that one needs, itself among them, without extras."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name not in found:
        found.add(name)
        try:
            wanted = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:  # of another platform
            return found
        for requirement in wanted:
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


def interpreter(version: str) -> str | None:
    """An interpreter of this version: on the PATH, or among those of pyenv."""
    places = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*/bin/python")
    for found in (shutil.which(f"python{version}"), *places):
        said = found and subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        if said and said.startswith(f"Python {version}."):
            return str(found)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.13", "3.12"])
def test_python(version, tmp_path):
    """The pinned requirements that everybody needs, and tests of all parts, under another Python."""
    if (found := interpreter(version)) is None:
        pytest.skip(f"there is no Python {version} here")
    names = {n for wanted in ("watersmeet", *OF_TESTS) for n in needed(wanted, set())}
    pins = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8"))
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("\n".join(p for p in pins if p.split("==")[0] in names - {"pyspark"}), encoding="utf-8")
    subprocess.run([found, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"]
    subprocess.run([*install, "-r", wanted], check=True)
    shared = tmp_path / "shared"  # Spark's Python code is the same for each
    shared.mkdir()
    (shared / "pyspark").symlink_to(Path(pyspark.__file__).parent)
    passes(python, shared, ON_PYTHON)
