"""SETTINGS at the end of a query. Document 003, "JOIN Category", "Direct JOIN" (TP-09, TP-42, TP-56); ruling D-003-16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.dialects.queries import name_of, place_of
from watersmeet.dialects.semantics import Semantics
from watersmeet.errors import did_you_mean, error

#: What the settings may say now. None: a whole number above 0.
_VALUES: Final[dict[str, tuple[str, ...] | None]] = {
    "join_algorithm": ("default", "direct"), "join_use_nulls": ("0", "1"), "join_restore_nulls": ("0", "1"), "join_date_diff": ("range", "scalar"), "keep_versions": None, "max_join_range": None,
    "join_max_buffered_bytes": None, "aggregate_functions_null_for_empty": ("0", "1"),
    "seek_to": ("earliest", "latest"),
}
#: Values that exist elsewhere.
_LACKING: Final = {"join_algorithm": ("hash", "parallel_hash", "hybrid", "full_sorting_merge")}


def with_settings(query: exp.Expression, semantics: Semantics, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
    """The query without its settings, and these by name. UNDEFINED_OBJECT, INVALID_PARAMETER, FEATURE_NOT_SUPPORTED."""
    found = query.args.get("settings")
    if not found:
        return query, {}
    settings: dict[str, str] = {}
    for node in found:
        if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column) or not isinstance(node.expression, exp.Literal):
            raise error("SYNTAX_ERROR", "a setting is written name = value", sql=text, span=place_of(node))
        name, value = name_of(node.this.this), node.expression.name
        if name not in semantics.settings:
            raise error("UNDEFINED_OBJECT", f'setting "{name}" of a query does not exist', sql=text, span=place_of(node),
                        hint=did_you_mean(name, semantics.settings))
        wanted = _VALUES[name]
        if wanted == () or value in _LACKING.get(name, ()):
            raise error("FEATURE_NOT_SUPPORTED", f"setting {name} = {value} is not supported yet", sql=text, span=place_of(node))
        if value not in wanted if wanted is not None else not (value.isdecimal() and int(value)):
            raise error("INVALID_PARAMETER", f'setting {name} can\'t be "{value}"', sql=text, span=place_of(node),
                        hint="It is a whole number above 0." if wanted is None else "Choose one of " + ", ".join(wanted) + ".")
        settings[name] = value
    query = query.copy()
    query.set("settings", None)
    return query, settings


def fills_aggregates(semantics: Semantics, settings: Mapping[str, str]) -> bool:
    """True if aggregate functions of no values give the default of their type."""
    return semantics.aggregates_of_nothing == "default" and settings.get("aggregate_functions_null_for_empty") != "1"
