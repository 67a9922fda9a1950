"""A registry of readers of statements: a new statement is one module, which registers its reader.

A feature is a module of a package that was passed to `plug_in`, imported with the first statement that it reads. A
feature decorates the function that reads the rest of its statement: `@reads("SHOW COMMITS")`.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor

#: Reads a statement; the cursor stands after its words. It returns None for a different statement.
Reader = Callable[[Cursor, dict[str, Any]], Statement | None]

_READERS: Final[dict[str, dict[tuple[str, ...], Reader]]] = {}
#: The words that `Semantics.own_objects` must have for a reader, by all of its words.
_OWN: Final[dict[tuple[str, ...], str]] = {}
#: The modules of the readers that are not imported yet, by their words.
_MODULES: Final[dict[str, dict[tuple[str, ...], str]]] = {}
_PACKAGES: Final[list[str]] = []
_LOADING: Final = threading.RLock()


def plug_in(package: str, words: Mapping[str, str] | None = None) -> None:
    """Registers a package of features.

    words: for each module the words of its readers, separated by commas, each with its `own` in parentheses. The module
    is imported when a statement begins with them. Without `words`, all modules are imported now.
    """
    if package not in _PACKAGES:
        _PACKAGES.append(package)
    if words is None:
        load_features()
        return
    for module, names in words.items():
        for name in names.split(", "):
            begin, _, own = name.partition(" (")
            verb, *rest = begin.split()
            _OWN[verb, *rest] = own.removesuffix(")")
            _MODULES.setdefault(verb, {})[tuple(rest)] = f"{package}.{module}"


def load_features() -> None:
    """Imports the modules of all packages that were plugged in."""
    if not _PACKAGES:
        return
    with _LOADING:
        for name in _PACKAGES[:]:
            for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
                importlib.import_module(module.name)
            _PACKAGES.remove(name)


def reads(words: str, *, own: str = "") -> Callable[[Reader], Reader]:
    """Registers the reader of the statements that begin with `words` (upper case).

    own: a word that must be in `Semantics.own_objects` of the dialect.
    """
    verb, *rest = words.split()

    def register(reader: Reader) -> Reader:
        known = _READERS.setdefault(verb, {})
        assert tuple(rest) not in known, f"two readers of {words}"
        known[tuple(rest)] = reader
        _OWN[verb, *rest] = own
        return reader

    return register


def read_feature(verb: str, cursor: Cursor, base: dict[str, Any], semantics: Semantics) -> Statement | None:
    """The statement of a feature, read by the matching reader with the most words; the cursor stands after `verb`. If
    no reader accepts it, the result is None and the cursor is unmoved.
    """
    begin = cursor.index
    modules = _MODULES.get(verb, {})
    for words in _words(verb, semantics):
        if not cursor.take(*words):
            continue
        if words in modules:
            importlib.import_module(modules[words])
        found = _READERS[verb][words](cursor, base)
        if found is not None:
            return found
        cursor.index = begin
    return None


def _words(verb: str, semantics: Semantics) -> list[tuple[str, ...]]:
    """The words after `verb` of the statements that a dialect has, the longest first."""
    known = {*_READERS.get(verb, {}), *_MODULES.get(verb, {})}
    has = ("", *semantics.own_objects)
    return sorted((words for words in known if _OWN[verb, *words] in has), key=lambda words: (-len(words), words))


def statements_read(semantics: Semantics) -> set[str]:
    """The first words of the statements of all features that a dialect has."""
    return {" ".join((verb, *words)) for verb in {*_READERS, *_MODULES} for words in _words(verb, semantics)}
