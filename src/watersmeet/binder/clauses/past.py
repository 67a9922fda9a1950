"""`FOR SYSTEM_TIME AS OF` a moment of the past, in queries that end.

The moment is a commit or a time: `COMMIT 17`, `TIMESTAMP '2026-01-01 12:00:00'`, and as RisingWave has it, a text, a
number of seconds since 1970 or `NOW() - INTERVAL '10 minutes'` (RisingWave, "Time travel queries").
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.algebra.bounded import Past, PastScan
from watersmeet.binder.clauses.lookups import is_looked_up, moment_of
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.catalog import Index, Relation
from watersmeet.dialects.tree.nodes import PastCommit
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import Error, error
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.scalars import bind_value
from watersmeet.places import set_place
from watersmeet.types import BIGINT, DATE, TIMESTAMP, TIMESTAMPTZ

_HINT: Final = "Write COMMIT and its number, or TIMESTAMP '2026-01-01 12:00:00'."


def names_past(node: exp.Expression) -> bool:
    """True if an item of FROM has the clause with a moment of its own: not PROCTIME() and no column."""
    moment = moment_of(node) if is_looked_up(node) else None
    return moment is not None and moment.find(exp.Column) is None


def refuse_past(node: exp.Table, env: Environment) -> Error:
    """The error for the clause in a query that runs until it is stopped."""
    return error(
        "FEATURE_NOT_SUPPORTED",
        "FOR SYSTEM_TIME AS OF anything but PROCTIME() or a time of the left side is not supported",
        sql=env.text,
        span=place_of(node),
        hint="A SELECT that ends reads moments of the past.",
    )


def of_now(node: exp.Table) -> exp.Table:
    """The item without the clause."""
    found: exp.Table = node.copy()
    found.set("version", None)
    set_place(found, place_of(node))
    return found


def past_of(node: exp.Table, env: Environment) -> Past:
    """The moment in the clause. FEATURE_NOT_SUPPORTED for CTEs, which have no past; DATATYPE_MISMATCH."""
    ctx = ScopeContext(env.text, Scope(bounded=True), "FOR SYSTEM_TIME AS OF")
    if node.args.get("db") is None and isinstance(node.this, exp.Identifier) and name_of(node.this) in env.ctes:
        raise ctx.not_supported("FOR SYSTEM_TIME AS OF behind the name of a query", node)
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
    """The rows of a relation as of a moment. FEATURE_NOT_SUPPORTED for one whose rows are not stored."""
    if isinstance(relation, Index):
        relation = binding.catalog.relations[relation.depends_on[0]]
        binding.depend(relation.id)
    if not relation.is_stored:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"{relation.title} has no history",
            sql=env.text,
            span=place_of(node),
            detail="Its rows are not stored.",
        )
    binding.read(relation.id)
    outputs = tuple(binding.new_column(f.name, f.type, f.nullable) for f in relation.columns)
    known = (s.name for s in binding.collected.past if (s.relation_id, s.past) == (relation.id, past))
    name = next(known, None) or binding.new_name()
    found = PastScan(relation.id, name, past, outputs, place_of(node))
    binding.collected.past.append(found)
    return found
