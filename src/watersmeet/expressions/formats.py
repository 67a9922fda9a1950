"""Date formats of to_char, to_date and to_timestamp (PostgreSQL 17, table 9.26; names are not padded, as in
RisingWave).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from watersmeet.expressions.context import Context
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import call, string

#: Patterns in any case -> strftime's sign (an unpadded one behind a `|`).
_SIGNS: Final[dict[str, str]] = {
    "HH24": "%H|%-H", "HH12": "%I|%-I", "HH": "%I|%-I", "MI": "%M|%-M", "SS": "%S|%-S", "MS": "%g", "US": "%f",
    "YYYY": "%Y", "YY": "%y|%-y", "IYYY": "%G", "MM": "%m|%-m", "DDD": "%j|%-j", "DD": "%d|%-d", "IW": "%V",
    "TZHTZM": "%z", "TZH:TZM": "%z", "TZ": "%Z", "TZH": "%z", "OF": "%z",
}  # fmt: skip

#: Offsets as to_char writes them: times are shown in UTC, and strftime leaves out the minutes.
_OFFSETS: Final[dict[str, str]] = {"TZHTZM": "+0000", "TZH:TZM": "+00:00", "TZM": "00"}

#: Names: the case of the pattern is that of the result.
_NAMES: Final[dict[str, str]] = {"MONTH": "%B", "MON": "%b", "DAY": "%A", "DY": "%a", "AM": "%p", "PM": "%p"}

#: What strftime has no sign for.
_COMPUTED: Final[dict[str, str]] = {
    "CC": "lpad(CAST(extract('century' FROM a0) AS VARCHAR), 2, '0')",
    "Q": "CAST(extract('quarter' FROM a0) AS VARCHAR)",
    "WW": "lpad(CAST((extract('doy' FROM a0) + 6) // 7 AS VARCHAR), 2, '0')",
    "W": "CAST((extract('day' FROM a0) + 6) // 7 AS VARCHAR)", "D": "CAST(extract('dow' FROM a0) + 1 AS VARCHAR)",
    "ID": "CAST(extract('isodow' FROM a0) AS VARCHAR)",
    "J": "CAST(CAST(floor(extract('julian' FROM a0)) AS BIGINT) AS VARCHAR)",
    "SSSS": ("CAST(extract('hour' FROM a0) * 3600 + extract('minute' FROM a0) * 60 + extract('second' FROM a0) AS "
    "VARCHAR)"),
}  # fmt: skip

_WORDS: Final = tuple(sorted({*_SIGNS, *_OFFSETS, *_NAMES, *_COMPUTED}, key=len, reverse=True))
_ORDINAL: Final = (
    "a0 || CASE WHEN CAST(a0 AS BIGINT) % 100 BETWEEN 11 AND 13 THEN 'th' WHEN CAST(a0 AS BIGINT) % 10 = 1 THEN 'st' "
    "WHEN CAST(a0 AS BIGINT) % 10 = 2 THEN 'nd' WHEN CAST(a0 AS BIGINT) % 10 = 3 THEN 'rd' ELSE 'th' END"
)


@dataclass(frozen=True)
class _Piece:
    """A pattern (`word`, as it is written) or plain text (`word` is empty)."""

    word: str
    text: str
    unpadded: bool = False
    ordinal: str = ""


def _pieces(pattern: str) -> list[_Piece]:
    found: list[_Piece] = []
    index = 0
    while index < len(pattern):
        if pattern[index] == '"':
            end = pattern.find('"', index + 1)
            end = len(pattern) if end < 0 else end
            found.append(_Piece("", pattern[index + 1 : end]))
            index = end + 1
            continue
        unpadded = pattern[index : index + 2].upper() == "FM"
        at = index + 2 * unpadded
        word = next((w for w in _WORDS if pattern[at : at + len(w)].upper() == w), None)
        if word is None:
            found.append(_Piece("", pattern[index]))
            index += 1
            continue
        index = at + len(word)
        ordinal = pattern[index : index + 2] if pattern[index : index + 2] in ("th", "TH") else ""
        found.append(_Piece(pattern[at:index], "", unpadded, ordinal))
        index += len(ordinal)
    return found


def strptime_format(pattern: str, node: exp.Expression, ctx: Context) -> str:
    """The strptime format of a to_date pattern; FEATURE_NOT_SUPPORTED for what DuckDB can't read."""
    made = ""
    for piece in _pieces(pattern):
        word = piece.word.upper()
        if piece.ordinal or word in _COMPUTED or word == "TZM":
            raise ctx.not_supported(f"the date pattern {piece.word}{piece.ordinal} here", node)
        sign = piece.text.replace("%", "%%") if not word else {**_SIGNS, **_NAMES}[word].split("|", maxsplit=1)[0]
        made += sign
    return made


def formatted(value: exp.Expression, pattern: str) -> exp.Expression:
    """The text of a date or timestamp after a to_char pattern."""
    parts: list[exp.Expression] = []
    signs = ""
    for piece in _pieces(pattern):
        word = piece.word.upper()
        if not word:
            signs += piece.text.replace("%", "%%")
            continue
        if word in _OFFSETS:
            signs += _OFFSETS[word]
            continue
        special = _special(value, piece)
        if special is None:
            signs += _sign(piece)
            continue
        parts += [call("strftime", value, string(signs)), special] if signs else [special]
        signs = ""
    if signs or not parts:
        parts.append(call("strftime", value, string(signs)))
    return parts[0] if len(parts) == 1 else fill(" || ".join(f"a{i}" for i in range(len(parts))), *parts)


def _sign(piece: _Piece) -> str:
    signs = {**_SIGNS, **_NAMES}[piece.word.upper()].split("|")
    return signs[-1] if piece.unpadded else signs[0]


def _special(value: exp.Expression, piece: _Piece) -> exp.Expression | None:
    """What is no sign of strftime alone."""
    word = piece.word.upper()
    if word in _COMPUTED:
        made = fill(_COMPUTED[word], value)
        if piece.unpadded:
            made = call("ltrim", made, string("0"))
    elif word in _NAMES and word not in ("AM", "PM") and piece.word.isupper():
        return call("upper", call("strftime", value, string(_NAMES[word])))
    elif word in _NAMES and piece.word.islower():
        return call("lower", call("strftime", value, string(_NAMES[word])))
    elif piece.ordinal:
        made = call("strftime", value, string(_sign(piece)))
    else:
        return None
    if not piece.ordinal:
        return made
    text = fill(_ORDINAL, made)
    return call("upper", text) if piece.ordinal == "TH" else text
