"""The pages of docs say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from watersmeet.session.variables import VARIABLES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dialects" / "risingwave.md").read_text()
LENSES = (ROOT / "docs" / "dialects" / "lenses.md").read_text()
TIMEPLUS = (ROOT / "docs" / "dialects" / "timeplus.md").read_text()
SQLSTREAM = (ROOT / "docs" / "dialects" / "sqlstream.md").read_text()
SLT = ROOT / "tests" / "slt"


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_feature_of_the_documents_is_listed_once():
    listed = re.findall(r"\b(RW|RA)-(\d\d)\b", section("Features of the two documents"))
    expected = [("RW", f"{i:02}") for i in range(1, 67)] + [("RA", f"{i:02}") for i in range(1, 36)]
    assert sorted(listed) == sorted(expected)


def test_every_feature_of_timeplus_is_listed_once():
    features = TIMEPLUS.split("## Features of the document\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"\bTP-(\d\d)\b", features)) == [f"{i:02}" for i in range(1, 64)]


def test_every_feature_of_sqlstream_is_listed_once():
    features = SQLSTREAM.split("## Features of the document\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"\bSS-(\d\d)\b", features)) == [f"{i:02}" for i in range(1, 72)]


def test_every_feature_of_lenses_is_listed_once():
    features = LENSES.split("## Features of the document\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"\bLS-(\d\d)\b", features)) == [f"{i:02}" for i in range(1, 49)]


@pytest.mark.parametrize(("page", "folder"), [(PAGE, "risingwave"), (TIMEPLUS, "timeplus"), (SQLSTREAM, "sqlstream"), (LENSES, "lenses")])
def test_the_tests_that_are_named_exist(page, folder):
    for name in re.findall(r"`([\w/.-]+\.(?:slt|py))`", page):
        path = ROOT / name if "/" in name else SLT / folder / name
        assert path.exists(), name


def test_every_session_variable_is_listed_and_no_other():
    first = {n for line in section("Session variables").splitlines() if line.startswith("| `")
             for n in re.findall(r"`([\w.]+)`", line.split("|")[1])}
    assert first == {*VARIABLES, "rw_implicit_flush"}


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
