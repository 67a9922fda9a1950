"""The catalogue of conditions and the rendering of errors."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from watersmeet import errors
from watersmeet.errors import CONDITIONS, Span, did_you_mean, error
from watersmeet.errors.secretnames import concealed

SOURCES = Path(errors.__file__).parents[1]


def test_catalogue_is_sorted_and_complete():
    assert list(CONDITIONS) == sorted(CONDITIONS)
    for name, condition in CONDITIONS.items():
        assert re.fullmatch(r"[A-Z_]+", name)
        assert re.fullmatch(r"[0-9A-Z]{5}", condition.sqlstate), name
        assert issubclass(getattr(errors, condition.error_class), errors.Error)


def test_every_condition_is_raised_somewhere():
    text = "\n".join(p.read_text(encoding="utf-8") for p in SOURCES.rglob("*.py") if p.name != "errors.py")
    assert [name for name in CONDITIONS if f'"{name}"' not in text] == []


def test_only_conditions_of_the_catalogue_are_raised():
    raised = {
        m
        for p in SOURCES.rglob("*.py")
        for m in re.findall(r"\berror\(\s*\"([A-Z_]+)\"", p.read_text(encoding="utf-8"))
    }
    assert raised <= set(CONDITIONS)


def test_rendering_shows_the_place():
    sql = "SELECT a,\n       bb\nFROM t"
    err = error(
        "UNDEFINED_COLUMN",
        'column "bb" does not exist',
        sql=sql,
        span=Span(17, 19),
        detail="The table has: a, b.",
        hint=did_you_mean("bb", ["a", "bbb"]),
    )
    assert str(err) == (
        'error[UNDEFINED_COLUMN] 42703: column "bb" does not exist\nLINE 2:        bb\n'
        '               ^^\ndetail: The table has: a, b.\nhint: Did you mean "bbb"?'
    )
    assert isinstance(err, errors.ProgrammingError)
    assert err.to_json()["sqlstate"] == "42703"


def test_rendering_of_long_lines_and_tabs():
    sql = "SELECT\n\t" + "x" * 500 + " bad " + "y" * 500
    place = sql.index("bad")
    err = error("SYNTAX_ERROR", "it is bad", sql=sql, span=Span(place, place + 3))
    _, line, caret = str(err).split("\n")
    assert line.startswith("LINE 2: …xxx")
    assert line.endswith("yyy…")
    assert len(line) < 180
    assert line[caret.index("^") : caret.rindex("^") + 1] == "bad"
    err = error("SYNTAX_ERROR", "it is bad", sql="\ta\tbad\r\n", span=Span(3, 6))
    assert str(err).split("\n")[1:] == ["LINE 1:  a bad", "           ^^^"]
    err = error("SYNTAX_ERROR", "x", sql="'日本', 'e\u0301', 表表", span=Span(12, 14))
    assert str(err).split("\n")[1:] == ["LINE 1: '日本', 'e\u0301', 表表", " " * 21 + "^^^^"]
    err = error("SYNTAX_ERROR", "at the end", sql="abc\n", span=Span(99, 100))
    assert str(err).split("\n")[1:] == ["LINE 2: ", "        ^"]


def test_errors_survive_pickling():
    err = error("VIEW_FAILED", "the view stopped", hint="Look.")
    again = pickle.loads(pickle.dumps(err))
    assert str(again) == str(err)
    assert type(again) is type(err)


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SETTINGS type = 'x', password = 'ge''heim', n = 1", "SETTINGS type = 'x', password = '********', n = 1"),
        ("SOURCE(MYSQL(USER 'u' PASSWORD 'geheim'))", "SOURCE(MYSQL(USER 'u' PASSWORD '******'))"),
        ("WITH (s3.credentials.secret = geheim, a = b)", "WITH (s3.credentials.secret = ******, a = b)"),
        ("WITH (url = 'postgres://u:geheim@host/db')", "WITH (url = 'postgres://u:******@host/db')"),
        ("CREATE SECRET s WITH (backend = 'meta') AS 'geheim'", "CREATE SECRET s WITH (backend = 'meta') AS '******'"),
        ("password = 'geheim", "password = '******"),
        ("WITH (token = 'a, api_key = 'geheim', b = 'c')", "WITH (token = '*************'******', b = 'c')"),
        ("OPTIONS (URL 'u:geheim@host/db', N 1)", "OPTIONS (URL 'u:******@host/db', N 1)"),
        ("URL 'http://h/x?a=1&sig=geheim&b=2'", "URL 'http://h/x?a=1&sig=******&b=2'"),
        ("HEADERS(HEADER(NAME 'key' VALUE 'geheim'))", "HEADERS(HEADER(NAME 'key' VALUE '******'))"),
        ("password /* of '97 */ = $x$ge$$heim$x$, a = 1", "password /* of '97 */ = $x$********$x$, a = 1"),
        ("FROM postgres_query('host', 'geheim')", "FROM postgres_query('****', '******')"),
        ("ALTER SECRET s AS 'geheim'", "ALTER SECRET s AS '******'"),
        ("WITH (properties.sasl.pasword = 'geheim')", "WITH (properties.sasl.pasword = '******')"),
        ("WITH (passwort='geheim', past='x')", "WITH (passwort='******', past='x')"),
        (
            "VALIDATE SECRET a.\"s\" AS secure_compare(headers->>'x', 'geheim')",
            "VALIDATE SECRET a.\"s\" AS secure_compare(headers->>'x', '******')",
        ),
        ("CREATE TABLE t (password varchar, token text)", "CREATE TABLE t (password varchar, token text)"),
    ],
)
def test_no_secret_is_shown_where_an_error_is(sql, shown):
    err = error("SYNTAX_ERROR", "wrong", sql=sql, span=Span(0, 3))
    assert f"LINE 1: {shown}\n" in str(err)
    assert err.to_json()["sql"] == shown


@pytest.mark.parametrize(
    "sql",
    [
        "WITH (connector = 'postgres-cdc', password = secret nope)",
        "WITH (password = SECRET \"nope\", x = 'y')",
        "WITH (s3.credentials.secret = SECRET a.nope AS FILE)",
        'DROP SECRET "nope"',
    ],
)
def test_the_name_of_a_secret_is_shown(sql):
    text = 'secret "nope" does not exist'
    assert concealed(sql, text) == (sql, text)


def test_a_secret_that_is_a_word_of_messages_is_concealed_only_where_it_is_quoted():
    sql = "CREATE SECRET s WITH (backend = 'meta') AS 'secret'"
    found = concealed(sql, 'secret "s" already exists', 'invalid: "secret"')
    assert found[1:] == ('secret "s" already exists', 'invalid: "***"')


def test_nothing_is_shown_behind_very_many_secrets():
    shown = concealed("password='geheim', " * 1200)[0]
    assert shown.count("geheim") == 0
    assert len(shown) == 1200 * len("password='geheim', ")


def test_no_secret_is_shown_in_the_words_of_an_error():
    sql = "WITH (password = 'ge''heim', token = 'abc')"
    err = error("INVALID_VALUE", '"ge\'heim" is wrong', detail="It is ge'heim.", hint="Not ge'heim, abc.", sql=sql)
    assert str(err) == 'error[INVALID_VALUE] 22P02: "***" is wrong\ndetail: It is ***.\nhint: Not ***, abc.'
    assert "heim" not in str(err.to_json()) + repr(err)
