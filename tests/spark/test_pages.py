"""The examples of docs/for/pyspark.md, of the first hour and of the README, on Spark."""

from __future__ import annotations

import pytest
from tests.pages import ROOT, Page

from watersmeet.runtime.spark import session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def spark():
    kept = session.acquire(None, 2)
    yield kept
    session.release(kept)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["for/pyspark.md", "FIRST-HOUR.md"])
def test_examples(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Page("spark").run((ROOT / "docs" / page).read_text(encoding="utf-8"))
