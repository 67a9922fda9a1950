"""Which SQL DuckDB may not be able to interrupt, or may run with more memory than its limit."""

from __future__ import annotations

import re
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

#: The most characters and joins of SQL whose planning can be interrupted soon enough.
_MOST_CHARACTERS: Final = 1 << 20
_MOST_JOINS: Final = 40
#: The most that one call of a function makes of one row without harm: DuckDB computes 2,048 rows at once.
_MOST_REPEATED: Final = 1000
_MOST_SERIES: Final = 10_000
#: Functions whose single call may take long, or make a large value.
_SLOW: Final = re.compile(
    r"\b(levenshtein|damerau_levenshtein|editdist3|jaro_similarity|jaro_winkler_similarity|jaccard"
    r"|list_resize|array_resize)\s*\(",
    re.IGNORECASE,
)
_LARGE: Final = re.compile(r"\b(repeat|lpad|rpad|generate_series|range)\s*\(", re.IGNORECASE)
_JOIN: Final = re.compile(r"\bJOIN\b")
_EXPLAIN: Final = re.compile(r"^EXPLAIN \([^)]*\) ")
_SERIES: Final = (exp.GenerateSeries, exp.ExplodingGenerateSeries)


def needs_isolation(sql: str, *, columns_are_small: bool = False) -> bool:
    """Whether DuckDB may not be interruptible while it runs its SQL, or take memory beyond its limit.

    columns_are_small: numbers in columns are, as those of the catalog.
    """
    if len(sql) > _MOST_CHARACTERS or _SLOW.search(sql) or sum(1 for _ in _JOIN.finditer(sql)) > _MOST_JOINS:
        return True
    if not _LARGE.search(sql):
        return False
    try:
        tree = sqlglot.parse_one(_EXPLAIN.sub("", sql), read="duckdb")
    except (SqlglotError, RecursionError):
        return True
    return any(
        not _is_small(call, columns_are_small=columns_are_small)
        for call in tree.find_all(exp.Repeat, exp.Pad, *_SERIES)
    )


def _is_small(call: exp.Expression, *, columns_are_small: bool) -> bool:
    if isinstance(call, _SERIES):
        bounds = [call.args.get("start"), call.args.get("end")]
        if columns_are_small:
            return not any(b is not None and _may_be_large(b) for b in bounds)
        low, high = map(_number, bounds)
        return low is not None and high is not None and not call.args.get("step") and abs(high - low) <= _MOST_SERIES
    times = call.args["times"] if isinstance(call, exp.Repeat) else call.expression
    # The translation guards the number: CASE WHEN … THEN … ELSE number END.
    count = _number(times.args.get("default") if isinstance(times, exp.Case) else times)
    return count is not None and count <= _MOST_REPEATED


def _may_be_large(bound: exp.Expression) -> bool:
    """Whether a bound is more than what columns hold: by a large number in it, or a product."""
    return bound.find(exp.Mul, exp.Pow) is not None or any(
        not n.is_string and (_number(n) is None or abs(_number(n) or 0) > _MOST_SERIES)
        for n in bound.find_all(exp.Literal)
    )


def _number(value: exp.Expression | None) -> int | None:
    """The number that an expression is, if it is a literal."""
    while isinstance(value, (exp.Cast, exp.Paren)):
        value = value.this
    if isinstance(value, exp.Neg):
        found = _number(value.this)
        return None if found is None else -found
    return int(value.name) if isinstance(value, exp.Literal) and value.name.isdecimal() else None
