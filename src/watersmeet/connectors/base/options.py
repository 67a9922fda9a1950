"""WITH options of connectors: names, aliases, values, and what to say about a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from watersmeet.errors import did_you_mean, error

#: What every connector has: `ratelimit.rate_limit` reads it.
RATE_LIMIT: Final = "source_rate_limit"

_TRUE: Final = ("true", "t", "yes", "on", "1")
_FALSE: Final = ("false", "f", "no", "off", "0")


def refuse(message: str, *, detail: str | None = None, hint: str | None = None) -> NoReturn:
    """Raises CONNECTOR_OPTION."""
    raise error("CONNECTOR_OPTION", message, detail=detail, hint=hint)


class Options:
    """The options of one statement, taken out one by one; `finish` refuses what nobody asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._known: set[str] = {RATE_LIMIT}
        self._taken: set[str] = {RATE_LIMIT}

    def text(self, *names: str) -> str | None:
        """The value under the first of `names` that is given (the others are other spellings), or None."""
        self._known.update(names)
        present = [n for n in names if n in self._given]
        self._taken.update(present)
        if len({self._given[n] for n in present}) > 1:
            refuse(f"options {' and '.join(present)} contradict each other", detail="They mean the same option.")
        return self._given[present[0]] if present else None

    def choice(self, *names: str, among: Iterable[str], default: str) -> str:
        """One of `among` (lower case)."""
        value = self.text(*names)
        if value is None:
            return default
        if value.lower() not in among:
            refuse(f'option {names[0]} can\'t be "{value}"', hint="It must be one of " + ", ".join(sorted(among)) + ".")
        return value.lower()

    def flag(self, *names: str) -> bool | None:
        """A truth value, or None."""
        value = self.text(*names)
        if value is None:
            return None
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        return refuse(f'option {names[0]} can\'t be "{value}"', hint="It must be true or false.")

    def integer(
        self, *names: str, default: int | None = None, minimum: int | None = None, maximum: int | None = None
    ) -> int | None:
        """A whole number, or `default`."""
        value = self.text(*names)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            return refuse(f'option {names[0]} can\'t be "{value}"', hint="It must be a whole number.")
        if minimum is not None and number < minimum:
            refuse(f"option {names[0]} can't be {number}", hint=f"It must be {minimum} or more.")
        if maximum is not None and number > maximum:
            refuse(f"option {names[0]} can't be {number}", hint=f"It must be {maximum} or less.")
        return number

    def character(self, *names: str, default: str, empty: bool = False) -> str:
        r"""One ASCII character (`\t` and `tab` mean a tab); the empty text if `empty` allows it."""
        value = self.text(*names)
        if value is None:
            return default
        value = "\t" if value.lower() in ("\\t", "tab") else value
        if (not value and empty) or (len(value) == 1 and value.isascii() and value not in "\r\n"):
            return value
        return refuse(f'option {names[0]} can\'t be "{value}"', hint="It must be one ASCII character.")

    def under(self, prefix: str) -> dict[str, str]:
        """All options whose names start with `prefix`, without it."""
        found = {n: v for n, v in self._given.items() if n.startswith(prefix)}
        self._taken.update(found)
        return {n[len(prefix) :]: v for n, v in found.items()}

    def finish(self, connector: str) -> None:
        """Refuses options that nobody took."""
        for name in self._given:
            if name not in self._taken:
                refuse(
                    f'connector {connector} has no option "{name}"',
                    hint=did_you_mean(name, self._known) or "It has " + ", ".join(sorted(self._known)) + ".",
                )
