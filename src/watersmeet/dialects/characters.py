"""Characters that text can't hold: U+0000, as in PostgreSQL (17, 8.3 "Character Types"), and what UTF-8 has no bytes
for.
"""

from __future__ import annotations

import re
from typing import Final

from watersmeet.errors import Error, Span, error

_REFUSED: Final = re.compile("[\x00\ud800-\udfff]")


def refused_character(text: str) -> int | None:
    """The place of the first character that text can't hold, None if there is none."""
    found = _REFUSED.search(text)
    return None if found is None else found.start()


def not_in_repertoire(value: str, sql: str, span: Span | None) -> Error:
    """CHARACTER_NOT_IN_REPERTOIRE for `value`, which stands at `span` of the statement `sql`."""
    place = refused_character(value)
    assert place is not None
    shown = _REFUSED.sub(" ", sql)  # an error is written somewhere, so it must be text itself
    what = "a lone surrogate" if ord(value[place]) else "the null character"
    return error(
        "CHARACTER_NOT_IN_REPERTOIRE",
        f"text can't contain U+{ord(value[place]):04X}, {what}",
        sql=shown,
        span=span,
        hint="Bytes of any kind can be stored in a column of type bytea.",
    )


def check_characters(sql: str) -> None:
    """Raises CHARACTER_NOT_IN_REPERTOIRE if a statement is no text."""
    place = refused_character(sql)
    if place is not None:
        raise not_in_repertoire(sql, sql, Span(place, place + 1))
