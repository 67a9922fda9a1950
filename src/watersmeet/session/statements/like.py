"""SQL's LIKE over Python strings."""

from __future__ import annotations

import re


def like(text: str, pattern: str) -> bool:
    r"""Whether `text` matches: `%` is any text, `_` any character, `\` makes the next one plain."""
    pieces = []
    plain = False
    for character in pattern:
        if plain:
            pieces.append(re.escape(character))
            plain = False
        elif character == "\\":
            plain = True
        else:
            pieces.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.fullmatch("".join(pieces), text, re.DOTALL) is not None
