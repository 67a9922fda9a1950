"""UNION without ALL or DISTINCT, in a query that runs."""

from __future__ import annotations

from sqlglot import exp

from watersmeet.binder.context.binding import Environment
from watersmeet.dialects.timeplus.nodes import PlainUnion
from watersmeet.errors import error
from watersmeet.places import own_place


def check_said(node: exp.SetOperation, env: Environment) -> None:
    """SYNTAX_ERROR with Proton's text for a UNION without ALL or DISTINCT that needs one."""
    union = node.find(PlainUnion)
    if union is not None:
        raise error(
            "SYNTAX_ERROR",
            "Expected ALL or DISTINCT in SelectWithUnion query; because setting (union_default_mode) is empty",
            sql=env.text,
            span=own_place(union),
            hint="Write UNION ALL or UNION DISTINCT, or SETTINGS union_default_mode = 'ALL' after the query.",
            code=558,
        )
