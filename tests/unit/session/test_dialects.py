"""Which SQL is spoken: SET dialect, a line `-- dialect: x`, and where a text may go over to another dialect."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.dialects.parsing import parse, split_statements


@pytest.fixture
def connection():
    with watersmeet.connect(runtime="inprocess") as made:
        yield made


def texts(sql, dialect="risingwave"):
    return [s.sql for s in parse(sql, dialect)]


def test_set_changes_the_dialect_for_what_follows(connection):
    cursor = connection.execute(
        "CREATE TABLE t (a int); SET dialect = 'timeplus'; CREATE STREAM `s x` (a int); SHOW dialect"
    )
    assert cursor.fetchall() == [("timeplus",)]
    assert connection.dialect == "timeplus"
    connection.execute("CREATE STREAM z (a int)")
    connection.execute("SET SESSION dialect TO risingwave")
    assert connection.execute("SHOW TABLES").fetchall() == [("t",), ("s x",), ("z",)]


def test_a_line_is_the_same_as_set(connection):
    assert texts("SELECT 1;\n-- dialect: timeplus\nSELECT `a` FROM s;\n  --Dialect : RisingWave  \nSELECT 2") == [
        "SELECT 1",
        "-- dialect: timeplus",
        "SELECT `a` FROM s",
        "--Dialect : RisingWave",
        "SELECT 2",
    ]
    connection.execute("-- dialect: sqlstream\nCREATE STREAM s (a INTEGER)")
    assert connection.dialect == "sqlstream"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT '\n-- dialect: timeplus\n' AS a",
        "/*\n-- dialect: timeplus\n*/ SELECT 1",
        "SELECT 1 -- SET dialect = 'timeplus';",
        "SELECT 1 AS \"SET dialect = 'timeplus';\"",
        "SELECT 'SET dialect = timeplus;'",
        "-- the dialect: timeplus is nice\nSELECT 1",
    ],
)
def test_what_stands_in_quotes_and_comments_changes_nothing(connection, text):
    connection.execute(text)
    assert connection.dialect == "risingwave"


def test_quotes_are_those_of_the_dialect():
    assert texts(
        r"SET dialect = 'timeplus'; SELECT 'it\'s; SET dialect = ''x'';'; SET dialect = 'risingwave'; SELECT 1"
    ) == ["SET dialect = 'timeplus'", r"SELECT 'it\'s; SET dialect = ''x'';'", "SET dialect = 'risingwave'", "SELECT 1"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "SELECT 1;\nSET dialect = 'timplus'",
            (
                "error[INVALID_PARAMETER] 22023: unknown dialect \"timplus\"\nLINE 2: SET dialect = 'timplus'\n"
                '                       ^^^^^^^\nhint: Did you mean "timeplus"?'
            ),
        ),
        (
            "-- dialect: sql\nSELECT 1",
            (
                'error[INVALID_PARAMETER] 22023: unknown dialect "sql"\nLINE 1: -- dialect: sql\n            '
                "        ^^^\n"
                "hint: The dialects are: risingwave, lenses, sqlstream, timeplus, postgres."
            ),
        ),
        (
            "SELECT 1\n-- dialect: timeplus\n",
            (
                "error[SYNTAX_ERROR] 42601: the dialect can't change inside a statement\nLINE 2: -- dialect: timeplus\n"
                "        ^^^^^^^^^^^^^^^^^^^^\nhint: End the statement before with a semicolon."
            ),
        ),
        (
            "RESET dialect",
            (
                "error[INVALID_PARAMETER] 22023: there is no default dialect\nLINE 1: RESET dialect\n        "
                "^^^^^^^^^^^^^\n"
                "hint: Name one: risingwave, lenses, sqlstream, timeplus, postgres."
            ),
        ),
        (
            "SET dialect = 'timeplus'; SELECT 'x",
            (
                "error[SYNTAX_ERROR] 42601: unterminated quoted string\nLINE 1: SET dialect = 'timeplus'; SELECT 'x\n"
                "                                         ^"
            ),
        ),
    ],
)
def test_refused(connection, text, error):
    with pytest.raises(watersmeet.Error) as found:
        connection.execute(text)
    assert str(found.value) == error
    assert connection.dialect == "risingwave"


def test_statements_are_told_apart_in_the_dialect_of_their_place():
    assert split_statements("SELECT 1;\n-- dialect: timeplus\nSELECT `a;` ; SELECT 2") == (
        ["SELECT 1", "SELECT `a;`"],
        "SELECT 2",
    )
    assert split_statements("-- dialect: timeplus") == ([], "")
    script = "WITH a AS (SELECT STREAM * FROM t);\nINSERT INTO x SELECT STREAM * FROM a"
    assert split_statements(f"SET n = 1; {script};", "lenses") == (["SET n = 1", script], "")
    assert split_statements("WITH a AS (SELECT STREAM * FROM t);", "lenses") == (
        [],
        "WITH a AS (SELECT STREAM * FROM t);",
    )
    assert split_statements("SET dialect = 'timeplus'; SELECT `a") == (["SET dialect = 'timeplus'"], " SELECT `a")
    assert split_statements("SELECT 1; SET dialect = 'x'; SELECT 2;") == (
        ["SELECT 1", "SET dialect = 'x'", "SELECT 2"],
        "",
    )
