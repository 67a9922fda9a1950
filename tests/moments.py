"""Two moments of a database in DuckDB: its schema "start" holds what was there when a query started, the other tables
what is there now.

That is the least history in which "before", "after" and "when it comes" mean something: a node or operator whose rows
are decided when they come gives what it gave at the start, and what the rows that are new meet now. A table `x` has
beside it `x@came`: each row that was written to it, as it was, with the columns `_epoch` and `_seq`, of which the least
is the newest. A keyed table has `x@changes` too: what was done to it from the start on, with the columns `_seq`,
`_transaction` and `_diff`. Both moments have a time of their own (`NUMBERS`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from watersmeet.algebra.nodes import Cut, Node, Scan, TimeFilter
from watersmeet.algebra.trees import empty, with_inputs
from watersmeet.values.watermarks import NOW, Term, value

START = "start"
#: A source of which rows come in the order of time.
CLOCK = "clock"
#: The sources' numbers at both moments.
NUMBERS = {START: {NOW: 1, CLOCK: 1}, "main": {NOW: 2, CLOCK: 3}}
#: Tables with a primary key, of which the changes are known.
KEYED = ("f",)
#: At which moment things come, as an epoch's number.
EPOCHS = {START: 1, "main": 2}


@singledispatch
def at_start(node: Node) -> Node:
    """The tree over the tables as they were when the query started."""
    return with_inputs(node, [at_start(i) for i in node.inputs])


@at_start.register
def _(node: Scan) -> Node:
    return (
        node if node.relation_id.startswith(f"{START}.") else replace(node, relation_id=f"{START}.{node.relation_id}")
    )


@at_start.register
def _(node: Cut) -> Node:
    return at_start(node.input) if node.keeps == "before" else empty(node.columns)


@at_start.register
def _(node: TimeFilter) -> Node:
    def then(term: Term) -> Term:
        return term if term.source.startswith(f"{START}.") else Term(f"{START}.{term.source}", term.steps)

    return replace(node, input=at_start(node.input), bound=tuple(map(then, node.bound)))


def bound_sql(bound, moment: str = "main") -> str:
    """A watermark of that moment, or of the start if it says so, as a timestamp."""
    numbers = NUMBERS[moment] | {f"{START}.{source}": number for source, number in NUMBERS[START].items()}
    return f"make_timestamp({value(bound, numbers)})"


def table(relation_id: str, *, came: bool = False) -> str:
    """The table of a relation, with its schema if it is that of the start; came: all rows that were written to it."""
    schema, _, name = relation_id.rpartition(".")
    return f'"{schema}".' * bool(schema) + f'"{name}{"@came" * came}"'


def nearest(
    left: str,
    right: str,
    on: str,
    values: tuple[str, str],
    comparison: str,
    ties: list[str],
    residual: str | None,
    columns: tuple[list[str], list[str]],
    *,
    outer: bool,
) -> str:
    """The ASOF join of two texts of FROM.

    columns: of either side, with other names than the other's; ties: first counts the least, NULLs last.
    """
    down = "DESC" if comparison[0] == ">" else "ASC"
    order = ", ".join([f"{values[1]} {down} NULLS LAST", *(f"{t} ASC NULLS LAST" for t in ties)])
    condition = f"{on} AND {values[0]} {comparison} {values[1]}"
    kind = "LEFT" if outer else "INNER"
    numbered = f"(SELECT *, row_number() OVER () AS _n FROM {left})"
    met = (
        f"(SELECT *, row_number() OVER (PARTITION BY _n ORDER BY {order}) AS _p FROM {numbered} {kind} JOIN "
        f"{right} ON {condition})"
    )
    told = residual or "TRUE"
    shown = ", ".join(
        columns[0] + ([f"CASE WHEN {told} THEN {c} END AS {c}" for c in columns[1]] if outer else columns[1])
    )
    return f"(SELECT {shown} FROM {met} WHERE _p = 1{'' if outer else f' AND ({told})'})"


def changes(relation_id: str, columns: list[str], *, moment: str) -> str:
    """All that was done to a keyed table, in order: `columns`, `_seq`, `_transaction`, `_diff`.

    What is there at the start is one row of each key.
    """
    name = relation_id.removeprefix(f"{START}.")
    listed = ", ".join(columns)
    then = (
        f"SELECT {listed}, row_number() OVER () - 1000 AS _seq, -1 AS _transaction, 1 AS _diff FROM "
        f"{table(f'{START}.{name}')}"
    )
    return (
        then
        if moment == START
        else f'{then} UNION ALL SELECT {listed}, _seq, _transaction, _diff FROM main."{name}@changes"'
    )


def versions(
    text: str, columns: list[str], keys: list[str], time: str, names: tuple[str, str], *, more: str = ""
) -> str:
    """Of the changes `text`, from when on what was there: the last word about each key and time.

    names: of the columns for since and live.
    """
    same = " AND ".join(f"o.{k} = c.{k}" for k in keys)
    replaced = f"EXISTS (SELECT 1 FROM said AS o WHERE o._diff > 0 AND o._transaction = c._transaction AND {same})"
    listed = ", ".join(columns)
    return (
        f"(WITH said AS ({text}) SELECT {listed}, {time} AS {names[0]}, _diff > 0 AS {names[1]}{more} FROM said AS c "
        f"WHERE {time} IS NOT NULL AND (_diff > 0 OR NOT {replaced}) "
        f"QUALIFY row_number() OVER (PARTITION BY {', '.join(keys)}, {time}{more} ORDER BY _seq DESC) = 1)"
    )
