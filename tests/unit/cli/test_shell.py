"""The shell: what is entered and what comes out. The line editor itself only in what it takes for complete."""

from __future__ import annotations

import io
import threading
import time

import pytest
from prompt_toolkit.history import InMemoryHistory
from rich.console import Console

import watersmeet
from watersmeet.cli import shell as editing
from watersmeet.cli.shell import Shell, is_complete
from watersmeet.errors import error
from watersmeet.runtime import inprocess


@pytest.fixture
def shell():
    with watersmeet.connect(runtime="inprocess") as connection:
        made = Shell(connection, Console(file=io.StringIO(), width=100), Console(file=io.StringIO(), width=100))
        yield made


def out(shell):
    text = shell._out.file.getvalue()
    shell._out.file.truncate(0)
    shell._out.file.seek(0)
    return text


def err(shell):
    text = shell._err.file.getvalue()
    shell._err.file.truncate(0)
    shell._err.file.seek(0)
    return text


def test_statements_of_several_lines(shell):
    code = shell.feed(
        io.StringIO(
            "CREATE TABLE t\n (a int,\n  b varchar);\nINSERT INTO t VALUES (1, 'x;\ny'); SELECT a,\nb FROM t;\n"
        )
    )
    assert code == 0
    assert "│ 1 │ x; │" in out(shell).replace("  ", " ")


def test_a_select_shows_what_was_written_before(shell):
    shell.feed(io.StringIO("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS s FROM t;"))
    out(shell)
    shell.feed(io.StringIO("INSERT INTO t VALUES (40), (2);\nSELECT s FROM m;\n"))
    assert "42" in out(shell)


def test_a_last_statement_without_semicolon_is_run(shell):
    assert shell.feed(io.StringIO("SELECT 1 AS one;\nSELECT 2 AS two")) == 0
    assert "two" in out(shell)


def test_errors_do_not_end_the_shell(shell):
    code = shell.feed(io.StringIO("SELECT zz;\nSELECT 1 AS one;\n\\nonsense\n\\q\nSELECT 2 AS two;\n"))
    assert code == 1
    text = err(shell)
    assert 'column "zz" does not exist\nLINE 1: SELECT zz;\n               ^^' in text
    assert "unknown command \\nonsense" in text
    assert "one" in out(shell)
    assert "two" not in out(shell)


def test_describe(shell):
    shell.enter("CREATE TABLE t (a int PRIMARY KEY); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    assert shell.enter("\\d")
    assert "materialized view" in out(shell)
    assert shell.enter("\\d t")
    assert "primary key" in out(shell)
    assert shell.enter('\\d "t";')
    assert "primary key" in out(shell)
    assert shell.enter("\\d nothing")
    assert "UNDEFINED_RELATION" in err(shell)


def test_timing(shell):
    shell.enter("\\timing")
    shell.enter("SELECT 1")
    assert "Time: " in out(shell)
    shell.enter("\\timing off")
    out(shell)
    shell.enter("SELECT 1")
    assert "Time: " not in out(shell)


def test_expanded_display(shell):
    shell.enter("\\x on")
    out(shell)
    shell.enter("SELECT 1 AS one, 'x' AS name")
    assert [line.split() for line in out(shell).splitlines()[1:3]] == [["one", "1"], ["name", "x"]]


def test_a_table_that_is_too_wide_is_shown_as_records(shell):
    shell.enter("SELECT " + ", ".join(f"{i} AS column_number_{i}" for i in range(12)))
    lines = out(shell).splitlines()
    assert lines[0].startswith("row 1 ─")
    assert ["column_number_11", "11"] in [line.split() for line in lines]


def test_include(shell, tmp_path):
    path = tmp_path / "a script.sql"
    path.write_text("CREATE TABLE t (a int);\nINSERT INTO t VALUES (1);\nSELECT a AS found FROM t;\n")
    assert shell.enter(f"\\i {path}")
    assert "found" in out(shell)
    assert shell.enter("\\i nothing.sql")
    assert "can't be read: No such file" in err(shell)
    path.write_text("SELECT 1;\nSELECT nix")
    assert shell.enter(f"\\i {path}")
    assert f"{path}:2:8" in err(shell)


def test_notices_and_help(shell):
    shell.enter("SET streaming_enable_unaligned_join = false")
    assert err(shell).startswith("NOTICE: streaming_enable_unaligned_join")
    shell.enter("\\?")
    assert "\\timing" in out(shell)


def test_values_are_no_markup(shell):
    shell.enter("SELECT '[red]x[/red]' AS \"[bold]\"")
    assert "[red]x[/red]" in out(shell)


def test_control_characters_are_shown_not_obeyed(shell):
    shell.enter("SELECT E'a\\x1b[31m\\rb\\tc\\nd' AS text, NULL::int AS n")
    assert out(shell).splitlines()[3:5] == ["│ a\\x1B[31m\\rb    c │ NULL │", "│ d                 │      │"]


def test_a_terminal_gets_the_first_rows_a_pipe_gets_all(shell):
    shell.enter("SELECT i FROM generate_series(1, 1500) s(i)")
    lines = out(shell).splitlines()
    assert (lines[-3:], len(lines)) == (["│ 1500 │", "╰──────╯", "(1,500 rows)"], 1505)
    shell._out = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    shell.enter("SELECT i FROM generate_series(1, 1500) s(i)")
    assert out(shell).splitlines()[-3:] == ["│ 1000 │", "╰──────╯", "(1,500 rows, the first 1,000 shown)"]


@pytest.mark.parametrize("text", ["quit", "exit;", "\\q", "  \\q  "])
def test_the_end(shell, text):
    assert shell.enter(text) is False


def test_a_failed_view_is_told_once(shell, monkeypatch):
    def failing(*arguments, **options):
        raise error("STATE_MISMATCH", "this can't be written")

    shell.enter("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t; INSERT INTO t VALUES (1)")
    monkeypatch.setattr(inprocess, "commit_epoch", failing)
    shell.enter("FLUSH")
    err(shell)
    shell._tell_failure()
    assert "error[STATE_MISMATCH]" in err(shell)
    shell._tell_failure()
    assert err(shell) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "\\d",
        "\\q",
        "quit",
        "help",
        "SELECT 1;",
        "SELECT 1;\n",
        "SELECT ';';",
        "SELECT 1; -- the end",
        "-- only a comment",
        "SELECT 1; SELECT 2;",
        "/* a */",
    ],
)
def test_complete(text):
    assert is_complete(text)


