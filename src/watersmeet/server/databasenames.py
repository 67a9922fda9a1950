"""Names with the database in front: `shop.public.orders`. There is one, under any name that clients ask for."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = r'(?:"(?:[^"]++|"")*+"|[A-Za-z_][\w$]*+)'
#: A name, with a dot in front of it or two other names behind it; or a quote or comment, which holds none.
_NAMED: Final = re.compile(
    rf"""\b[eE]'(?:[^'\\]++|\\.|'')*+' | '(?:[^']++|'')*+' | --[^\n]* | /\*.*?(?:\*/|\Z)
      | \$(?P<tag>[A-Za-z_]\w*+|)\$.*?(?:\$(?P=tag)\$|\Z)
      | (?P<inner>\.\s*)?(?<![\w"$])(?P<name>{_PART})(?:(?=(?P<dot>\s*\.\s*){_PART}\s*\.\s*{_PART})|)""",
    re.VERBOSE | re.DOTALL,
)


def without_database(text: str, database: str) -> str:
    """The text with blanks for the name of the database in front of others, so that places stay.

    Where the name also stands by itself, it may be that of a relation or an alias: then nothing changes.
    """
    if database.lower() not in text.lower():
        return text
    found = [m for m in _NAMED.finditer(text) if m["name"] and not m["inner"] and _meant(m["name"]) == database]
    if not all(m["dot"] for m in found):
        return text
    for match in found:
        start, end = match.start(), match.end("dot")
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _meant(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
