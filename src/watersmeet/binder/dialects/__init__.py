"""The registry of the rules of dialects. A dialect without rules of its own uses plain SQL."""

from __future__ import annotations

from typing import Final

from watersmeet.binder.context.rules import DialectRules
from watersmeet.binder.dialects.lenses.rules import LensesRules
from watersmeet.binder.dialects.sqlstream.rules import SqlstreamRules
from watersmeet.binder.dialects.timeplus.rules import TimeplusRules
from watersmeet.dialects import registry as languages
from watersmeet.dialects.registry import Language, language_named

#: The rules by dialect name; other dialects have the default rules.
_RULES: Final[dict[str, type[DialectRules]]] = {
    "lenses": LensesRules,
    "sqlstream": SqlstreamRules,
    "timeplus": TimeplusRules,
}


def register(language: Language, rules: type[DialectRules]) -> None:
    """Adds a dialect with its grammar, statements and defaults, and the rules for its queries.

    Raises INVALID_PARAMETER for a duplicate name.
    """
    languages.register(language)
    _RULES[language.name] = rules


def rules_of(dialect: str) -> DialectRules:
    """The rules of a dialect. Raises INVALID_PARAMETER for an unknown name."""
    return _RULES.get(dialect, DialectRules)(language_named(dialect))
