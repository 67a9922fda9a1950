"""Comparing real rows with written ones: by value, as multisets unless an order is asked for."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

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
