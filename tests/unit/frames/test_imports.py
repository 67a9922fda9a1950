"""What imports what: the package stays cheap, joins of DataFrames need no SQL front-end."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from watersmeet.frames.sessions import PARTS
from watersmeet.runtime.spark.shipping import make_zip
from watersmeet.system.process import remove_folder


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import watersmeet", ("pyspark", "pyarrow", "duckdb", "sqlglot", "watersmeet.frames")),
        (
            "from watersmeet import join, asof, latest",
            ("sqlglot", "watersmeet.dialects", "watersmeet.planner", "watersmeet.session"),
        ),
    ],
)
def test_what_is_not_imported(statement, absent):
    script = f"import sys\n{statement}\nprint([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tasks_carry_all_modules_that_they_import():
    script = (
        "import sys\nimport watersmeet.frames.tasks\nprint(*[m for m in sys.modules if m.startswith('watersmeet.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    archive = make_zip(PARTS)
    try:
        with zipfile.ZipFile(archive) as carried:
            names = {n.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for n in carried.namelist()}
    finally:
        remove_folder(archive.parent)
    assert set(done.stdout.split()) <= names
