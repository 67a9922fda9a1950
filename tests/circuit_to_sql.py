"""A circuit run by DuckDB over whole contents, bucket by bucket: what lowering and placement must keep.

Every operator is a table of its columns and `_b`, the bucket where the row is. Rows start in any
bucket, only exchanges move them, and joins and aggregates see the rows of their own bucket only:
a missing exchange gives a wrong result. What cuts by time or decides on arrival is run over two moments
(`tests.moments`).
"""

from __future__ import annotations

import duckdb

from tests.moments import EPOCHS, KEYED, START, bound_sql, changes, nearest, table, versions
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import (
    COLLECTED,
    Aggregate,
    Arrange,
    ArrivalAsofJoin,
    ArrivalJoin,
    Arrivals,
    AsofJoin,
    ChangeLog,
    Changes,
    Constant,
    Cut,
    DynamicFilter,
    Exchange,
    GroupJoin,
    Join,
    LateRowFilter,
    Map,
    MultiJoin,
    Records,
    Repeat,
    Scan,
    Sink,
    Sort,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Upsert,
    Versions,
    Window,
)


def run(circuit: Circuit, connection: duckdb.DuckDBPyConnection, relation_id: str) -> list[tuple]:
    """The content of `relation_id`, sorted; the tables of the scans are in `connection` by relation id."""
    schemas = {name for (name,) in connection.execute("SELECT schema_name FROM information_schema.schemata").fetchall()}
    for moment in (START, "main"):
        if moment not in schemas:
            continue
        connection.execute(f"USE {moment}")
        for op in circuit.operators:
            types = {f"c{i}": f.type.duckdb for i, f in enumerate(op.schema)}
            body = _MOMENTS[type(op)](op, circuit, moment) if type(op) in _MOMENTS else _BODIES[type(op)](op, circuit)
            columns = ", ".join(f"CAST({c} AS {t}) AS {c}" for c, t in types.items())
            connection.execute(f'CREATE OR REPLACE TABLE "{op.id}" AS SELECT {columns}, _b FROM ({body})')
    found = next(o for o in circuit.operators if isinstance(o, Sink) and o.relation_id == relation_id)
    return sorted(connection.execute(f'SELECT * EXCLUDE (_b) FROM "{found.id}"').fetchall(), key=repr)


def _scan(op: Scan, circuit, moment):
    """Where a row is says nothing of its columns, but is the same at both moments.

    Keyed tables are read with all that was done to them.
    """
    if op.ordered and op.relation_id in KEYED:
        read = ", ".join(f'"{n}" AS c{i}' for i, n in enumerate(op.names))
        done = changes(op.relation_id, [f'"{n}"' for n in op.names], moment=moment)
        return f"SELECT {read}, _seq AS c{len(op.names)}, hash(t) % {circuit.buckets} AS _b FROM ({done}) AS t"
    names = [f'"{n}"' for n in op.names] + ["-(1000 * _epoch + _seq)"] * op.ordered  # rises with every row
    columns = ", ".join(f"{n} AS c{i}" for i, n in enumerate(names))
    return f"SELECT {columns}, hash(t) % {circuit.buckets} AS _b FROM {table(op.relation_id, came=op.ordered)} AS t"


def _arrivals(op: Arrivals, circuit):
    scan = circuit.by_id[op.inputs[0]]
    columns = ", ".join(f'"{n}" AS c{i}' for i, n in enumerate([*scan.names, "_epoch", "_seq"]))
    return f"SELECT {columns}, hash(t) % {circuit.buckets} AS _b FROM {table(scan.relation_id, came=True)} AS t"


def _upsert(op: Upsert, circuit):
    """Of rows that only come the last one of each key."""
    assert (op.action, op.versions) == ("overwrite", ()), "only tables with connectors have conflict rules"
    columns = ", ".join(f"c{i}" for i in range(len(op.schema)))
    keys = ", ".join(f"c{k}" for k in op.keys)
    return (
        f'SELECT {columns}, _b FROM "{op.inputs[0]}" '
        f"QUALIFY row_number() OVER (PARTITION BY {keys}, _b ORDER BY c{len(op.schema)} DESC) = 1"
    )


