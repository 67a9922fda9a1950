"""The rules of each dialect, by its name. One without rules of its own has plain SQL."""

from __future__ import annotations

from typing import Final

from watersmeet.binder.dialects.lenses.rules import LensesRules
from watersmeet.binder.dialects.sqlstream.rules import SqlstreamRules
from watersmeet.binder.dialects.timeplus.rules import TimeplusRules
from watersmeet.binder.rules import DialectRules
from watersmeet.dialects.registry import language_named

#: What a dialect adds to plain SQL.
_RULES: Final[dict[str, type[DialectRules]]] = {
    "lenses": LensesRules,
    "sqlstream": SqlstreamRules,
    "timeplus": TimeplusRules,
}


def rules_of(dialect: str) -> DialectRules:
    """What queries of a dialect mean; INVALID_PARAMETER for an unknown name."""
    return _RULES.get(dialect, DialectRules)(language_named(dialect))
