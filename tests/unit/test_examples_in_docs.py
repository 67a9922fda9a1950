"""The examples of README, of the first hour and of the pages for each kind of user. PySpark's are in tests/spark."""

from __future__ import annotations

import pytest
from tests.pages import ROOT, Page, fits

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "FIVE-MINUTES.md",
    ROOT / "docs" / "FIRST-HOUR.md",
    ROOT / "docs" / "FORKS.md",
    ROOT / "docs" / "LINEAGE.md",
    ROOT / "docs" / "SERVING.md",
    *(p for p in sorted((ROOT / "docs" / "for").glob("*.md")) if p.stem not in ("pyspark", "spark")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a clone
    examples = Page("inprocess")
    examples.run(page.read_text(encoding="utf-8"))
    assert examples.examples


def test_what_fits():
    assert fits("a\nb  \nc\n", "a\n…\nc\n")
    assert fits("a  \n", "a\n")
    assert not fits("a\nb\n", "a\n")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 720
