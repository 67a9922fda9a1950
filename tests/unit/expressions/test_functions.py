"""Every function in a view that is kept, and in a query: both give what PostgreSQL gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.dialectcoverage import topics
from tests.unit.binder.helpers import bound, catalog_of
from tests.unit.expressions.function_cases import CASES, ROW, TABLE
from tests.unit.expressions.function_cases_types import CASES as CASES_OF_TYPES
from tests.unit.expressions.function_text import same, shown

import watersmeet
from watersmeet.expressions import functions, setfunctions
from watersmeet.testing import mismatch

#: Expressions of one view.
_TOGETHER = 60


def cases() -> list[tuple[str, str, str]]:
    """(expression, type, value)."""
    lines = [line for line in (CASES + CASES_OF_TYPES).splitlines() if line and not line.startswith("#")]
    found = [
        tuple(line.split(" ⇒ ")) if line.count(" ⇒ ") == 2 else (*line.removesuffix(" ⇒").split(" ⇒ "), "")
        for line in lines
    ]
    assert all(len(f) == 3 for f in found)
    return found


def chunks() -> Iterator[list[tuple[str, str, str]]]:
    every = cases()
    for start in range(0, len(every), _TOGETHER):
        yield every[start : start + _TOGETHER]


@pytest.mark.parametrize("part", list(chunks()), ids=lambda part: part[0][0])
def test_values_in_a_view_and_in_a_query(part, tmp_path):
    connection = watersmeet.connect(str(tmp_path / "db"), runtime="inprocess")
    cursor = connection.cursor()
    cursor.execute(TABLE)
    items = ", ".join(f"{text} AS c{i}" for i, (text, _, _) in enumerate(part))
    kinds = [c.type for c in bound(f"SELECT {items} FROM one", catalog_of(TABLE)).columns]
    cursor.execute(f"CREATE MATERIALIZED VIEW v AS SELECT {items} FROM one")
    cursor.execute(ROW)
    cursor.execute("FLUSH")
    (in_view,) = cursor.execute("SELECT * FROM v").fetchall()
    (in_query,) = cursor.execute(f"SELECT {items} FROM one").fetchall()
    connection.close()
    wrong = [
        f"{text}: {kind} {value}, not {found.sql} {shown(a, found)} / {shown(b, found)}"
        for (text, kind, value), found, a, b in zip(part, kinds, in_view, in_query, strict=True)
        if found.sql != kind or not same(a, found, value) or not same(b, found, value)
    ]
    assert wrong == []


#: Functions of the clock and of the session, which a view may not have.
_OF_NOW = ("now(", "proctime(", "current_", "session_user", "user", "pg_sleep")
DOCUMENTED = [
    (entry.expression, entry.result)
    for topic in topics()
    if topic.system == "risingwave" and topic.name.startswith("functions-") and not topic.given
    for entry in topic.entries
    if entry.expression and entry.result is not None and not entry.expression.startswith(_OF_NOW)
]


@pytest.mark.parametrize("start", range(0, len(DOCUMENTED), 2 * _TOGETHER))
def test_documented_values_in_a_view(start):
    part = DOCUMENTED[start : start + 2 * _TOGETHER]
    connection = watersmeet.connect(runtime="inprocess")
    items = ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(part))
    connection.execute("CREATE TABLE one (i INT)")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS SELECT {items} FROM one")
    connection.execute("INSERT INTO one VALUES (1)")
    connection.flush()
    with connection.execute("SELECT * FROM v") as cursor:
        (row,) = cursor.fetchall()
        kinds = [column[1] for column in cursor.description]
    connection.close()
    wrong = [
        (text, value, result)
        for (text, result), value, kind in zip(part, row, kinds, strict=True)
        if mismatch([result or "(empty)"], [(value,)], [kind], ()) is not None
    ]
    assert wrong == []


ROOT = Path(__file__).parents[3]
CLOCKS = {
    "clock_timestamp",
    "current_date",
    "current_timestamp",
    "localtimestamp",
    "now",
    "proctime",
    "statement_timestamp",
}


def test_every_function_has_a_value():
    own = set(functions._SPECIAL) | set(setfunctions._BUILDERS)
    texts = (
        CASES
        + CASES_OF_TYPES
        + "".join(
            (ROOT / f"tests/slt/risingwave/{name}.slt").read_text(encoding="utf-8")
            for name in ("table-functions", "functions")
        )
        + "".join(entry.text for topic in topics() if topic.system == "risingwave" for entry in topic.entries)
    )
    called = {name.lower() for name in re.findall(r"(\w+)\s*\(", texts)}
    assert own - called - CLOCKS - set(functions._ROLES) == set()
