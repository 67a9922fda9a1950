"""Sizes that keep the code readable: files and functions stay small, and say what they are."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import watersmeet
from watersmeet.catalog import KINDS

SOURCES = Path(watersmeet.__file__).parent
MOST_LINES_OF_A_FILE = 700
MOST_LINES_OF_A_FUNCTION = 100
MOST_FILES = 572
MOST_SHORT_FILES = 30
LEAST_MEDIAN_LINES = 200
MOST_MODULES_OF_A_FOLDER = 25
MOST_FLOORS_OF_A_FOLDER = 8
MOST_IMPORTS_OF_A_MODULE = 24


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


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports, all by their paths."""
    names = {f"watersmeet/{path}".removesuffix(".py").removesuffix("/__init__"): path for path, _ in modules()}
    paths = {name.replace("/", "."): path for name, path in names.items()}
    found: dict[str, set[str]] = {}
    for path, text in modules():
        named = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                members = {f"{node.module}.{a.name}" for a in node.names}
                named |= {member if member in paths else node.module for member in members}
            elif isinstance(node, ast.Import):
                named |= {a.name for a in node.names}
        found[path] = {paths[n] for n in named if n in paths} - {path}
    return found


def test_files_are_few_and_none_imports_many():
    lines = sorted(text.count("\n") for _, text in modules())
    short = [path for path, text in modules() if text.count("\n") < 60 and not path.endswith("__init__.py")]
    assert len(lines) <= MOST_FILES
    assert lines[len(lines) // 2] >= LEAST_MEDIAN_LINES
    assert len(short) < MOST_SHORT_FILES
    importing = {p: len(found) for p, found in imports().items() if p != "__init__.py"}  # which only hands names on
    assert [p for p, number in importing.items() if number > MOST_IMPORTS_OF_A_MODULE] == []


def test_folders_are_few_floors_of_few_rooms():
    """A room is a module or a folder, and stands above all that it imports."""
    imported, folders = imports(), defaultdict[str, list[str]](list)
    for path in imported:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folders["/".join(parts[:depth])].append(path)
    for folder, paths in folders.items():
        inside = {p: p.removeprefix(folder + "/").split("/")[0] for p in paths if p != f"{folder}/__init__.py"}
        graph: dict[str, set[str]] = {room: set() for room in inside.values()}
        for path, room in inside.items():
            graph[room] |= {inside[p] for p in imported[path] if p in inside and inside[p] != room}
        sorter = TopologicalSorter(graph)  # CycleError: rooms that import each other
        sorter.prepare()
        floors = 0
        while ready := sorter.get_ready():
            sorter.done(*ready)
            floors += 1
        assert floors <= MOST_FLOORS_OF_A_FOLDER, folder
        assert sum(room.endswith(".py") for room in graph) <= MOST_MODULES_OF_A_FOLDER, folder


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
