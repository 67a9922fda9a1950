"""SETTINGS at the end of a query.

Timeplus, "Multi-JOINs and ASOF JOINs", "JOIN Category", "Direct JOIN" (TP-09, TP-42, TP-56); ruling D-003-16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING
from watersmeet.binder.context.rules import Binding
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import did_you_mean, error

#: Settings that a query may have and that change no result here.
_TUNING: Final = frozenset(
    {
        "checkpoint_interval",
        "default_hash_join",
        "default_hash_table",
        "emit_aggregated_during_backfill",
        "emit_during_backfill",
        "enable_backfill_from_historical_store",
        "enable_optimize_predicate_expression",
        "force_backfill_in_order",
        "join_quiesce_threshold_ms",
        "max_block_size",
        "max_memory_usage",
        "max_threads",
        "optimize_move_to_prewhere",
        "priority",
        "query_id",
    }
)
#: Algorithms whose choice makes no difference to the result.
_HASHED: Final = ("hash", "parallel_hash", "hybrid", "full_sorting_merge", "auto")
#: The values that settings may have. None: a whole number above 0.
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
    "recovery_policy": ("best_effort", "strict"),
    "enable_dlq": ("1", "true"),
    "input_format_ignore_parsing_errors": ("1", "true"),
    "shards": ("0,2",),
    "union_default_mode": ("ALL", "DISTINCT"),
    "query_mode": ("streaming", "table"),
}
#: Settings that say a place in topics, which may have more values: a time or offsets, partitions.
_PLACES: Final = {
    "seek_to": re.compile(r"earliest|latest|-\d+(ms|s|m|h|d)|\d{4}-\d\d-\d\d([T ].+)?|\d+(\s*,\s*\d+)*"),
    "shards": re.compile(r"\d+(\s*,\s*\d+)*"),
}
_FORMS: Final = {
    "seek_to": "It is earliest, latest, a time such as 2024-01-31T12:00:00Z or -2h, or offsets such as 5,3,11.",
    "shards": "It is a list of partitions, such as 0,2.",
}
#: Settings for which 0 is also a value.
_ZERO: Final = (JOIN_ROWS_SETTING,)


def with_settings(query: exp.Expression, text: str) -> tuple[exp.Expression, Mapping[str, str]]:
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
        said = node.expression
        name, value = name_of(node.this.this), str(said.this).lower() if isinstance(said, exp.Boolean) else said.name
        if name in _TUNING:
            settings[name] = value
            continue
        if name not in _VALUES:
            raise error(
                "UNDEFINED_OBJECT",
                f'setting "{name}" of a query does not exist',
                sql=text,
                span=place_of(node),
                hint=did_you_mean(name, [*_VALUES, *_TUNING]),
            )
        wanted = _VALUES[name]
        if name in _PLACES:
            wrong = _PLACES[name].fullmatch(value) is None
        else:
            wrong = (
                value not in wanted if wanted is not None else not (value.isdecimal() and (int(value) or name in _ZERO))
            )
        if wrong:
            raise error(
                "INVALID_PARAMETER",
                f'setting {name} can\'t be "{value}"',
                sql=text,
                span=place_of(node),
                hint=("It must be a whole number." if name in _ZERO else "Write a whole number above 0.")
                if wanted is None
                else _FORMS.get(name) or "Choose one of " + ", ".join(wanted) + ".",
            )
        settings[name] = value
    query = query.copy()
    query.set("settings", None)
    return query, settings


def check_place(settings: Mapping[str, str], node: exp.Expression, text: str) -> None:
    """FEATURE_NOT_SUPPORTED for settings that say a place in a topic, where a stored stream is read."""
    for name in _PLACES:
        if settings.get(name, "earliest") not in ("earliest", "latest"):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"setting {name} = '{settings[name]}' of a stream in the database is not supported",
                sql=text,
                span=place_of(node),
                detail="Times, offsets and partitions are those of topics.",
                hint="Write WHERE _tp_time >= …, or seek_to = 'earliest'.",
            )


def within(own: Mapping[str, str], binding: Binding) -> Binding:
    """The binding inside a query with these settings."""
    if (told := unheeded(own)) is not None:
        binding.notice(told)
    found = binding.collected
    if "join_max_buffered_bytes" in own:
        found.limits.append(int(own["join_max_buffered_bytes"]))
    if JOIN_ROWS_SETTING in own and found.most_join_rows is None:  # of the outermost query that says so
        found.most_join_rows = int(own[JOIN_ROWS_SETTING])
    part = binding.part
    if part in ("all", "new") and "seek_to" in own:
        part = "all" if own["seek_to"] == "earliest" else "new"
    return replace(binding, settings={**binding.settings, **own}, part=part)


def stops_at_bad_messages(settings: Mapping[str, str]) -> bool:
    """Whether a message that can't be decoded stops a query: `recovery_policy = 'strict'`, unless such messages are
    ignored.
    """
    return settings.get("recovery_policy") == "strict" and "input_format_ignore_parsing_errors" not in settings


def unheeded(settings: Mapping[str, str]) -> str | None:
    """A notice about settings that have no effect; None if there are none."""
    names = sorted(n for n, v in settings.items() if n in _TUNING or (n == "join_algorithm" and v in _HASHED))
    if not names:
        return None
    return f"{', '.join(names)}: accepted without effect: no result depends on it."


def fills_aggregates(settings: Mapping[str, str]) -> bool:
    """True if aggregate functions without values return the default of their type."""
    return settings.get("aggregate_functions_null_for_empty") != "1"
