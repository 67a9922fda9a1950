"""Session variables, which SET and SHOW accept, and limits of statements.

Variables of a dialect are part of its `Language`.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from typing import Final

from watersmeet.algebra.scalars import ORACLE
from watersmeet.algebra.timewindows import timeout_us
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING
from watersmeet.catalog import MOST_JOIN_ROWS, RECOMPUTINGS
from watersmeet.connectors.base.sources import rate_limit
from watersmeet.dialects.registry import Language, language_named, registered
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.variables import Variable
from watersmeet.errors import did_you_mean, error
from watersmeet.values import CHOICES, DEFAULT_DIALECT
from watersmeet.values.times import UTC, is_zone_name

#: The variables with the SQL dialect and with the name of the client's program.
DIALECT: Final = "dialect"

APPLICATION: Final = "application_name"

#: The level of transactions that name none. Only a server shows it as a variable.
ISOLATION: Final = "default_transaction_isolation"

#: The length to which the name of a program is truncated, as in PostgreSQL. Too long values of other variables are
#: rejected, because clients are notified of changes, and libpq accepts notifications up to 30,000 bytes.
_NAME_BYTES: Final = 63

_MOST_BYTES: Final = 16_384
_TRUE: Final = ("true", "t", "on", "yes", "1")
_FALSE: Final = ("false", "f", "off", "no", "0")

#: The variables with a number of rows per second.
_RATES: Final = ("backfill_rate_limit", "sink_rate_limit", "source_rate_limit")

#: Variables of all dialects.
_SHARED: Final = (
    Variable(APPLICATION, "text", "", "Name of the program, for the reader of a log.", effect=True),
    Variable(DIALECT, "text", DEFAULT_DIALECT, "SQL that is spoken: " + ", ".join(CHOICES) + ".", effect=True),
    Variable(
        JOIN_ROWS_SETTING,
        "integer",
        str(MOST_JOIN_ROWS),
        "Rows that each join of a new view may make in one epoch, or else the view fails; 0 means no limit.",
        effect=True,
        least=0,
    ),
    Variable(
        "recompute",
        "text",
        "auto",
        "Whether epochs compute a view created later again, instead of its changes: auto, always or never.",
        effect=True,
        choices=RECOMPUTINGS,
    ),
    Variable("search_path", "text", '"$user", public', "Schemas in which names are looked up.", effect=True),
    Variable(
        "timezone",
        "text",
        "UTC",
        "Zone in which timestamptz values are shown and computed.",
        effect=True,
    ),
)


def variables() -> dict[str, Variable]:
    """All variables, sorted by name."""
    return _by_name(registered())


@lru_cache  # cached by names, because it is needed often and comparing whole variables is slow
def _by_name(dialects: tuple[str, ...]) -> dict[str, Variable]:
    own = [v for d in dialects for v in language_named(d).variables]
    return {v.name: v for v in sorted((*_SHARED, *own), key=lambda v: v.name)}


#: Alternative names. The prefix `rw_` is accepted for any name.
ALIASES: Final = {"time zone": "timezone", "time_zone": "timezone"}


class Variables:
    """The variables of one connection."""

    def __init__(self, dialect: str) -> None:
        """Sets the defaults, and the dialect of the connection."""
        self._values: dict[str, str] = {DIALECT: dialect}
        self._begun: dict[str, str] = dict(self._values)

    def get(self, name: str) -> str:
        """The value of `name` as text. Raises UNDEFINED_OBJECT."""
        variable = self.named(name)
        found = self._values.get(variable.name)
        if found is not None:
            return found
        if "." in variable.name:
            return find(name).default  # one of the client's own that it never set is unknown
        return self._language.defaults.get(variable.name, variable.default)

    @property
    def dialect(self) -> str:
        """The dialect or variant that was chosen."""
        return self._values[DIALECT]

    @property
    def _language(self) -> Language:
        return language_named(self._values[DIALECT])

    def is_on(self, name: str) -> bool:
        """The value of a boolean variable."""
        return self.get(name) == "true"

    def set(self, name: str, value: str | None) -> Variable:
        """Sets `name` to the text `value`, or to its default for None. Raises UNDEFINED_OBJECT, INVALID_PARAMETER."""
        variable = self._custom(name) or find(name)
        if value is None or value.lower() == "default":
            if variable.name == DIALECT:
                raise error(
                    "INVALID_PARAMETER", "there is no default dialect", hint="Name one: " + ", ".join(CHOICES) + "."
                )
            self._unset(variable.name)
        elif variable.name == "timezone":
            self._values[variable.name] = _zone(value, self._language.semantics)
        else:
            self._values[variable.name] = _checked(variable, value)
        return variable

    @property
    def isolation(self) -> str:
        """The level of transactions that name none."""
        return self._values.get(ISOLATION, "read committed")

    def set_isolation(self, level: str) -> None:
        """Sets the level of transactions that name none."""
        self._values[ISOLATION] = level

    @property
    def zone(self) -> str:
        """The time zone of the session by its canonical name; `UTC` in dialects without session zones."""
        zone = self._values.get("timezone", UTC)
        named = zone.lower() not in _UTC_NAMES and self._language.semantics.session_zones
        return zone if named else UTC

    @property
    def is_utc(self) -> bool:
        """Whether the session is in UTC, in which plans of small statements read and write times."""
        return self.zone == UTC

    def saved(self) -> dict[str, str]:
        """The current values, for `restore`."""
        return dict(self._values)

    def restore(self, saved: Mapping[str, str]) -> None:
        """Restores the values that `saved` returned."""
        self._values = dict(saved)

    def begin(self) -> None:
        """Makes the current values those that RESET ALL restores."""
        self._begun = dict(self._values)

    def reset(self) -> None:
        """Runs RESET ALL: restores the values of `begin`."""
        self._values = dict(self._begun)

    def own(self, name: str) -> tuple[str, str | None]:
        """The canonical name of a variable, and the value that was set, or None. Raises UNDEFINED_OBJECT."""
        known = self.named(name).name
        return known, self._values.get(known)

    def put_back(self, values: Mapping[str, str | None]) -> None:
        """Sets values that `own` returned."""
        for name, value in values.items():
            if value is None:
                self._unset(name)
            else:
                self._values[name] = value

    def _unset(self, name: str) -> None:
        """Restores the default. A variable of the client's own is known from its first SET on, as in PostgreSQL."""
        if "." in name:
            self._values[name] = ""
        else:
            self._values.pop(name, None)

    def named(self, name: str) -> Variable:
        """The variable called `name`, which may be an alternative name. Raises UNDEFINED_OBJECT."""
        return self._custom(name) or find(name)

    def _custom(self, name: str) -> Variable | None:
        """A variable of the client's own, if the dialect has them: its name has a dot."""
        if "." not in name or not self._language.custom:
            return None
        return Variable(name.lower(), "text", "", "A setting of the client.", effect=True)

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and description of all variables, sorted by name."""
        return [(v.name, self.shown(v.name), v.description) for v in variables().values()]

    def shown(self, name: str) -> str:
        """The value of a variable for display; passwords are hidden. Raises UNDEFINED_OBJECT."""
        value = self.get(name)
        return "***" if value and self.named(name).secret else value


#: Other spellings of UTC.
_UTC_NAMES: Final = ("utc", "etc/utc", "gmt", "+00:00", "0", "local")


@cache
def _zones() -> dict[str, str]:
    """The zones of the time zone database that Python and DuckDB know, by their names in lower case."""
    known = ORACLE.constant("(SELECT list(name) FROM pg_timezone_names())")
    return {n.lower(): n for n in zoneinfo.available_timezones().intersection(known) if is_zone_name(n)}


def _zone(value: str, semantics: Semantics) -> str:
    """The canonical name of a zone. Raises INVALID_PARAMETER, FEATURE_NOT_SUPPORTED."""
    lowered = value.strip().lower()
    if lowered in _UTC_NAMES:
        return value
    if not semantics.session_zones:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'time zone "{value}" is not supported',
            hint="Sessions are in UTC in this dialect.",
        )
    if lowered not in _zones():
        raise error(
            "INVALID_PARAMETER",
            f'invalid value for parameter "timezone": "{value}"',
            hint=did_you_mean(value, _zones().values())
            or "Write a name of the time zone database, such as 'Europe/Berlin'.",
        )
    return _zones()[lowered]


def find(name: str) -> Variable:
    """The variable called `name`, which may be an alternative name. Raises UNDEFINED_OBJECT."""
    lowered = name.lower()
    lowered = ALIASES.get(lowered, lowered)
    known = variables()
    for candidate in (lowered, lowered.removeprefix("rw_")):
        if candidate in known:
            return known[candidate]
        own = next((v for d in known.values() if (v := d.named(candidate)) is not None), None)
        if own is not None:
            return own
    raise error(
        "UNDEFINED_OBJECT",
        f'unknown session variable "{name}"',
        hint=did_you_mean(lowered, known) or "SHOW ALL lists the variables.",
    )


def _checked(variable: Variable, value: str) -> str:
    if variable.name == APPLICATION:
        return value.encode("utf-8", "replace")[:_NAME_BYTES].decode("utf-8", "ignore")
    if len(value.encode("utf-8", "replace")) > _MOST_BYTES:
        raise error("INVALID_PARAMETER", f"the value of {variable.name} is longer than {_MOST_BYTES} bytes")
    if variable.name in QUANTITIES:
        return as_shown(variable.name, value)
    if variable.name in _RATES:
        rate_limit({variable.name: value}, variable.name)
    lowered = value.lower()
    if variable.name == DIALECT:
        return language_named(lowered).name
    if variable.kind == "boolean":
        if lowered in _TRUE:
            return "true"
        if lowered in _FALSE:
            return "false"
        raise error("INVALID_PARAMETER", f'{variable.name} is true or false, not "{value}"')
    if variable.kind == "interval":
        if value and timeout_us(value) is None:
            raise error(
                "INVALID_PARAMETER",
                f'{variable.name} can\'t be "{value}"',
                hint="Set a positive interval of fixed length, such as '10s'.",
            )
        return value
    if variable.kind == "integer":
        try:
            number = int(value)
        except ValueError:
            raise error("INVALID_PARAMETER", f'{variable.name} is a whole number, not "{value}"') from None
        if variable.least is not None and number < variable.least:
            raise error("INVALID_PARAMETER", f"{variable.name} is at least {variable.least}, not {number}")
        return str(number)
    if variable.choices and lowered not in variable.choices:
        raise error(
            "INVALID_PARAMETER",
            f'{variable.name} can\'t be "{value}"',
            hint="Choose one of " + ", ".join(c or "''" for c in variable.choices) + ".",
        )
    return value


STATEMENT_TIMEOUT: Final = "statement_timeout"
RESULT_SIZE: Final = "max_result_size"

#: The settings that limit statements and sessions. 0 means no limit.
LIMITS: Final = (
    STATEMENT_TIMEOUT,
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    RESULT_SIZE,
)

_INT32: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Quantity:
    """A duration or size, from 0 to `most`. units: their factors, smallest first. unit: that of a plain number."""

    units: dict[str, float]
    unit: str
    most: int = _INT32

    def read(self, name: str, value: str) -> int:
        """The number of units of a setting called `name`. Raises INVALID_PARAMETER.

        PostgreSQL, "Parameter Names and Values".
        """
        factors = {known.lower(): factor for known, factor in self.units.items()}
        found = _AMOUNT.fullmatch(value)
        if found is None or (found[2] and found[2].lower() not in factors):
            *known, last = (f'"{written}"' for written in self.units)
            raise error(
                "INVALID_PARAMETER",
                f'invalid value for parameter "{name}": "{value}"',
                hint=f"Valid units for this parameter are {', '.join(known)}, and {last}.",
            )
        factor = Decimal(str(factors[(found[2] or self.unit).lower()])) / Decimal(str(self.units[self.unit]))
        number = round(Decimal(found[1]) * factor)
        if not 0 <= number <= self.most:
            raise error(
                "INVALID_PARAMETER",
                f'{number} {self.unit} is outside the valid range for parameter "{name}" '
                f"(0 {self.unit} .. {self.most} {self.unit})",
            )
        return number

    def text(self, number: int) -> str:
        """A number in the largest unit that needs no fraction."""
        basic = number * int(self.units[self.unit])
        return next((f"{basic // int(f)}{u}" for u, f in reversed(self.units.items()) if basic and basic % f == 0), "0")


_AMOUNT: Final = re.compile(r"\s*([+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z]*)\s*")
_TIMES: Final[dict[str, float]] = {"us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final[dict[str, float]] = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE: Final = Quantity(_BYTES, "B", (1 << 63) - 1)

#: The settings that are durations and sizes.
QUANTITIES: Final = {
    **dict.fromkeys(LIMITS, Quantity(_TIMES, "ms")),
    RESULT_SIZE: _SIZE,
    "lock_timeout": Quantity(_TIMES, "ms"),
    "transaction_timeout": Quantity(_TIMES, "ms"),
    "client_connection_check_interval": Quantity(_TIMES, "ms"),
    "tcp_keepalives_idle": Quantity(_TIMES, "s"),
    "work_mem": Quantity(_BYTES, "kB"),
    "maintenance_work_mem": Quantity(_BYTES, "kB"),
}


@lru_cache
def amount(name: str, value: str) -> int:
    """The value of one of `QUANTITIES` in its unit. Raises INVALID_PARAMETER."""
    return QUANTITIES[name].read(name, value)


@lru_cache
def size(name: str, value: str) -> int:
    """The bytes of a size such as `16MB`. Raises INVALID_PARAMETER."""
    return _SIZE.read(name, value)


def as_shown(name: str, value: str) -> str:
    """The value of one of `QUANTITIES` in the largest unit that needs no fraction. Raises INVALID_PARAMETER."""
    return QUANTITIES[name].text(amount(name, value))


def check_limit(name: str, value: str, most: str | None) -> None:
    """Raises INVALID_PARAMETER for an invalid limit, PERMISSION_DENIED for a limit beyond that of the role (`most`)."""
    wanted = amount(name, value)
    allowed = 0 if most is None else amount(name, most)
    if allowed and not 0 < wanted <= allowed:
        raise error(
            "PERMISSION_DENIED",
            f'permission denied to set parameter "{name}" to "{value}"',
            detail=f"It is at most {most} for this role.",
        )


def check_setting(name: str, value: str) -> str:
    """The value of a setting for new connections of a role. Raises UNDEFINED_OBJECT, INVALID_PARAMETER."""
    if name in LIMITS:
        return as_shown(name, value)
    variables = Variables(DEFAULT_DIALECT)
    found = variables.set(name, value)
    return variables.get(found.name)
