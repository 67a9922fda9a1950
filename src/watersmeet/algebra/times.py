"""Comparisons with the time of the epoch, in conditions: `column >= epoch_time(…)`.

They travel as conditions until the rewrite `time_filters` makes nodes of them. The call stands for the term that
contained now(): a term with the source `NOW`, written as JSON. Its place in the statement's text is that of the call.
"""

from __future__ import annotations

import json
from typing import Final

from sqlglot import exp

from watersmeet.algebra.scalars import Scalar
from watersmeet.errors import Error, Span, error
from watersmeet.places import own_place, set_place
from watersmeet.serialization import from_json, to_json
from watersmeet.types import SqlType
from watersmeet.watermarks import Term

_CALL: Final = "epoch_time"

#: RisingWave's text (frontend, optimizer: the refusal of predicates with now() that are no temporal filters).
_FORM: Final = (
    "Conditions containing now must be in the form of `input_expr cmp now_expr` or `now_expr cmp input_expr`, where "
    "`input_expr` references a column and contains no `now()`, and `now_expr` is a non-decreasing expression "
    "contains `now()`."
)


def epoch_time(term: Term, kind: SqlType, span: Span | None) -> exp.Expression:
    """The call that stands for `term`. kind: the type of the other operand, timestamp or timestamptz."""
    call = exp.Anonymous(
        this=_CALL, expressions=[exp.Literal.string(json.dumps(to_json(term))), exp.Literal.string(kind.name)]
    )
    set_place(call, span)
    return call


def term_of(node: exp.Expression) -> tuple[Term, SqlType] | None:
    """The term that `node` stands for and the type of the other operand; None for any other expression."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Anonymous) and node.this == _CALL:
        term, kind = (e.name for e in node.expressions)
        return from_json(Term, json.loads(term)), SqlType(kind)
    return None


def mentions_time(scalar: Scalar) -> bool:
    """True if the expression reads the time of the epoch."""
    return _call(scalar) is not None


def not_a_filter(span: Span | None, hint: str | None = None) -> Error:
    """The error for a condition with now() that is no temporal filter."""
    return error(
        "TIME_FILTER",
        _FORM,
        span=span,
        hint=hint or "Compare a column with now() plus or minus an interval: WHERE ts > now() - INTERVAL '1 hour'.",
    )


def left_in_join(scalar: Scalar) -> Error:
    """The error for a condition with now() that decides about matches of a preserved side."""
    return error(
        "TIME_FILTER",
        "Not supported: optimizer has tried to separate the temporal predicate(with now() expression) from the on "
        "condition, but it still reminded in on join's condition. Considering move it into WHERE clause?",
        span=place(scalar),
        hint=(
            "In ON it may refer to either side of an inner join, and to the side of an outer join that is not "
            "preserved."
        ),
    )


def place(scalar: Scalar) -> Span | None:
    """The place in the statement's text where the time is read."""
    call = _call(scalar)
    return None if call is None else own_place(call)


def _call(scalar: Scalar) -> exp.Anonymous | None:
    return next((a for a in scalar.expression.find_all(exp.Anonymous) if a.this == _CALL), None)
