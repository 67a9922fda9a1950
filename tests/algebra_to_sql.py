"""A tree of the algebra as DuckDB SQL over tables called by relation id: the meaning of the algebra, in one page."""

from __future__ import annotations

from functools import singledispatch

from tests.circuit_to_sql import aggregate, bound_sql, over, topn_where
from watersmeet.algebra.relations import (
    Aggregate,
    Apply,
    Expand,
    Filter,
    Join,
    Project,
    Relation,
    Repartition,
    Repeat,
    Scan,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Values,
    Window,
)
from watersmeet.algebra.rewrites.keys import as_predicate


def to_sql(tree: Relation) -> str:
    """A query whose columns are the ids of the tree's columns, in order."""
    return f"SELECT {_columns(tree)} FROM {_from(tree)}"


def _columns(node):
    return ", ".join(f'"{c.id}"' for c in node.columns)


@singledispatch
def _from(node: Relation) -> str:
    raise AssertionError(type(node).__name__)


@_from.register
def _(node: Scan):
    columns = ", ".join(f'"{n}" AS "{c.id}"' for c, n in zip(node.outputs, node.source_names))
    return f'(SELECT {columns} FROM "{node.relation_id}")'


@_from.register
def _(node: Values):
    def row(scalars):
        return "SELECT " + ", ".join(f'CAST({s.sql()} AS {c.type.duckdb}) AS "{c.id}"' for s, c in zip(scalars, node.outputs))
    if not node.rows:
        nulls = ", ".join(f'CAST(NULL AS {c.type.duckdb}) AS "{c.id}"' for c in node.outputs)
        return f"(SELECT {nulls} WHERE FALSE)"
    return "(" + " UNION ALL ".join(row(r) for r in node.rows) + ")"


@_from.register
def _(node: Filter):
    return f"(SELECT * FROM {_from(node.input)} WHERE {node.predicate.sql()})"


@_from.register
def _(node: TimeFilter):
    return f'(SELECT * FROM {_from(node.input)} WHERE "{node.column}" {node.comparison} {bound_sql(node.bound)})'


@_from.register
def _(node: Project):
    exprs = ", ".join(f'CAST({x.sql()} AS {c.type.duckdb}) AS "{c.id}"' for x, c in zip(node.exprs, node.outputs))
    return f"(SELECT {exprs} FROM {_from(node.input)})"


@_from.register
def _(node: Join):
    parts = [as_predicate(k).sql() for k in node.keys] + ([] if node.residual is None else [f"({node.residual.sql()})"])
    on = " AND ".join(parts) or "TRUE"
    if node.kind in ("semi", "anti"):
        some = "EXISTS" if node.kind == "semi" else "NOT EXISTS"
        return f"(SELECT * FROM {_from(node.left)} WHERE {some} (SELECT 1 FROM {_from(node.right)} WHERE {on}))"
    return f"(SELECT * FROM {_from(node.left)} {node.kind.upper()} JOIN {_from(node.right)} ON {on})"


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
        return f'(SELECT *, {truth if node.null_aware else f"coalesce({truth}, FALSE)"} AS "{node.mark.id}" FROM {left})'
    if node.kind == "semi":
        return f"(SELECT * FROM {left} WHERE {truth})"
    return f"(SELECT * FROM {left} WHERE NOT {truth if node.null_aware else f'coalesce({truth}, FALSE)'})"


@_from.register
def _(node: Aggregate):
    exprs = [f'{k.sql()} AS "{c.id}"' for k, c in zip(node.keys, node.outputs)]
    for call, column in zip(node.calls, node.outputs[len(node.keys):]):
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
    below = f"(SELECT *, row_number() OVER () AS _row FROM {_from(node.input)})"
    every = f"(SELECT *, {', '.join(elements)} FROM {below}, range(1, {longest} + 1) AS s(n))"
    kept = f"(SELECT * EXCLUDE (n) FROM {every} WHERE {node.condition.sql() if node.condition is not None else 'TRUE'})"
    found = f"SELECT * EXCLUDE (_row) FROM {kept}"
    if node.outer:
        nulls = ", ".join(f'NULL AS "{c.id}"' for c in node.made)
        found += f" UNION ALL BY NAME SELECT * EXCLUDE (_row), {nulls} FROM {below} WHERE _row NOT IN (SELECT _row FROM {kept})"
    return f"({found})"


@_from.register
def _(node: Union):
    names = ", ".join(f'"{c.id}"' for c in node.outputs)
    parts = " UNION ALL ".join(f"({to_sql(p)})" for p in node.parts)
    return f"(SELECT * FROM ({parts}) AS u({names}))"


@_from.register
def _(node: Repartition):
    return _from(node.input)


@_from.register
def _(node: Repeat):
    times = f"LATERAL range({node.times.sql()})"
    return f"(SELECT {_columns(node)} FROM {_from(node.input)}, {times})"


@_from.register
def _(node: Expand):
    def part(number, chosen):
        keys = [f'{k.sql() if i in chosen else "NULL"}::{k.type.duckdb} AS "{c.id}"'
                for i, (k, c) in enumerate(zip(node.keys, node.made))]
        return f'SELECT *, {", ".join(keys)}, {number} AS "{node.made[-1].id}" FROM {_from(node.input)}'

    return "(" + " UNION ALL ".join(part(n, s) for n, s in enumerate(node.sets)) + ")"


@_from.register
def _(node: TopN):
    columns = [f'"{c.id}"' for c in node.columns]
    exprs = ", ".join([_over("row_number", node, node.order, columns) + " AS _n", _over("rank", node, node.order, columns) + " AS _r"])
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
        keys = [(k.value.sql(), k.descending, k.nulls_first) for k in call.order]
        frame = (call.frame.mode, call.frame.start, call.frame.end, call.frame.exclude)
        text = over(call.function, arguments, None if call.filter is None else call.filter.sql(),
                    [p.sql() for p in node.partition], keys, ties, frame)
        exprs.append(f'CAST({text} AS {column.type.duckdb}) AS "{column.id}"')
    return f"(SELECT *, {', '.join(exprs)} FROM {_from(node.input)})"
