"""The phrases by which text tests name a refusal, and the conditions of the engine that they mean."""

from __future__ import annotations

from typing import Final

#: Phrase -> conditions, any of which fulfils it.
PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "asof join in a batch query": ("FEATURE_NOT_SUPPORTED",),
    "asof join of an unsupported kind": ("ASOF_KIND",),
    "asof join without an equality condition": ("ASOF_WITHOUT_EQUALITY",),
    "asof join without an inequality condition": ("ASOF_WITHOUT_INEQUALITY",),
    "buffered bytes limit exceeded": ("BUFFER_LIMIT",),
    "ambiguous column": ("AMBIGUOUS_COLUMN",),
    "both sources in one condition not split by and": ("ON_NOT_SPLIT",),
    "both sources on one side of an equality": ("ON_ONE_SIDE",),
    "column is neither aggregated nor grouped": ("COLUMN_NOT_GROUPED",),
    "cross join with a join condition": ("JOIN_WITH_CONDITION",),
    "direct join with a right side that cannot be looked up": ("DIRECT_RIGHT_SIDE",),
    "direct join without a usable key": ("DIRECT_KEY",),
    "join and group by in one query": ("JOIN_AND_GROUP",),
    "join kind is not supported": ("JOIN_KIND",),
    "key formats differ": ("KEY_FORMATS",),
    "join without a condition": ("JOIN_WITHOUT_CONDITION",),
    "natural join with a join condition": ("JOIN_WITH_CONDITION",),
    "join of more than two sources": ("JOIN_SOURCES",),
    "join type not allowed for these sources": ("RECORD_JOIN_KIND",),
    "stream to stream join without within": ("STREAM_JOIN_WITHOUT_WITHIN",),
    "stream-table join without an equality condition": ("JOIN_WITHOUT_EQUALITY",),
    "stream-table outer join that preserves the table": ("JOIN_KIND",),
    "streaming join without an equality condition": ("JOIN_WITHOUT_EQUALITY",),
    "syntax error": ("SYNTAX_ERROR",),
    "temporal join condition covers no primary key or index key": ("TEMPORAL_KEY",),
    "temporal join of an unsupported kind": ("TEMPORAL_KIND",),
    "temporal join right side is not a table, index or materialized view": ("TEMPORAL_RIGHT_SIDE",),
    "two different within": ("TWO_WITHIN",),
    "unknown column": ("UNDEFINED_COLUMN",),
    "unknown relation": ("UNDEFINED_RELATION",),
    "unknown window name": ("UNDEFINED_OBJECT",),
    "unknown source": ("UNDEFINED_RELATION",),
    "window join of different windows": ("WINDOW_JOIN",),
    "within on a join that is not stream to stream": ("WITHIN_NOT_ALLOWED",),
}


def fulfils(phrase: str, condition: str) -> bool:
    """True if an error of `condition` is what `phrase` names; a condition's own name works too."""
    return condition in PHRASES.get(phrase, ()) or phrase.upper().replace(" ", "_") == condition
