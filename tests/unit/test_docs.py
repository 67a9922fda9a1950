"""The pages of docs say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.dialectcoverage import topics

from watersmeet.database.sessions.variables import variables
from watersmeet.dialects.registry import language_named
from watersmeet.errors import CONDITIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dialects" / "risingwave.md").read_text(encoding="utf-8")
LENSES = (ROOT / "docs" / "dialects" / "lenses.md").read_text(encoding="utf-8")
TIMEPLUS = (ROOT / "docs" / "dialects" / "timeplus.md").read_text(encoding="utf-8")
SQLSTREAM = (ROOT / "docs" / "dialects" / "sqlstream.md").read_text(encoding="utf-8")
SLT = ROOT / "tests" / "slt"


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("page", "folder"), [(PAGE, "risingwave"), (TIMEPLUS, "timeplus"), (SQLSTREAM, "sqlstream"), (LENSES, "lenses")]
)
def test_the_tests_that_are_named_exist(page, folder):
    for name in re.findall(r"`([\w/.-]+\.(?:slt|py))`", page):
        path = ROOT / name if name.startswith("tests/") else SLT / folder / name
        assert path.exists(), name


RULES = {p.stem: p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs" / "rules").glob("*.md"))}


@pytest.mark.parametrize(
    ("dialect", "numbers"),
    [
        ("risingwave", {"RW": range(1, 67), "RA": range(1, 36)}),
        ("sqlstream", {"SS": range(1, 72), "SW": range(1, 15), "ST": range(1, 6)}),
        ("timeplus", {"TP": range(1, 64)}),
        ("lenses", {"LS": range(1, 67), "LB": range(1, 6)}),
    ],
)
def test_every_rule_has_one_row(dialect, numbers):
    rows = re.findall(r"^\| ([A-Z]{2}-\d\d) \|", RULES[dialect], re.MULTILINE)
    assert rows == [f"{document}-{n:02}" for document, ns in numbers.items() for n in ns]


@pytest.mark.parametrize("dialect", RULES)
def test_the_tests_of_a_rule_exist(dialect):
    for name in re.findall(r"`([\w/.*-]+\.(?:slt|py))`", RULES[dialect]):
        assert list(ROOT.glob(name if name.startswith("tests/") else f"tests/slt/{dialect}/{name}")), name


def test_rules_and_rulings_that_are_named_exist():
    """In code, tests and docs; a rule's number is never used again."""
    there = {
        number
        for page in RULES.values()
        for number in re.findall(r"^\| `?((?:RW|RA|SS|SW|TP|LS|LB)-\d\d|D-\d{3}-\d\d)`? \|", page, re.MULTILINE)
    }
    files = [p for folder in ("src", "tests", "docs") for p in (ROOT / folder).rglob("*.*")]
    for path in files:
        if path.suffix in {".py", ".slt", ".md"}:
            named = re.findall(r"\b(?:RW|RA|SS|SW|TP|LS|LB)-\d\d\b|\bD-\d{3}-\d\d\b", path.read_text(encoding="utf-8"))
            assert set(named) <= there, path


def test_every_session_variable_is_listed_and_no_other():
    """Settings of Lenses and RisingWave without effect are on the pages of their entries."""
    first = {
        n
        for line in section("Session variables").splitlines()
        if line.startswith("| `")
        for n in re.findall(r"`([\w.]+)`", line.split("|")[1])
    }
    elsewhere = set()
    for system in ("lenses", "risingwave"):
        unused = {v.name for v in language_named(system).variables if not v.effect}
        assert {e.name for t in topics() if t.system == system for e in t.entries if e.kind == "setting"} >= unused
        elsewhere |= unused
    assert first == {*variables(), "rw_implicit_flush"} - elsewhere


