"""A database whose epochs fail on Spark can be opened, looked at and mended; a failing operator stops its views."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faultysteps import PLANTED
from tests.spark.failing import TRIED
from tests.spark.test_kill import ROOT, environment
from tests.unit.session.test_failed_views import fail_and_mend

pytestmark = pytest.mark.slow


def test_a_database_whose_epochs_fail_opens_and_its_views_can_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_mend(tmp_path, "spark", monkeypatch)


@pytest.mark.parametrize("shuffles", [False, True], ids=["one-task", "shuffled"])
def test_an_operator_that_fails_in_a_worker_stops_its_views_alone(tmp_path: Path, *, shuffles: bool) -> None:
    made = environment() | {PLANTED: str(tmp_path / "planted")}
    # Not its `main`: what it gives to workers has to be in a module that they can import.
    code = "import sys; from tests.spark.failing import main; main(sys.argv[1], shuffles=bool(sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(tmp_path / "db"), *["shuffles"][:shuffles]]
    run = subprocess.run(command, cwd=ROOT, env=made, stdout=subprocess.PIPE, check=True, text=True)
    first, second, good, refreshed, rows, ahead = json.loads(run.stdout.splitlines()[-1])
    assert first == second
    assert good == [[len(TRIED) + 1]]
    assert set(refreshed.values()) == {None}
    assert rows == [[1]]
    assert ahead == [True, False]
    assert first.pop("good") is None
    for n, (kind, fault) in enumerate(TRIED.items()):
        found = first.pop(f"v{n}")
        assert found["message"].startswith(f'materialized view "v{n}" was stopped: '), kind
        assert f"kind {kind} failed" in found["detail"], kind
        assert found["condition"] == ("OUT_OF_MEMORY" if fault == "lack of memory" else "VIEW_FAILED"), kind
    assert not first