def _cut(op: Cut, circuit, moment):
    if op.keeps == "before":
        return f'SELECT * FROM {START}."{op.inputs[0]}"'
    if moment == START:
        return f'SELECT * FROM "{op.inputs[0]}" WHERE FALSE'
    return f"({_new(op.inputs[0])})"


def _new(operator_id):
    """The rows of an operator, of which none goes, that were not there at the start."""
    return f'SELECT * FROM "{operator_id}" EXCEPT ALL SELECT * FROM {START}."{operator_id}"'


def _constant(op: Constant, circuit):
    rows = ["SELECT " + ", ".join(f"{x} AS c{i}" for i, x in enumerate(row)) + ", 0 AS _b" for row in op.rows_sql]
    nulls = ", ".join(f"NULL AS c{i}" for i in range(len(op.schema)))
    return " UNION ALL ".join(rows) or f"SELECT {nulls}, 0 AS _b WHERE FALSE"


def _map(op: Map, circuit):
    exprs = ", ".join(f"{x} AS c{i}" for i, x in enumerate(op.exprs))
    return f'SELECT {exprs}, _b FROM "{op.inputs[0]}"' + (f" WHERE {op.predicate}" if op.predicate else "")


def _exchange(op: Exchange, circuit):
    if op.mode == "broadcast":
        return f'SELECT t.* EXCLUDE (_b), r.range AS _b FROM "{op.inputs[0]}" t, range({circuit.buckets}) r'
    # equal values of different widths have one text, as they have one hash in the kernel
    texts = ", ".join(f"CAST(c{k} AS VARCHAR)" for k in op.keys)
    bucket = f"hash({texts}) % {circuit.buckets}" if op.keys else "0"
    return f'SELECT * EXCLUDE (_b), {bucket} AS _b FROM "{op.inputs[0]}"'


def _side(prefix, operator_id, circuit, rows=None):
    """rows: text of FROM, if not all rows of now."""
    columns = ", ".join(f"c{j} AS {prefix}{j}" for j in range(len(circuit.by_id[operator_id].schema)))
    return f"(SELECT {columns}, _b AS {prefix}b FROM {rows or table(operator_id)})"


def _sides(op, circuit, *, new=""):
    """Both sides of a join. new: l or r: of that side only the rows that are new."""
    return [_side(p, i, circuit, f"({_new(i)})" if p == new else None) for p, i in zip("lr", op.inputs)]


def _condition(op, circuit, *, residual=True):
    """Where two sides meet: in one bucket, with equal keys of one type."""
    on = ["lb = rb"]
    for a, b, safe in zip(op.left_keys, op.right_keys, op.null_safe):
        on.append(f"l{a} {'IS NOT DISTINCT FROM' if safe else '='} r{b}")
        left, right = circuit.by_id[op.inputs[0]].schema[a].type, circuit.by_id[op.inputs[1]].schema[b].type
        assert left == right, (left, right)
    if residual and getattr(op, "residual", None):
        on.append(f"({op.residual})")
    return " AND ".join(on)


def _output(op):
    return ", ".join(f"{o.name} AS c{i}" for i, o in enumerate(op.output))


def _join(op: Join, circuit, kind=None, *, new=False):
    """kind: instead of the operator's own. new: of the left rows that are new."""
    left, right = _sides(op, circuit, new="l" * new)
    kind, condition = kind or op.join_kind, _condition(op, circuit)
    if kind in ("semi", "anti"):
        some = "EXISTS" if kind == "semi" else "NOT EXISTS"
        return f"SELECT {_output(op)}, lb AS _b FROM {left} WHERE {some} (SELECT 1 FROM {right} WHERE {condition})"
    return f"SELECT {_output(op)}, coalesce(lb, rb) AS _b FROM {left} {kind} JOIN {right} ON {condition}"


def _as_at_start(op, *parts):
    """What was there at the start, and `parts`."""
    columns = ", ".join(f"c{i}" for i in range(len(op.schema)))
    return f'SELECT {columns}, _b FROM {START}."{op.id}" UNION ALL {" UNION ALL ".join(parts)}'


