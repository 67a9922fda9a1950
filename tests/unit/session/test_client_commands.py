"""Commands of sqlline in scripts of SQLstream, and statements that s-Server's scripts carry."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.dialects.parsing import parse, parse_each, split_statements
from watersmeet.dialects.tree.statements import Accepted, Select, SetVariable

SCRIPT = """!set force on
ALTER PUMP "b".* STOP;
DROP SCHEMA "b" CASCADE;
!set force off
CREATE SCHEMA "b";
!outputformat vertical
SET SCHEMA '"b"';
CREATE STREAM s (n INTEGER);
SELECT n, '
!run nothing' AS x FROM s WHERE n
!= 2;
!quit
"""


@pytest.fixture
def connection():
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess") as found:
        yield found


def test_commands_are_lines_between_statements():
    found = parse(SCRIPT, "sqlstream")
    assert [type(s) for s in found if isinstance(s, (Accepted, Select))] == [Accepted, Select, Accepted]
    assert [s.value for s in found if isinstance(s, SetVariable) and s.name != "search_path"] == ["on", "off"]
    assert all(SCRIPT[s.span.start : s.span.end] == s.sql for s in found)
    complete, rest = split_statements(SCRIPT, "sqlstream")
    assert (len(complete), rest) == (len(found), "")


def test_other_dialects_have_no_commands():
    with pytest.raises(watersmeet.Error) as caught:
        parse("!set force on\nSELECT 1", "risingwave")
    assert caught.value.condition == "SYNTAX_ERROR"


def test_an_unknown_command_is_one_refused_statement():
    found = parse_each("SELECT 1;\n!outputformt csv\nSELECT 2;", "sqlstream")
    assert [s.sql for s in found] == ["SELECT 1", "!outputformt csv", "SELECT 2"]
    assert 'Did you mean "outputformat"' in (found[1].error.hint or "")


@pytest.mark.parametrize("whole", [True, False])
def test_a_script_continues_after_errors_as_long_as_it_says_so(connection, whole):
    connection.execute("CREATE TABLE kept (n INTEGER)")
    run = connection.execute_script(SCRIPT) if whole else (connection.execute(s) for s in split(SCRIPT))
    notices = [n for cursor in run for n in cursor.notices]
    assert [n for n in notices if n.startswith("failed")] == [
        'failed, and the script continues: schema "b" does not exist',
        'failed, and the script continues: schema "b" does not exist',
    ]
    assert connection.execute('SELECT * FROM "b".s').fetchall() == []
    with pytest.raises(watersmeet.Error):
        connection.execute("DROP SCHEMA missing")


def split(text: str) -> list[str]:
    return split_statements(text, "sqlstream")[0]


def test_what_a_failed_statement_did_is_undone(connection):
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, m INTEGER)")
    script = """!set force on
INSERT INTO t VALUES (1, 1);
INSERT INTO t SELECT CAST(x AS INTEGER), 2 FROM (VALUES ('2'), ('two')) AS v(x);
INSERT INTO t VALUES (3, 3);"""
    notices = [n for cursor in connection.execute_script(script) for n in cursor.notices]
    assert len(notices) == 1
    assert "two" in notices[0]
    assert connection.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (3,)]


def test_commands_of_psql_in_scripts_of_risingwave():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "\\set ECHO queries\n  \\pset pager off\n\\echo '=== it''s step 1: \"create'\n"
            "CREATE TABLE t (a int, b varchar);\n"
            "INSERT INTO t VALUES (1, '\n\\set inside\n');\n\\c dev\n\\timing\nSELECT a, b FROM t;\n\\echo done"
        )
        assert [n.split(" ")[0] for n in cursor.notices] == ["\\set", "\\c"]
        assert cursor.execute("SELECT a, b FROM t").fetchall() == [(1, "\n\\set inside\n")]
        for line, hint in (
            ("\\i other.sql", "several files"),
            ("\\dt", "SHOW TABLES"),
            ("\\gset", "of psql is not supported"),
        ):
            with pytest.raises(watersmeet.Error, match=hint) as refused:
                cursor.execute(f"INSERT INTO t VALUES (2, 'x');\n{line}\nSELECT 1")
            assert refused.value.condition == "FEATURE_NOT_SUPPORTED"
        with pytest.raises(watersmeet.Error, match="syntax error"):
            cursor.execute("SELECT 1\n\\echo inside a statement\n+ 1")


def test_a_shell_runs_commands_of_psql_without_a_semicolon():
    assert split_statements("\\echo one\nSELECT 1; SELECT", "risingwave") == (["\\echo one", "SELECT 1"], "SELECT")
