"""Dialects: from SQL text to statements (`parse`), and from queries to the algebra (`binder`) or DuckDB (`batch`).

A dialect is a small difference to one of sqlglot's grammars and a table of defaults (`semantics`); everything else is
shared. RisingWave's and Timeplus' exist.
"""

from __future__ import annotations

from sqlglot.errors import TokenError

from watersmeet.dialects.depth import depth_checked
from watersmeet.dialects.queries import Parameters
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import cut, read_script
from watersmeet.dialects.statements import Statement

__all__ = ["language_named", "parse", "split_statements"]


def parse(text: str, dialect: str = "risingwave", parameters: Parameters = ()) -> list[Statement]:
    """The statements of `text` in order.

    parameters: values for `?` (in order), `$1` (by number) or named placeholders; they become
    literals of the tree, never text. All spans are in `text`. Raises SYNTAX_ERROR with a place.
    """
    with depth_checked(text):
        return read_script(text, language_named(dialect), parameters)


def split_statements(text: str, dialect: str = "risingwave") -> tuple[list[str], str]:
    """The complete statements of `text` (those that end in a semicolon) and what is left, for a shell.

    An unfinished quote or comment belongs to the rest.
    """
    try:
        parts = cut(language_named(dialect).grammar.tokenize(text))
    except TokenError:
        return [], text
    complete = [text[p[0].start : p[-1].end + 1] for p in parts[:-1] if p]
    return complete, text[parts[-1][0].start :] if parts[-1] else ""
