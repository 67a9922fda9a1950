"""The log-parsing functions of SQLstream equal plain Python over random texts."""

from __future__ import annotations

import csv
import random
import re

import pytest

import watersmeet

PATTERNS = ("a", "a+", "[ab]c?", "(a)(b)", "b|ca", "(a|c)+b")


@pytest.fixture(scope="module")
def connection():
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess") as found:
        yield found


def texts(seed: int, count: int = 80) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choice("abc,") for _ in range(rng.randrange(9))) for _ in range(count)]


def asked(connection, expression: str, values: list[str]) -> list[object]:
    rows = ", ".join(f"({i}, '{value}')" for i, value in enumerate(values))
    sql = f"SELECT {expression} AS x FROM (VALUES {rows}) AS v(i, t) ORDER BY i"
    return [x for (x,) in connection.execute(sql).fetchall()]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regex_replace_equals_python(connection, pattern):
    values = texts(len(pattern))
    rng = random.Random(pattern)
    for start, occurrence in [(1, 0), (rng.randrange(1, 5), 0), (1, 1), (rng.randrange(1, 4), rng.randrange(1, 4))]:
        expected = []
        for value in values:
            head, tail = value[: start - 1], value[start - 1 :]
            found = list(re.finditer(pattern, tail))
            chosen = found if occurrence == 0 else found[occurrence - 1 : occurrence]
            for match in reversed(chosen):
                tail = tail[: match.start()] + "<" + match[0] + ">" + tail[match.end() :]
            expected.append(head + tail)
        found_texts = asked(connection, f"REGEX_REPLACE(t, '{pattern}', '<$0>', {start}, {occurrence})", values)
        assert found_texts == expected, (start, occurrence)


@pytest.mark.parametrize("pattern", ["(a*),(.*)", "([ab]*)(c*)(.*)"])
def test_the_groups_of_a_pattern_are_columns_if_the_whole_text_matches(connection, pattern):
    values = texts(7)
    columns = [f"COLUMN{i + 1}" for i in range(re.compile(pattern).groups)]
    for name, flags in (("REGEX_LOG_PARSE", ""), ("FAST_REGEX_LOG_PARSE", "lazy")):
        lazy = re.sub(r"([*+])", r"\1?", pattern) if flags else pattern
        nothing = (None,) * len(columns)
        matches = [re.fullmatch(lazy, value) for value in values]
        shown = [m for m in matches if m is not None or not flags]  # the fast one drops rows that do not match
        expected = [dict(zip(columns, m.groups() if m else nothing, strict=True)) for m in shown]
        assert asked(connection, f"{name}(t, '{pattern}')", values) == expected


def test_separated_fields_equal_those_of_a_csv_reader(connection):
    rng = random.Random(3)
    rows = [[rng.choice(("", "a", "b,c", "d e", ",")) for _ in range(3)] for _ in range(60)]
    lines = [",".join(f'"{field}"' if "," in field or rng.random() < 0.3 else field for field in row) for row in rows]
    assert list(csv.reader(lines)) == rows
    found = asked(connection, "VARIABLE_COLUMN_LOG_PARSE(t, 3, ',', '', '\"')", lines)
    assert [list(row.values()) for row in found] == rows


def test_a_row_of_a_stream_is_taken_apart(connection):
    connection.execute("CREATE STREAM lines (line VARCHAR(20))")
    connection.execute(
        "CREATE MATERIALIZED VIEW parsed AS SELECT STREAM t.r.a AS a, t.r.b AS b FROM (SELECT STREAM "
        "VARIABLE_COLUMN_LOG_PARSE(line, 'a TYPE INTEGER, b TYPE VARCHAR(4)', ';') AS r FROM lines) AS t"
    )
    connection.execute("INSERT INTO lines (line) VALUES ('1;x'), ('two;y'), ('3')")
    connection.execute("FLUSH")
    found = connection.execute("SELECT a, b FROM parsed").fetchall()
    assert sorted(found, key=str) == [(1, "x"), (3, None)]  # "two" is no INTEGER: its row is dropped


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("REGEX_LOG_PARSE(t)", "DATATYPE_MISMATCH"),
        ("REGEX_LOG_PARSE(t, t)", "FEATURE_NOT_SUPPORTED"),
        ("REGEX_LOG_PARSE(t, 'abc')", "INVALID_PARAMETER"),
        ("REGEX_LOG_PARSE(t, '(a)', 'x')", "SYNTAX_ERROR"),
        ("W3C_LOG_PARSE(t, 'IIS')", "FEATURE_NOT_SUPPORTED"),
        ("SUBSTRING(t SIMILAR 'a' ESCAPE)", "SYNTAX_ERROR"),
        ("CAST(t AS CHAR(x))", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_wrong_calls_have_an_error_with_a_place(connection, expression, condition):
    with pytest.raises(watersmeet.Error) as caught:
        asked(connection, expression, ["a"])
    assert caught.value.condition == condition
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("call", "expected"), [("LISTAGG(t)", "abb"), ("LISTAGG(DISTINCT t)", "ab"), ("LISTAGG(DISTINCT t, '-')", "a-b")]
)
def test_listagg_joins_texts(connection, call, expected):
    assert connection.execute(f"SELECT {call} FROM (VALUES ('a'), ('b'), ('b')) AS v(t)").fetchall() == [(expected,)]
