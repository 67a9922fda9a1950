"""Two moments of a database in DuckDB: its schema "start" holds what was there when a query started, the other tables what is there now.

That is the least history in which "before", "after" and "when it comes" mean something: a node or operator whose rows are decided when
they come gives what it gave at the start, and what the rows that are new meet now. A table `x` has beside it `x@came`: each row
that was written to it, as it was, with the columns `_epoch` and `_seq`, of which the least is the newest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from watersmeet.algebra.relations import Cut, Relation, Scan
from watersmeet.algebra.trees import empty, with_inputs

START = "start"


@singledispatch
def at_start(node: Relation) -> Relation:
    """The tree over the tables as they were when the query started."""
    return with_inputs(node, [at_start(i) for i in node.inputs])


@at_start.register
def _(node: Scan) -> Relation:
    return node if node.relation_id.startswith(f"{START}.") else replace(node, relation_id=f"{START}.{node.relation_id}")


@at_start.register
def _(node: Cut) -> Relation:
    return at_start(node.input) if node.keeps == "before" else empty(node.columns)


def table(relation_id: str, *, came: bool = False) -> str:
    """The table of a relation, with its schema if it is that of the start; came: all rows that were written to it."""
    schema, _, name = relation_id.rpartition(".")
    return f'"{schema}".' * bool(schema) + f'"{name}{"@came" * came}"'


def nearest(left: str, right: str, on: str, values: tuple[str, str], comparison: str, ties: list[str], residual: str | None,
            columns: tuple[list[str], list[str]], *, outer: bool) -> str:
    """The ASOF join of two texts of FROM. columns: of either side, with other names than the other's; ties: first counts the least, NULLs last."""
    down = "DESC" if comparison[0] == ">" else "ASC"
    order = ", ".join([f"{values[1]} {down} NULLS LAST", *(f"{t} ASC NULLS LAST" for t in ties)])
    condition = f"{on} AND {values[0]} {comparison} {values[1]}"
    kind = "LEFT" if outer else "INNER"
    numbered = f"(SELECT *, row_number() OVER () AS _n FROM {left})"
    met = f"(SELECT *, row_number() OVER (PARTITION BY _n ORDER BY {order}) AS _p FROM {numbered} {kind} JOIN {right} ON {condition})"
    told = residual or "TRUE"
    shown = ", ".join(columns[0] + ([f"CASE WHEN {told} THEN {c} END AS {c}" for c in columns[1]] if outer else columns[1]))
    return f"(SELECT {shown} FROM {met} WHERE _p = 1{'' if outer else f' AND ({told})'})"