def _temporal(op: TemporalJoin, circuit, moment):
    if moment == START:
        return _join(op, circuit)
    parts = [_join(op, circuit, new=True)]
    if op.waits:
        condition = _condition(op, circuit)
        old, then = (_side(p, i, circuit, table(f"{START}.{i}")) for p, i in zip("lr", op.inputs))
        waited = f"(SELECT * FROM {old} WHERE NOT EXISTS (SELECT 1 FROM {then} WHERE {condition}))"
        parts.append(f"SELECT {_output(op)}, lb AS _b FROM {waited} JOIN {_sides(op, circuit)[1]} ON {condition}")
    return _as_at_start(op, *parts)


def _arrival_join(op: ArrivalJoin, circuit, moment):
    """Pairs are those of all rows; rows that are alone are decided when they come."""
    if moment == START:
        return _join(op, circuit)
    if op.join_kind in ("semi", "anti"):
        return _as_at_start(op, _join(op, circuit, new=True))
    condition = _condition(op, circuit)
    pairs = []
    for at in ("main", START):
        left, right = (_side(p, i, circuit, table(f"{at}.{i}")) for p, i in zip("lr", op.inputs))
        pairs.append(f"SELECT {_output(op)}, lb AS _b FROM {left} JOIN {right} ON {condition}")
    parts = [f"(({pairs[0]}) EXCEPT ALL ({pairs[1]}))"]
    for mine, other, kinds in (("l", "r", ("left", "full")), ("r", "l", ("right", "full"))):
        if op.join_kind in kinds:
            sides = dict(zip("lr", _sides(op, circuit, new=mine)))
            columns = ", ".join(f"{o.name if o.name[0] == mine else 'NULL'} AS c{i}" for i, o in enumerate(op.output))
            parts.append(
                f"SELECT {columns}, {mine}b AS _b FROM {sides[mine]} "
                f"WHERE NOT EXISTS (SELECT 1 FROM {sides[other]} WHERE {condition})"
            )
    return _as_at_start(op, *parts)


def _asof(op: AsofJoin, circuit, *, new=False):
    sides = _sides(op, circuit, new="l" * new)
    columns = [[f"{p}{j}" for j in range(len(circuit.by_id[i].schema))] for p, i in zip("lr", op.inputs)]
    values = (f"l{op.left_value}", f"r{op.right_value}")
    met = nearest(
        *sides,
        _condition(op, circuit, residual=False),
        values,
        op.comparison,
        [f"r{t}" for t in op.ties],
        op.residual,
        ([*columns[0], "lb"], columns[1]),
        outer=op.join_kind == "left",
    )
    return f"SELECT {_output(op)}, lb AS _b FROM {met}"


def _arrival_asof(op: ArrivalAsofJoin, circuit, moment):
    return _asof(op, circuit) if moment == START else _as_at_start(op, _asof(op, circuit, new=True))


def aggregate(call, argument: str | None, condition: str | None, order: list[tuple[str, bool, bool]]) -> str:
    """DuckDB's text of an aggregate call, in which ties of its order are broken by the argument."""
    assert not call.extra, call
    where = "" if condition is None else f" FILTER (WHERE {condition})"
    if argument is None:
        return f"{call.function}(*){where}"
    name, distinct = call.function, "DISTINCT " if call.distinct else ""
    if name not in COLLECTED or name.startswith("bit"):
        return f"{name}({distinct}{argument}){where}"
    keys = ", ".join(
        f"{c} {'DESC' if down else 'ASC'} NULLS {'FIRST' if first else 'LAST'}"
        for c, down, first in [*order, (argument, False, False)]
    )
    if name == "jsonb_agg":
        return f"'[' || string_agg({distinct}coalesce({argument}, 'null'), ',' ORDER BY {keys}){where} || ']'"
    if name in ("array_agg", "first_value", "last_value", "mode"):
        real = {"array_agg": "list", "first_value": "first", "last_value": "last", "mode": "mode"}[name]
        return f"{real}({distinct}{argument} ORDER BY {keys}){where}"
    if name == "string_agg":
        text = call.constant.replace("'", "''")
        return f"string_agg({distinct}{argument}, '{text}' ORDER BY {keys}){where}"
    both = f"{argument} IS NOT NULL" + ("" if condition is None else f" AND ({condition})")
    values = f"list({argument} ORDER BY {keys}) FILTER (WHERE {both})"
    if name == "percentile_disc":
        return f"({values})[greatest(1, ceil({call.constant} * (count({argument}){where})))::BIGINT]"
    place = f"({call.constant}::DOUBLE * (count({argument}){where} - 1))"
    low, high = (f"({values})[{f}({place})::BIGINT + 1]" for f in ("floor", "ceil"))
    return f"{low} + ({place} - floor({place})) * ({high} - {low})"


