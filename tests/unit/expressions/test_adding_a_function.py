"""The lines of CONTRIBUTING that add a function, followed literally."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import watersmeet.errors

PACKAGE = Path(watersmeet.errors.__file__).parents[1]
PROGRAM = """
import sys, watersmeet
call, folder = sys.argv[1:]
cursor = watersmeet.connect(folder, runtime="inprocess").cursor()
cursor.execute("CREATE TABLE t (a INT)")
cursor.execute(f"CREATE MATERIALIZED VIEW v AS SELECT {call} AS x FROM t")
cursor.execute("INSERT INTO t VALUES (1)")
cursor.execute("FLUSH")
for sql in ("SELECT * FROM v", f"SELECT {call}"):
    print(*cursor.execute(sql).fetchone())
"""


def test_a_function_works_in_a_view_and_in_a_query(tmp_path):
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## A function\n")[1].split("\n## ")[0]
    assert len(section.strip().splitlines()) <= 10
    file, after = re.search(r"In `([\w/.]+)` a line that follows\s+`(.*)`:\n", section).groups()
    line = re.search(r"^ {7}(.*)$", section, re.MULTILINE)[1]
    call, value = re.search(r"`([^`]*) ⇒ [^`]* ⇒ ([^`]*)`", section).groups()

    package = tmp_path / "watersmeet"
    shutil.copytree(PACKAGE, package)
    source = (package / file).read_text(encoding="utf-8")
    assert source.count(f"{after}\n") == 1
    (package / file).write_text(source.replace(f"{after}\n", f"{after}\n    {line}\n"), encoding="utf-8")

    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, call, str(tmp_path / "db")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [value] * 2
