"""The second demo as a user runs it, over the first four days of 2013."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_view_equals_the_batch_answer_and_the_picture_is_drawn(tmp_path):
    picture = tmp_path / "delay.png"
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run([sys.executable, "examples/flights/delays.py", "--days", "4", "--plot", str(picture)],
                          check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"},
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every view is equal to the batch answer" in done.stdout
    assert re.search(r"│ 10 to 14 +│ +\d+ │", done.stdout), done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 20_000
