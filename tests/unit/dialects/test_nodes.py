"""What grammars tell the binder is typed: nodes of their own, which otherwise are as those that they extend."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import watersmeet
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.timeplus.nodes import PlainUnion
from watersmeet.dialects.tree.nodes import Adapted, ColumnPath, CommaJoin, FirstName, FoldedName, ImpliedAlias, sql_of
from watersmeet.dialects.tree.queries import read_tree

SOURCE = Path(watersmeet.__file__).parent

#: A query of a dialect, the nodes that it is read as, and the SQL of its tree without them.
QUERIES = [
    ("risingwave", "SELECT a FROM t, u", [CommaJoin], "SELECT a FROM t, u"),
    ("sqlstream", "SELECT a FROM t", [FoldedName], 'SELECT "A" FROM "T"'),
    (
        "timeplus",
        "SELECT a + 1 FROM t JOIN u USING (k) UNION SELECT 1",
        [FirstName, ImpliedAlias, PlainUnion],
        'SELECT "a" + 1 FROM "t" JOIN "u" USING ("k") UNION SELECT 1',
    ),
    (
        "lenses",
        "SELECT STREAM len(a.b), _key.c FROM t WHERE _value IS NULL",
        [Adapted, ColumnPath, ImpliedAlias],
        'SELECT len(a.b), "_key"."c" FROM "t" WHERE _value IS NULL',
    ),
]


def read(dialect, text):
    language = language_named(dialect)
    return read_tree(tokenize(text, language), text, language.grammar)


@pytest.mark.parametrize(("dialect", "text", "kinds", "sql"), QUERIES)
def test_marked_nodes_are_copied_and_written_as_what_they_extend(dialect, text, kinds, sql):
    tree = read(dialect, text)
    for made in (tree, tree.copy(), tree.transform(lambda node: node)):
        assert [k for k in kinds if made.find(k) is None] == []
        assert sql_of(made) == sql


def test_only_places_are_kept_in_meta():
    users = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "meta" in (text := path.read_text("utf-8"))
        and any(isinstance(n, ast.Attribute) and n.attr == "meta" for n in ast.walk(ast.parse(text)))
    ]
    assert users == ["values/spans.py"]