ALL_PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """What may stand behind # in a link to the page: its headings, as the hosts of repositories name them."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#{1,6} (.*)", without_code(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        anchors.add(name if name not in found else f"{name}-{found[name]}")
        found[name] = found.get(name, 0) + 1
    return anchors


def without_code(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda p: p.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^):]+)\)", re.sub(r"`[^`\n]*`", "", without_code(page))):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda p: p.stem)
def test_commands_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^\$ |^)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for module in re.findall(r"python -m ((?:tests|benchmarks|scripts)[\w.]*)", text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for name in re.findall(r"benchmarks ([a-z_]+)[` ]", text):
        assert name == "and" or (ROOT / "benchmarks" / f"{name}.py").exists(), name


def test_the_tests_that_guard_a_law_exist():
    paths = [f"/{p.relative_to(ROOT / 'tests')}".removesuffix(".py") for p in (ROOT / "tests").rglob("*")]
    table = (ROOT / "docs" / "TESTING.md").read_text(encoding="utf-8").split("## Which tests guard which law")[1]
    named = {n for row in table.splitlines() for n in re.findall(r"`([\w/.*-]+)`", row.rpartition(" | ")[2])}
    assert [n for n in named if "*/" not in n and not any(p.endswith(f"/{n.rstrip('*')}") for p in paths)] == []


def test_pages_that_the_code_names_exist():
    """In docstrings, hints, scripts and manifests, with their anchors."""
    folders = ("src", "tests", "scripts", "benchmarks", "examples", "deploy")
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".yaml", ".sql", ".sh"}]
    named = {
        (str(path), page, anchor)
        for path in paths
        for page, anchor in re.findall(
            r"\b((?:docs/[\w/-]+|README|CONTRIBUTING|SECURITY|CHANGELOG)\.md)(?:#([\w-]+))?",
            path.read_text(encoding="utf-8"),
        )
    }
    assert len(named) > 20
    assert [n for n in named if not (ROOT / n[1]).exists() or (n[2] and n[2] not in anchors(ROOT / n[1]))] == []


def test_rates_are_those_of_the_benchmarks():
    """A rate stands in BENCHMARKS; other pages quote it. Decisions have those of their time."""
    benchmarks = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    for page in ALL_PAGES:
        if page.parent.name != "decisions":
            text = page.read_text(encoding="utf-8")
            rates = re.findall(r"(?<![\w.])(\d[\d.]* [kM]) (?:rows/s|rows a second|events/s|messages/s)", text)
            assert [rate for rate in rates if rate not in benchmarks] == [], page


def test_figures_of_the_readme_are_those_of_the_benchmarks():
    """A figure stands in BENCHMARKS; the README quotes it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = re.search(r"^On two cores.*?\(\[all figures\]", text, re.MULTILINE | re.DOTALL)
    assert quoted is not None
    benchmarks = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    for figure in ("534 k", "18.7", "115 ms"):
        assert figure in quoted[0]
        assert figure in benchmarks


def test_each_condition_has_a_cause_and_a_remedy():
    rows = re.findall(
        r"^\| ([A-Z_]+) \| (\w{5}) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "ERRORS.md").read_text(), re.MULTILINE
    )
    assert [(name, sqlstate) for name, sqlstate, *_ in rows] == [(n, c.sqlstate) for n, c in CONDITIONS.items()]


def test_the_glossary_has_each_term_once():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Words\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    terms = [term for row in rows if row != "word" for term in row.split(", ")]
    assert len(terms) == len(set(terms)) > 30


def test_benchmarks_are_tables_of_short_cells():
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    cells = [cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell) > 120] == []


def test_the_site_has_each_page_once():
    text = (ROOT / "scripts" / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- ([\w/-]+\.md)$", text, re.MULTILINE)
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    generated = {"index.md", "API.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
    decisions = {p for p in pages if p.startswith("decisions/")}
    assert sorted(listed) == sorted((pages - decisions) | generated)


@pytest.mark.parametrize("name", ["lock", "dbt", "docs"])
def test_pins_are_names_versions_and_hashes(name):
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pin = r"[\w.-]+==[\w.!+-]+( ;.*)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|# The following .*|"
    assert [line for line in lines if not re.fullmatch(pin, line)] == []
