"""Short hands for hand-built trees of the algebra: `col("a.k")`, `scan("a", …)`, `e("a.k + 1")`."""

from __future__ import annotations

from sqlglot import exp, parse_one

from watersmeet.algebra.nodes import (
    Aggregate,
    AggregateCall,
    Arrivals,
    AsofJoin,
    Cause,
    ChangeLog,
    Changes,
    Column,
    Filter,
    Join,
    KeyPair,
    LateRowFilter,
    Project,
    Records,
    Scan,
    SortKey,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Values,
    Versions,
    Window,
    WindowCall,
    WindowFrame,
)
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import exactly, read
from watersmeet.catalog import Catalog, MaterializedView, Relation, Stream, Table
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, SMALLINT, TIMESTAMP, VARCHAR, Field, SqlType
from watersmeet.values.watermarks import NOW, Step, Term, Watermark

TYPES = {
    "timestamp": TIMESTAMP,
    "int": INTEGER,
    "bigint": BIGINT,
    "varchar": VARCHAR,
    "double": DOUBLE,
    "boolean": BOOLEAN,
    "numeric": SqlType("numeric", 10, 2),
}


def e(text: str, kind: SqlType = INTEGER, nullable: bool = True) -> Scalar:
    """An expression; `a.k` is the column with the id `a.k`."""

    def rename(node):
        return (
            column_ref(f"{node.table}.{node.name}" if node.table else node.name)
            if isinstance(node, exp.Column)
            else node
        )

    return Scalar(parse_one(text, dialect="duckdb").transform(rename), kind, nullable)


def p(text: str) -> Scalar:
    return e(text, BOOLEAN)


def scan(
    name: str,
    columns: str = "k int, x int, y int",
    alias: str | None = None,
    append_only: bool = False,
    relation_id: str | None = None,
) -> Scan:
    """The scan of a relation `name`; its column ids are `alias.column`."""
    alias = alias or name
    parts = [c.split() for c in columns.split(", ")]
    outputs = tuple(Column(f"{alias}.{c}", c, TYPES[t]) for c, t in parts)
    return Scan(relation_id or name, name, outputs, tuple(c for c, _ in parts), append_only)


def pairs_of(left, right, keys) -> tuple[KeyPair, ...]:
    """keys: `a.k = b.k, a.x + 1 = b.x`; `==` for IS NOT DISTINCT FROM."""
    types = {c.id: c.type for side in (left, right) for c in side.columns}
    pairs = []
    for text in filter(None, keys.split(", ")):
        one, other = text.split(" == " if " == " in text else " = ")
        sides = []
        for t in (one, other):
            s = e(t)
            sides.append(Scalar(s.expression, types.get(s.column, INTEGER)))
        pairs.append(KeyPair(*sides, null_safe=" == " in text))
    return tuple(pairs)


def join(left, right, kind, keys="", residual=None, broadcast=False, arrival=False, partners=None) -> Join:
    """keys: as in `pairs_of`. partners: two conditions."""
    return Join(
        left,
        right,
        kind,
        pairs_of(left, right, keys),
        None if residual is None else p(residual),
        broadcast,
        arrival=arrival,
        partners=None if partners is None else (p(partners[0]), p(partners[1])),
    )


def temporal(left, right, kind, keys, residual=None, waits=False) -> TemporalJoin:
    return TemporalJoin(
        left, right, kind, pairs_of(left, right, keys), None if residual is None else p(residual), None, waits=waits
    )


def asof(left, right, kind, keys, comparison, values, ties, residual=None, arrival=False) -> AsofJoin:
    """values: ids of one type; ties: ids."""
    types = {c.id: c.type for c in (*left.columns, *right.columns)}
    one, other = (e(f'"{v}"', types[v]) for v in values)
    return AsofJoin(
        left,
        right,
        kind,
        pairs_of(left, right, keys),
        comparison,
        one,
        other,
        tuple(ties),
        residual=None if residual is None else p(residual),
        arrival=arrival,
    )


