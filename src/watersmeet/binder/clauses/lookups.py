"""Binds `FOR SYSTEM_TIME AS OF`: temporal joins by PROCTIME() or by a time of the left side, and reads of the past;
logs of changes.

RisingWave, "Joins", "Process-time temporal joins"; RW-49 to RW-58. Joins by a time of the left side follow Flink
(documentation of its SQL joins, "Event Time Temporal Join"), as RisingWave lacks them.

Batch queries can read relations as of a past moment: `COMMIT 17`, `TIMESTAMP '2026-01-01 12:00:00'`, or as in
RisingWave ("Time travel queries") a text, seconds since 1970, or `NOW() - INTERVAL '10 minutes'`.
"""

from __future__ import annotations

from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.bounded import Past, PastScan
from watersmeet.algebra.nodes import AsofJoin, ChangeLog, Column, Join, KeyPair, Node, Scan, TemporalJoin, Versions
from watersmeet.algebra.properties import identity
from watersmeet.algebra.rewrites.conditions import as_predicate
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timewindows import TIME_TYPES
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.joins import join
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding, JoinClause, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.catalog import ARRIVAL, ExternalTable, Index, MaterializedView, Relation, Source, Table, View, one
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.dialects.tree.nodes import PastCommit
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.errors import Error
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.context import columns_of, common_type
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.spans import set_span
from watersmeet.values.types import BIGINT, BOOLEAN, DATE, SMALLINT, TIMESTAMP, TIMESTAMPTZ

_KEY_HINT: Final = "Compare each column of its primary key with a column of the left side: ON left.k = right.k."

_VERSIONED_HINT: Final = (
    "Write CREATE TABLE t (…, PRIMARY KEY (k), WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE). "
    "Rows that only come are joined with a past moment by ASOF JOIN."
)

_NOW_HINT: Final = (
    "The time is PROCTIME(), when rows arrive: write FOR SYSTEM_TIME AS OF PROCTIME() to look up the rows of that time."
)

_RIGHT_HINT: Final = "It should be a table, index, or materialized view."


#: The columns that AS CHANGELOG adds.
CHANGE_OP, CHANGE_ROW = "changelog_op", "_changelog_row_id"


def log_of(tree: Node, binding: Binding) -> ChangeLog:
    """The changes of a relation as rows. RisingWave, "AS CHANGELOG"."""
    key = identity(tree)
    if key is None and isinstance(tree, Scan):
        view = binding.catalog.relations[tree.relation_id]
        names = view.row_key if isinstance(view, MaterializedView) else ()
        key = frozenset(tree.outputs[i].id for i, c in enumerate(view.columns) if c.name in names) or None
    made = (
        binding.new_column(CHANGE_OP, SMALLINT, nullable=False),
        binding.new_column(CHANGE_ROW, BIGINT, nullable=False),
    )
    ordered = None if key is None else tuple(c.id for c in tree.columns if c.id in key)
    return ChangeLog(tree, ordered, (), made)


def is_looked_up(node: exp.Expression) -> bool:
    """True if the item of FROM has the clause."""
    return isinstance(node, exp.Table) and node.args.get("version") is not None


def moment_of(node: exp.Expression) -> exp.Expression | None:
    """The moment in the clause as written; None for PROCTIME()."""
    found: exp.Expression = node.args["version"].args["expression"]
    is_now = isinstance(found, exp.Anonymous) and str(found.this).upper() == "PROCTIME" and not found.expressions
    return None if is_now else found


def wants_versions(node: exp.Expression) -> bool:
    """True if the item of FROM has the clause with a time of the left side."""
    return is_looked_up(node) and moment_of(node) is not None


def check_clause(node: exp.Table, env: Environment) -> None:
    """Raises TEMPORAL_RIGHT_SIDE for a CTE."""
    if node.args.get("db") is None and name_of(node.this) in env.ctes:
        raise env.error(
            "TEMPORAL_RIGHT_SIDE", "Right table of a temporal join should not be a CTE", node, hint=_RIGHT_HINT
        )


def check_relation(relation: Relation, node: exp.Table, env: Environment) -> None:
    """Raises TEMPORAL_RIGHT_SIDE for relations that can't be looked up: sources and plain views."""
    if isinstance(relation, (Source, View)):
        raise env.error(
            "TEMPORAL_RIGHT_SIDE",
            f"Right table of a temporal join should not be a {relation.family}",
            node,
            detail=f'"{relation.name}" is a {relation.family}.',
            hint=_RIGHT_HINT,
        )


