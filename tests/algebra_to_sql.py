"""A tree of the algebra as DuckDB SQL over tables called by relation id: the meaning of the algebra, in one page.

What it means to be there before a query started, or to be decided on arrival, is said over two moments
(`tests.moments`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch

from tests.circuit_to_sql import aggregate, over, topn_where
from tests.moments import EPOCHS, START, at_start, bound_sql, changes, nearest, table, versions
from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Arrivals,
    AsofJoin,
    ChangeLog,
    Changes,
    Clock,
    Cut,
    Expand,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Records,
    Repartition,
    Repeat,
    Scan,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Values,
    Versions,
    Window,
)
from watersmeet.algebra.rewrites.conditions import as_predicate


def to_sql(tree: Node) -> str:
    """A query whose columns are the ids of the tree's columns, in order."""
    return f"SELECT {_columns(tree)} FROM {_from(tree)}"


def _columns(node):
    return ", ".join(f'"{c.id}"' for c in node.columns)


@singledispatch
def _from(node: Node) -> str:
    raise AssertionError(type(node).__name__)


@_from.register
def _(node: Scan):
    columns = ", ".join(f'"{n}" AS "{c.id}"' for c, n in zip(node.outputs, node.source_names))
    return f"(SELECT {columns} FROM {table(node.relation_id)})"


@_from.register
def _(node: Arrivals):
    scan = node.scan
    columns = [f'"{n}" AS "{c.id}"' for c, n in zip(scan.outputs, scan.source_names)]
    columns += [f'{n} AS "{c.id}"' for c, n in zip(node.age, ("_epoch", "_seq"))]
    return f"(SELECT {', '.join(columns)} FROM {table(scan.relation_id, came=True)})"


@_from.register
def _(node: Cut):
    started = at_start(node.input)
    if node.keeps == "before":
        return _from(started)
    return f"({to_sql(node.input)} EXCEPT ALL {to_sql(started)})"


@_from.register
def _(node: Clock):
    (column,) = node.outputs
    return f'(SELECT CAST(now() AS {column.type.duckdb}) AS "{column.id}")'


@_from.register
def _(node: Values):
    def row(scalars):
        return "SELECT " + ", ".join(
            f'CAST({s.sql()} AS {c.type.duckdb}) AS "{c.id}"' for s, c in zip(scalars, node.outputs)
        )

    if not node.rows:
        nulls = ", ".join(f'CAST(NULL AS {c.type.duckdb}) AS "{c.id}"' for c in node.outputs)
        return f"(SELECT {nulls} WHERE FALSE)"
    return "(" + " UNION ALL ".join(row(r) for r in node.rows) + ")"


@_from.register
def _(node: Filter):
    return f"(SELECT * FROM {_from(node.input)} WHERE {node.predicate.sql()})"


@_from.register
def _(node: TimeFilter):
    untimed = f' OR "{node.column}" IS NULL' if node.untimed else ""
    passed = (
        f'(SELECT * FROM {_from(node.input)} WHERE "{node.column}" {node.comparison} {bound_sql(node.bound)}{untimed})'
    )
    started = at_start(node)
    if not node.stays or started == node:
        return passed
    before = to_sql(started)
    return f"({before} UNION ALL (SELECT {_columns(node)} FROM {passed} EXCEPT ALL {before}))"


@_from.register
def _(node: Changes):
    """Of rows that say nothing of their time."""
    assert all(c.time is None for c in node.causes)
    columns = _columns(node.input)
    started = at_start(node)
    if started == node:
        parts = [f"SELECT {columns}, FALSE, NULL FROM {_from(node.input)}"]
    else:
        then, now = to_sql(at_start(node.input)), to_sql(node.input)
        sides = ((now, then, "FALSE"), (then, now, "TRUE"))
        parts = [
            to_sql(started),
            *(f"SELECT {columns}, {went}, NULL FROM ({a} EXCEPT ALL {b})" for a, b, went in sides),
        ]
    return f"(SELECT * FROM ({' UNION ALL '.join(parts)}) AS r({_columns(node)}))"


