"""Date formats of to_char and its kin, in strftime's signs."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.dialects.binder.context import Context

#: Longest first, so that YYYY is not read as YY twice. RisingWave's patterns; None: no sign for it in DuckDB.
_PATTERNS: Final[tuple[tuple[str, str | None], ...]] = (
    ("HH24", "%H"), ("HH12", "%I"), ("YYYY", "%Y"), ("MONTH", None), ("Month", "%B"), ("month", None), ("MON", None),
    ("Mon", "%b"), ("DAY", None), ("Day", "%A"), ("day", None), ("DDD", "%j"), ("TZH:TZM", None), ("TZHTZM", "%z"),
    ("TZH", "%z"), ("TZ", "%Z"), ("IYYY", "%G"), ("HH", "%I"), ("MI", "%M"), ("SS", "%S"), ("YY", "%y"), ("MM", "%m"),
    ("DD", "%d"), ("Dy", "%a"), ("AM", "%p"), ("PM", "%p"), ("MS", "%g"), ("US", "%f"), ("IW", "%V"),
)  # fmt: skip


def strftime_format(pattern: str, node: exp.Expression, ctx: Context) -> str:
    """The strftime format of a to_char pattern; FEATURE_NOT_SUPPORTED for what DuckDB can't print."""
    result = []
    index = 0
    while index < len(pattern):
        for word, sign in _PATTERNS:
            matches = pattern.startswith(word, index) or pattern[index : index + len(word)] == word.lower()
            if not matches or (word.isalpha() and word.istitle() and pattern[index : index + len(word)] != word):
                continue
            if sign is None:
                raise ctx.not_supported(f"the date pattern {word}", node)
            result.append(sign)
            index += len(word)
            break
        else:
            char = pattern[index]
            result.append("%%" if char == "%" else char)
            index += 1
    return "".join(result)
