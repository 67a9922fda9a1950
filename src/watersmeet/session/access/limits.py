"""Limits of what the statements of a connection may take, as settings: how long they run, how large results are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
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

#: Factors of units, the smallest first: to milliseconds, and to bytes.
_MILLISECONDS: Final = {"us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_MOST_MILLISECONDS: Final = (1 << 31) - 1
_MOST_BYTES: Final = (1 << 63) - 1
_AMOUNT: Final = re.compile(r"\s*([+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z]*)\s*")


def unit(name: str) -> str:
    """The unit of the numbers of `amount`."""
    return "B" if name in SIZES else "ms"


def amount(name: str, value: str) -> int:
    """The value of a limit: milliseconds, or bytes; a number without a unit is one of these. INVALID_PARAMETER.

    PostgreSQL, "Parameter Names and Values".
    """
    if name in SIZES:
        return size(name, value)
    return _amount(name, value, _MILLISECONDS, _MOST_MILLISECONDS, unit(name))


def size(name: str, value: str) -> int:
    """The bytes of a size such as `16MB`. INVALID_PARAMETER."""
    return _amount(name, value, _BYTES, _MOST_BYTES, "B")


def _amount(name: str, value: str, units: Mapping[str, float], most: int, one: str) -> int:
    factors = {known.lower(): factor for known, factor in units.items()}
    found = _AMOUNT.fullmatch(value)
    if found is None or (found[2] and found[2].lower() not in factors):
        known = ", ".join(f'"{written}"' for written in list(units)[:-1])
        raise error(
            "INVALID_PARAMETER",
            f'invalid value for parameter "{name}": "{value}"',
            hint=f'Valid units for this parameter are {known}, and "{list(units)[-1]}".',
        )
    number = round(Decimal(found[1]) * Decimal(str(factors[found[2].lower()] if found[2] else 1)))
    if not 0 <= number <= most:
        raise error(
            "INVALID_PARAMETER",
            f'{number} {one} is outside the valid range for parameter "{name}" (0 {one} .. {most} {one})',
        )
    return number


def shown(name: str, number: int) -> str:
    """A limit in the largest unit that needs no fraction."""
    units = _BYTES if name in SIZES else _MILLISECONDS
    return next((f"{number // int(f)}{u}" for u, f in reversed(units.items()) if number and number % f == 0), "0")


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
        return shown(name, amount(name, value))
    variables = Variables(DEFAULT_DIALECT)
    found = variables.set(name, value)
    return variables.get(found.name)
