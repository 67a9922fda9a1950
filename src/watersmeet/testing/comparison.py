"""Real rows compared with written ones, and errors with their written texts.

Rows are compared by value, as multisets unless an order is required. In sqllogictest files, DuckDB divides the values
of a row by tabs, RisingWave by blanks; the oldest form has one value a line. Long results may be given by their number
and hash. A text of an error may be a part of it or a regular expression; RisingWave's has the words of its client
around it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from watersmeet.session.connections.texts import shown
from watersmeet.values.types import SqlType

NULL: Final = "NULL"
Row = tuple[str, ...]


def written(value: Any) -> str:
    """The one spelling of a Python value: numbers without trailing zeros, times in ISO form without zone."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Decimal)):
        return _number(Decimal(value))
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return _number(Decimal(repr(value)))
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return _trimmed(moment.isoformat(sep=" "))
    if isinstance(value, dt.time):
        return _trimmed(value.isoformat())
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=written, sort_keys=True)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)


def read(text: str, like: Sequence[Any]) -> str:
    """The one spelling of a written value in a column whose real values are `like`."""
    text = text.strip()
    if text == NULL:
        return NULL
    if text == "''":
        return ""
    example = next((v for v in like if v is not None), None)
    try:
        if isinstance(example, bool):
            return {"t": "true", "f": "false", "1": "true", "0": "false"}.get(text.lower(), text.lower())
        if isinstance(example, float):
            return written(float(text))
        if isinstance(example, (int, Decimal)):
            return _number(Decimal(text))
        if isinstance(example, dt.datetime):
            return written(dt.datetime.fromisoformat(text))
        if isinstance(example, dt.time):
            return written(dt.time.fromisoformat(text))
        if isinstance(example, (list, dict)):
            return json.dumps(json.loads(text), default=written, sort_keys=True)
    except (ValueError, InvalidOperation):
        return text
    return text


def difference(expected: Sequence[Row], actual: Sequence[Row]) -> str | None:
    """None if the two are equal as multisets, else a text that shows what is missing and what is too much."""
    missing = Counter(expected) - Counter(actual)
    surplus = Counter(actual) - Counter(expected)
    if not missing and not surplus:
        return None
    lines = [f"  missing: {' | '.join(row)}" for row in sorted(missing.elements())]
    lines += [f"  surplus: {' | '.join(row)}" for row in sorted(surplus.elements())]
    return "\n".join(lines)


def _number(value: Decimal) -> str:
    if not value.is_finite():
        return {"Infinity": "Infinity", "-Infinity": "-Infinity"}.get(str(value), "NaN")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


Values = tuple[Any, ...]
_EMPTY: Final = ("(empty)", "(empty string)")
_HASH: Final = re.compile(r"(\d+) values hashing to ([0-9a-f]{32})")

#: What RisingWave's client and layers put around a message.
_WRAPPING: Final = re.compile(r"db error: ERROR: .*|Caused by.*:|")

_NUMBERED: Final = re.compile(r"\d+: ")

_LAYER: Final = re.compile(
    r"(?:\d+: )?(?:(?:Not supported|Invalid input syntax|Bind error|Catalog error|Item not found|"
    r"Feature is not yet implemented|Scheduler error|Expr error|internal error): )*"
)


def mismatch(
    expected: Sequence[str], rows: Sequence[Values], kinds: Sequence[SqlType], modes: Sequence[str]
) -> str | None:
    """None if the rows are the expected ones, else what is missing and what is too much.

    modes: the words behind the types of `query`, of which rowsort and valuesort mean something.
    """
    if len(expected) == 1 and (found := _HASH.fullmatch(expected[0].strip())):
        return _hash_mismatch(found, rows, modes)
    lines = _as_rows(list(expected), rows)
    if "valuesort" in modes:
        values = [(value,) for row in rows for value in row]
        flat = [kind for _ in rows for kind in kinds]
        return _difference([c for line in lines for c in line.split("\t")], values, flat, ordered=False)
    return _difference(lines, rows, kinds, ordered="rowsort" not in modes)