def _multijoin(op: MultiJoin, circuit):
    sides, on = [], []
    for n, i in enumerate(op.inputs):
        columns = ", ".join(f"c{j} AS t{n}_{j}" for j in range(len(circuit.by_id[i].schema)))
        sides.append(f'(SELECT {columns}, _b AS b{n} FROM "{i}")')
        assert circuit.by_id[i].keys == op.keys[n]
        on += [f"t0_{a} = t{n}_{b}" for a, b in zip(op.keys[0], op.keys[n])] + [f"b0 = b{n}"]
    if op.residual:
        on.append(f"({op.residual})")
    columns = ", ".join(f"{o.numbered_name} AS c{i}" for i, o in enumerate(op.output))
    return f"SELECT {columns}, b0 AS _b FROM {', '.join(sides)} WHERE {' AND '.join(on)}"


def _aggregate(op: Aggregate, circuit):
    exprs = [f"c{k} AS k{k}" for k in op.keys]
    for call in op.calls:
        order = [(f"c{k.column}", k.descending, k.nulls_first) for k in call.order]
        exprs.append(
            aggregate(
                call,
                None if call.argument is None else f"c{call.argument}",
                None if call.filter is None else f"c{call.filter}",
                order,
            )
        )
    names = ", ".join(f"c{i}" for i in range(len(exprs)))
    if not op.keys:  # one row, in bucket 0; a row elsewhere is a mistake of the planner
        wrong = f'(SELECT count(*) FROM "{op.inputs[0]}" WHERE _b <> 0)'
        check = f"CASE WHEN {wrong} > 0 THEN error('rows outside bucket 0') ELSE 0 END"
        return f'SELECT *, {check} AS _b FROM (SELECT {", ".join(exprs)} FROM "{op.inputs[0]}") AS t({names})'
    keys = ", ".join(f"c{k}" for k in op.keys)
    return f'SELECT * FROM (SELECT {", ".join(exprs)}, _b FROM "{op.inputs[0]}" GROUP BY {keys}, _b) AS t({names}, _b)'


def _groupjoin(op: GroupJoin, circuit):
    left, right = _sides(op, circuit)
    names = [c.name for c in op.arguments]
    calls = [aggregate(c, None if c.argument is None else names[c.argument], None, []) for c in op.calls]
    keys = ", ".join(f"l{k}" for k in op.keys)
    met = " AND ".join(f"l{k} IS NOT NULL" for k in op.left_keys)
    columns = ", ".join(f"{x} AS c{i}" for i, x in enumerate([*(f"l{k}" for k in op.keys), *calls]))
    return (
        f"SELECT {columns}, lb AS _b FROM {left} {op.join_kind} JOIN {right} ON {_condition(op, circuit)} "
        f"WHERE {met} GROUP BY {keys}, lb"
    )


def _dynamic_filter(op: DynamicFilter, circuit):
    left, right = op.inputs
    columns = ", ".join(f"l.c{k} AS c{i}" for i, k in enumerate(op.keep))
    return (
        f'SELECT {columns}, l._b FROM "{left}" l JOIN "{right}" r ON l._b = r._b AND l.c{op.column} '
        f"{op.comparison} r.c0"
    )


def _time_filter(op: TimeFilter, circuit, moment):
    def passed(then):
        columns = ", ".join(f"c{k} AS c{i}" for i, k in enumerate(op.keep))
        untimed = f" OR c{op.column} IS NULL" if op.untimed else ""
        return (
            f'SELECT {columns}, _b FROM {then}."{op.inputs[0]}" WHERE c{op.column} {op.comparison} '
            f"{bound_sql(op.bound, then)}{untimed}"
        )

    if not op.stays or moment == START:
        return passed(moment)
    return _as_at_start(op, f"({passed('main')} EXCEPT ALL {passed(START)})")


