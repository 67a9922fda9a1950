"""The four comparisons of order: as nodes, as signs, with their sides exchanged, and negated."""

from __future__ import annotations

from typing import Final, Literal

from sqlglot import exp

Comparison = Literal["<", "<=", ">", ">="]
_Node = type[exp.Expression]

SIGNS: Final[dict[_Node, Comparison]] = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}

#: `b op a` for `a op b`.
MIRRORED_SIGNS: Final[dict[Comparison, Comparison]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
MIRRORED: Final[dict[_Node, _Node]] = {
    exp.LT: exp.GT,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}

#: The comparison that is true of non-NULL values when this one is false.
NEGATED: Final[dict[_Node, _Node]] = {exp.LT: exp.GTE, exp.LTE: exp.GT, exp.GT: exp.LTE, exp.GTE: exp.LT}
