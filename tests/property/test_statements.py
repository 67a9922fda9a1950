"""Law: any text is a right statement, or an error with a condition, a place, and hints of its own dialect."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest
from scripts.reference import statements_of

import watersmeet
from tests.property.statements import OWN, Statements
from tests.thorough import mostly_slow
from watersmeet.errors import CONDITIONS
from watersmeet.session.connections.checking import check_scripts

GIVEN = {
    "risingwave": """
CREATE TABLE orders (id int PRIMARY KEY, name varchar, amount numeric, at timestamp);
CREATE TABLE customers (id int, name varchar, at timestamp, WATERMARK FOR at AS at - INTERVAL '1' SECOND) APPEND ONLY;
CREATE MATERIALIZED VIEW named AS SELECT o.id, c.name, o.at FROM orders o JOIN customers c USING (id)""",
    "sqlstream": """
CREATE STREAM orders (id int, name varchar(20), amount double, at timestamp);
CREATE TABLE customers (id int, name varchar(20));
CREATE VIEW named AS SELECT STREAM o.id, c.name FROM orders AS o JOIN customers AS c ON o.id = c.id""",
    "timeplus": """
CREATE STREAM orders (id int, name string, amount float64, at datetime64(3));
CREATE MUTABLE STREAM customers (id int, name string) PRIMARY KEY id;
CREATE VIEW named AS SELECT id, name FROM orders JOIN customers USING (id)""",
    "lenses": """
CREATE TABLE orders (_key int, id int, name string, amount double) FORMAT (int, json);
CREATE TABLE customers (_key int, id int, name string, a.b int) FORMAT (int, json);
SET defaults.topic.autocreate = true;
INSERT INTO named SELECT STREAM o.id, c.name FROM orders AS o JOIN customers AS c ON o._key = c._key WITHIN 5m""",
}
#: Statements in one block, and blocks: 4 in each run, 80 in the thorough tier.
BLOCK, QUICK, BLOCKS = 250, 12, 80


@cache
def known(dialect: str) -> tuple[re.Pattern[str], set[str]]:
    """(a pattern of the statements of all dialects, those that only other dialects have)"""
    own = statements_of(dialect)
    verbs = {*(words.split()[0] for words in own), "EXISTS", "RENAME", "SYSTEM"}  # also words of clauses
    every = set().union(*(statements_of(other) for other in OWN))
    longest_first = sorted(every, key=len, reverse=True)
    return re.compile(r"\b(?:" + "|".join(longest_first) + r")\b"), every - own - verbs


def faults(dialect: str, text: str, database) -> list[str]:
    """The reasons why the errors of a text are not as they should be."""
    found = []
    pattern, others = known(dialect)
    _, findings = check_scripts(database, [(dialect, text)])
    for err in (f.error for f in findings):
        if err.condition not in CONDITIONS or err.condition == "INTERNAL_ERROR" or not err.sqlstate:
            found.append(f"condition {err.condition}")
        if err.sql != text or err.span is None or not 0 <= err.span.start <= len(text):
            found.append(f"{err.condition} has no place")
        if "dialect" not in text.lower():
            found += [f"the hint names {words}" for words in pattern.findall(err.hint or "") if words in others]
    return found


#: Texts that failed.
REGRESSIONS = [
    ("timeplus", "VALUES (1, dict_get(1, 2, [[x -> x + 1, NULL], $1])::string), ($1, ''"),
    ("lenses", "SUBSCRIBE"),
    ("lenses", "CREATE VIEW v AS SELECT 1 AS x; INSERT INTO r1 SELECT id FROM orders LATERAL id AS l"),
    ("risingwave", "PREPARE p AS SELECT nothing FROM orders"),
    ("risingwave", "CREATE FUNCTION f(a varchar) RETURNS varchar LANGUAGE sql AS 'SELECT b.name'"),
    ("sqlstream", "KILL QUERY 1$"),
    ("sqlstream", "SELECT CAST(name AS int[]) AS x FROM customers"),
    ("sqlstream", "SELECT CAST(name AS varchar(max)) AS x FROM customers"),
    ("sqlstream", "SELECT id FROM LOCALDB..customers"),
    ("risingwave", "DELETE FROM customers $1 at IN (TRUE, 1)"),
    ("lenses", "SUBSCRIBE (r2) r2"),
    ("sqlstream", "SELECT * FROM SYS_BOOT..TABLES_VIEW"),
    ("sqlstream", "CREATE FOREIGN STREAM s (id INTEGER, name VARCHAR("),
    ("sqlstream", "CREATE PUMP p AS INSERT INTO named SELECT STREAM ROWTIME, id FROM orders"),
    ("sqlstream", "CREATE TABLE t (name VARCHAR(0), code CHAR(99999999999999999999999))"),
    ("lenses", "INSERT INTO orders (id .. , a.id) SELECT * FROM named"),
    ("timeplus", "CREATE TABLE t (id int)"),
    ("timeplus", "WITH r3 GARBAGE COMMENT dict_get('a', 2.5, [(VALUES (1, NULL), (1, 2.5)), ''])"),
]


@pytest.mark.parametrize(("dialect", "text"), REGRESSIONS)
def test_a_text_that_failed(dialect: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with watersmeet.connect(runtime="inprocess") as connection:
        check_scripts(connection.opened, [(dialect, GIVEN[dialect])])
        assert faults(dialect, text, connection.opened) == []
        assert caplog.records == []


@pytest.mark.parametrize("block", mostly_slow(range(BLOCKS), QUICK, 0))
@pytest.mark.parametrize("dialect", OWN)
def test_any_text_is_right_or_has_an_error_with_a_place(
    dialect: str, block: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = Statements(dialect, random.Random(f"{dialect} {block}"))
    with watersmeet.connect(runtime="inprocess") as connection:
        assert check_scripts(connection.opened, [(dialect, GIVEN[dialect])])[1] == []
        for _ in range(BLOCK):
            text = made.statement()
            try:
                found = faults(dialect, text, connection.opened)
            except Exception as err:
                raise AssertionError(text) from err
            assert (found, caplog.messages) == ([], []), text
