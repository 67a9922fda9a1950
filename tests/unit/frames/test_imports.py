"""What imports what: the package stays cheap, joins of DataFrames need no SQL front-end."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from watersmeet.frames.sessions import PARTS
from watersmeet.runtime.spark import shipping
from watersmeet.runtime.spark.shipping import DAEMON, ENGINE, PACKAGE, make_zip
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


def test_workers_read_zips_again_only_after_a_change(tmp_path):
    script = """
import importlib, os, sys, zipfile, zipimport
from watersmeet.runtime.spark.shipping import spare_repeated_work
def write(*names):
    with zipfile.ZipFile("new.zip", "w") as out:
        for name in names:
            out.writestr(f"{name}.py", "")
    os.replace("new.zip", "modules.zip")
write("first")
sys.path.insert(0, os.path.abspath("modules.zip"))
import first
spare_repeated_work()
read = []
directory = zipimport._read_directory
zipimport._read_directory = lambda archive: read.append(archive) or directory(archive)
importlib.invalidate_caches()
print(read)
write("first", "second")
importlib.invalidate_caches()
import second
os.remove("modules.zip")
importlib.invalidate_caches()
print(importlib.util.find_spec("third"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["[]", "None"]


def test_workers_do_not_read_old_zips_once_more(tmp_path):
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as out:
        out.writestr("first.py", "")
    script = """
import os, sys, time, zipimport
sys.path.insert(0, os.path.abspath("modules.zip"))
import first
from watersmeet.runtime.spark import shipping
read = []
directory = zipimport._read_directory
zipimport._read_directory = lambda archive: read.append(archive) or directory(archive)
now_s = time.time()
time.time = lambda: now_s + float(sys.argv[1])
shipping.spare_repeated_work()
print(len(read))
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", script, str(after_s)], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout
        for after_s in (0.0, shipping.SETTLED_S + 60)
    ]
    assert [int(text) for text in found] == [1, 0]


@pytest.mark.parametrize(("environment", "loads_engine"), [({}, False), ({ENGINE: "1"}, True)])
def test_the_daemon_loads_what_its_tasks_need(environment, loads_engine):
    script = (
        "import runpy, sys\nfrom pyspark import daemon\ndaemon.manager = lambda: None\n"
        f"sys.argv = [{DAEMON!r}]\nrunpy.run_module({DAEMON!r}, run_name='__main__')\n"
        "print(*[m in sys.modules for m in ('watersmeet.frames.tasks', 'watersmeet.runtime.tasks')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    assert done.stdout.split() == ["True", str(loads_engine)]


def test_the_daemon_imports_the_installed_pyspark_and_not_its_zip():
    zips = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    assert any(z.name == "pyspark.zip" for z in zips)
    script = f"import {DAEMON}, py4j, pyspark.worker; print(*(m.__file__ for m in (py4j, pyspark.worker)))"
    path = os.pathsep.join([*map(str, zips), os.environ.get("PYTHONPATH", ""), str(PACKAGE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ".zip" not in done.stdout