def test_a_quote_of_the_dialect_hides_a_semicolon():
    assert is_complete("SELECT `a;b`;", "timeplus")
    assert not is_complete("SELECT `a;", "timeplus")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT",
        "SELECT 1",
        "SELECT ';",
        "SELECT 1; SELECT",
        "SELECT 1 -- ;",
        "/* ;",
        'SELECT "a;',
        "SELECT $$;",
    ],
)
def test_incomplete(text):
    assert not is_complete(text)


def test_a_query_that_runs_shows_rows_with_their_sign_until_its_limit(shell):
    shell.enter("""SET dialect = 'timeplus'; CREATE STREAM m (k int, v string,
        PRIMARY KEY (k)) SETTINGS mode = 'versioned_kv';
                   INSERT INTO m (k, v) VALUES (1, 'some text'), (20, 'b')""")
    assert shell._prompt() == "watersmeet:timeplus> "

    def insert():
        until_s = time.monotonic() + 120
        while "some text" not in shell._out.file.getvalue() and time.monotonic() < until_s:
            time.sleep(0.01)
        shell.connection.execute("INSERT INTO m (k, v) VALUES (20, 'c')")

    thread = threading.Thread(target=insert)
    thread.start()
    shell.enter("SELECT k, v FROM m LIMIT 4; SELECT 5 AS five")
    thread.join()
    lines = out(shell).splitlines()
    assert lines[0] == "     k │ v"
    assert sorted(lines[1:3]) == ["+    1 │ some text", "+   20 │ b"]
    assert lines[3:5] == ["-   20 │ b", "+   20 │ c"]
    assert lines[5] == "(4 rows)"
    assert "five" in lines[7]
    assert [r.name for r in shell.connection._session.catalog.relations.values() if r.hidden] == []


def test_a_pipe_goes_over_to_another_dialect(shell):
    code = shell.feed(
        io.StringIO("-- dialect: timeplus\nCREATE STREAM `a;b` (k int);\nSET dialect = 'risingwave';\nSHOW TABLES;\n")
    )
    assert (code, err(shell)) == (0, "")
    assert "a;b" in out(shell)
    assert shell._prompt() == "watersmeet> "


def test_passwords_are_not_in_the_history_of_later_sessions(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    history = editing._history()
    history.append_string("CREATE USER ann PASSWORD 'geheim'")
    assert list(history.get_strings()) == ["CREATE USER ann PASSWORD 'geheim'"]
    assert list(editing._history().load_history_strings()) == ["CREATE USER ann PASSWORD '******'"]


def test_a_user_without_a_home_has_a_history(monkeypatch, shell):
    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert isinstance(editing._history(), InMemoryHistory)
    shell.feed(io.StringIO("\\i ~/x.sql\n"))
    assert "~/x.sql can't be read" in err(shell)
