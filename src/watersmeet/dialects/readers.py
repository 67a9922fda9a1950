"""A registry of readers of statements: a new statement is one module, which registers its reader.

A feature is a module of a package that was passed to `plug_in`. The first statement that is neither a query nor DML
imports all features. A feature decorates the function that reads the rest of its statement: `@reads("SHOW COMMITS")`.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from typing import Any, Final

from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor

#: Reads a statement; the cursor stands after its words. It returns None for a different statement.
Reader = Callable[[Cursor, dict[str, Any]], Statement | None]

_READERS: Final[dict[str, dict[tuple[str, ...], Reader]]] = {}
_OWN: Final[dict[Reader, str]] = {}
_PACKAGES: Final[list[str]] = []
_LOADING: Final = threading.RLock()


def plug_in(package: str) -> None:
    """Registers a package of features. Its modules are imported when they are first needed."""
    if package not in _PACKAGES:
        _PACKAGES.append(package)


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
        if own:
            _OWN[reader] = own
        return reader

    return register


def read_feature(verb: str, cursor: Cursor, base: dict[str, Any], semantics: Semantics) -> Statement | None:
    """The statement of a feature, read by the matching reader with the most words; the cursor stands after `verb`. If
    no reader accepts it, the result is None and the cursor is unmoved.
    """
    load_features()
    begin = cursor.index
    for words, reader in sorted(_READERS.get(verb, {}).items(), key=lambda r: -len(r[0])):
        if _OWN.get(reader, "") in ("", *semantics.own_objects) and cursor.take(*words):
            found = reader(cursor, base)
            if found is not None:
                return found
            cursor.index = begin
    return None


def statements_read(semantics: Semantics) -> set[str]:
    """The first words of the statements of all features that a dialect has."""
    load_features()
    return {
        " ".join((verb, *words))
        for verb, known in _READERS.items()
        for words, reader in known.items()
        if _OWN.get(reader, "") in ("", *semantics.own_objects)
    }