def _late_row_filter(op: LateRowFilter, circuit, moment):
    """Nothing is late in the first epoch."""
    rows = f'SELECT * FROM "{op.inputs[0]}"'
    if moment == START:
        return f"{rows} WHERE FALSE" if op.late else rows
    late = f"SELECT * FROM ({_new(op.inputs[0])}) WHERE c{op.column} < {bound_sql(op.bound, START)}"
    return late if op.late else f"({rows} EXCEPT ALL {late})"


def _changes(op: Changes, circuit, moment):
    """Of rows that say nothing of their time."""
    assert all(c.time is None for c in op.causes)
    width = len(op.schema) - 2
    columns = ", ".join(f"c{i}" for i in range(width))
    now, then = (f'SELECT * FROM {of}"{op.inputs[0]}"' for of in ("", f"{START}."))
    made = "{} AS c{}, NULL AS c{}, _b"
    if moment == START:
        return f"SELECT {columns}, {made.format('FALSE', width, width + 1)} FROM ({now})"
    sides = ((now, then, "FALSE"), (then, now, "TRUE"))
    return _as_at_start(
        op, *(f"SELECT {columns}, {made.format(w, width, width + 1)} FROM ({a} EXCEPT ALL {b})" for a, b, w in sides)
    )


def _records(op: Records, circuit, moment):
    width = len(op.schema) - 2
    columns = ", ".join(f"c{i}" for i in range(width))
    new = f'SELECT * FROM "{op.inputs[0]}"' if moment == START else _new(op.inputs[0])
    came = f"SELECT {columns}, FALSE AS c{width}, {EPOCHS[moment]} AS c{width + 1}, _b FROM ({new})"
    if op.keys is not None:
        came += f" WHERE NOT c{width}"
    if moment == START:
        return came
    parts = [came]
    if op.keys is not None:
        assert set(op.kept) <= set(op.keys), "which of several rows is told"
        kept = ", ".join(f"c{i}" if i in op.kept else f"NULL AS c{i}" for i in range(width))
        same = " AND ".join(["o._b = g._b", *(f"o.c{k} IS NOT DISTINCT FROM g.c{k}" for k in op.keys)])
        parts.append(
            f"SELECT DISTINCT {kept}, TRUE, {EPOCHS[moment]}, _b FROM ({new}) AS g WHERE c{width} "
            f"AND NOT EXISTS (SELECT 1 FROM ({new}) AS o WHERE NOT o.c{width} AND {same})"
        )
    return _as_at_start(op, *parts)


def _change_log(op: ChangeLog, circuit, moment):
    """Without the numbers of the changes."""
    width = len(op.schema) - 2
    columns = ", ".join(f"c{i}" for i in range(width))
    now, then = (f'SELECT * FROM {of}"{op.inputs[0]}"' for of in ("", f"{START}."))
    if moment == START:
        return f"SELECT {columns}, 1 AS c{width}, NULL AS c{width + 1}, _b FROM ({now})"
    came, went = f"({now} EXCEPT ALL {then})", f"({then} EXCEPT ALL {now})"
    parts = []
    for new, old, single, pair in ((came, went, 1, 3), (went, came, 2, 4)):
        same = " AND ".join(["o._b = g._b", *(f"o.c{k} IS NOT DISTINCT FROM g.c{k}" for k in op.keys)])
        other = f"EXISTS (SELECT 1 FROM {old} AS o WHERE {same})" if op.keys else "FALSE"
        parts.append(f"SELECT {columns}, CASE WHEN {other} THEN {pair} ELSE {single} END, NULL, _b FROM {new} AS g")
    return _as_at_start(op, *parts)


def _versions(op: Versions, circuit, moment):
    """The input has each change once, by its place in the order; what kind of change it was the table's history
    tells.
    """
    scan = next(circuit.by_id[i] for i in circuit.upstream({op.id}) if isinstance(circuit.by_id[i], Scan))
    width = len(op.schema) - 2
    columns = [f"c{i}" for i in range(width)]
    done = changes(scan.relation_id, [f'"{scan.names[0]}"'], moment=moment)
    told = f'SELECT i.*, _seq, _transaction, _diff FROM "{op.inputs[0]}" AS i JOIN ({done}) ON _seq = c{width}'
    return versions(
        told, columns, [f"c{k}" for k in op.keys], f"c{op.time}", (f"c{width}", f"c{width + 1}"), more=", _b"
    )


