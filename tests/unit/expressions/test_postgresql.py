"""Expressions of the tables of chapter 9 of PostgreSQL's documentation: each gives PostgreSQL's result, or stands with
its own result and the reason.

A line of `postgresql.txt` is `expression ⇒ result of PostgreSQL 18`, and where Watersmeet differs
`⇒ its result ⇒ reason`. Results are texts as `::text` writes them; ∅ is NULL, `!` an error with its SQLSTATE, ␤ a line
end. The lines after `zone: name` are in a session in that time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.servers import PostgresDatabase

import watersmeet

#: Why a result differs.
REASONS = {
    "arrays": "an array of arrays is a list of lists: of any lengths, and with one subscript its element is an array",
    "division": "division by zero is NULL, as in RisingWave's views",
    "doubles": "DuckDB's text and last digit of a double, and no negative zero",
    "jsonb": "keys of jsonb are ordered by their bytes, as in RisingWave, and numbers keep and compare as their text",
    "json": "functions of json return jsonb",
    "lenient": "a literal or a text in a document has the type that fits",
    "json_value": "it is DuckDB's, which returns the JSON of a text",
    "letters": "letters follow Unicode in every locale",
    "moments": "a time has whole microseconds and a year, where it is read from a text",
    "null": "NULL or an empty text, where PostgreSQL raises an error",
    "numeric": "numeric has 10 digits after the point, and its text ends without zeros",
    "order": "an aggregate without ORDER BY takes its values in their order",
    "refused": "not supported: the error names it",
    "regex": "regular expressions are RE2's: the leftmost match, and no text for a group that took no part",
    "types": "text is character varying, an address has no mask of all its bits, a truncated date is a timestamp",
}
NULL, LINE_END = "∅", "␤"
SOURCE = Path(__file__).with_name("postgresql.txt")
#: SQLSTATEs of what an older server lacks: a function, syntax, a type, a field of extract, and what it did not support.
_LACKING = {"42883", "42601", "42704", "22023", "0A000", "42P13"}
_NEWEST = 180000


class Case(NamedTuple):
    """An expression, PostgreSQL's result and ours, and the reason of a difference."""

    zone: str
    expression: str
    expected: str
    own: str
    reason: str


def read_cases() -> Iterator[tuple[str, list[Case]]]:
    """The sections with their cases."""
    title, zone, found = "", "UTC", list[Case]()
    for line in SOURCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            if found:
                yield title, found
            title, zone, found = line[2:], "UTC", []
        elif line.startswith("zone: "):
            zone = line[6:]
        elif line:
            expression, expected, *more = line.split(" ⇒ ")
            own, reason = more or (expected, "")
            found.append(Case(zone, expression, expected, own, reason))
    yield title, found


SECTIONS = dict(read_cases())


def shown(run: Callable[[str], Any], expression: str, errors: type[Exception]) -> str:
    """The text of a result."""
    try:
        (row,) = run(f"SELECT ({expression})::text").fetchall()
    except errors as failure:
        return f"!{failure.sqlstate}"  # type: ignore[attr-defined]
    return NULL if row[0] is None else row[0].replace("\n", LINE_END)


@pytest.mark.parametrize("title", SECTIONS)
def test_results_are_those_of_the_table(title: str) -> None:
    wrong = []
    with watersmeet.connect(runtime="inprocess") as connection:
        zone = ""
        for case in SECTIONS[title]:
            if case.zone != zone:
                zone = case.zone
                connection.execute(f"SET timezone TO '{zone}'")
            found = shown(connection.execute, case.expression, watersmeet.Error)
            if found != case.own and not (found.startswith("!") and case.own == case.expected and case.own[0] == "!"):
                wrong.append((case.expression, found, case.own))
    assert wrong == []


@pytest.mark.parametrize("title", SECTIONS)
def test_the_table_has_the_results_of_a_server(title: str, postgres: PostgresDatabase) -> None:
    with postgres.connect() as theirs:
        is_older, wrong = theirs.info.server_version < _NEWEST, []
        zone = ""
        for case in SECTIONS[title]:
            if case.zone != zone:
                zone = case.zone
                theirs.execute(f"SET timezone TO '{zone}'")
            found = shown(theirs.execute, case.expression, psycopg.Error)
            lacks = is_older and found[1:] in _LACKING
            if found != case.expected and not lacks:
                wrong.append((case.expression, found, case.expected))
    assert wrong == []


def test_the_table_is_large_and_every_difference_has_a_reason() -> None:
    every = [case for cases in SECTIONS.values() for case in cases]
    differing = [case for case in every if case.reason]
    assert len(every) >= 700
    assert {case.reason for case in differing} <= set(REASONS)
    assert all(case.own != case.expected for case in differing)
    refused = [case for case in differing if case.own.startswith("!")]
    assert all(case.reason == "refused" for case in refused)
    assert [case for case in differing if case.reason == "refused" and case not in refused] == []
