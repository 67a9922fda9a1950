"""Dialects: from SQL text to statements (`parse`). `binder` defines what queries mean.

A dialect is a small difference to one of sqlglot's grammars and a table of defaults (`semantics`); everything else is
shared.
"""

from __future__ import annotations

from watersmeet.dialectnames import DEFAULT_DIALECT, DIALECTS
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.switches import read_text, split_statements
from watersmeet.dialects.tree.queries import Parameters, check_characters, depth_checked
from watersmeet.dialects.tree.statements import Statement

__all__ = ["DIALECTS", "language_named", "parse", "split_statements"]


def parse(text: str, dialect: str = DEFAULT_DIALECT, parameters: Parameters = ()) -> list[Statement]:
    """The statements of `text` in order, which begins in `dialect` and may go over to another one (`switches`).

    parameters: values for `?` (in order), `$1` (by number) or named placeholders; they become
    literals of the tree, never text. All spans are in `text`. Raises SYNTAX_ERROR with a place,
    CHARACTER_NOT_IN_REPERTOIRE.
    """
    check_characters(text)
    with depth_checked(text):
        return read_text(text, language_named(dialect), parameters)
