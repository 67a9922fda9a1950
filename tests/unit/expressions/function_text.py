"""Values as psql shows them."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

from watersmeet.values.types import SqlType


def shown(value: Any, kind: SqlType) -> str:
    """The text of a value of `kind`; ∅ for NULL."""
    if value is None:
        return "∅"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return "\\x" + bytes(value).hex()
    if kind.name == "array":
        return "{" + ",".join("NULL" if v is None else shown(v, kind.element) for v in value) + "}"
    if kind.name == "struct":
        return (
            "("
            + ",".join("" if v is None else shown(v, t) for v, (_, t) in zip(value.values(), kind.fields, strict=True))
            + ")"
        )
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, dt.datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S") + (
            f".{value.microsecond:06}".rstrip("0") if value.microsecond else ""
        )
        return text + ("+00" if value.tzinfo else "")
    if isinstance(value, dt.time):
        return value.isoformat().rstrip("0").rstrip(".") if value.microsecond else value.isoformat()
    return str(value)


def same(value: Any, kind: SqlType, wanted: str) -> bool:
    """True if the value is what the text says; doubles may differ in the last digits."""
    if kind.is_float and value is not None and wanted != "∅":
        given = float(wanted)
        return math.isclose(value, given, rel_tol=1e-14, abs_tol=1e-15) or (math.isnan(value) and math.isnan(given))
    if kind.name == "numeric" and value is not None and wanted != "∅":
        return Decimal(value) == Decimal(wanted)
    if kind.name == "jsonb" and wanted != "∅":
        return value == wanted or value == json.loads(wanted)
    return shown(value, kind) == wanted
