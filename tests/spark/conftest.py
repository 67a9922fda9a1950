"""All that is below this folder needs Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watersmeet.runtime.spark import jobs


def pytest_collection_modifyitems(items) -> None:
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def in_workers(monkeypatch) -> None:
    """All epochs run in workers, as after the start: most tests would end before Spark's first worker has started."""
    monkeypatch.setattr(jobs.EpochRunner, "_runs_here", lambda *_: False)
