"""SETTINGS at the end of a query. Document 003, "JOIN Category", "Direct JOIN" (TP-09, TP-42, TP-56); ruling D-003-16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.dialects.queries import name_of, place_of
from watersmeet.dialects.semantics import Semantics
from watersmeet.errors import did_you_mean, error

#: Values of settings that change nothing, as they are what is done anyway.
_DEFAULTS: Final = {"join_use_nulls": "1", "join_algorithm": "default"}
_LACKING: Final = ("join_algorithm", "join_max_buffered_bytes", "join_use_nulls", "keep_versions")


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
        if name in _LACKING and value != _DEFAULTS.get(name):
            raise error("FEATURE_NOT_SUPPORTED", f"setting {name} is not supported yet", sql=text, span=place_of(node))
        settings[name] = value
    query = query.copy()
    query.set("settings", None)
    return query, settings
