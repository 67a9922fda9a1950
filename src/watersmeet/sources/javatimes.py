"""Java's formats of times (`yyyy-MM-dd_HH:mm:ss`) as Python's."""

from __future__ import annotations

import re
from typing import Final

from watersmeet.errors import error

_PARTS: Final = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "MMM": "%b",
    "dd": "%d",
    "DDD": "%j",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%f",
    "a": "%p",
    "EEE": "%a",
}
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


def date_format(text: str, option: str) -> str:
    """A format of Java's SimpleDateFormat as one of `strftime`; `%f` stands for milliseconds.

    CONNECTOR_OPTION for one that has other parts.
    """
    out, place = [], 0
    for found in _TOKEN.finditer(text):
        if found.start() != place or (found[2] and found[0] not in _PARTS):
            break
        place = found.end()
        if found[2]:
            out.append(_PARTS[found[0]])
        else:
            plain = found[0] if found[1] is None else found[1].replace("''", "'") or "'"
            out.append(plain.replace("%", "%%"))
    if place != len(text):
        raise error(
            "CONNECTOR_OPTION",
            f'option {option} can\'t be "{text}"',
            hint=f"It is made of {', '.join(_PARTS)} and texts in single quotes.",
        )
    return "".join(out)
