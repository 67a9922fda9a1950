"""What is one dialect's stands in its folders. Elsewhere code says no dialect's name; docstrings say where rules are
from.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import watersmeet
from watersmeet.dialects.registry import _LANGUAGES
from watersmeet.values import DIALECTS

SOURCE = Path(watersmeet.__file__).parent
NAME = re.compile("|".join((*DIALECTS, "proton")), re.IGNORECASE)
#: Names of systems that are none of a dialect, with the module that says them.
SYSTEMS = {
    "values/__init__.py": set(DIALECTS),  # the names themselves
    "formats/encoders.py": {"RisingWave."},  # how Debezium's messages call their schemas
    "connectors/foreignstreams.py": {  # columns
        f"SQLSTREAM_PROV_{n}"
        for n in (
            "",
            "FILE_SOURCE_FILE",
            "FILE_LINE_NUMBER",
            "FILE_MODIFIED_TIME",
            "KAFKA_KEY",
            "KAFKA_OFFSET",
            "KAFKA_PARTITION",
            "KAFKA_TIMESTAMP",
            "KAFKA_TOPIC",
        )
    },
    # One module has statement, reader and handler of an object of one dialect: the reader uses that dialect's clauses.
    "session/features/dictionaries.py": {"watersmeet.dialects.timeplus.columns"},
    "session/features/external.py": {"watersmeet.dialects.timeplus.columns", "timeplus"},
    "session/features/randomstreams.py": {
        "watersmeet.dialects.timeplus.columns",
        "watersmeet.dialects.timeplus.storage",
    },
    "session/features/foreign.py": {"watersmeet.dialects.sqlstream.ddl"},
    "connectors/registry.py": {"timeplus"},  # a kind of system outside, beside mysql and kafka
}


def docstrings(tree: ast.AST) -> set[int]:
    scopes = [n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    bare = [n for s in scopes for n in s.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return {id(n.value) for n in bare}


def names_in(node: ast.AST) -> list[str]:
    """What a node says: an identifier, the parts of an import, or a text without the addresses in it."""
    if isinstance(node, ast.Constant):
        return [re.sub(r"https?://\S+", "", node.value)] if isinstance(node.value, str) else []
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.alias):
        return [node.name, node.asname or ""]
    fields = ("id", "attr", "name", "arg")
    return [found for f in fields if isinstance(found := getattr(node, f, None), str)]


def said(text: str, allowed: set[str] = frozenset()) -> list[tuple[int, str]]:
    """The lines of a module that say a dialect's name, with what they say."""
    if not NAME.search(text):
        return []
    tree = ast.parse(text)
    skipped = docstrings(tree)
    return [
        (node.lineno, found)
        for node in ast.walk(tree)
        if id(node) not in skipped
        for found in names_in(node)
        if NAME.search(found) and found not in allowed
    ]


def test_names_of_dialects_stand_in_their_folders():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        if "dialects" not in Path(module).parts[:-1]:
            found = said(path.read_text("utf-8"), SYSTEMS.get(module, set()))
            wrong += [f"{module}:{line}: {text}" for line, text in found]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        'x = "timeplus"',
        "from watersmeet.dialects.lenses import ddl",
        "import watersmeet.dialects.sqlstream.ddl as rules",
        "from watersmeet.dialects import risingwave",
        "def of_lenses(): pass",
        "class Sqlstream: pass",
        "f(proton=1)",
        "x.timeplus = 1",
        'f"in {x} of Lenses"',
    ],
)
def test_a_name_is_found_wherever_code_says_it(text):
    assert [line for line, _ in said(f'"""Lenses."""\n{text}')][:1] == [2]


def test_sources_of_rules_may_be_named():
    assert said('"""Lenses, "Joins"."""\nx = 1  # RisingWave\n"""Timeplus."""\ny = "https://docs.risingwave.com"') == []


def test_the_names_are_those_of_the_registry():
    assert tuple(_LANGUAGES) == DIALECTS