def arrivals(node, prefix="age") -> Arrivals:
    """The rows that were written to a scan's relation, with two columns of their age."""
    return Arrivals(
        node,
        (Column(f"{prefix}0", "_epoch", BIGINT, nullable=False), Column(f"{prefix}1", "_seq", BIGINT, nullable=False)),
    )


def where(node, text) -> Filter:
    return Filter(node, p(text))


def project(node, **exprs) -> Project:
    """Names are ids; values are texts or (text, type)."""
    types = {c.id: c.type for c in node.columns}
    scalars = []
    for given in exprs.values():
        text, kind = given if isinstance(given, tuple) else (given, None)
        s = e(text)
        scalars.append(Scalar(s.expression, kind or types.get(s.column, INTEGER)))
    return Project(node, tuple(Column(n, n, s.type) for n, s in zip(exprs, scalars)), tuple(scalars))


def timed(node, column, name) -> Project:
    """The rows of `node` with the time that its integer `column` is."""
    time = Column(name, name, TIMESTAMP)
    return Project(
        node,
        (*node.columns, time),
        (*map(read, node.columns), e(f"make_timestamp(CAST({column} AS BIGINT))", TIMESTAMP)),
    )


def moved(source, shift_us) -> Watermark:
    """The number of a source, and so much more."""
    return (Term(source).after(Step("add", shift_us)),)


def recent(node, column, comparison, shift_us, name, **more):
    """The rows of `node` whose integer `column`, as a time, compares with the clock plus `shift_us`."""
    return exactly(TimeFilter(timed(node, column, name), name, comparison, moved(NOW, shift_us), **more), node.columns)


def late_row_filter(node, column, bound, *, late=False) -> LateRowFilter:
    """The rows of `node` of which the time in `column` was not below `bound` when they came; late: the others."""
    return LateRowFilter(node, column, bound, late=late)


def change_log(node, key, prefix="log") -> ChangeLog:
    """The changes of `node` by `key` (ids; None: no row is updated), with two columns more."""
    made = (
        Column(f"{prefix}0", "op", SMALLINT, nullable=False),
        Column(f"{prefix}1", "row", BIGINT, nullable=False),
    )
    return ChangeLog(node, key, (), made)


def records(node, key, prefix="log") -> Records:
    """The changes of `node` by `key` (ids; None: rows that only come), with two columns more. Nothing says when."""
    made = (
        Column(f"{prefix}0", "deleted", BOOLEAN, nullable=False),
        Column(f"{prefix}1", "offset", BIGINT, nullable=False),
    )
    if key is None:
        return Records(node, None, (), made)
    change = (
        Column(f"{prefix}2", "went", BOOLEAN, nullable=False),
        Column(f"{prefix}3", "at", TIMESTAMP),
    )
    return Records(Changes(node, (Cause(None, key, None),), change), key, key, made)


def as_of(left, node, kind, key, time, residual=None, prefix="version") -> AsofJoin:
    """Each left row with the version of the table of the scan `node`, by its key and time, that holds at the left row's
    `time`.
    """
    made = (
        Column(f"{prefix}0", "_since", TIMESTAMP, nullable=False),
        Column(f"{prefix}1", "_live", BOOLEAN, nullable=False),
    )
    right = Versions(node, node.outputs[-1].id, made)
    live = f'"{made[1].id}"' + (f" AND ({residual})" if residual else "")
    return AsofJoin(
        left, right, kind, pairs_of(left, right, key), ">=", e(f'"{time}"', TIMESTAMP), read(made[0]), residual=p(live)
    )