def _repeat(op: Repeat, circuit):
    columns = ", ".join(f"c{i}" for i in range(len(op.schema)))
    return f'SELECT {columns}{", " if columns else ""}_b FROM "{op.inputs[0]}", LATERAL range(c{len(op.schema)})'


def _sort(op: Sort, circuit):
    """A relation has no order."""
    return f'SELECT {", ".join(f"c{i}" for i in range(len(op.schema)))}, _b FROM "{op.inputs[0]}"'


def _unnest(op: Unnest, circuit):
    """By a recursive definition of its own: each element by its number, and a row without any."""
    made = [f"c{a}[n] AS r{j}" for j, a in enumerate(op.arrays)] + (
        [f"n AS r{len(op.arrays)}"] if op.ordinality else []
    )
    width = len(circuit.by_id[op.inputs[0]].schema)
    left = ", ".join(f"c{i} AS l{i}" for i in range(width))
    longest = "greatest(" + ", ".join(f"coalesce(len(c{a}), 0)" for a in op.arrays) + ", 0)"
    rows = f'(SELECT *, row_number() OVER () AS _row FROM "{op.inputs[0]}")'
    every = f"(SELECT {left}, {', '.join(made)}, _b, _row FROM {rows}, range(1, {longest} + 1) AS s(n))"
    kept = f"(SELECT * FROM {every} WHERE {op.condition or 'TRUE'})"
    shown = [f"l{k}" for k in op.keep] + [f"r{j}" for j in range(len(made))]
    names = ", ".join(f"c{i}" for i in range(len(shown)))
    found = f"SELECT {', '.join(shown)}, _b FROM {kept}"
    if op.outer:
        empty = [f"c{k}" for k in op.keep] + ["NULL"] * len(made)
        found += f" UNION ALL SELECT {', '.join(empty)}, _b FROM {rows} WHERE _row NOT IN (SELECT _row FROM {kept})"
    return f"SELECT * FROM ({found}) AS t({names}, _b)"


def _union(op: Union, circuit):
    return " UNION ALL ".join(f'SELECT * FROM "{i}"' for i in op.inputs)


def order_by(order, ties):
    """ORDER BY with the rule of ties: the other columns, ascending, NULLs last."""
    keys = [f"{c} {'DESC' if desc else 'ASC'} NULLS {'FIRST' if first else 'LAST'}" for c, desc, first in order]
    return "ORDER BY " + ", ".join([*keys, *(f"{c} ASC NULLS LAST" for c in ties if c not in {o[0] for o in order})])


def over(function, arguments, condition, partition, order, ties, frame):
    """A window call in DuckDB's SQL. frame: mode, start, end, exclude, whole numbers only.

    Frames of peers see no ties.
    """
    mode, start, end, exclude = frame
    ranks = function in ("rank", "dense_rank", "percent_rank", "cume_dist")
    by_rows = (mode == "rows" and not ranks) or function in (
        "row_number",
        "ntile",
        "lag",
        "lead",
        "first_value",
        "last_value",
        "nth_value",
    )
    keys = order_by(order, ties) if by_rows else order_by(order, ()) if order else ""
    window = f"PARTITION BY {', '.join(partition)} " if partition else ""
    if function in ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"):
        return f"{function}({', '.join(arguments)}) OVER ({window}{keys})"
    bounds = [
        (
            "UNBOUNDED " + side
            if n is None
            else "CURRENT ROW"
            if n == 0
            else f"{abs(n)} {'PRECEDING' if n < 0 else 'FOLLOWING'}"
        )
        for n, side in ((start, "PRECEDING"), (end, "FOLLOWING"))
    ]
    left_out = "" if exclude == "none" else f" EXCLUDE {exclude}"
    filtered = f" FILTER (WHERE {condition})" if condition else ""
    argument = ", ".join(arguments) or "*"
    return (
        f"{function}({argument}){filtered} OVER ({window}{keys} {mode} BETWEEN {bounds[0]} AND {bounds[1]}{left_out})"
    )


def topn_where(limit, offset, with_ties, number, rank):
    """The condition on row_number and rank of the rows that a TopN keeps."""
    last = "" if limit is None else f" AND {rank if with_ties else number} <= {limit + offset}"
    return f"{number} > {offset}{last}"


