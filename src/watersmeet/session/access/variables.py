"""Session variables: the names that SET and SHOW accept. Variables of a dialect are part of its `Language`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from watersmeet.algebra.timewindows import timeout_us
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING
from watersmeet.catalog import MOST_JOIN_ROWS
from watersmeet.dialectnames import DEFAULT_DIALECT, DIALECTS
from watersmeet.dialects.registry import dialect_variables, language_named
from watersmeet.dialects.variables import Variable
from watersmeet.errors import did_you_mean, error

#: The variable with the SQL dialect, and that with the name of the client's program.
DIALECT: Final = "dialect"
APPLICATION: Final = "application_name"
#: The name of a program is cut to so many bytes, as in PostgreSQL. Longer values of other variables are refused:
#: clients are told of a change, and libpq takes no message of more than 30,000 bytes about it.
_NAME_BYTES: Final = 63
_MOST_BYTES: Final = 16_384

_TRUE: Final = ("true", "t", "on", "yes", "1")
_FALSE: Final = ("false", "f", "off", "no", "0")


#: Variables of all dialects.
_SHARED: Final = (
    Variable(APPLICATION, "text", "", "Name of the program, for the reader of a log.", effect=True),
    Variable(DIALECT, "text", DEFAULT_DIALECT, "SQL that is spoken: " + ", ".join(DIALECTS) + ".", effect=True),
    Variable(
        JOIN_ROWS_SETTING,
        "integer",
        str(MOST_JOIN_ROWS),
        "Rows that each join of a new view may make in one epoch, or else the view fails; 0 means no limit.",
        effect=True,
        least=0,
    ),
    Variable("search_path", "text", '"$user", public', "Schemas in which names are looked up.", effect=True),
    Variable(
        "timezone",
        "text",
        "UTC",
        "Zone in which timestamptz values are shown and computed.",
        effect=True,
        choices=("utc", "etc/utc", "gmt", "+00:00", "0"),
    ),
)


def variables() -> dict[str, Variable]:
    """All variables by name, sorted."""
    return _by_name(tuple(dialect_variables()))


@lru_cache
def _by_name(own: tuple[Variable, ...]) -> dict[str, Variable]:
    return {v.name: v for v in sorted((*_SHARED, *own), key=lambda v: v.name)}


#: Other spellings. The prefix `rw_` is accepted for any name.
ALIASES: Final = {"time zone": "timezone", "time_zone": "timezone"}


class Variables:
    """The variables of one connection."""

    def __init__(self, dialect: str) -> None:
        """Sets the defaults, and the dialect of the connection."""
        self._values: dict[str, str] = {DIALECT: dialect}

    def get(self, name: str) -> str:
        """The value of `name` as text. Raises UNDEFINED_OBJECT."""
        variable = find(name)
        return self._values.get(variable.name, variable.default)

    def is_on(self, name: str) -> bool:
        """The value of a boolean variable."""
        return self.get(name) == "true"

    def set(self, name: str, value: str | None) -> Variable:
        """Sets `name` to the text `value`, or to its default for None. Raises UNDEFINED_OBJECT, INVALID_PARAMETER."""
        variable = find(name)
        if value is None or value.lower() == "default":
            if variable.name == DIALECT:
                raise error(
                    "INVALID_PARAMETER", "there is no default dialect", hint="Name one: " + ", ".join(DIALECTS) + "."
                )
            self._values.pop(variable.name, None)
        else:
            self._values[variable.name] = _checked(variable, value)
        return variable

    def saved(self) -> dict[str, str]:
        """The current values, for `restore`."""
        return dict(self._values)

    def restore(self, saved: dict[str, str]) -> None:
        """Restores the values that `saved` returned."""
        self._values = dict(saved)

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and description of all variables, sorted by name."""
        return [(v.name, self.shown(v.name), v.description) for v in variables().values()]

    def shown(self, name: str) -> str:
        """The value of a variable for who asks for it: not of a password. Raises UNDEFINED_OBJECT."""
        value = self.get(name)
        return "***" if value and find(name).secret else value


def find(name: str) -> Variable:
    """The variable called `name`, in any spelling. Raises UNDEFINED_OBJECT."""
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
        if variable.name == "timezone":
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'time zone "{value}" is not supported',
                hint="Sessions are in UTC. Use AT TIME ZONE to see a value in another zone.",
            )
        raise error(
            "INVALID_PARAMETER",
            f'{variable.name} can\'t be "{value}"',
            hint="Choose one of " + ", ".join(c or "''" for c in variable.choices) + ".",
        )
    return value
