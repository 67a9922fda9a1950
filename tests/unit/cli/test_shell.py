"""The shell: what is entered and what comes out. The line editor itself only in what it takes for complete."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time

import pytest
from prompt_toolkit.history import InMemoryHistory
from rich.console import Console
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli import editor
from watersmeet.cli.commands import app
from watersmeet.cli.editor import is_complete
from watersmeet.cli.shell import COMMANDS, Shell
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
    assert "unknown command \\nonsense\nhint: \\? lists the commands." in text
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


def test_a_table_without_rows_that_is_too_wide_for_a_terminal_is_only_counted(shell):
    file = io.StringIO()
    shell._out = Console(file=file, width=40, force_terminal=True, color_system=None)
    shell.enter("SELECT " + ", ".join(f"{i} AS column_number_{i}" for i in range(12)) + " WHERE false")
    assert file.getvalue().split() == ["(0", "rows)"]


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


def test_lists_of_relations(shell):
    shell.enter("CREATE TABLE sales (a int); CREATE TABLE other (a int); CREATE VIEW w AS SELECT a FROM sales")
    shell.enter("CREATE MATERIALIZED VIEW m AS SELECT a FROM sales; CREATE INDEX i ON sales (a)")
    for command, names in (("\\dt", ["sales", "other"]), ("\\dt s*", ["sales"]), ("\\dv", ["w"]), ("\\dm", ["m"])):
        out(shell)
        shell.enter(command)
        rows = [line.split()[1] for line in out(shell).splitlines() if line.startswith("│")]
        assert sorted(rows[1:]) == sorted(names)
    for command in ("\\ds", "\\di", "\\l"):
        assert shell.enter(command)
    assert err(shell) == ""


@pytest.mark.parametrize("name", ["m", "M", '"Big One"'])
def test_the_statement_of_a_view_is_shown_as_it_was_written(shell, name):
    sql = f"CREATE MATERIALIZED VIEW {name.lower() if name == 'M' else name} AS\n  SELECT 1 AS a"
    shell.enter(sql)
    out(shell)
    shell.enter(f"\\sv {name}")
    assert (out(shell), err(shell)) == (sql + "\n", "")
    shell.enter("\\sv nothing")
    assert 'view "nothing" does not exist' in err(shell)


def test_rows_are_copied_to_files_and_from_them(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shell.enter("CREATE TABLE t (a int, b varchar); INSERT INTO t VALUES (1, 'x;y'), (2, NULL)")
    shell.enter("\\copy t to ~/t.csv csv header")
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,x;y\n2,\n"
    shell.enter("\\copy (SELECT b, a FROM t WHERE a = 1) TO '~/u.csv' WITH (FORMAT csv, DELIMITER ';')")
    assert (tmp_path / "u.csv").read_text() == '"x;y";1\n'
    shell.enter("\\copy t (b, a) from ~/u.csv delimiter ';' csv")
    out(shell)
    shell.enter("SELECT count(*) AS n FROM t")
    assert "│ 3 │" in out(shell)
    assert err(shell) == ""
    shell.enter("\\copy t to stdout")
    assert "hint: Write \\copy TABLE FROM FILE" in err(shell)


def test_a_statement_is_repeated(shell):
    shell.enter("CREATE TABLE t (a int); INSERT INTO t VALUES (41)")
    shell.enter("SELECT 41 AS a")
    out(shell)
    shell.enter("\\watch 0.01 c=2")
    assert out(shell).count("│ 41 │") == 2
    shell.enter("SELECT 7 AS a; \\watch i=0.01 c=3")
    assert out(shell).count("│ 7 │") == 3
    shell.enter("SELECT nix \\watch 0.01")
    assert "nix" in err(shell)
    shell.enter("\\watch often")
    assert "\\watch can't be often\nhint: Write SELECT …; \\watch 2 c=10" in err(shell)


def test_ctrl_c_ends_the_repetition(shell):
    class Interrupting(io.StringIO):
        """Interrupts during the second result."""

        def write(self, text):
            found = super().write(text)
            if self.getvalue().count("(1 row)") == 2:
                signal.raise_signal(signal.SIGINT)
            return found

    shell._out = Console(file=Interrupting(), width=100)
    assert shell.enter("SELECT 5 AS a; \\watch 0.01")
    assert out(shell).count("│ 5 │") == 2


EDITOR = """
import sys
from pathlib import Path
path = Path(sys.argv[1])
path.write_text(path.read_text().replace("before", "after"))
"""


@pytest.fixture
def editing(monkeypatch, tmp_path):
    """An editor that writes `after` instead of `before`."""
    (tmp_path / "editor.py").write_text(EDITOR)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {tmp_path / 'editor.py'}")


def test_the_last_statement_is_edited_and_run(shell, editing):
    shell.enter("SELECT 'before' AS word;")
    shell.enter("\\e")
    assert "│ after │" in out(shell)
    assert shell._last.strip() == "SELECT 'after' AS word;"


def test_an_edited_text_without_end_is_in_the_next_prompt(shell, editing, tmp_path):
    (tmp_path / "x.sql").write_text("SELECT 'before'")
    shell.enter(f"\\e {tmp_path / 'x.sql'}")
    assert shell._draft == "SELECT 'after'"


def test_an_editor_that_does_not_exist(shell, monkeypatch):
    monkeypatch.setenv("VISUAL", "no-such-editor")
    shell.enter("\\e")
    assert "no-such-editor: No such file or directory\nhint: The variable EDITOR names the editor." in err(shell)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("\\i", "\\i needs an argument\nhint: Write \\i FILE."),
        ("\\sv", "hint: Write \\sv NAME."),
        ("\\timng", 'unknown command \\timng\nhint: Did you mean "\\timing"?'),
        (".tables", "unknown command .tables\nhint: \\? lists the commands."),
        ("\\x sideways", "\\x can't be sideways\nhint: Write \\x on or \\x off."),
        ("\\watch", "no statement to repeat"),
    ],
)
def test_wrong_commands_say_what_to_do(shell, line, said):
    assert shell.enter(line)
    assert said in err(shell)
    assert shell.code == 1


def test_help_lists_every_command(shell):
    shell.enter("\\?")
    text = out(shell)
    assert all(f"  {name} " in text for name in COMMANDS)


def test_commands_in_a_script_run_until_an_error(shell, tmp_path):
    path = tmp_path / "script.sql"
    path.write_text(
        "CREATE TABLE t (a int);\n\\x on\nINSERT INTO t\n  VALUES (6);\nSELECT a FROM t;\n\nSELECT nix;\nSELECT 9 AS x;"
    )
    assert shell.run((), path) == 1
    text = out(shell)
    assert "a  6" in text
    assert "9" not in text
    assert f"{path}:7:8" in err(shell)


def test_texts_of_the_command_line_run_until_an_error(shell):
    assert shell.run(["SELECT 1 AS one", "\\d", "SELECT nix", "SELECT 2 AS two"], None) == 1
    assert "one" in out(shell)
    assert shell.run(["SELECT 'x'::int"], None) == 1, "the first error counts"


def call(*arguments, **options):
    result = CliRunner().invoke(app, [str(a) for a in arguments], **options)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_a_shell_that_only_reads(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (5)")
        result = call(
            "shell", "--path", tmp_path / "db", "--read-only", "-c", "SELECT a FROM t; INSERT INTO t VALUES (1)"
        )
        assert ("│ 5 │" in result.stdout, "READ_ONLY_SESSION" in result.stderr, result.exit_code) == (True, True, 1)
    assert "--read-only needs --path" in call("shell", "--read-only").stderr


def test_a_pipe_sees_its_own_rows_without_flush():
    sql = "CREATE TABLE t (a int); CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS s FROM t;\nINSERT INTO t VALUES (7);"
    result = call("shell", "--runtime", "inprocess", input=sql + "\nSELECT s FROM m;")
    assert (result.exit_code, "│ 7 │" in result.stdout) == (0, True)


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
        "SELECT 1 \\watch 2",
        "SELECT 1\n\\gx",
        ".tables",
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
    history = editor.history()
    history.append_string("CREATE USER ann PASSWORD 'geheim'")
    assert list(history.get_strings()) == ["CREATE USER ann PASSWORD 'geheim'"]
    assert list(editor.history().load_history_strings()) == ["CREATE USER ann PASSWORD '******'"]


def test_a_user_without_a_home_has_a_history(monkeypatch, shell):
    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert isinstance(editor.history(), InMemoryHistory)
    shell.feed(io.StringIO("\\i ~/x.sql\n"))
    assert "~/x.sql can't be read" in err(shell)