def versions(scan: Scan, node: exp.Table, env: Environment, binding: Binding) -> Versions:
    """The rows of a table in all their versions.

    Raises TEMPORAL_RIGHT_SIDE unless the table has a primary key and an event time.
    """
    relation = binding.catalog.relations[scan.relation_id]
    named = relation_in_from(node, binding.catalog) or relation
    lacking = [
        what
        for what, has in (("no primary key", relation.primary_key), ("no WATERMARK", relation.event_time))
        if not has
    ]
    if not isinstance(named, Table) or lacking:
        arrives = _is_arrival(node, binding)
        detail = f"It is {one(named.family)}." if not isinstance(named, Table) else f"It has {' and '.join(lacking)}."
        raise env.error(
            "TEMPORAL_RIGHT_SIDE",
            f'"{named.name}" has no versions to join as of a time of the left side',
            node,
            detail=detail,
            hint=_NOW_HINT if arrives else _VERSIONED_HINT,
        )
    if relation.connector and relation.has_partial_changes:
        raise env.error(
            "FEATURE_NOT_SUPPORTED",
            f'"{named.name}" has no versions to join as of a time of the left side yet',
            node,
            detail="The messages of its connector may keep values of the rows before, or empty the table.",
            hint=_NOW_HINT if _is_arrival(node, binding) else None,
        )
    assert relation.event_time is not None
    time = scan.outputs[scan.source_names.index(relation.event_time.column)]
    since = TIMESTAMPTZ if time.type == TIMESTAMPTZ else TIMESTAMP
    made = binding.new_column("_since", since, nullable=False), binding.new_column("_live", BOOLEAN, nullable=False)
    return Versions(scan, time.id, made)


def _is_arrival(node: exp.Table, binding: Binding) -> bool:
    """Whether the clause names a column in FROM that is PROCTIME()."""
    moment, select = moment_of(node), node.find_ancestor(exp.Select)
    if not isinstance(moment, exp.Column) or select is None:
        return False
    others = [t for t in select.find_all(exp.Table) if t is not node and moment.table in ("", t.alias_or_name)]
    relations = [relation_in_from(t, binding.catalog) for t in others]
    return any(r is not None and r.defaults.get(moment.name) == ARRIVAL for r in relations)


def dangling(node: exp.Expression, env: Environment) -> Exception:
    """The error for the clause outside the right side of an inner or left join."""
    return env.error(
        "TEMPORAL_KIND",
        "exist dangling temporal scan",
        node,
        hint="Please check your temporal join syntax e.g. consider removing the right outer join if it is being used.",
    )


def looking_up(
    joined: Node, node: exp.Join, left: Scope, env: Environment, binding: Binding
) -> TemporalJoin | AsofJoin:
    """Turns the regular join `joined`, whose right side has the clause, into a temporal join.

    left: the scope of the left side.
    """
    if not isinstance(joined, Join) or not isinstance(joined.right, (Scan, Versions)):
        raise env.not_supported(
            "a subquery in ON of a temporal join", node.this, hint="Write it in WHERE, or join a view with its result."
        )
    if joined.kind not in ("inner", "left"):
        raise dangling(node.this, env)
    kind: Literal["inner", "left"] = "left" if joined.kind == "left" else "inner"
    if isinstance(joined.right, Versions):
        return _as_of(joined, joined.right, kind, node.this, ScopeContext(env.text, left, "FOR SYSTEM_TIME AS OF"))
    return TemporalJoin(
        joined.left,
        joined.right,
        kind,
        joined.keys,
        joined.residual,
        _keys(joined.right, binding),
        span=node_span(node.this),
    )


def plain_join(clause: JoinClause) -> Sourced:
    """A regular join, or a temporal join if the right side has the clause."""
    relation, scope = join(clause)
    if is_looked_up(clause.node.this):
        relation = looking_up(relation, clause.node, clause.left[1], clause.env, clause.binding)
    return relation, scope


def _as_of(
    joined: Join, right: Versions, kind: Literal["inner", "left"], node: exp.Expression, ctx: ScopeContext
) -> AsofJoin:
    """Joins each row with the version of its key that is valid at the row's time.

    Raises DATATYPE_MISMATCH, TEMPORAL_KEY, FEATURE_NOT_SUPPORTED.
    """
    since, live = right.made
    moment = moment_of(node)
    assert moment is not None
    value = bind_value(moment, ctx)
    if not columns_of(value) or not columns_of(value) <= joined.left.ids:
        raise ctx.error("FEATURE_NOT_SUPPORTED", "FOR SYSTEM_TIME AS OF needs a time of the left side", moment)
    if common_type([value.type, since.type]) != since.type:
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f"a value of type {value.type.sql} can't be compared with version times of type {since.type.sql}",
            moment,
            hint=f"Cast it to {since.type.sql}." if value.type.name in TIME_TYPES else None,
        )
    by_column: dict[str, KeyPair] = {}
    rest: list[Scalar] = []
    for pair in joined.keys:
        column = pair.right.cast_column
        if column in right.scan.key and column not in by_column:
            by_column[column] = pair
        else:
            rest.append(as_predicate(pair))
    for column in right.scan.key:
        _check_key(by_column.get(column), next(c for c in right.scan.outputs if c.id == column), right, node, ctx)
    keys = tuple(KeyPair(by_column[c].left, by_column[c].right) for c in right.scan.key)
    residual = conjunction([read(live), *rest, *conjuncts(joined.residual)])
    return AsofJoin(
        joined.left,
        right,
        kind,
        keys,
        ">=",
        coerce(value, since.type, ctx, moment).finish(),
        read(since),
        span=node_span(node),
        residual=residual,
    )