@_from.register
def _(node: Records):
    columns = ", ".join(f'"{c.id}"' for c in node.own)
    started = at_start(node)
    first = started == node
    epoch = EPOCHS[START if first else "main"]
    new = to_sql(node.input) if first else f"({to_sql(node.input)}) EXCEPT ALL ({to_sql(at_start(node.input))})"
    parts = [] if first else [to_sql(started)]
    if node.key is None:
        parts.append(f"SELECT {columns}, FALSE, {epoch} FROM ({new})")
    else:
        went = node.input.columns[-2].id
        same = " AND ".join(f'o."{k}" IS NOT DISTINCT FROM g."{k}"' for k in node.key)
        kept = ", ".join(f'"{c.id}"' if c.id in node.kept else "NULL" for c in node.own)
        parts.append(f'SELECT {columns}, FALSE, {epoch} FROM ({new}) WHERE NOT "{went}"')
        parts.append(
            f'SELECT DISTINCT {kept}, TRUE, {epoch} FROM ({new}) AS g WHERE "{went}" '
            f'AND NOT EXISTS (SELECT 1 FROM ({new}) AS o WHERE NOT o."{went}" AND {same})'
        )
    return f"(SELECT * FROM ({' UNION ALL '.join(parts)}) AS r({_columns(node)}))"


@_from.register
def _(node: ChangeLog):
    """Without the numbers of the changes."""
    columns = _columns(node.input)
    started = at_start(node)
    if started == node:
        return f"(SELECT * FROM (SELECT {columns}, 1, NULL FROM {_from(node.input)}) AS r({_columns(node)}))"
    then, now = to_sql(at_start(node.input)), to_sql(node.input)
    came, went = f"({now} EXCEPT ALL {then})", f"({then} EXCEPT ALL {now})"
    parts = [to_sql(started)]
    for new, old, single, pair in ((came, went, 1, 3), (went, came, 2, 4)):
        same = " AND ".join(f'o."{k}" IS NOT DISTINCT FROM g."{k}"' for k in node.key or ())
        other = f"EXISTS (SELECT 1 FROM {old} AS o WHERE {same})" if node.key else "FALSE"
        parts.append(f"SELECT {columns}, CASE WHEN {other} THEN {pair} ELSE {single} END, NULL FROM {new} AS g")
    return f"(SELECT * FROM ({' UNION ALL '.join(parts)}) AS r({_columns(node)}))"


@_from.register
def _(node: Versions):
    names = {c.id: f'"{n}"' for c, n in zip(node.scan.outputs, node.scan.source_names)}
    moment = START if at_start(node) == node else "main"
    made = versions(
        changes(node.scan.relation_id, list(names.values()), moment=moment),
        list(names.values()),
        [names[k] for k in node.scan.key],
        names[node.time],
        ("_since", "_live"),
    )
    shown = ", ".join(f'{n} AS "{c.id}"' for c, n in zip(node.columns, (*names.values(), "_since", "_live")))
    return f"(SELECT {shown} FROM {made})"


@_from.register
def _(node: Project):
    exprs = ", ".join(f'CAST({x.sql()} AS {c.type.duckdb}) AS "{c.id}"' for x, c in zip(node.exprs, node.outputs))
    return f"(SELECT {exprs} FROM {_from(node.input)})"


def _on(node: Join | TemporalJoin | AsofJoin, *, residual: bool = True) -> str:
    parts = [as_predicate(k).sql() for k in node.keys]
    return (
        " AND ".join(parts + ([f"({node.residual.sql()})"] if residual and node.residual is not None else [])) or "TRUE"
    )


def _with_some(left: str, right: str, on: str, *, some: bool) -> str:
    return f"(SELECT * FROM {left} WHERE {'' if some else 'NOT '}EXISTS (SELECT 1 FROM {right} WHERE {on}))"


@_from.register
def _(node: Join):
    left, right, on = _from(node.left), _from(node.right), _on(node)
    if node.arrival:
        return _on_arrival(node)
    if node.kind in ("semi", "anti"):
        return _with_some(left, right, on, some=node.kind == "semi")
    if node.partners is not None:
        return _partnered(node, left, right, on)
    return f"(SELECT * FROM {left} {node.kind.upper()} JOIN {right} ON {on})"


def _partnered(node: Join, left: str, right: str, on: str) -> str:
    """The pairs, and the rows of the preserved sides of which no pair makes one with a partner."""
    parts = [f"SELECT {_columns(node)} FROM {left} INNER JOIN {right} ON {on}"]
    for own, other, side, partner, kinds in (
        (left, right, node.left, node.partners[0], ("left", "full")),
        (right, left, node.right, node.partners[1], ("right", "full")),
    ):
        if node.kind in kinds:
            columns = ", ".join(
                f'"{c.id}"' if c.id in side.ids else f'CAST(NULL AS {c.type.duckdb}) AS "{c.id}"' for c in node.columns
            )
            parts.append(f"SELECT {columns} FROM {_with_some(own, other, f'{on} AND ({partner.sql()})', some=False)}")
    return "(" + " UNION ALL ".join(parts) + ")"