def group(node, keys: str, calls: str = "count(*)", prefix: str = "g") -> Aggregate:
    """keys: `a.k, a.x`; calls: `sum(a.x), count(*)`, `count(distinct a.x)`; ids are g0, g1, …"""
    types = {c.id: c.type for c in node.columns}
    scalars = [e(k, types.get(k, INTEGER)) for k in filter(None, keys.split(", "))]
    made = []
    for text in filter(None, calls.split("; ")):
        name, rest = text.rstrip(")").split("(", 1)
        distinct = rest.startswith("distinct ")
        argument = rest.removeprefix("distinct ")
        kind = BIGINT if name in ("count", "sum") else INTEGER
        made.append(AggregateCall(name, None if argument == "*" else e(argument), None, distinct, kind))
    kinds = [s.type for s in scalars] + [c.type for c in made]
    return Aggregate(
        node, tuple(scalars), tuple(made), tuple(Column(f"{prefix}{i}", f"{prefix}{i}", t) for i, t in enumerate(kinds))
    )


def order_of(node, text) -> tuple[SortKey, ...]:
    """`a.k, a.x desc`, NULLs where PostgreSQL puts them."""
    types = {c.id: c.type for c in node.columns}
    parts = [p.split() for p in filter(None, text.split(", "))]
    return tuple(SortKey(e(p[0], types.get(p[0].strip('"'), INTEGER)), "desc" in p, "desc" in p) for p in parts)


def keys_of(node, text) -> tuple[Scalar, ...]:
    return tuple(k.value for k in order_of(node, text))


def topn(node, keys, order, limit, offset=0, with_ties=False) -> TopN:
    return TopN(node, keys_of(node, keys), order_of(node, order), limit, offset, with_ties)


def window(node, keys, order, calls="row_number()", prefix="w", frame=("range", None, 0)) -> Window:
    """calls: `row_number(); sum(a.x)`; ids are w0, w1, …"""
    made = []
    for text in calls.split("; "):
        name, rest = text.rstrip(")").split("(", 1)
        arguments = () if rest in ("", "*") else (e(rest),)
        made.append(WindowCall(name, arguments, 1, None, order_of(node, order), WindowFrame(*frame), BIGINT))
    return Window(
        node,
        keys_of(node, keys),
        tuple(made),
        tuple(Column(f"{prefix}{i}", c.function, c.type) for i, c in enumerate(made)),
    )


def union(*parts, prefix="u") -> Union:
    return Union(
        tuple(parts), tuple(Column(f"{prefix}{i}", f"{prefix}{i}", c.type) for i, c in enumerate(parts[0].columns))
    )


def unnest(node, arrays, prefix="n", ordinality=False, outer=False, condition=None) -> Unnest:
    """arrays: texts of arrays of ints; ids of the elements are n0, n1 …, of the number no."""
    kind = SqlType("array", element=INTEGER)
    scalars = tuple(e(f"CAST({a} AS INT[])", kind) for a in arrays)
    elements = tuple(Column(f"{prefix}{i}", f"{prefix}{i}", INTEGER) for i in range(len(arrays)))
    number = Column(f"{prefix}o", "ordinality", BIGINT) if ordinality else None
    return Unnest(node, scalars, elements, number, outer, None if condition is None else p(condition))


def values(rows, prefix="v") -> Values:
    return Values(
        tuple(tuple(e(str(v)) for v in row) for row in rows),
        tuple(Column(f"{prefix}{i}", f"{prefix}{i}", INTEGER) for i in range(len(rows[0]))),
    )


def relation(name, columns="k int, x int, y int", kind=Table, key=(), **more) -> Relation:
    fields = tuple(Field(c.split()[0], TYPES[c.split()[1]]) for c in columns.split(", "))
    made = Stream if "mode" in more else kind
    return made(more.pop("id", name), name, fields, primary_key=key, **more)


def catalog_of(*relations) -> Catalog:
    return Catalog(relations={r.id: r for r in relations})


def sink_of(tree, name="v") -> Relation:
    """A materialised view with the columns of `tree`."""
    return MaterializedView(name, name, tuple(Field(f"o{i}", c.type, c.nullable) for i, c in enumerate(tree.columns)))
