"""Python 3.12 and 3.13 where they are installed; the other tests run on 3.11."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement
from tests.spark.test_releases import ON_SPARK, ROOT, passes

#: Tests on Spark, and tests of code that depends on the interpreter: annotations, pickles, threads, the command line.
ON_PYTHON = (
    *ON_SPARK[:2],
    "tests/spark/test_engine.py::test_views_follow_changes",
    "tests/unit/cli/test_commands.py",
    "tests/unit/cli/test_signals.py",
    "tests/property/test_views.py",
    "tests/property/test_operators.py",
)


#: The packages that the tests import besides the package's own requirements.
OF_TESTS = (
    *("pytest", "pytest-xdist", "hypothesis", "protobuf", "googleapis-common-protos", "psycopg", "psycopg-binary"),
    *("pymysql", "confluent-kafka", "fastavro", "obstore", "cryptography", "pyyaml", "selenium"),
)


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
