"""SETTINGS at the end of a query.

Timeplus, "Multi-JOINs and ASOF JOINs", "JOIN Category", "Direct JOIN" (TP-09, TP-42, TP-56); ruling D-003-16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.dialects.queries import name_of, place_of
from watersmeet.dialects.semantics import Semantics
from watersmeet.errors import did_you_mean, error

#: How many rows each join of a view may make in one epoch, 0 for any number.
JOIN_ROWS_SETTING: Final = "max_join_amplification_rows"
#: Algorithms of which the answer does not hang on the name.
_HASHED: Final = ("hash", "parallel_hash", "hybrid", "full_sorting_merge", "auto")
#: What the settings may say now. None: a whole number above 0.
_VALUES: Final[dict[str, tuple[str, ...] | None]] = {
    "join_algorithm": ("default", "direct", *_HASHED),
    "join_use_nulls": ("0", "1"),
    "join_restore_nulls": ("0", "1"),
    "join_date_diff": ("range", "scalar"),
    "keep_versions": None,
    "max_join_range": None,
    "join_max_buffered_bytes": None,
    JOIN_ROWS_SETTING: None,
    "aggregate_functions_null_for_empty": ("0", "1"),
    "seek_to": ("earliest", "latest"),
    "union_default_mode": ("ALL", "DISTINCT"),
    "query_mode": ("streaming", "table"),
}
#: Of which 0 is a value, too.
_ZERO: Final = (JOIN_ROWS_SETTING,)


def with_settings(query: exp.Expression, semantics: Semantics, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
    """The query without its settings, and these by name. UNDEFINED_OBJECT, INVALID_PARAMETER, FEATURE_NOT_SUPPORTED."""
    found = query.args.get("settings")
    if not found:
        return query, {}
    settings: dict[str, str] = {}
    for node in found:
        if (
            not isinstance(node, exp.EQ)
            or not isinstance(node.this, exp.Column)
            or not isinstance(node.expression, (exp.Literal, exp.Boolean))
        ):
            raise error("SYNTAX_ERROR", "a setting is written name = value", sql=text, span=place_of(node))
        name, value = name_of(node.this.this), node.expression.name
        if name in semantics.tuning:
            settings[name] = value
            continue
        if name not in semantics.settings:
            raise error(
                "UNDEFINED_OBJECT",
                f'setting "{name}" of a query does not exist',
                sql=text,
                span=place_of(node),
                hint=did_you_mean(name, semantics.settings | semantics.tuning),
            )
        wanted = _VALUES[name]
        if value not in wanted if wanted is not None else not (value.isdecimal() and (int(value) or name in _ZERO)):
            raise error(
                "INVALID_PARAMETER",
                f'setting {name} can\'t be "{value}"',
                sql=text,
                span=place_of(node),
                hint=("It is a whole number." if name in _ZERO else "It is a whole number above 0.")
                if wanted is None
                else "Choose one of " + ", ".join(wanted) + ".",
            )
        settings[name] = value
    query = query.copy()
    query.set("settings", None)
    return query, settings


def unheeded(semantics: Semantics, settings: Mapping[str, str]) -> str | None:
    """What tells the user of settings that change nothing here; None if there are none."""
    names = sorted(n for n, v in settings.items() if n in semantics.tuning or (n == "join_algorithm" and v in _HASHED))
    if not names:
        return None
    return f"{', '.join(names)}: accepted, and without effect: no result hangs on it."


def fills_aggregates(semantics: Semantics, settings: Mapping[str, str]) -> bool:
    """True if aggregate functions of no values give the default of their type."""
    return semantics.aggregates_of_nothing == "default" and settings.get("aggregate_functions_null_for_empty") != "1"
