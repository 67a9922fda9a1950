"""All that is below this folder needs Spark."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.spark)
