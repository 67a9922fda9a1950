"""The statements, clauses, options, settings, functions and types of each vendor's documentation: `tests/coverage`.

`tests/coverage/<system>/<topic>.toml` has one entry for each; `tests/unit/test_coverage.py` runs them all.
`scripts.reference` writes the pages `docs/reference/dialects/<system>.md` and the counts of `docs/FEATURES.md`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "tests" / "coverage"
#: The titles of the systems, by dialect.
SYSTEMS: Final = {"risingwave": "RisingWave", "sqlstream": "SQLstream", "timeplus": "Timeplus", "lenses": "Lenses"}
#: The kinds of entries, in the order of the pages, with the titles of their sections.
KINDS: Final = {
    "statement": "Statements",
    "clause": "Clauses",
    "option": "Options",
    "setting": "Settings",
    "function": "Functions",
    "aggregate": "Aggregates",
    "type": "Types",
}
Outcome = Literal["works", "notice", "refused"]
_HEADS: Final = {"works": "works", "notice": "accepted with a notice", "refused": "refused"}
_MARKS: Final = ("<!-- counts -->\n", "<!-- end of counts -->\n")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A feature of a system.

    name: as its documentation names it. sql: the text that is run, or `expression`: a value that is selected. result:
    the text of the value, or of the rows, one on each line, with ` | ` between their values. notice: a part of its
    notice. refused: the condition of its error. note: the reason or the effect in the system, and the way round.
    """

    kind: str
    name: str
    sql: str = ""
    expression: str = ""
    result: str | None = None
    notice: str | None = None
    refused: str | None = None
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        """Which table of the page shows it."""
        return "refused" if self.refused else "notice" if self.notice else "works"

    @property
    def text(self) -> str:
        """The text that is run."""
        return self.sql or f"SELECT {self.expression} AS x"

    def problems(self) -> Iterator[str]:
        """The reasons why it is not well formed."""
        if self.kind not in KINDS:
            yield f'unknown kind "{self.kind}"'
        if bool(self.sql) == bool(self.expression):
            yield "either sql or expression"
        if self.outcome != "works" and not self.note:
            yield "a notice and a refusal need a note"
        if self.refused and (self.notice or self.result is not None):
            yield "a refusal has neither notice nor result"
        if self.kind in ("function", "aggregate") and self.result is None and not self.refused:
            yield "a function needs its documented result"


@dataclass(frozen=True)
class Topic:
    """A file of entries. given: the text that is run before each entry."""

    system: str
    name: str
    given: str
    entries: tuple[Entry, ...]


@cache
def topics() -> tuple[Topic, ...]:
    """All files, by system and name. ValueError for an entry that is not well formed or appears twice."""
    found = []
    seen = set[tuple[str, str, str]]()
    known = {f.name for f in fields(Entry)}
    for path in sorted(FOLDER.glob("*/*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        listed: list[dict[str, Any]] = content.get("entry", [])
        entries = []
        for number, values in enumerate(listed, 1):
            where = f"{path.relative_to(ROOT)}, entry {number} ({values.get('name')})"
            if unknown := {*values} - known:
                raise ValueError(f"{where}: unknown keys {sorted(unknown)}")
            entry = Entry(**values)
            key = (path.parent.name, entry.kind, entry.name)
            problems = [*entry.problems(), *(["it appears twice"] if key in seen else [])]
            if problems:
                raise ValueError(f"{where}: {'; '.join(problems)}")
            seen.add(key)
            entries.append(entry)
        found.append(Topic(path.parent.name, path.stem, content.get("given", ""), tuple(entries)))
    return tuple(found)


def page(system: str) -> str:
    """The page of a system: by kind, a table for each outcome."""
    of_system = [t for t in topics() if t.system == system]
    title = SYSTEMS[system]
    entries = [e for t in of_system for e in t.entries]
    counts = Counter(e.outcome for e in entries)
    total = ", ".join(
        f"{counts[outcome]:,} {'work' if outcome == 'works' else head}" for outcome, head in _HEADS.items()
    )
    begin = (
        f"# SQL of {title}\n\nWhich statements, clauses, options, settings, functions and types of the "
        f"documentation of {title} run? A test runs each of the {len(entries):,}: {total}. "
        f"[The page of the dialect](../../dialects/{system}.md) explains the differences. "
        "`python -m scripts.reference` writes this page from `tests/coverage`.\n"
    )
    parts = [begin]
    for kind, heading in KINDS.items():
        of_kind = [e for e in entries if e.kind == kind]
        if of_kind:
            parts.append(f"\n## {heading}\n")
            parts += (_table(outcome, [e for e in of_kind if e.outcome == outcome]) for outcome in _HEADS)
    given = [f"\n```sql\n{t.given.strip()}\n```\n" for t in of_system if t.given]
    if given:
        parts += ["\n## Objects of the examples\nThe examples run after these statements.\n", *given]
    return "".join(parts)


def _table(outcome: Outcome, entries: Sequence[Entry]) -> str:
    """The table of an outcome; empty without entries."""
    if not entries:
        return ""
    if outcome == "works":
        heads = ("works", "example", "result")
        with_result = any(e.result is not None for e in entries)
        rows = [(_cell(e.name), _code(e.sql or e.expression), *([_shown(e)] if with_result else [])) for e in entries]
        heads = heads if with_result else heads[:2]
    else:
        heads = (
            _HEADS[outcome],
            "its purpose there, and the way round" if outcome == "notice" else "why, and the way round",
        )
        rows = [(_cell(e.name), _cell(e.note)) for e in entries]
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _shown(entry: Entry) -> str:
    return "" if entry.result is None else "; ".join(_code(line) for line in entry.result.strip().split("\n"))


def _cell(text: str) -> str:
    """Text of a cell; words in capitals and signs stay as they are."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    shown = " ".join(text.split()).replace("|", "\\|")
    mark = "``" if "`" in shown else "`"
    pad = " " if shown[:1] == "`" or shown[-1:] == "`" else ""
    return f"{mark}{pad}{shown}{pad}{mark}" if shown else "(empty)"


def counts() -> str:
    """The table of counts, by system."""
    heads = ("", *_HEADS.values())
    rows = []
    for system, title in SYSTEMS.items():
        found = Counter(e.outcome for t in topics() if t.system == system for e in t.entries)
        if found:
            rows.append((f"[{title}](reference/dialects/{system}.md)", *(f"{found[outcome]:,}" for outcome in _HEADS)))
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def features_page() -> str:
    """docs/FEATURES.md with the counts of today."""
    text = (ROOT / "docs" / "FEATURES.md").read_text(encoding="utf-8")
    begin, end = _MARKS
    pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
    return re.sub(pattern, lambda _: f"{begin}{counts()}{end}", text, count=1, flags=re.DOTALL)
