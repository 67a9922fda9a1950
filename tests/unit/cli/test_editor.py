"""Completion in the shell: names and keywords that fit the place, and Tab at a terminal."""

from __future__ import annotations

import threading

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import watersmeet
from watersmeet.cli.editor import Names, SqlCompleter, prompt_session
from watersmeet.cli.shell import COMMANDS, Shell

RELATIONS = {"orders": ["id", "item", "Placed At"], "items": ["item", "price"], "sales.totals": ["total"], "Odd": ["x"]}


def completed(text, dialect="risingwave", relations=RELATIONS):
    """The completions at the sign ^, else at the end."""
    before, _, after = text.partition("^")
    names = Names(lambda: relations, lambda: dialect, tuple(COMMANDS))
    found = SqlCompleter(names).get_completions(Document(before + after, len(before)), CompleteEvent())
    return [c.text for c in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT * FROM ", ["orders", "items", "sales.totals", '"Odd"']),
        ("SELECT * FROM or", ["orders"]),
        ("select * from orders, it", ["items"]),
        ("INSERT INTO ord", ["orders"]),
        ("DROP TABLE it", ["items"]),
        ("CREATE INDEX i ON it", ["items"]),
        ("SELECT 1; DESCRIBE ord", ["orders"]),
        ('SELECT * FROM "O', ['"Odd"']),
    ],
)
def test_relations(text, found):
    assert completed(text) == found


#: Keywords that may begin like a name.
COMMON = {"in", "inner", "INNER", "is", "into"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT i^ FROM orders", ["id", "item"]),
        ("SELECT id FROM orders WHERE i", ["id", "item"]),
        ("SELECT * FROM orders o JOIN items AS i ON o.", ["id", "item", '"Placed At"']),
        ("SELECT * FROM orders o JOIN items AS i ON o.item = i.", ["item", "price"]),
        ("SELECT * FROM orders o JOIN items AS i ON o.item = i.pr", ["price"]),
        ("UPDATE items SET pr", ["price"]),
        ("SELECT id FROM orders; SELECT pri^ FROM items; SELECT 1", ["price"]),
        ('SELECT "P^ FROM orders', ['"Placed At"']),
        ("SELECT 'i", []),
        ("SELECT 1 -- i", []),
    ],
)
def test_columns_of_the_relations_in_the_statement(text, found):
    relations = [c for c in completed(text) if c not in COMMON and not c.startswith("interv") and c != "primary key"]
    assert relations == found


@pytest.mark.parametrize(
    ("text", "dialect", "found"),
    [
        ("REF", "risingwave", ["REFRESH"]),
        ("rec", "timeplus", ["recover"]),
        ("CREATE PU", "sqlstream", ["PUMP"]),
        ("create mat", "risingwave", ["materialized view"]),
        ("SELECT a FROM orders EMIT P", "timeplus", ["PARTITION", "PRIMARY KEY", "PREWHERE"]),
        ("SET dialect = ", "lenses", ["'risingwave'", "'lenses'", "'sqlstream'", "'timeplus'", "'postgres'"]),
        ("SHOW ma", "lenses", ["materialized views"]),
    ],
)
def test_keywords_of_the_dialect(text, dialect, found):
    assert completed(text, dialect) == found


def test_names_that_fold_to_capitals_are_written_as_they_are_typed():
    relations = {"TRADES": ["TICKER"]}
    assert completed("SELECT tic^ FROM trades", "sqlstream", relations) == ["ticker"]
    assert completed("SELECT TIC^ FROM TRADES", "sqlstream", relations) == ["TICKER"]


def test_commands_and_their_arguments(tmp_path, monkeypatch):
    assert completed("\\ti") == ["\\timing"]
    assert completed("\\d ite") == ["items"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.sql").touch()
    assert completed("\\i scr") == ["ipt.sql"]
    assert completed("\\copy items from scr") == ["ipt.sql"]


def test_tab_completes_at_a_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with watersmeet.connect(runtime="inprocess") as connection, create_pipe_input() as typed:
        connection.execute("CREATE TABLE orders (id int, quantity int)")
        shell = Shell(connection)
        patience = threading.Timer(300, typed.close)
        patience.start()
        with create_app_session(input=typed, output=DummyOutput()):
            session = prompt_session(Names(shell._relations, lambda: connection.dialect))

            def go_on(buffer):
                if buffer.text == "SELECT quantity":
                    typed.send_text("\nFROM orders;\n")

            session.default_buffer.on_text_changed += go_on
            typed.send_text("SELECT quan\t")
            assert session.prompt() == "SELECT quantity\nFROM orders;"
        patience.cancel()
