"""The planner turns a bound query into operators of a circuit, and into text that explains them.

`compile_view` rewrites a tree of the algebra and lowers it; `assemble` joins the operators of all views of a database
into one circuit; `explain` prints both. All functions are pure.
"""

from __future__ import annotations

from watersmeet.planner.display import PlanTree
from watersmeet.planner.explain import JSON_VERSION, ExplainOptions, explain
from watersmeet.planner.lowering import Producers, assemble, compile_connector_table, compile_view

__all__ = [
    "JSON_VERSION",
    "ExplainOptions",
    "PlanTree",
    "Producers",
    "assemble",
    "compile_connector_table",
    "compile_view",
    "explain",
]
