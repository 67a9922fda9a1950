"""Sizes that keep the code readable: files and functions stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import watersmeet.errors

SOURCES = Path(watersmeet.errors.__file__).parent
FILES = sorted(SOURCES.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCES)))
def test_file_is_small_and_says_what_it_is(path):
    text = path.read_text()
    assert text.count("\n") <= 600
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < 90, node.name
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            inner = [n for n in ast.walk(node) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("watersmeet")]
            assert not inner, "imports of our own modules stand at the top"


def test_test_modules_do_not_share_a_name():
    """pytest tells modules outside of packages apart by their file's name alone."""
    root = Path(__file__).parent.parent
    loose = [p for p in root.rglob("test_*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in loose]
    assert not [str(p.relative_to(root)) for p in loose if names.count(p.name) > 1]
