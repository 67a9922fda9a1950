"""The text of values, as RisingWave writes them."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal
from typing import Any, Final

import numpy as np

from watersmeet.database.sessions.result import Interval
from watersmeet.values.types import SqlType

_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_PLAIN_ELEMENT: Final = re.compile(r'[^\s,{}()"\\]+')


def shown(value: Any, kind: SqlType | None = None) -> str:
    """The text of a value, as RisingWave writes it."""
    if value is None:
        return "NULL"
    if kind is not None and kind.name == "jsonb":
        return _json(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return _decimal(value, kind)
    if isinstance(value, float):
        value = np.float32(value) if kind is not None and kind.name == "real" else value
        return _NOT_FINITE.get(str(value), str(value).removesuffix(".0"))
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, Interval):
        return interval_text(value)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, (list, dict)):
        return _nested(value, kind)
    return str(value)


def json_value(value: Any, kind: SqlType | None = None) -> Any:
    """The value for JSON. Decimals and times become text, so that no digit is lost."""
    if isinstance(value, float) and not math.isfinite(value):
        return shown(value)
    if isinstance(value, list):
        return [json_value(v) for v in value]
    if isinstance(value, dict):
        return {k: json_value(v) for k, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return shown(value, kind)


def _json(value: Any) -> str:
    """A value from JSON: only numbers beyond a double need another form."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(json_value(value), ensure_ascii=False)


def interval_text(value: Interval) -> str:
    """An interval as PostgreSQL writes it: `1 year 2 mons 3 days 04:05:06`."""
    years, months = divmod(abs(value.months), 12)
    sign = -1 if value.months < 0 else 1
    parts = [
        f"{sign * n} {unit}{'' if n == 1 and sign > 0 else 's'}" for n, unit in ((years, "year"), (months, "mon")) if n
    ]
    if value.month_days:
        plus = "+" if value.month_days > 0 and value.months < 0 else ""
        parts.append(f"{plus}{value.month_days} day{'' if value.month_days == 1 else 's'}")
    if value.microseconds_of_day or not parts:
        seconds, microseconds = divmod(abs(value.microseconds_of_day), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        clock += f".{microseconds:06}".rstrip("0") if microseconds else ""
        plus = "+" if (value.month_days or value.months) < 0 else ""  # after a negative part
        parts.append(("-" if value.microseconds_of_day < 0 else plus) + clock)
    return " ".join(parts)


def _decimal(value: Decimal, kind: SqlType | None) -> str:
    """The digits of a decimal, without trailing zeros if its scale was not declared."""
    text = format(value, "f") if value.is_finite() else str(value)
    if kind is None or kind.precision is not None or "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def _nested(value: Any, kind: SqlType | None) -> str:
    if kind is not None and kind.name == "map" and isinstance(value, dict):
        pairs = (f"{shown(k, kind.entry[0])}:{_item(v, kind.entry[1])}" for k, v in value.items())
        return "{" + ",".join(pairs) + "}"
    if kind is not None and kind.name == "array" and isinstance(value, list):
        return "{" + ",".join(_element(v, kind.element) for v in value) + "}"
    if kind is not None and kind.name == "struct" and isinstance(value, dict):
        return (
            "("
            + ",".join(
                _element(v, t, '""') if v is not None else ""
                for v, (_, t) in zip(value.values(), kind.fields, strict=False)
            )
            + ")"
        )
    return json.dumps(json_value(value), ensure_ascii=False)


def _item(value: Any, kind: SqlType) -> str:
    return "NULL" if value is None else shown(value, kind)


def _element(value: Any, kind: SqlType | None, quote: str = '\\"') -> str:
    """An element of an array or struct, quoted where it would be misread. quote: a quote inside."""
    is_boolean = kind is not None and kind.name == "boolean" and value is not None
    text = ("t" if value else "f") if is_boolean else shown(value, kind)
    nested = kind is not None and kind.name == "array" and quote != '""'
    if value is None or nested or (_PLAIN_ELEMENT.fullmatch(text) and text.upper() != "NULL"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', quote) + '"'
