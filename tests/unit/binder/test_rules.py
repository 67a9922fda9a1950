"""Dialects own their rules: general modules know no dialect, and a further one is a folder and a line."""

from __future__ import annotations

import ast
from pathlib import Path
from unittest import mock

import pytest
import tests.ksqldb

import watersmeet
import watersmeet.binder
from watersmeet.binder import dialects
from watersmeet.binder.dialects import register, rules_of
from watersmeet.dialects import registry as languages
from watersmeet.dialects.registry import language_named
from watersmeet.values import DIALECTS

BINDER = Path(watersmeet.binder.__file__).parent
#: Where the text of a query comes in, with the name of its dialect.
ENTRIES = ("batch.py", "emission.py", "query.py")
NAMES = (*DIALECTS, "proton", "ksqldb")
SCRIPT = """
CREATE TABLE orders (id int, customer int, rowtime timestamp, WATERMARK FOR rowtime AS rowtime) APPEND ONLY;
CREATE TABLE payments (id int, rowtime timestamp, WATERMARK FOR rowtime AS rowtime) APPEND ONLY;
CREATE TABLE customers (customer int, name varchar, PRIMARY KEY (customer));
INSERT INTO customers VALUES (1, 'Ann');
INSERT INTO orders VALUES (1, 1, '2024-01-01 00:00:00');
"""


def said(path: Path) -> list[str]:
    """The names and texts of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    found = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in texts]
    found += [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    found += [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    found += [n.name for n in ast.walk(tree) if isinstance(n, ast.alias)]
    return [str(f).lower() for f in found]


def imported(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]


@pytest.mark.parametrize("path", sorted(BINDER.glob("*.py")), ids=lambda p: p.name)
def test_general_modules_know_no_dialect(path):
    assert not [w for w in said(path) if any(name in w for name in NAMES)]
    known = [m for m in imported(path) if m.startswith("watersmeet.binder.dialects")]
    assert known == (["watersmeet.binder.dialects"] if path.name in ENTRIES else [])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects_import_no_other_dialect(dialect):
    for folder in (BINDER / "dialects", BINDER.parent / "dialects"):
        for path in (folder / dialect).glob("*.py"):
            others = [n for n in DIALECTS if n not in (dialect, "risingwave")]
            assert not [m for m in imported(path) if any(f".dialects.{n}" in m for n in others)]


@pytest.fixture
def ksqldb():
    """The dialect, for one test: what others are told of dialects stays."""
    with mock.patch.dict(languages._LANGUAGES), mock.patch.dict(dialects._RULES):
        tests.ksqldb.add()
        yield


@pytest.fixture
def connection(ksqldb):
    with watersmeet.connect(runtime="inprocess", dialect="risingwave") as made:
        made.execute(SCRIPT)
        made.execute("SET dialect = 'ksqldb'")
        yield made


def test_a_push_query_gives_what_comes_until_its_limit(connection):
    cursor = connection.execute("SELECT id FROM orders EMIT CHANGES")
    assert cursor.runs
    connection.execute("INSERT INTO orders VALUES (2, 1, '2024-01-01 00:00:01'); FLUSH")
    assert cursor.fetchall() == [(2,)]
    cursor.close()
    pulled = connection.execute("SELECT id FROM orders")
    assert (pulled.runs, sorted(pulled.fetchall())) == (False, [(1,), (2,)])


def test_a_join_with_a_table_reads_all_of_that(connection):
    cursor = connection.execute(
        "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.customer EMIT CHANGES"
    )
    connection.execute("INSERT INTO orders VALUES (2, 1, '2024-01-01 00:00:01'); FLUSH")
    assert cursor.fetchall() == [(2, "Ann", 1)]  # a customer may change, so that rows have their sign


def test_streams_are_joined_within_a_time(connection):
    join = "SELECT o.id, p.rowtime FROM orders o JOIN payments p {}ON o.id = p.id EMIT CHANGES"
    with pytest.raises(watersmeet.Error, match="WITHIN"):
        connection.execute(join.format(""))
    cursor = connection.execute(join.format("WITHIN 1 HOUR "))
    connection.execute("INSERT INTO orders VALUES (2, 1, '2024-01-01 00:00:00')")
    connection.execute("INSERT INTO payments VALUES (2, '2024-01-01 01:00:00'), (2, '2024-01-01 01:00:01'); FLUSH")
    assert [row[1].hour for row in cursor.fetchall()] == [1]


def test_what_the_dialect_refuses_has_its_words_and_place(connection):
    with pytest.raises(watersmeet.Error, match="Pull queries don't support JOIN clauses") as raised:
        connection.execute("SELECT o.id FROM orders o JOIN customers c ON o.customer = c.customer")
    assert raised.value.condition == "FEATURE_NOT_SUPPORTED"


def test_a_view_of_it_is_read_in_other_dialects(connection):
    connection.execute(
        "CREATE MATERIALIZED VIEW met AS SELECT o.id FROM orders o JOIN payments p WITHIN 1 HOUR ON o.id = p.id"
    )
    connection.execute("SET dialect = 'risingwave'")
    connection.execute("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM met")
    connection.execute("INSERT INTO payments VALUES (1, '2024-01-01 00:30:00'), (1, '2024-01-01 02:00:00'); FLUSH")
    assert connection.execute("SELECT n FROM counted").fetchall() == [(1,)]


def test_a_name_is_taken_once(ksqldb):
    with pytest.raises(watersmeet.Error, match="there is a dialect"):
        register(
            tests.ksqldb.Language("lenses", tests.ksqldb.Ksqldb, tests.ksqldb.Semantics()), tests.ksqldb.KsqldbRules
        )
    assert type(rules_of("lenses")).__name__ == "LensesRules"
    assert language_named("ksqldb").syntax is tests.ksqldb.Ksqldb
