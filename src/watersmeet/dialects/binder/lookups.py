"""`FOR SYSTEM_TIME AS OF PROCTIME()`: process-time temporal joins.

Document 000, "Process-time temporal joins"; FEATURES RW-49 to RW-58, D-000-10.
"""

from __future__ import annotations

from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.relations import Join, Relation, Scan, TemporalJoin
from watersmeet.catalog import Relation as CatalogRelation
from watersmeet.dialects.binder.shared import Binding, Environment
from watersmeet.dialects.queries import name_of, place_of
from watersmeet.errors import error

_RIGHT_HINT: Final = "It should be a table, index, or materialized view."


def is_looked_up(node: exp.Expression) -> bool:
    """True if the item of FROM has the clause."""
    return isinstance(node, exp.Table) and node.args.get("version") is not None


def check_clause(node: exp.Table, env: Environment) -> None:
    """FEATURE_NOT_SUPPORTED for any other moment than PROCTIME(); TEMPORAL_RIGHT_SIDE for a CTE."""
    version = node.args["version"]
    moment = version.args.get("expression")
    if not (isinstance(moment, exp.Anonymous) and str(moment.this).upper() == "PROCTIME" and not moment.expressions):
        raise error("FEATURE_NOT_SUPPORTED", "FOR SYSTEM_TIME AS OF any moment but PROCTIME() is not supported", sql=env.text,
                    span=place_of(node))
    if node.args.get("db") is None and name_of(node.this) in env.ctes:
        raise error("TEMPORAL_RIGHT_SIDE", "Right table of a temporal join should not be a CTE", sql=env.text,
                    span=place_of(node), hint=_RIGHT_HINT)


def check_relation(relation: CatalogRelation, node: exp.Table, env: Environment) -> None:
    """TEMPORAL_RIGHT_SIDE for what can't be looked up: sources and plain views."""
    if relation.kind in ("source", "view"):
        raise error("TEMPORAL_RIGHT_SIDE", f"Right table of a temporal join should not be a {relation.kind}", sql=env.text,
                    span=place_of(node), detail=f'"{relation.name}" is a {relation.kind}.', hint=_RIGHT_HINT)


def dangling(node: exp.Expression, env: Environment) -> Exception:
    """The error for the clause anywhere but at the right side of an inner or left join."""
    return error("TEMPORAL_KIND", "exist dangling temporal scan", sql=env.text, span=place_of(node),
                 hint="Please check your temporal join syntax e.g. consider removing the right outer join if it is being used.")


def looking_up(joined: Relation, node: exp.Join, env: Environment, binding: Binding) -> TemporalJoin:
    """The regular join `joined` of which the right side has the clause, as a temporal join."""
    if not isinstance(joined, Join) or not isinstance(joined.right, Scan):
        raise error("FEATURE_NOT_SUPPORTED", "a subquery in ON of a temporal join is not supported", sql=env.text,
                    span=place_of(node.this), hint="Write it in WHERE, or join a view with its result.")
    if joined.kind not in ("inner", "left"):
        raise dangling(node.this, env)
    kind: Literal["inner", "left"] = "left" if joined.kind == "left" else "inner"
    return TemporalJoin(joined.left, joined.right, kind, joined.keys, joined.residual, _keys(joined.right, binding),
                        span=place_of(node.this))


def _keys(right: Scan, binding: Binding) -> tuple[tuple[str, ...], ...] | None:
    """The columns of the primary key and of each index; None if nothing says what identifies a row."""
    relation = binding.catalog.relations[right.relation_id]
    ids = dict(zip(right.source_names, (c.id for c in right.outputs), strict=True))
    indexes = [r.index_columns for r in binding.catalog.relations.values()
               if r.kind == "index" and r.depends_on == (relation.id,)]
    keys = [k for k in (relation.primary_key, *indexes) if k]
    if relation.kind == "materialized view" and not relation.primary_key:
        return None
    return tuple(tuple(ids[name] for name in key) for key in keys)
