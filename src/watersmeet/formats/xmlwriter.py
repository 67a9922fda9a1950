"""Rows as XML elements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from watersmeet.errors import error
from watersmeet.formats.valuetexts import literal, plain_text
from watersmeet.formats.writers import SqlWriter, places
from watersmeet.types import Schema

#: Options: the elements around a row, the outermost first, with commas between them; the elements around all rows of a
#: file, or around the row of a message; before the name of a column the elements around its value.
ROW_ELEMENTS: Final = "row_elements"
DATA_ELEMENTS: Final = "data_elements"
ELEMENTS: Final = "elements."

_NAME: Final = re.compile(r"[^\W\d][\w.\-]*")
#: What XML 1.0 can't have, by no means, becomes this.
_REPLACEMENT: Final = "�"
_NEVER: Final = "[\\x00-\\x08\\x0B\\x0C\\x0E-\\x1F￾￿]"
_ESCAPED: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\r", "&#13;"))


def xml_writer(columns: Schema, options: Mapping[str, str]) -> SqlWriter:
    """Writes an element for each row, `row` if nothing else is said, with one for each value that is not NULL.

    CONNECTOR_OPTION for names that no element can have.
    """
    parts = []
    for place, column in zip(places(columns), columns, strict=True):
        begin, end = tags(options.get(ELEMENTS + column.name, column.name))
        text = plain_text(place, column.type)
        if column.type.name in ("varchar", "jsonb") or column.type.is_nested:
            for character, escaped in _ESCAPED:
                text = f"replace({text}, {_character(character)}, {literal(escaped)})"
            text = f"regexp_replace({text}, {literal(_NEVER)}, {literal(_REPLACEMENT)}, 'g')"
        parts.append(f"coalesce({literal(begin)} || {text} || {literal(end)}, '')")
    begin, end = tags(options.get(ROW_ELEMENTS, "row"))
    return SqlWriter(columns, f"concat({literal(begin)}, {', '.join([*parts, literal(end)])})")


def tags(elements: str) -> tuple[str, str]:
    """(what opens elements, what closes them). CONNECTOR_OPTION."""
    names = [n.strip() for n in elements.split(",")]
    _check(names)
    return "".join(f"<{n}>" for n in names), "".join(f"</{n}>" for n in reversed(names))


def _check(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise error("CONNECTOR_OPTION", f'XML can\'t have an element "{name}"', hint="Name another one.")


def _character(character: str) -> str:
    return literal(character) if character.isprintable() else f"chr({ord(character)})"
