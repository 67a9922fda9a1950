"""Texts in Timeplus' spelling that stand in no statement."""

from __future__ import annotations

from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.timeplus.columns import read_columns
from watersmeet.dialects.tokens import Cursor
from watersmeet.types import Schema


def columns_of(text: str) -> Schema:
    """The columns that `id string, name string` lists."""
    language = language_named("timeplus")
    cursor = Cursor(tokenize(f"({text})", language), f"({text})", folding=language.semantics.folding)
    columns, _ = read_columns(cursor)
    cursor.end()
    return columns
