"""The demo of a shop as a user runs it, over a few orders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_three_places_have_what_the_broker_and_postgresql_acknowledged(tmp_path, broker, postgres):
    """Its servers are its own; the fixtures say whether there can be any."""
    picture = tmp_path / "cities.png"
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "examples/shop/demo.py", "--quick", "--chart", str(picture)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DuckDB's answer has 3,000 rows." in done.stdout
    assert done.stdout.count("equal to the batch answer") == 5, done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 10_000
