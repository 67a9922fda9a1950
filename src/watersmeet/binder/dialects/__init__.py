"""Registry of the rules of dialects. A dialect without rules of its own has plain SQL."""

from __future__ import annotations

from typing import Final

from watersmeet.binder.context.rules import DialectRules
from watersmeet.binder.dialects.lenses.rules import LensesRules
from watersmeet.binder.dialects.sqlstream.rules import SqlstreamRules
from watersmeet.binder.dialects.timeplus.rules import TimeplusRules
from watersmeet.dialects import registry as languages
from watersmeet.dialects.registry import Language, language_named

#: The rules of each dialect by its name; other dialects have the default rules.
_RULES: Final[dict[str, type[DialectRules]]] = {
    "lenses": LensesRules,
    "sqlstream": SqlstreamRules,
    "timeplus": TimeplusRules,
}


def register(language: Language, rules: type[DialectRules]) -> None:
    """Adds a dialect: its grammar, statements and defaults, and the meaning of its queries.

    INVALID_PARAMETER for a name that is taken.
    """
    languages.register(language)
    _RULES[language.name] = rules


def rules_of(dialect: str) -> DialectRules:
    """The rules of a dialect; INVALID_PARAMETER for an unknown name."""
    return _RULES.get(dialect, DialectRules)(language_named(dialect))
