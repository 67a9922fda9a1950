"""Texts with several statements: where they are cut, which places they have, what is no SQL."""

from __future__ import annotations

import pytest
from tests.unit.binder.helpers import refusal

from watersmeet.dialects.parsing import parse, split_statements
from watersmeet.dialects.tree import statements as st
from watersmeet.errors import Error


def kinds(text):
    return [type(s).__name__ for s in parse(text)]


def test_statements_are_cut_at_semicolons_outside_quotes_and_comments():
    text = "SELECT ';' AS a; -- no; statement\nFLUSH;; /* ; */ SELECT \";\" FROM t"
    assert [s.sql for s in parse(text)] == ["SELECT ';' AS a", "FLUSH", 'SELECT ";" FROM t']


def test_spans_are_in_the_whole_text():
    text = "FLUSH;\n\n  DROP TABLE a;"
    flush, drop = parse(text)
    assert (flush.span.start, flush.span.end) == (0, 5)
    assert text[drop.span.start : drop.span.end] == drop.sql == "DROP TABLE a"
    assert text[drop.names[0].span.start : drop.names[0].span.end] == "a"
    assert drop.text == text


def test_with_in_front_belongs_to_the_queries_that_name_it():
    """What nobody names belongs to the last query, whose binding finds its errors."""
    text = """WITH a AS (SELECT STREAM x FROM t); WITH b AS (SELECT STREAM x FROM a); WITH c AS (SELECT STREAM 1 AS x);
        INSERT INTO p SELECT STREAM x FROM b; INSERT INTO q SELECT STREAM x FROM t; SELECT x FROM q"""
    unit, last = parse(text, "lenses")
    assert [s.sql for s in unit.statements] == [
        (
            "WITH a AS (SELECT STREAM x FROM t);\nWITH b AS (SELECT STREAM x FROM a);\nINSERT INTO p SELECT "
            "STREAM x FROM b"
        ),
        "WITH c AS (SELECT STREAM 1 AS x);\nINSERT INTO q SELECT STREAM x FROM t",
    ]
    assert last.sql == "SELECT x FROM q"


def test_an_empty_text_has_no_statements():
    assert parse("") == parse(" ;; -- nothing\n") == []


def test_an_error_shows_its_line_in_the_whole_text():
    assert refusal(parse, "SELECT 1;\nSELECT a,, b FROM t") == (
        'error[SYNTAX_ERROR] 42601: syntax error at or near ","\nLINE 2: SELECT a,, b FROM t\n                 ^'
    )


@pytest.mark.parametrize(
    ("text", "shown", "place"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"', "^^^^^"),
        ("SELECT 1 FROM", "syntax error at end of input", "             ^"),
        ("SELECT a, FROM t", 'syntax error at or near "FROM"', "          ^^^^"),
        ("SELECT (1", "syntax error at end of input", "         ^"),
        ("SELECT * FROM t WHERE", "syntax error at end of input", "                     ^"),
        ("SELECT * FROM t GROUP BY", "GROUP BY without a list", None),
        ("SELECT a b c FROM t", 'syntax error at or near "c"', "           ^"),
        ("SELECT 'abc", "unterminated quoted string", "       ^"),
        ('SELECT "abc', "unterminated quoted identifier", "       ^"),
        ("SELECT 1 /* x", "unterminated comment", "         ^"),
        ("CREATE TABEL x (a int)", 'syntax error at or near "TABEL"', "       ^^^^^"),
        ("DROP TABLE a b", 'syntax error at or near "b"', "             ^"),
        ("SET x", "syntax error at end of input", "     ^"),
        ('"select" 1', 'syntax error at or near ""select""', "^^^^^^^^"),
    ],
)
def test_what_is_no_statement_is_refused_at_its_place(text, shown, place):
    lines = refusal(parse, text).splitlines()
    assert lines[0] == f"error[SYNTAX_ERROR] 42601: {shown}"
    if place is not None:
        assert lines[2] == " " * len("LINE 1: ") + place