def _decided(node: Node, left: Node, met: Callable[[str], str]) -> str:
    """What was there at the start, and what the rows of `left` that are new meet now: `met` of a text with these."""
    started = at_start(node)
    if started == node:
        return met(_from(left))
    new = f"({to_sql(left)} EXCEPT ALL {to_sql(at_start(left))})"
    return f"({to_sql(started)} UNION ALL SELECT {_columns(node)} FROM {met(new)})"


def _on_arrival(node: Join) -> str:
    right, on = _from(node.right), _on(node)
    if node.kind in ("semi", "anti"):
        return _decided(node, node.left, lambda new: _with_some(new, right, on, some=node.kind == "semi"))
    parts = [f"SELECT {_columns(node)} FROM {_from(node.left)} INNER JOIN {right} ON {on}"]
    for one, other, kinds in ((node.left, node.right, ("left", "full")), (node.right, node.left, ("right", "full"))):
        if node.kind in kinds:  # the rows that are alone as an anti join, with NULLs beside them
            alone = _decided(
                Join(
                    one,
                    other,
                    "anti",
                    tuple(k if one is node.left else replace(k, left=k.right, right=k.left) for k in node.keys),
                    node.residual,
                    arrival=True,
                ),
                one,
                lambda new, other=other: _with_some(new, _from(other), on, some=False),
            )
            columns = ", ".join(
                f'"{c.id}"' if c.id in one.ids else f'CAST(NULL AS {c.type.duckdb}) AS "{c.id}"' for c in node.columns
            )
            parts.append(f"SELECT {columns} FROM {alone}")
    return f"({' UNION ALL '.join(parts)})"


@_from.register
def _(node: TemporalJoin):
    right, on = _from(node.right), _on(node)
    found = _decided(node, node.left, lambda new: f"(SELECT * FROM {new} {node.kind.upper()} JOIN {right} ON {on})")
    left = at_start(node.left)
    if not node.waits or at_start(node) == node:
        return found
    waited = _with_some(_from(left), _from(at_start(node.right)), on, some=False)
    return (
        f"(SELECT {_columns(node)} FROM {found} UNION ALL SELECT {_columns(node)} FROM {waited} INNER JOIN "
        f"{right} ON {on})"
    )


@_from.register
def _(node: AsofJoin):
    columns = [[f'"{c.id}"' for c in side.columns] for side in node.inputs]
    ties = [f'"{i}"' for i in node.ties] or columns[1]
    residual = None if node.residual is None else node.residual.sql()

    def met(left: str) -> str:
        return nearest(
            left,
            _from(node.right),
            _on(node, residual=False),
            (node.left_value.sql(), node.right_value.sql()),
            node.comparison,
            ties,
            residual,
            (columns[0], columns[1]),
            outer=node.kind == "left",
        )

    return _decided(node, node.left, met) if node.arrival else met(_from(node.left))


@_from.register
def _(node: Apply):
    """DuckDB finds the left side's columns in the right one by their ids, because ids are unique."""
    left, right = _from(node.left), _from(node.right)
    if node.kind in ("inner", "left"):
        return f"(SELECT * FROM {left} {node.kind.upper()} JOIN LATERAL {right} ON TRUE)"
    if not node.pairs:
        truth = f"EXISTS {right}"
    else:
        lefts, rights = (", ".join(s.sql() for s in side) for side in zip(*[(k.left, k.right) for k in node.pairs]))
        truth = f"({lefts}) IN (SELECT {rights} FROM {right})"
    if node.kind == "mark":
        return (
            f'(SELECT *, {truth if node.null_aware else f"coalesce({truth}, FALSE)"} AS "{node.mark.id}" FROM {left})'
        )
    if node.kind == "semi":
        return f"(SELECT * FROM {left} WHERE {truth})"
    return f"(SELECT * FROM {left} WHERE NOT {truth if node.null_aware else f'coalesce({truth}, FALSE)'})"


@_from.register
def _(node: Aggregate):
    exprs = [f'{k.sql()} AS "{c.id}"' for k, c in zip(node.keys, node.outputs)]
    for call, column in zip(node.calls, node.outputs[len(node.keys) :]):
        order = [(k.value.sql(), k.descending, k.nulls_first) for k in call.order]
        argument, condition = (None if s is None else s.sql() for s in (call.argument, call.filter))
        exprs.append(f'CAST({aggregate(call, argument, condition, order)} AS {column.type.duckdb}) AS "{column.id}"')
    keys = ", ".join(str(i + 1) for i in range(len(node.keys)))
    return f"(SELECT {', '.join(exprs)} FROM {_from(node.input)}{' GROUP BY ' + keys if keys else ''})"


