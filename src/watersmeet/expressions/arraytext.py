"""Texts of arrays: PostgreSQL's `{1,NULL,"a b"}` as DuckDB's `[1, NULL, "a b"]`.

PostgreSQL, "Array Input and Output Syntax".
"""

from __future__ import annotations

import re
from typing import Final

#: A value in quotes, a sign, or a value without quotes.
_PART: Final = r'"(?:[^"\\]|\\.)*"|[{},]|(?:[^{},"\\]|\\.)+'
_SIGNS: Final = {"{": "[", "}": "]", ",": ","}


def list_text(written: str) -> str:
    """DuckDB's text of an array. What is no text of an array stays as it is."""
    if not written.lstrip().startswith("{") or not re.fullmatch(f"(?s:(?:{_PART})*)", written):
        return written
    return "".join(map(_part, re.findall(f"(?s:{_PART})", written)))


def _part(part: str) -> str:
    if part in _SIGNS or part.startswith('"'):
        return _SIGNS.get(part, part)
    value = part.strip()
    return value if not value or value.upper() == "NULL" else f'"{value}"'


def list_sql(text: str) -> str:
    """SQL of DuckDB for `list_text` of the text that `text` is the SQL of."""
    pattern = _PART.replace("'", "''")
    cases = " ".join(f"WHEN '{sign}' THEN '{shown}'" for sign, shown in _SIGNS.items())
    part = (
        f"CASE _p {cases} ELSE CASE WHEN starts_with(_p, '\"') THEN _p WHEN trim(_p) = '' OR upper(trim(_p)) = 'NULL' "
        "THEN trim(_p) ELSE '\"' || trim(_p) || '\"' END END"
    )
    listed = f"list_transform(regexp_extract_all({text}, '(?s:{pattern})'), lambda _p: {part})"
    whole = f"starts_with(ltrim({text}), '{{') AND regexp_full_match({text}, '(?s:(?:{pattern})*)')"
    return f"CASE WHEN {whole} THEN array_to_string({listed}, '') ELSE {text} END"