def _check_key(pair: KeyPair | None, column: Column, right: Versions, node: exp.Expression, ctx: ScopeContext) -> None:
    name = right.scan.relation_name
    if pair is None:
        raise ctx.error(
            "TEMPORAL_KEY",
            f'a join with the versions of "{name}" needs equalities with its whole primary key',
            node,
            detail=f'It lacks one with "{column.name}".',
            hint=_KEY_HINT,
        )
    if pair.right.type != column.type:
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f'key column "{column.name}" of type {column.type.sql} is compared with a {pair.left.type.sql}',
            node,
            hint="Cast the left side to the type of the key.",
        )


def _keys(right: Scan, binding: Binding) -> tuple[tuple[str, ...], ...] | None:
    """The columns of the primary key and of each index; None if no known columns identify a row."""
    relation = binding.catalog.relations[right.relation_id]
    ids = dict(zip(right.source_names, (c.id for c in right.outputs), strict=True))
    indexes = [
        r.index_columns
        for r in binding.catalog.relations.values()
        if isinstance(r, Index) and r.depends_on == (relation.id,)
    ]
    keys = [k for k in (relation.primary_key, *indexes) if k]
    if isinstance(relation, (ExternalTable, MaterializedView)) and not relation.primary_key:
        return None
    return tuple(tuple(ids[name] for name in key) for key in keys)


_HINT: Final = "Write COMMIT and its number, or TIMESTAMP '2026-01-01 12:00:00'."


def names_past(node: exp.Expression) -> bool:
    """True if an item of FROM has the clause with a past moment, not with PROCTIME() or a column."""
    moment = moment_of(node) if is_looked_up(node) else None
    return moment is not None and moment.find(exp.Column) is None


def refuse_past(node: exp.Table, env: Environment) -> Error:
    """The error for the clause in a query that runs until it is stopped."""
    return env.not_supported(
        "FOR SYSTEM_TIME AS OF anything but PROCTIME() or a time of the left side",
        node,
        hint="A SELECT that ends reads moments of the past.",
    )


def of_now(node: exp.Table) -> exp.Table:
    """The item without the clause."""
    found: exp.Table = node.copy()
    found.set("version", None)
    set_span(found, node_span(node))
    return found


def past_of(node: exp.Table, env: Environment) -> Past:
    """The evaluated moment in the clause. Raises FEATURE_NOT_SUPPORTED for CTEs, which have no past, and
    DATATYPE_MISMATCH.
    """
    ctx = ScopeContext(env.text, Scope(batch=True), "FOR SYSTEM_TIME AS OF")
    if node.args.get("db") is None and isinstance(node.this, exp.Identifier) and name_of(node.this) in env.ctes:
        raise ctx.not_supported("FOR SYSTEM_TIME AS OF after the name of a query", node)
    moment = moment_of(node)
    if node.args["version"].name != "TIMESTAMP":
        raise ctx.not_supported("FOR VERSION AS OF", node, hint=_HINT)
    if isinstance(moment, PastCommit):
        number = coerce(bind_value(moment.this, ctx), BIGINT, ctx, moment.this)
        return Past("commit", number.expression.sql(dialect="duckdb"))
    assert moment is not None, "names_past was asked"
    value = bind_value(moment, ctx)
    if value.unknown or value.type in (DATE, TIMESTAMP, TIMESTAMPTZ):
        time = coerce(value, TIMESTAMPTZ, ctx, moment).expression.sql(dialect="duckdb")
    elif value.type.is_integer:
        time = f"to_timestamp(CAST({value.expression.sql(dialect='duckdb')} AS BIGINT))"
    else:
        raise ctx.error(
            "DATATYPE_MISMATCH", f"a moment of the past can't be of type {value.type.sql}", moment, hint=_HINT
        )
    return Past("time", time)


def past_scan(relation: Relation, past: Past, node: exp.Table, env: Environment, binding: Binding) -> PastScan:
    """The rows of a relation as of a moment. Raises FEATURE_NOT_SUPPORTED for a relation whose rows are not stored."""
    if isinstance(relation, Index):
        relation = binding.catalog.relations[relation.depends_on[0]]
        binding.depend(relation.id)
    if not relation.is_stored:
        raise env.error(
            "FEATURE_NOT_SUPPORTED", f"{relation.title} has no history", node, detail="Its rows are not stored."
        )
    binding.read(relation.id)
    outputs = tuple(binding.new_column(f.name, f.type, f.nullable) for f in relation.columns)
    known = (s.name for s in binding.collected.past if (s.relation_id, s.past) == (relation.id, past))
    name = next(known, None) or binding.new_name()
    found = PastScan(relation.id, name, past, outputs, node_span(node))
    binding.collected.past.append(found)
    return found
