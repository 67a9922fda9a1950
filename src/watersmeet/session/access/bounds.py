"""Which queries end by themselves."""

from __future__ import annotations

from sqlglot import exp

from watersmeet.binder.timewindows import window_call
from watersmeet.catalog import Catalog
from watersmeet.dialects.queries import is_marked, name_of
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.session.access.context import Session


def runs_on(session: Session, query: exp.Expression) -> bool:
    """True if the query runs until it is stopped: a SELECT STREAM or TABLE, or it names a relation that is not bounded
    by `table(…)`.
    """
    if query.args.get("nature") is not None:
        return True
    continuous = language_named(session.dialect).semantics.continuous
    return (
        is_marked(query)
        if continuous == "marked"
        else continuous == "streams" and _names_stream(query, session.catalog)
    )


def _names_stream(query: exp.Expression, catalog: Catalog) -> bool:
    ctes = {name_of(c.args["alias"].this) for c in query.find_all(exp.CTE)}
    tables = [call.named if (call := window_call(t)) is not None else t for t in query.find_all(exp.Table)]
    return any(
        t is not None
        and isinstance(t.this, exp.Identifier)
        and not t.args.get("static")
        and (t.args.get("db") is not None or name_of(t.this) not in ctes)
        and (found := relation_in_from(t, catalog)) is not None
        and found.external is None
        and found.dictionary is None
        for t in tables
    )
