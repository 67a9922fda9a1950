"""`date_diff_within(2m)` in the condition of a join: a range of the two sides' times.

Timeplus, "Multi-JOINs and ASOF JOINs", "Range Bidirectional JOIN" (TP-30 to TP-35); ruling D-003-07: the bound is
included, in both directions, and the columns may stand before or after it. The texts of errors are Proton's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.algebra.durations import duration_us
from watersmeet.binder.context.scope import Scope
from watersmeet.binder.dialects.timeplus.date_differences import check_lengths, with_differences
from watersmeet.catalog import TIME_COLUMN
from watersmeet.dialects.timeplus.nodes import RangeJoin
from watersmeet.dialects.tree.nodes import retyped
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, error
from watersmeet.places import own_place, set_place

_NAME: Final = "date_diff_within"


def with_ranges(node: exp.Join, left: Scope, right: Scope, text: str, settings: Mapping[str, str]) -> exp.Join:
    """The join with `l - d <= r AND l + d >= r` in place of each call, then marked as a range join.

    settings: `max_join_range`, in seconds. SYNTAX_ERROR, AMBIGUOUS_COLUMN, UNDEFINED_COLUMN.
    """
    condition = node.args.get("on")
    if condition is not None and settings.get("join_date_diff") != "scalar":
        node = with_differences(node, text, settings)
        condition = node.args["on"]
    if condition is None or not any(_is_call(n) for n in condition.find_all(exp.Anonymous)):
        return node
    made = retyped(node.copy(), RangeJoin)
    for call in list(made.args["on"].find_all(exp.Anonymous)):
        if _is_call(call):
            call.replace(_range(call, left, right, text, settings))
    return made


def _is_call(node: exp.Anonymous) -> bool:
    return str(node.this).lower() == _NAME


def _range(call: exp.Anonymous, left: Scope, right: Scope, text: str, settings: Mapping[str, str]) -> exp.Expression:
    arguments = list(call.expressions)
    bounds = [a for a in arguments if isinstance(a.this if isinstance(a, exp.Neg) else a, (exp.Interval, exp.Cast))]
    columns = [a for a in arguments if a not in bounds]
    if len(bounds) != 1 or len(columns) not in (0, 2):
        raise error(
            "SYNTAX_ERROR",
            f"wrong arguments of {_NAME}",
            sql=text,
            span=place_of(call),
            hint=f"Write {_NAME}(2m) or {_NAME}(left_stream.time, right_stream.time, 2m).",
        )
    bound = bounds[0]
    length_us = duration_us(bound)
    if length_us is not None:
        seconds = length_us / 1_000_000
        check_lengths(0 - seconds, seconds, place_of(call), text, settings, both_ways=True)
    one, other = columns or (_time_column(left, call, text), _time_column(right, call, text))
    within = [
        exp.GTE(this=one.copy(), expression=exp.Sub(this=other.copy(), expression=bound.copy())),
        exp.LTE(this=one.copy(), expression=exp.Add(this=other.copy(), expression=bound.copy())),
    ]
    for part in within:
        set_place(part, own_place(call))
    return exp.Paren(this=exp.And(this=within[0], expression=within[1]))


def _time_column(scope: Scope, call: exp.Anonymous, text: str) -> exp.Expression:
    tables = [t for t in scope.tables if t.alias is not None and any(c.name == TIME_COLUMN for c in t.columns)]
    if len(tables) == 1:
        return exp.column(exp.to_identifier(TIME_COLUMN, quoted=True), exp.to_identifier(tables[0].alias, quoted=True))
    raise _no_one(bool(tables), call, text)


def _no_one(several: bool, call: exp.Anonymous, text: str) -> Error:
    return error(
        "AMBIGUOUS_COLUMN" if several else "UNDEFINED_COLUMN",
        f"{'more than one relation' if several else 'no relation'} of one side has a column {TIME_COLUMN}",
        sql=text,
        span=place_of(call),
        hint=f"Name the columns: {_NAME}(left_stream.time, right_stream.time, 2m).",
    )