@_from.register
def _(node: Unnest):
    elements = [f'{a.sql()}[n] AS "{c.id}"' for a, c in zip(node.arrays, node.elements)]
    elements += [f'n AS "{node.ordinality.id}"'] if node.ordinality is not None else []
    longest = "greatest(" + ", ".join(f"coalesce(len({a.sql()}), 0)" for a in node.arrays) + ", 0)"
    below = f"_below AS MATERIALIZED (SELECT *, row_number() OVER () AS _row FROM {_from(node.input)})"  # numbered once
    every = f"(SELECT *, {', '.join(elements)} FROM _below, range(1, {longest} + 1) AS s(n))"
    kept = f"(SELECT * EXCLUDE (n) FROM {every} WHERE {node.condition.sql() if node.condition is not None else 'TRUE'})"
    found = f"SELECT * EXCLUDE (_row) FROM {kept}"
    if node.outer:
        nulls = ", ".join(f'NULL AS "{c.id}"' for c in node.made)
        found += (
            f" UNION ALL BY NAME SELECT * EXCLUDE (_row), {nulls} FROM _below WHERE _row NOT IN (SELECT _row "
            f"FROM {kept})"
        )
    return f"(WITH {below} {found})"


@_from.register
def _(node: Union):
    names = ", ".join(f'"{c.id}"' for c in node.outputs)
    parts = " UNION ALL ".join(f"({to_sql(p)})" for p in node.parts)
    return f"(SELECT * FROM ({parts}) AS u({names}))"


@_from.register
def _(node: Repartition):
    return _from(node.input)


@_from.register
def _(node: LateRowFilter):
    """What is late is left out of what is new; nothing is at the start."""
    started = at_start(node.input)
    if started == node.input:
        return f"(SELECT * FROM {_from(node.input)} WHERE FALSE)" if node.late else _from(node.input)
    now = to_sql(node.input)
    late = (
        f'SELECT {_columns(node)} FROM ({now} EXCEPT ALL {to_sql(started)}) WHERE "{node.column}" < '
        f"{bound_sql(node.bound, START)}"
    )
    return f"({late})" if node.late else f"({now} EXCEPT ALL {late})"


@_from.register
def _(node: Repeat):
    times = f"LATERAL range({node.times.sql()})"
    return f"(SELECT {_columns(node)} FROM {_from(node.input)}, {times})"


@_from.register
def _(node: Expand):
    def part(number, chosen):
        keys = [
            f'{k.sql() if i in chosen else "NULL"}::{k.type.duckdb} AS "{c.id}"'
            for i, (k, c) in enumerate(zip(node.keys, node.made))
        ]
        return f'SELECT *, {", ".join(keys)}, {number} AS "{node.made[-1].id}" FROM {_from(node.input)}'

    return "(" + " UNION ALL ".join(part(n, s) for n, s in enumerate(node.sets)) + ")"


@_from.register
def _(node: TopN):
    columns = [f'"{c.id}"' for c in node.columns]
    exprs = ", ".join(
        [_over("row_number", node, node.order, columns) + " AS _n", _over("rank", node, node.order, columns) + " AS _r"]
    )
    where = topn_where(node.limit, node.offset, node.with_ties, "_n", "_r")
    return f"(SELECT {', '.join(columns)} FROM (SELECT *, {exprs} FROM {_from(node.input)}) WHERE {where})"


def _over(function, node, order, ties):
    keys = [(k.value.sql(), k.descending, k.nulls_first) for k in order]
    return over(function, [], None, [p.sql() for p in node.partition], keys, ties, ("range", None, None, "none"))


@_from.register
def _(node: Window):
    ties = [f'"{c.id}"' for c in node.input.columns]
    exprs = []
    for call, column in zip(node.calls, node.outputs):
        assert call.frame.value is None, "no frames by value here"
        arguments = [a.sql() for a in call.arguments]
        if call.function in ("lag", "lead", "nth_value", "ntile"):
            arguments[1:1] = [f"{call.number}"]
        if call.skips_nulls:
            arguments[-1] += " IGNORE NULLS"
        keys = [(k.value.sql(), k.descending, k.nulls_first) for k in call.order]
        frame = (call.frame.mode, call.frame.start, call.frame.end, call.frame.exclude)
        text = over(
            call.function,
            arguments,
            None if call.filter is None else call.filter.sql(),
            [p.sql() for p in node.partition],
            keys,
            ties,
            frame,
        )
        exprs.append(f'CAST({text} AS {column.type.duckdb}) AS "{column.id}"')
    return f"(SELECT *, {', '.join(exprs)} FROM {_from(node.input)})"
