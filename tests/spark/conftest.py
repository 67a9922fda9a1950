"""One Spark session for the whole run: starting one takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.spark)
