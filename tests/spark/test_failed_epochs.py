"""A database whose epochs fail on Spark can be opened, looked at and mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.session.test_failed_views import fail_and_mend


@pytest.mark.slow
def test_a_database_whose_epochs_fail_opens_and_its_views_can_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_mend(tmp_path, "spark", monkeypatch)