def _topn(op: TopN, circuit):
    columns = [f"c{i}" for i in range(len(op.schema))]
    order = [(f"c{k.column}", k.descending, k.nulls_first) for k in op.order]
    partition = [f"c{k}" for k in op.keys] + ["_b"]
    whole = ("range", None, None, "none")
    numbered = ", ".join(
        [
            over("row_number", [], None, partition, order, columns, whole) + " AS _n",
            over("rank", [], None, partition, order, columns, whole) + " AS _r",
        ]
    )
    where = topn_where(op.limit, op.offset, op.with_ties, "_n", "_r")
    return f'SELECT * EXCLUDE (_n, _r) FROM (SELECT *, {numbered} FROM "{op.inputs[0]}") WHERE {where}'


def _window(op: Window, circuit):
    width = len(op.schema) - len(op.functions)
    columns = [f"c{i}" for i in range(width)]
    exprs = []
    for i, f in enumerate(op.functions):
        arguments = [f"c{a}" for a in f.arguments]
        if f.function in ("lag", "lead", "nth_value", "ntile"):
            arguments[1:1] = [f"{f.number}"]
        if f.skips_nulls:
            arguments[-1] += " IGNORE NULLS"
        order = [(f"c{k.column}", k.descending, k.nulls_first) for k in f.order]
        frame = (f.frame.mode, f.frame.start, f.frame.end, f.frame.exclude)
        condition = None if f.filter is None else f"c{f.filter}"
        exprs.append(
            over(f.function, arguments, condition, [f"c{k}" for k in op.keys] + ["_b"], order, columns, frame)
            + f" AS c{width + i}"
        )
    return f'SELECT *, {", ".join(exprs)} FROM "{op.inputs[0]}"'


def _sink(op: Sink, circuit):
    return f'SELECT * FROM "{op.inputs[0]}"'


def _arrange(op: Arrange, circuit):
    readers = [circuit.by_id[i] for i in circuit.consumers[op.id]]
    assert {r.kind for r in readers} <= {
        "join",
        "groupjoin",
        "multijoin",
        "window",
        "temporal",
        "arrivaljoin",
        "asof",
        "arrivalasof",
    }
    joins = [r for r in readers if not isinstance(r, Window)]
    assert all(r.keys == op.keys and all(op.null_safe) for r in readers if isinstance(r, Window))
    for j in joins:
        reads = zip(j.inputs, j.keys if j.kind == "multijoin" else (j.left_keys, j.right_keys))
        assert (op.id, op.keys) in reads
        assert op.null_safe == ((False,) * len(op.keys) if j.kind == "multijoin" else j.null_safe)
    assert not op.order or {r.depth for r in readers} == {op.depth}
    if op.order:
        order = [(f"c{k.column}", k.descending, k.nulls_first) for k in op.order]
        columns = [f"c{i}" for i in range(len(op.schema))]
        number = over(
            "row_number", [], None, [f"c{k}" for k in op.keys] + ["_b"], order, columns, ("range", None, None, "none")
        )
        return f'SELECT * FROM "{op.inputs[0]}" QUALIFY {number} <= {op.depth}'
    return f'SELECT * FROM "{op.inputs[0]}"'


#: Of operators that know of moments.
_MOMENTS = {
    Scan: _scan,
    Cut: _cut,
    LateRowFilter: _late_row_filter,
    ChangeLog: _change_log,
    Changes: _changes,
    Records: _records,
    TimeFilter: _time_filter,
    Versions: _versions,
    TemporalJoin: _temporal,
    ArrivalJoin: _arrival_join,
    ArrivalAsofJoin: _arrival_asof,
}
_BODIES = {
    Upsert: _upsert,
    Arrivals: _arrivals,
    AsofJoin: _asof,
    Constant: _constant,
    Map: _map,
    Exchange: _exchange,
    Arrange: _arrange,
    Join: _join,
    MultiJoin: _multijoin,
    GroupJoin: _groupjoin,
    Aggregate: _aggregate,
    Repeat: _repeat,
    Sort: _sort,
    DynamicFilter: _dynamic_filter,
    TopN: _topn,
    Window: _window,
    Union: _union,
    Unnest: _unnest,
    Sink: _sink,
}
