"""Options of connectors: declared once, read everywhere.

An `OptionSpec` declares one option. An `OptionSet` contains all options of a connector for one use, for example as a
source. It reads the options of a statement, rejects unknown ones, lists the options for SHOW CONNECTORS and writes the
tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from watersmeet.errors import did_you_mean, error
from watersmeet.errors.secretnames import is_secret
from watersmeet.values.times import SECOND_US, length_us

_TRUE: Final = ("true", "t", "yes", "on", "1")
_FALSE: Final = ("false", "f", "no", "off", "0")
Kind = Literal["text", "flag", "integer", "choice", "character", "prefix"]


def refuse(message: str, *, detail: str | None = None, hint: str | None = None) -> NoReturn:
    """Raises CONNECTOR_OPTION."""
    raise error("CONNECTOR_OPTION", message, detail=detail, hint=hint)


@dataclass(frozen=True)
class OptionSpec:
    r"""The declaration of an option.

    doc: one sentence. kind: the kind of its values; a `character` is ASCII (`\t` and `tab` mean a tab), and a `prefix`
    stands for all options whose names begin with it. default: the value of a missing option, or None. among: the values
    of a choice, in lower case. unit: the unit of an integer. secret: whether its values are hidden; then `secretnames`
    must recognize its name. is_idle: whether it is accepted without effect. is_internal: whether CREATE adds it.
    """

    name: str
    doc: str
    kind: Kind = "text"
    aliases: tuple[str, ...] = ()
    default: str | int | bool | None = None
    among: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    unit: str = ""
    secret: bool = False
    since: str = "0.1.0"
    is_needed: bool = False
    is_idle: bool = False
    is_internal: bool = False

    def __post_init__(self) -> None:
        if self.secret and not is_secret(self.name, ""):
            raise ValueError(f'option "{self.name}" is secret; its name has to end in password, secret, token or key')

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)


#: The option of all sources that `rates.rate_limit` reads.
RATE_LIMIT: Final = "source_rate_limit"
#: The options of every connector, which other code reads.
_SHARED: Final = ("connector", RATE_LIMIT)


@dataclass(frozen=True)
class OptionSet:
    """The options of a connector for one use. title: the connector for messages, such as `kafka of sinks`. skips:
    prefixes of the names of options that other code reads.
    """

    title: str
    specs: tuple[OptionSpec, ...]

    def read(self, given: Mapping[str, str]) -> Options:
        """The options of a statement. Raises CONNECTOR_OPTION for unknown ones."""
        return Options(self, given)

    def spec(self, name: str) -> OptionSpec:
        """The option with a name."""
        return next(s for s in self.specs if s.name == name)

    def having(self, name: str) -> OptionSpec | None:
        """The option that a statement calls `name`, or None."""
        for spec in self.specs:
            if name in spec.names or (spec.kind == "prefix" and name.startswith(spec.names)):
                return spec
        return None

    @property
    def shown(self) -> tuple[OptionSpec, ...]:
        """The options that users write."""
        return tuple(s for s in self.specs if not s.is_internal)


class Options:
    """The values of the options of one statement. Each method raises CONNECTOR_OPTION for an invalid value."""

    def __init__(self, known: OptionSet, given: Mapping[str, str]) -> None:
        self._known, self._given = known, given
        for name in given:
            if name not in _SHARED and known.having(name) is None:
                names = [n for s in known.shown for n in s.names]
                refuse(
                    f'connector {known.title} has no option "{name}"',
                    hint=did_you_mean(name, names) or (f"It has {', '.join(sorted(names))}." if names else None),
                )

    def given(self, name: str) -> str | None:
        """The text in the statement under any of the option's names, or None."""
        present = [n for n in self._known.spec(name).names if n in self._given]
        if len({self._given[n] for n in present}) > 1:
            refuse(f"options {' and '.join(present)} contradict each other", detail="They mean the same option.")
        return self._given[present[0]] if present else None

    def text(self, name: str) -> str:
        """The text, else the default, else the empty text."""
        value = self.given(name)
        return value if value is not None else str(self._known.spec(name).default or "")

    def needed(self, name: str) -> str:
        """The text. Also raises CONNECTOR_OPTION if it is missing or empty."""
        value = self.text(name)
        if not value:
            refuse(f'connector {self._known.title} needs the option "{name}"', hint=f"Write {name} = '…'.")
        return value

    def choice(self, name: str) -> str:
        """One of the values of the choice; the empty text if it is missing and has no default."""
        spec, value = self._known.spec(name), self.given(name)
        if value is None:
            return str(spec.default or "")
        if value.lower() not in spec.among:
            refuse(f'option {name} can\'t be "{value}"', hint=f"It must be one of {', '.join(sorted(spec.among))}.")
        return value.lower()

    def flag(self, name: str) -> bool:
        """A truth value; false if it is missing and has no default."""
        value = self.given(name)
        if value is None:
            return bool(self._known.spec(name).default)
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        return refuse(f'option {name} can\'t be "{value}"', hint="It must be true or false.")

    def integer(self, name: str) -> int | None:
        """A whole number, or the default, which may be None."""
        spec, value = self._known.spec(name), self.given(name)
        if value is None:
            return None if spec.default is None else int(spec.default)
        try:
            number = int(value)
        except ValueError:
            return refuse(f'option {name} can\'t be "{value}"', hint="It must be a whole number.")
        if spec.minimum is not None and number < spec.minimum:
            refuse(f"option {name} can't be {number}", hint=f"It must be {spec.minimum} or more.")
        if spec.maximum is not None and number > spec.maximum:
            refuse(f"option {name} can't be {number}", hint=f"It must be {spec.maximum} or less.")
        return number

    def number(self, name: str) -> int:
        """A whole number of an option that has a default."""
        found = self.integer(name)
        assert found is not None
        return found

    def character(self, name: str, *, empty: bool = False) -> str:
        """A single character, or the empty text if `empty` allows it."""
        value = self.text(name)
        value = "\t" if value.lower() in ("\\t", "tab") else value
        if (not value and empty) or (len(value) == 1 and value.isascii() and value not in "\r\n"):
            return value
        return refuse(f'option {name} can\'t be "{value}"', hint="It must be one ASCII character.")

    def under(self, prefix: str) -> dict[str, str]:
        """All options whose names start with `prefix`, by the rest of their names."""
        return {n.removeprefix(prefix): v for n, v in self._given.items() if n.startswith(prefix)}

    def check(self) -> None:
        """Raises CONNECTOR_OPTION for any invalid value."""
        for spec in self._known.specs:
            if spec.kind in ("flag", "integer", "choice"):
                getattr(self, spec.kind)(spec.name)


#: The option of external tables and dictionaries that `taken_max_age_us` reads.
MAX_AGE: Final = "lookup_max_age"


def taken_max_age_us(options: dict[str, str]) -> int:
    """Removes the option with the maximum age of look-up answers from `options` and returns it. Raises
    CONNECTOR_OPTION.
    """
    name = next((n for n in options if n.lower() == MAX_AGE), None)
    if name is None:
        return 0
    text = options.pop(name)
    found = int(text) * SECOND_US if text.isdecimal() else length_us(text)
    if found is None or found < 0:
        refuse(f'option {name} can\'t be "{text}"', hint="It is a number of seconds, or a length of time such as 5m.")
    return found
