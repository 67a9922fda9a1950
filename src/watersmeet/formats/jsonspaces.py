"""Text of jsonb as PostgreSQL writes it: one blank after each colon and comma between values."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
#: (pattern, replacement) in sequence: remove white space outside strings, add blanks, remove the last blank. Matches of
#: the second pattern are adjacent, so that none begins within a string.
_STEPS: Final = (
    (rf"({_STRING})|[ \t\r\n]+", r"\1"),
    (rf'((?:{_STRING}|[^",:])*)([,:]|$)', r"\1\2 "),
    (" +$", ""),
)


def spaced(texts: pa.Array) -> pa.Array:
    """Texts of jsonb with PostgreSQL's blanks."""
    for pattern, replacement in _STEPS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def spaced_sql(text: str) -> str:
    """The same in SQL of DuckDB."""
    for pattern, replacement in _STEPS:
        text = f"regexp_replace({text}, '{pattern}', '{replacement}', 'g')"
    return text