@pytest.mark.parametrize(
    ("text", "condition", "shown", "place"),
    [
        ("SELECT * FROM a JOIN b", "JOIN_WITHOUT_CONDITION", "JOIN without ON or USING", "^^^^"),
        ("SELECT * FROM a LEFT JOIN b", "JOIN_WITHOUT_CONDITION", "JOIN without ON or USING", "^^^^"),
        (
            "SELECT * FROM a NATURAL JOIN b ON true",
            "JOIN_WITH_CONDITION",
            "NATURAL JOIN takes neither ON nor USING",
            "^^^^^^^",
        ),
        ("SELECT * FROM a NATURAL CROSS JOIN b", "SYNTAX_ERROR", "NATURAL CROSS JOIN does not exist", "^^^^^^^"),
        (
            "SELECT * FROM a CROSS JOIN b ON true",
            "JOIN_WITH_CONDITION",
            "CROSS JOIN takes neither ON nor USING",
            "^^^^^",
        ),
    ],
)
def test_joins_have_the_conditions_that_they_need(text, condition, shown, place):
    lines = refusal(parse, text).splitlines()
    assert (lines[0], lines[2]) == (f"error[{condition}] 42601: {shown}", " " * len("LINE 1: SELECT * FROM a ") + place)


def test_semi_and_anti_join_are_no_keywords():
    """RA-26, RA-27"""
    for word in ("SEMI", "ANTI"):
        assert refusal(parse, f"SELECT id FROM a {word} JOIN b ON a.id = b.id") == (
            f'error[SYNTAX_ERROR] 42601: syntax error at or near "{word}"\n'
            f"LINE 1: SELECT id FROM a {word} JOIN b ON a.id = b.id\n"
            "                         ^^^^\n"
            "hint: Write a semi join as EXISTS or IN (SELECT …), an anti join as NOT EXISTS or NOT IN (SELECT …)."
        )


def test_a_near_keyword_is_suggested():
    assert "hint: Did you mean SELECT or" in refusal(parse, "SELCT 1")
    assert refusal(parse, "CREATE FROK f").endswith("hint: Did you mean FORK?")
    assert refusal(parse, "DROP TABEL f").endswith("hint: Did you mean TABLE?")
    assert refusal(parse, "CREATE MATERIALIZED VEIW v AS SELECT 1").endswith("are supported.")


def test_verify_of_a_name_shows_its_form():
    assert refusal(parse, "VERIFY totals").endswith("hint: Write VERIFY [VIEW name] [AT COMMIT number].")


@pytest.mark.parametrize(
    ("text", "complete", "rest"),
    [
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT ';'; SEL", ["SELECT 1", "SELECT ';'"], "SEL"),
        ("SELECT 'a;", [], "SELECT 'a;"),
        ("-- only a comment\n", [], ""),
    ],
)
def test_a_shell_can_tell_complete_statements_from_the_rest(text, complete, rest):
    assert split_statements(text) == (complete, rest)


# Errors of use


def test_unknown_dialect():
    with pytest.raises(Error) as found:
        parse("SELECT 1", "risingwav")
    assert (found.value.condition, found.value.hint) == ("INVALID_PARAMETER", 'Did you mean "risingwave"?')


def test_nesting_has_a_limit():
    assert "nested too deeply" in refusal(parse, "SELECT " + "(" * 500 + "1" + ")" * 500)


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("ALTER TABLE t ALTER COLUMN a SET STATISTICS 1", "ALTER TABLE … ALTER"),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE rust AS 'x'", "a function in RUST"),
        ("CREATE AGGREGATE f(int) RETURNS int LANGUAGE sql AS 'x'", "an aggregate in SQL"),
        ("REINDEX t", "REINDEX"),
        ("COPY t FROM PROGRAM 'ls'", "COPY FROM PROGRAM"),
        ("EXPLAIN ANALYZE INSERT INTO t VALUES (1)", "EXPLAIN ANALYZE INSERT"),
        ("CREATE VIEW v AS SELECT 1 AS a EMIT ON ARRIVAL", "EMIT in a view that is not materialized"),
        ("CREATE TABLE t (a int, EXCLUDE USING gist (a WITH =))", "EXCLUDE in a table"),
        ("CREATE TABLE t (a int) WITH (connector = 'file') FORMAT DEBEZIUM ENCODE JSON", "FORMAT DEBEZIUM"),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int) ON CONFLICT IGNORE WITH VERSION COLUMN(b)",
            "DO NOTHING with a version column",
        ),
    ],
)
def test_statements_that_are_lacking_are_refused_when_they_run(text, feature):
    first, refused = parse(f"SELECT 1; {text}")
    assert isinstance(first, st.Select)
    assert isinstance(refused, st.Refused)
    assert (refused.error.condition, refused.error.message) == ("FEATURE_NOT_SUPPORTED", f"{feature} is not supported")
    assert refused.error.span is not None