def error_matches(pattern: str, text: str) -> bool:
    """True if the error `text` is the one that `pattern` means."""
    if not pattern or pattern in text or _squeezed(pattern) in _squeezed(text):
        return True
    if pattern.startswith("<REGEX>:"):
        return re.search(pattern.removeprefix("<REGEX>:"), text, re.DOTALL) is not None
    if pattern.startswith("db error:"):
        lines = [line.strip() for line in pattern.split("\n") if not _WRAPPING.fullmatch(line.strip())]
        # Where causes are numbered, the last one is the first to have happened.
        begin = max((i for i, line in enumerate(lines) if _NUMBERED.match(line)), default=0)
        lines = [_LAYER.sub("", line).removeprefix("HINT: ") for line in lines[begin:]]
        return bool(lines) and all(_squeezed(line).lower() in _squeezed(text).lower() for line in lines)
    try:
        return re.search(pattern, text, re.IGNORECASE) is not None
    except re.error:
        return False


def _as_rows(lines: list[str], rows: Sequence[Values]) -> list[str]:
    """The lines, those of one value each joined by tabs."""
    width = len(rows[0]) if rows else 0
    if width < 2 or len(lines) != len(rows) * width or any("\t" in line for line in lines):
        return lines
    if all(_line_matches(line, row, ()) for line, row in zip(lines, rows, strict=False)):
        return lines
    return ["\t".join(lines[i : i + width]) for i in range(0, len(lines), width)]


def _difference(lines: Sequence[str], rows: Sequence[Values], kinds: Sequence[SqlType], *, ordered: bool) -> str | None:
    if (
        ordered
        and len(lines) == len(rows)
        and all(_line_matches(line, row, kinds) for line, row in zip(lines, rows, strict=True))
    ):
        return None
    left = list(rows)
    missing = []
    for line in lines:
        at = next((i for i, row in enumerate(left) if _line_matches(line, row, kinds)), None)
        if at is None:
            missing.append(line)
        else:
            del left[at]
    if not missing and not left:
        if not ordered:
            return None
        return "  (in this order)\n" + "\n".join(f"  {_row_text(row, kinds)}" for row in rows)
    return "\n".join(
        [*(f"  missing: {line}" for line in missing), *(f"  surplus: {_row_text(row, kinds)}" for row in left)]
    )


def _line_matches(line: str, row: Values, kinds: Sequence[SqlType]) -> bool:
    """True if the line is the row, whichever way its values are divided."""
    types = _types(kinds, len(row))
    if len(row) == 1:
        return _cell_matches(line, row[0], types[0])
    if "\t" in line:
        cells = line.split("\t")
        return len(cells) == len(row) and all(map(_cell_matches, cells, row, types))
    return _tokens_match(line.split(), row, types)


def _tokens_match(tokens: Sequence[str], row: Sequence[Any], kinds: Sequence[SqlType | None]) -> bool:
    """True if the words are the values; a value may have several words."""
    if not row:
        return not tokens
    value, kind = row[0], kinds[0]
    sizes = {1, len(written(value).split()), len(shown(value, kind).split())} - {0}
    return any(
        _cell_matches(" ".join(tokens[:size]), value, kind) and _tokens_match(tokens[size:], row[1:], kinds[1:])
        for size in sizes
        if size <= len(tokens)
    )


def _cell_matches(text: str, value: Any, kind: SqlType | None = None) -> bool:
    if value is None:
        return text.strip() == "NULL"
    if text.strip() in _EMPTY:
        return bool(value == "")
    return read(text, [value]) == written(value) or _squeezed(text) == _squeezed(shown(value, kind))


def _hash_mismatch(found: re.Match[str], rows: Sequence[Values], modes: Sequence[str]) -> str | None:
    texts = [[written(v) or "(empty)" for v in row] for row in rows]
    if "rowsort" in modes:
        texts.sort()
    values = [v for row in texts for v in row]
    if "valuesort" in modes:
        values.sort()
    real = hashlib.md5("".join(v + "\n" for v in values).encode(), usedforsecurity=False).hexdigest()
    if (len(values), real) == (int(found[1]), found[2]):
        return None
    return f"  {len(values)} values hashing to {real}"


def _row_text(row: Values, kinds: Sequence[SqlType]) -> str:
    types = _types(kinds, len(row))
    return "\t".join(shown(v, k) or "(empty)" for v, k in zip(row, types, strict=True))


def _types(kinds: Sequence[SqlType], width: int) -> list[SqlType | None]:
    return [*kinds] if kinds else [None] * width


def _squeezed(text: str) -> str:
    return " ".join(text.split())
