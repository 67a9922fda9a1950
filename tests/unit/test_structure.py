"""Sizes that keep the code readable: files and functions stay small, and say what they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import watersmeet
from watersmeet.catalog import KINDS

SOURCES = Path(watersmeet.__file__).parent
MOST_LINES_OF_A_FILE = 700
MOST_LINES_OF_A_FUNCTION = 100


def modules(*words: str) -> Iterator[tuple[str, str]]:
    """The modules in which one of the words stands, by their path; without words all."""
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not words or any(word in text for word in words):
            yield str(path.relative_to(SOURCES)), text


def test_files_and_functions_are_small():
    large = []
    for path, text in modules():
        if text.count("\n") > MOST_LINES_OF_A_FILE:
            large.append(path)
        if text.count("\n") < MOST_LINES_OF_A_FUNCTION:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
                    large.append(f"{path}:{node.name}")
    assert not large


def test_connections_of_duckdb_are_made_in_one_place():
    made = [
        path
        for path, text in modules("duckdb.connect")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) == "duckdb.connect"
    ]
    assert made == ["system/duckdbs.py"]


def test_no_code_asks_for_a_kind_of_relation_by_its_word():
    """It asks `isinstance`, or for what it wants to know (`catalog.relations`)."""
    words = {w for k in KINDS for w in (k.words.what, k.words.role, k.family)}
    asked = []
    for path, text in modules(".family", ".role", ".what"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare):
                sides = [n for side in (node.left, *node.comparators) for n in (side, *getattr(side, "elts", ()))]
                attributes = {n.attr for n in sides if isinstance(n, ast.Attribute)}
                constants = {n.value for n in sides if isinstance(n, ast.Constant)}
                if attributes & {"family", "role", "what"} and constants & words:
                    asked.append(f"{path}:{node.lineno}")
    assert not asked


def test_test_modules_do_not_share_a_name():
    """pytest tells modules outside of packages apart by their file's name alone."""
    root = Path(__file__).parent.parent
    loose = [p for p in root.rglob("test_*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in loose]
    assert not [str(p.relative_to(root)) for p in loose if names.count(p.name) > 1]
