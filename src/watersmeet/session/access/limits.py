"""Limits of what the statements of a connection may take, as settings: how long they run, how large results are."""

from __future__ import annotations

import re
from typing import Final

from watersmeet.dialectnames import DEFAULT_DIALECT
from watersmeet.errors import error
from watersmeet.session.access.variables import Variables

STATEMENT_TIMEOUT: Final = "statement_timeout"
RESULT_SIZE: Final = "max_result_size"
#: Settings that are times, and those that are sizes. 0: no limit.
DURATIONS: Final = (STATEMENT_TIMEOUT, "idle_in_transaction_session_timeout", "idle_session_timeout")
SIZES: Final = (RESULT_SIZE,)
LIMITS: Final = (*DURATIONS, *SIZES)

_MILLISECONDS: Final = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_AMOUNT: Final = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*")


def amount(name: str, value: str) -> int:
    """The value of a limit: milliseconds, or bytes. INVALID_PARAMETER."""
    units = _BYTES if name in SIZES else _MILLISECONDS
    found = _AMOUNT.fullmatch(value.lower())
    if found is None or found[2] not in units:
        shown = _SIZE_UNITS if name in SIZES else [u for u in units if u]
        known = ", ".join(f'"{unit}"' for unit in shown)
        raise error(
            "INVALID_PARAMETER",
            f'invalid value for parameter "{name}": "{value}"',
            hint=f"Valid units for this parameter are {known}.",
        )
    return int(found[1]) * units[found[2]]


def check_limit(name: str, value: str, most: str | None) -> None:
    """INVALID_PARAMETER for what is no limit, PERMISSION_DENIED for one beyond that of the role (`most`)."""
    wanted = amount(name, value)
    allowed = 0 if most is None else amount(name, most)
    if allowed and not 0 < wanted <= allowed:
        raise error(
            "PERMISSION_DENIED",
            f'permission denied to set parameter "{name}" to "{value}"',
            detail=f"It is at most {most} for this role.",
        )


def check_setting(name: str, value: str) -> str:
    """The value of a setting with which connections of a role begin. UNDEFINED_OBJECT, INVALID_PARAMETER."""
    if name in LIMITS:
        amount(name, value)
        return value
    variables = Variables(DEFAULT_DIALECT)
    found = variables.set(name, value)
    return variables.get(found.name)
