"""The second demo as a user runs it, over the first four days of 2013."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_view_equals_the_batch_answer_and_the_picture_is_drawn(tmp_path):
    picture = tmp_path / "delay.png"
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "examples/flights/delays.py", "--days", "4", "--plot", str(picture)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every view is equal to the batch answer" in done.stdout
    assert re.search(r"│ 10 to 14 +│ +\d+ │", done.stdout), done.stdout
    rows = {
        cells[0]: [int(cell.replace(",", "")) for cell in cells[1:5]]
        for line in done.stdout.splitlines()
        if (cells := [cell.strip() for cell in line.strip("│").split("│")])[-1].endswith("B")
    }
    kept = {name: (rows_in, state) for name, (_, rows_in, _, state) in rows.items()}
    assert kept.keys() == {"flight_weather", "delay_by_wind", "turnarounds", "knock_on", "traffic", "closed_hours"}
    assert all(5 * state < rows_in for rows_in, state in kept.values()), kept  # the past is forgotten
    assert rows["closed_hours"][0] == rows["closed_hours"][2] > 50  # each row once, none taken back
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 20_000


@pytest.mark.slow
def test_flights_through_kafka_arrive_once(tmp_path, broker, registry):
    """Its servers are its own; the fixtures say whether there can be any."""
    picture = tmp_path / "manufacturers.png"
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "examples/flights/kafka.py", "--quick", "--chart", str(picture)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to the batch answer") == 4, done.stdout
    assert picture.exists()
